"""Prices of nodes in US dollars: dated rows of ``profiles/prices``, the user's own, and the power of hardware that one owns.

No price is guessed: what no row prices has none. Every price keeps the row that it is from, with its date and its source.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from math import floor, log10
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.profiles import profile_errors
from hwcalc.text import printable, shown
from hwcalc.units import AMOUNT, HOURS_PER_MONTH, parse_dollars, parse_money

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu, Instance

OWN: Final = "own"
"""The provider of what the user has, or gave a price for by itself."""
STALE_DAYS: Final = 180
"""A price that is older says so."""
COLUMNS: Final = ("provider", "instance", "accelerator_id", "count", "usd_per_hour", "kind", "region", "date", "source")
"""The columns of a user's table. ``usd_per_hour`` and one of ``instance`` and ``accelerator_id`` must be there."""
KINDS: Final = {"on_demand": "on demand", "spot": "spot", "market": "market", "owned": "power only"}
"""Kinds of prices in words."""


class Kind(StrEnum):
    """How a price is offered. ``market`` is a figure of a market, such as a median, at which nobody sells; ``owned`` is the power of one's own."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    MARKET = "market"
    OWNED = "owned"


class Price(Record):
    """What a node costs an hour, before tax, traffic and disks. ``date`` is ``None`` only if the user gave the price.

    ``row`` is the row of a table of which the price is a multiple: the price of one accelerator, or of one of several machines.
    """

    usd_per_hour: Decimal
    provider: str
    instance: str
    """What is rented, as the provider spells it."""
    accelerator: str
    count: int
    region: str = "any"
    kind: Kind = Kind.ON_DEMAND
    date: dt.date | None = None
    source: str
    user: bool = False
    """Whether the price is the user's own."""
    most: int = 0
    """How many accelerators can be had at ``usd_per_hour`` each; 0 for a machine, whose price is that of all it has."""
    row: Price | None = None

    @property
    def usd_per_month(self) -> Decimal:
        """Dollars for 730 hours, a twelfth of a year."""
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def name(self) -> str:
        """Provider and machine, as instances are named: ``aws/p5.48xlarge``; of what has no provider, what it is."""
        return self.instance if self.provider == OWN else f"{self.provider}/{self.instance}"

    def times(self, number: int) -> Price:
        """The price of so many."""
        return (
            self
            if number == 1
            else replace(self, usd_per_hour=self.usd_per_hour * number, count=self.count * number, most=0, row=self.row or self)
        )

    def is_old(self, day: dt.date | None = None) -> bool:
        """True if the price is more than 180 days old on this day, by default today."""
        return self.date is not None and ((day or today()) - self.date).days > STALE_DAYS

    def origin(self, day: dt.date | None = None) -> str:
        """The machine, kind, region, day and source of the price, in words."""
        row = self.row or self
        times = self.count // row.count
        each = "" if row is self else f"{times} x {_factor(row.usd_per_hour, times)}, "
        how = "" if self.user and self.kind is Kind.ON_DEMAND else f", {KINDS[self.kind]}"
        where = "" if self.region == "any" else f" in {self.region}"
        when = "" if self.date is None else f" on {self.date}"
        old = f", more than {STALE_DAYS} days ago" if self.is_old(day) else ""
        return f"{each}{self.name}{how}{where}{when}{old}: {_brief(self.source)}"


def _brief(source: str) -> str:
    """The owner and the name of a source on the web, which its address has first; any other source as it is."""
    path = source.removeprefix("https://").split("/")
    at = 2 if path[1:2] == ["datasets"] else 1
    return "/".join(path[at : at + 2]) if source.startswith("https://") else source


def today() -> dt.date:
    """The day by which prices are old: today's, or that of ``SOURCE_DATE_EPOCH`` so that what is printed can be printed again."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return (
        dt.datetime.fromtimestamp(int(epoch), dt.UTC).date()
        if re.fullmatch("[0-9]{1,10}", epoch)
        else dt.datetime.now(dt.UTC).date()
    )


def money(usd: Decimal | float) -> str:
    """Dollars as text: whole ones from 1,000 on, else cents, and three digits of less than a dollar.

    >>> money(Decimal("40178.5")), money(Decimal("55.04")), money(Decimal("0.105")), money(0.5), money(Decimal("0.01234"))
    ('$40,178', '$55.04', '$0.105', '$0.50', '$0.0123')
    """
    if not 0 < usd < 1:
        return f"${usd:,.0f}" if usd >= 1000 else f"${usd:.2f}"
    text = f"{usd:.{2 - floor(log10(usd))}f}"
    return f"${text[:4]}{text[4:].rstrip('0')}"


def _factor(usd: Decimal, times: int) -> str:
    """Dollars as text, with so many digits that so many times the text is what :func:`money` writes of all.

    >>> _factor(Decimal("2.69"), 8), _factor(Decimal("0.105"), 4), money(4 * Decimal("0.105"))
    ('$2.69', '$0.105', '$0.42')
    """
    text, digits = money(usd), 3
    while money(Decimal(text[1:].replace(",", "")) * times) != money(usd * times) and digits < 9:
        text, digits = f"${usd:,.{digits}f}", digits + 1
    return text


class Table(Record):
    """Rows from one place, such as the built-in ones."""

    rows: tuple[Price, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[Price]]:
        """The rows by provider and machine."""
        named: dict[str, list[Price]] = {}
        for row in self.rows:
            named.setdefault(_key(row.provider, row.instance), []).append(row)
        return named


class Prices(Record):
    """Tables in order. A price comes from the first that has one, and there it is the cheapest."""

    tables: tuple[Table, ...]

    def owned(self, accelerator: str) -> int | None:
        """How many of these accelerators the user owns; ``None`` where nobody says what is owned.

        >>> prices(own="4xh100", kwh=1).owned("h100-sxm5-80gb"), prices(own="4xh100", kwh=1).owned("l4"), prices().owned("l4")
        (4, 0, None)
        """
        owned = [row for row in self.tables[0].rows if row.kind is Kind.OWNED]
        return max((row.most for row in owned if row.accelerator == accelerator), default=0) if owned else None

    def of_instance(self, instance: Instance, kind: str = Kind.ON_DEMAND) -> Price | None:
        """The price of an instance; ``None`` if no row has one. Its own row comes before the user's price of each of its accelerators.

        >>> from hwcalc.profiles.instances import find_instance
        >>> prices().of_instance(find_instance("p5.48xlarge")).usd_per_hour
        Decimal('55.04')
        """
        wanted, accelerator, count = _key(instance.cloud, instance.id), _device_id(instance), instance.count
        for table in self.tables:
            rows = [row for row in table.by_name.get(wanted, ()) if not row.most]
            each = [row for row in table.rows if row.user and row.accelerator == accelerator and count <= row.most]
            # Boards that one owns are in none of a cloud's machines.
            each = [row.times(count) for row in each if row.kind != Kind.OWNED or instance.is_bought]
            if price := _cheapest(rows, kind) or _cheapest(each, kind):
                return price
        return None

    def of_gpus(self, gpu: Gpu, count: int, kind: str = Kind.ON_DEMAND) -> Price | None:
        """The cheapest price of so many accelerators; ``None`` if no row has one.

        Up to a node of them are in one machine, more are in whole nodes.

        >>> from hwcalc.profiles.gpus import find_gpu
        >>> prices().of_gpus(find_gpu("a10g"), 4).name
        'aws/g5.12xlarge'
        """
        machine = min(count, gpu.node)
        for table in self.tables:
            rows = [row for row in table.rows if row.accelerator == gpu.id]
            offers = [row.times(count) for row in rows if count <= row.most]
            if count % machine == 0:
                offers += (row.times(count // machine) for row in rows if row.count == machine and not row.most)
            if price := _cheapest(offers, kind):
                return price
        return None


def _key(provider: str, instance: str) -> str:
    """Provider and machine, however its name is spelled."""
    from hwcalc.profiles.hardware_file import file_name

    return f"{provider}/{file_name(instance)}"


def _cheapest(rows: Sequence[Price], kind: str) -> Price | None:
    """The cheapest of this kind, of equal ones the newest. What the user owns or gave as a price per hour is of every kind."""
    fitting = [row for row in rows if row.kind == kind or (row.user and row.kind in (Kind.ON_DEMAND, Kind.OWNED))]
    return min(fitting, key=lambda row: (row.usd_per_hour, -(row.date or dt.date.max).toordinal(), row.name), default=None)


def prices(
    price: Mapping[str, object] = MappingProxyType({}),
    file: str | os.PathLike[str] | None = None,
    *,
    own: str | None = None,
    kwh: Decimal | str | float | None = None,
) -> Prices:
    """All prices, the user's own first: of ``--own``, of ``--price``, of a file (``--prices``), of the own folder, and the built-in ones.

    Raises :class:`~hwcalc.errors.UsageError` and :class:`~hwcalc.errors.ConfigError`.
    """
    from hwcalc.profiles.catalog import ProfileError, changed

    if own is None and kwh is not None:
        raise UsageError("--kwh is the price of the power of what you own.", hint="Add: --own 4xh100")
    given = [() if own is None else tuple(_owned(own, kwh)), tuple(_given(*pair) for pair in price.items())]
    if file is not None:
        with profile_errors():
            if not os.path.isfile(file):  # noqa: PTH113
                raise ProfileError(file, "is not a regular file" if os.path.exists(file) else "is not there")  # noqa: PTH110
            # A table that has changed is read again.
            given.append(_of_csv(Path(file), changed(file)))
    given.append(tuple(_of_folder()))
    return Prices(tables=(*(Table(rows=rows) for rows in given if rows), _built_in()))


@lru_cache(maxsize=1)
def _built_in() -> Table:
    from hwcalc.profiles.compiled import records

    return Table(rows=tuple(row for content in records("prices").values() for row in _rows(content)))


def _of_folder() -> Iterator[Price]:
    """The rows of the user's own folder, ``$XDG_CONFIG_HOME/kvplan/profiles/prices``."""
    from hwcalc.profiles.catalog import own

    folder = own("prices")
    if folder is None or not os.path.isdir(folder):  # noqa: PTH112
        return
    from hwcalc.profiles.schema import PriceFile, check, read_yaml

    with profile_errors():
        for path in sorted(Path(folder).glob("*.yaml")):
            content = read_yaml(path)
            check(content, PriceFile)
            yield from _rows(content.data, user=True)


def _rows(content: Mapping[str, Any], *, user: bool = False) -> Iterator[Price]:
    """The prices of a file's content, which has been checked."""
    for table in content["tables"]:
        for row in table["prices"]:
            yield _row({**row, "provider": content["provider"], "date": table["date"], "source": table["source"]}, user=user)


def _row(data: Mapping[str, Any], *, user: bool) -> Price:
    """The price of one row, which has been checked."""
    from hwcalc.hardware.named import instance_named
    from hwcalc.profiles.instances import built_in_instances

    told, count, accelerator = data.get, data.get("count"), data.get("accelerator")
    if told("instance") is not None:
        name = f"{data['provider']}/{data['instance']}"
        instance = instance_named(name) if user else built_in_instances()[_key(data["provider"], data["instance"])]
        accelerator, count = _device_id(instance), instance.count
    return Price(
        usd_per_hour=Decimal(str(data["usd_per_hour"])),
        provider=data["provider"],
        instance=printable(told("instance") or data["name"]),
        accelerator=str(accelerator),
        count=count or 1,
        region=printable(told("region") or "any"),
        kind=Kind(told("kind") or Kind.ON_DEMAND),
        date=None if told("date") is None else dt.date.fromisoformat(data["date"]),
        source=printable(data["source"]),
        user=user,
        most=_ANY if count is None else 0,
    )


_ANY: Final = 10**6


def _device_id(instance: Instance) -> str:
    """The id of the instance's accelerator; a share of one has its own, as in plans."""
    from hwcalc.hardware.named import instance_device

    return instance.accelerator if instance.fraction is None else instance_device(instance).id


def _given(name: str, usd: object) -> Price:
    """The price of ``--price``: ``h100=2.50/h`` of each accelerator, ``8xh100=20/h`` or ``p5.48xlarge=40/h`` of a machine."""
    from hwcalc.hardware.named import counted, gpu_named, instance_named
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu

    word, count = counted(name.strip())
    given: dict[str, Any] = {
        "usd_per_hour": parse_money(str(usd), "--price"),
        "source": printable(f"--price {name}={usd}"),
        "user": True,
    }
    try:
        gpu = gpu_named(word or "", "--price") if count is not None else find_gpu(name)
    except UnknownGpuError:
        machine = instance_named(name.strip(), "--price")
        accelerator = _device_id(machine)
        return Price(provider=machine.cloud, instance=machine.id, accelerator=accelerator, count=machine.count, **given)
    sold = gpu.id if count is None else f"{count}x{gpu.id}"
    return Price(provider=OWN, instance=sold, accelerator=gpu.id, count=count or 1, most=0 if count else _ANY, **given)


def _owned(text: str, kwh: Decimal | str | float | None) -> Iterator[Price]:
    """The power of ``--own 4xh100,8xl40s`` for each accelerator: its board's TDP, all the time, and nothing else of the machine."""
    from hwcalc.hardware.named import counted, load_gpu

    if kwh is None:
        raise UsageError("--own needs the price of electricity.", hint="Add: --kwh 0.15, in US dollars per kWh.")
    rate = parse_dollars(kwh, "--kwh")
    for word in text.split(","):
        name, count = counted(word.strip())
        gpu = load_gpu(name or "", [], "--own")
        if gpu.tdp_w is None:
            raise UsageError(
                f"--own {shown(word, 40)}: the power of {gpu.id} is not known.", hint="Leave it out, or use --price."
            )
        watts = Decimal(str(gpu.tdp_w))
        yield Price(
            usd_per_hour=watts * rate / 1000,
            provider=OWN,
            instance=gpu.id,
            accelerator=gpu.id,
            count=1,
            kind=Kind.OWNED,
            source=f"{watts:f} W, the board's TDP and nothing else, at ${rate} per kWh",
            user=True,
            most=count or 1,
        )


@lru_cache(maxsize=8)
def _of_csv(path: Path, _state: tuple[int, int]) -> tuple[Price, ...]:
    """The rows of a table of the user's own. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and column."""
    import csv

    from hwcalc.profiles.catalog import ProfileError, read_text
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.profiles.instances import find_instance, list_instances
    from hwcalc.profiles.schema import PriceLine, YamlFile, check
    from hwcalc.yaml_tree import LARGEST_FILE

    rows, known = [], frozenset(list_instances())
    reader = csv.reader(read_text(path, LARGEST_FILE).splitlines(), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if "usd_per_hour" not in header or not {"instance", "accelerator_id"} & set(header):
            raise ProfileError(path, f"must begin with the names of its columns: {', '.join(COLUMNS)}", line=1)
        for cells in reader:
            if len(cells) > len(header):
                raise ProfileError(path, f"has {len(cells)} cells, and {len(header)} columns", line=reader.line_num)
            told = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if cell.strip()}
            if not told:
                continue
            data: dict[str, Any] = {"provider": OWN, "source": f"{path}", **told}
            accelerator = data.pop("accelerator_id", None)
            name = _key(told.get("provider", ""), data.get("instance", ""))
            machines = [full for full in known if full == name or (name[0] == "/" and full.endswith(name))]
            if len(machines) == 1:
                machine = find_instance(machines[0])
                data |= {"provider": machine.cloud, "instance": machine.id}
                data.pop("count", None)
            else:
                data["name"] = data.pop("instance", accelerator)
                try:
                    data["accelerator"] = find_gpu(accelerator or "").id
                except UnknownGpuError as error:
                    near = f": {', '.join(error.nearest)}?" if error.nearest else ". See: kvplan gpus"
                    problem = f"{shown(accelerator or '', 40)} is not a known accelerator{near}"
                    raise ProfileError(path, problem, line=reader.line_num, key="accelerator_id") from error
            for key, form, kind in (("count", "[0-9]{1,9}", int), ("usd_per_hour", AMOUNT, float)):
                if re.fullmatch(form, data.get(key, "")):
                    data[key] = kind(data[key].replace(",", ""))
            check(YamlFile(path=path, data=data, lines=dict.fromkeys(("", *data), reader.line_num)), PriceLine)
            rows.append(_row({"date": None, **data}, user=True))
    except csv.Error as error:
        raise ProfileError(path, f"is no CSV: {error}", line=reader.line_num) from error
    return tuple(rows)

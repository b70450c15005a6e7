"""What a plan costs: its nodes an hour and a month, a million tokens at the expected speed, and each user."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UsageError
from hwcalc.hardware.named import instance_named
from hwcalc.hardware.prices import Kind, Price, Prices, prices
from hwcalc.model import Note
from hwcalc.planner.options import PRICED
from hwcalc.planner.result import FitInfo
from hwcalc.planner.speed_result import NO_PRICE, CostInfo, Expected, PriceInfo, SpeedInfo

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.within_result import TimeInfo, WithinInfo
    from hwcalc.profiles.hardware_file import Gpu

DEFAULT_USE: Final = Fraction(2, 5)
"""The share of the time in which tokens are computed, where nobody says it."""


def price_of(options: Mapping[str, Any], gpu: Gpu, gpus: int, instance: str | None = None) -> Price | None:
    """The price of so many accelerators, or of the whole instance, by the options of a plan that name prices; ``None`` if no row has one."""
    table = _table(options)
    kind = Kind.SPOT if options.get("spot") else Kind.ON_DEMAND
    return table.of_gpus(gpu, gpus, kind) if instance is None else table.of_instance(instance_named(instance), kind)


def _table(options: Mapping[str, Any]) -> Prices:
    return prices(options.get("price") or {}, options.get("prices"), own=options.get("own"), kwh=options.get("kwh"))


def use_of(options: Mapping[str, Any]) -> Fraction:
    """The share of the time in which tokens are computed, by the options of a plan. Raises :class:`~hwcalc.errors.UsageError`."""
    use: Fraction = options.get("use", DEFAULT_USE)
    if not 0 < use <= 1:
        raise UsageError(f"use is {float(use):g}.", hint="Allowed: a share above 0 and up to 1, such as 40%.")
    return use


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float, use: float = 1.0) -> float:
    """Dollars for a million tokens, computed at this speed in a share ``use`` of each hour that is paid.

    >>> usd_per_million_tokens(3.6, 500), usd_per_million_tokens(3.6, 500, 0.4)
    (2.0, 5.0)
    """
    return usd_per_hour * 1e6 / (3600 * tokens_per_s * use)


def cost_of(opened: Occupancy, fit: FitInfo | None, speed: SpeedInfo | None, within: WithinInfo | None) -> CostInfo | None:
    """The cost of the plan, where prices are asked for or an instance is named; ``None`` without a price. Its notes are told."""
    options, gpu = opened.setup.others, opened.setup.hardware.gpu
    wanted, instance = not options.keys().isdisjoint(PRICED), options.get("instance")
    if gpu is None or not (wanted or instance):
        if wanted:
            opened.tell(Note(code=NO_PRICE, message="No price: it is that of a GPU or an instance. Name one with --gpu."))
        return None
    use = use_of(options)
    gpus = opened.setup.gpus
    price = price_of(options, gpu, gpus, instance)
    if price is None:
        if wanted:
            opened.tell(_without_price(gpu, gpus, instance, spot=bool(options.get("spot"))))
        return None
    row, usd = price.row or price, float(price.usd_per_hour)
    opened.tell(Note(code="price", message=f"Price: {price.origin()}."))
    figure = _rate(speed, within) if fit is not None and fit.fits else None
    of_tokens = None
    if figure is not None and figure.expected and figure.low and figure.high:
        # The faster, the cheaper: the ends change places.
        rates = {"bound": figure.bound, "expected": figure.expected, "low": figure.high, "high": figure.low}
        of_tokens = Expected(
            **{end: usd_per_million_tokens(usd, rate, float(use)) if rate else None for end, rate in rates.items()}
        )
    users = None
    if fit is not None and fit.fits:
        users = within.users if within is not None else opened.load.batch if opened.load.batch > 1 else None
    return CostInfo(
        usd_per_hour=usd,
        usd_per_month=float(price.usd_per_month),
        price=price_info(row),
        use=float(use),
        tokens_per_s=None if figure is None else figure.expected,
        usd_per_million_tokens=of_tokens,
        users=users,
        usd_per_user_month=float(price.usd_per_month) / users if users else None,
        owned=_table(options).owned(gpu.id) if "own" in options else None,
    )


def price_info(row: Price) -> PriceInfo:
    """A row as a plan shows it."""
    return PriceInfo(
        usd_per_hour=float(row.usd_per_hour),
        provider=row.provider,
        instance=row.instance,
        accelerator=row.accelerator,
        count=row.count,
        region=row.region,
        kind=row.kind.value,
        date=None if row.date is None else row.date.isoformat(),
        source=row.source,
        user=row.user,
        old=row.is_old(),
    )


def _rate(speed: SpeedInfo | None, within: WithinInfo | None) -> Expected | TimeInfo | None:
    """Output tokens per second: of as many users as the limits of time allow, else of the planned sequences while they decode."""
    if within is not None:
        return (within.at_users or within.at_batch).output_tokens_per_s
    return None if speed is None else speed.decode_tokens_per_s


def _without_price(gpu: Gpu, gpus: int, instance: str | None, *, spot: bool) -> Note:
    what, kind = (f"{gpus:,} x {gpu.id}" if instance is None else instance), "spot price" if spot else "price"
    name = instance or gpu.id
    return Note(code=NO_PRICE, message=f"No {kind} of {what} is known with its date. Give yours: --price {name}=2.50/h")

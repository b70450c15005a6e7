"""Prices of nodes: every row has date and source, a node's price is that of one row or a multiple of it, and the user's own win."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest

from hwcalc.errors import ConfigError, UsageError
from hwcalc.hardware.named import instance_named
from hwcalc.hardware.prices import STALE_DAYS, Kind, Price, prices
from hwcalc.profiles.catalog import user_folder
from hwcalc.profiles.gpus import find_gpu, list_gpus
from hwcalc.profiles.instances import find_instance, list_instances

H100: Final = find_gpu("h100")


def built_in() -> tuple[Price, ...]:
    """The rows that come with the program."""
    (table,) = prices().tables
    return table.rows


def test_every_row_has_date_and_source() -> None:
    """No price without them, none twice, and each prices a machine or an accelerator that has a file."""
    for row in built_in():
        assert isinstance(row.date, date)
        assert row.source.startswith("https://")
        assert row.usd_per_hour > 0
        assert not row.user
        assert row.accelerator.partition("-of-")[0].removesuffix("-1") in list_gpus()
    keys = [(row.name, row.accelerator, row.kind, row.region, row.date) for row in built_in()]
    assert len(keys) == len(set(keys)) == 235


def test_most_instances_have_a_price() -> None:
    """144 of the clouds' instances have a dated price on demand, as the sources were counted; no box that one buys has."""
    table = prices()
    priced = [name for name in list_instances() if table.of_instance(find_instance(name))]

    assert len(priced) == 144
    assert not [name for name in priced if name.startswith("box/")]


@pytest.mark.parametrize(
    ("name", "kind", "usd", "day", "region"),
    [
        ("aws/p5.48xlarge", "on_demand", "55.04", date(2026, 7, 20), "us-east-1"),
        ("aws:p5.48xlarge", "on_demand", "55.04", date(2026, 7, 20), "us-east-1"),
        ("ND96isr_H100_v5", "on_demand", "98.32", date(2026, 6, 18), "eastus"),
        ("gcp/a3-highgpu-8g", "spot", "36.32084", date(2026, 8, 3), "us-east4"),
        ("g6f.large", "on_demand", "0.202", date(2026, 7, 20), "us-east-1"),
    ],
)
def test_an_instance_has_the_price_of_its_row(name: str, kind: str, usd: str, day: date, region: str) -> None:
    """As the vendors' tables print it on that day."""
    price = prices().of_instance(instance_named(name), kind)

    assert price is not None
    assert (price.usd_per_hour, price.date, price.region, price.row) == (Decimal(usd), day, region, None)


def test_accelerators_have_the_cheapest_price() -> None:
    """A machine of that many, or so many of a cloud that prices each: 8 x 2.69 is less than 31.92; of 16, two machines."""
    table = prices()
    eight, sixteen = table.of_gpus(H100, 8), table.of_gpus(find_gpu("mi300x"), 16)

    assert eight is not None
    assert eight.row is not None
    assert (eight.usd_per_hour, eight.row.usd_per_hour, eight.count) == (Decimal("21.52"), Decimal("2.69"), 8)
    assert sixteen is not None
    # One with 8 costs 48 dollars.
    assert (sixteen.usd_per_hour, sixteen.usd_per_month, sixteen.count) == (Decimal(96), Decimal(70_080), 16)


def test_nothing_is_guessed() -> None:
    """No price of what nobody rents, of spot where no row has it, of a size that no machine has; and a share of a GPU is no GPU."""
    table = prices()

    assert table.of_gpus(find_gpu("rtx-4090"), 1) is None
    assert table.of_instance(instance_named("aws/p5.48xlarge"), "spot") is None
    assert table.of_gpus(find_gpu("mi300x"), 3) is None
    one = table.of_gpus(find_gpu("l4"), 1)
    assert one is not None
    assert find_instance(one.name).fraction is None


def test_a_price_is_old_after_180_days() -> None:
    """Of 2026-07-20 on 2027-01-17, which is day 181."""
    price = prices().of_instance(instance_named("aws/p5.48xlarge"))

    assert price is not None
    assert (date(2027, 1, 16) - date(2026, 7, 20)).days == STALE_DAYS
    assert not price.is_old(date(2027, 1, 16))
    assert price.is_old(date(2027, 1, 17))
    assert "2026-07-20, more than 180 days ago: aws/karpenter-provider-aws" in price.origin(date(2027, 1, 17))


def test_the_users_prices_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--price`` before ``--prices``, that before the own folder, and that before the built-in prices, however low they are."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("prices")
    assert folder is not None
    folder.mkdir(parents=True)
    row = "{name: rack, accelerator: h100-sxm5-80gb, count: 8, usd_per_hour: 77}"
    (folder / "me.yaml").write_text(
        f"schema_version: 1\nprovider: me\ntables:\n- {{source: bill, date: '2026-11-01', prices: [{row}]}}\n", encoding="utf-8"
    )
    table = tmp_path / "own.csv"
    table.write_text("accelerator_id,count,usd_per_hour,date\nH100,8,66,2026-11-02\nH100,,9,\n", encoding="utf-8")

    def eight(price: str = "", file: Path | None = None) -> Decimal | None:
        found = prices(dict([price.split("=")] if price else []), file).of_gpus(H100, 8)
        return None if found is None else found.usd_per_hour

    assert eight() == 77
    assert eight(file=table) == 66
    assert eight("h100=10/h", file=table) == 80
    assert eight("8xh100=73000/month", file=table) == 100
    instance = prices({"h100": "10/h"}).of_instance(instance_named("p5.48xlarge"))
    assert instance is not None
    assert instance.usd_per_hour == 80
    assert instance.source == "--price h100=10/h"
    named = prices({"p5.48xlarge": "40/h", "h100": "10/h"}).of_instance(instance_named("p5.48xlarge"), Kind.SPOT)
    assert named is not None
    assert named.usd_per_hour == 40


def test_owned_hardware_costs_power() -> None:
    """4 x 700 W at 0.15 dollars per kWh are 0.42 dollars an hour; a fifth is not owned."""
    table = prices(own="4xh100,8xl40s", kwh="0.15")
    four, five = table.of_gpus(H100, 4), table.of_gpus(H100, 5)

    assert four is not None
    assert (four.usd_per_hour, four.kind) == (Decimal("0.42"), Kind.OWNED)
    assert "700 W, the board's TDP and nothing else" in four.source
    assert five is not None
    assert five.kind is Kind.ON_DEMAND


@pytest.mark.parametrize("name", ["p5.48xlarge", "aws/p5.48xlarge", "aws:p5.48xlarge"])
def test_a_price_of_accelerators_is_that_of_an_instance_with_them(name: str) -> None:
    """However its name is spelled: 8 x 10 dollars. Boards that one owns are in no machine of a cloud."""
    instance = instance_named(name)
    given, owned = prices({"h100": "10/h"}).of_instance(instance), prices(own="8xh100", kwh=1).of_instance(instance)

    assert given is not None
    assert given.usd_per_hour == 80
    assert owned is not None
    assert owned.kind is Kind.ON_DEMAND


def test_a_table_may_leave_out_the_provider_of_an_instance(tmp_path: Path) -> None:
    """Where one has it. A comma stands between thousands."""
    table = tmp_path / "own.csv"
    table.write_text('instance,usd_per_hour\np5.48xlarge,"1,040.5"\n', encoding="utf-8")
    price = prices(file=table).of_instance(instance_named("aws/p5.48xlarge"))

    assert price is not None
    assert price.usd_per_hour == Decimal("1040.5")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"price": {"h100": "2.50"}}, "is not said per hour or month"),
        ({"price": {"h100": "2.50/year"}}, "is not said per hour or month"),
        ({"price": {"h100": "0/h"}}, "is no price"),
        ({"price": {"h100": "-1/h"}}, "is no price"),
        ({"price": {"h100": "1e9/h"}}, "is no price"),
        ({"price": {"h100": "2,50/h"}}, "is no price"),
        ({"price": {"hundred": "1/h"}}, "is not known"),
        ({"price": {"8xhundred": "1/h"}}, "is not known"),
        ({"own": "4xh100"}, "own needs the price of electricity"),
        ({"own": "4xh100", "kwh": "cheap"}, "is no price"),
        ({"own": "4xh100,,", "kwh": "0.15"}, "own"),
        ({"own": "cpu-32gb", "kwh": "0.15"}, "the power of cpu-32gb is not known"),
        ({"kwh": "0.15"}, "of what you own"),
    ],
)
def test_a_wrong_price_is_said(given: dict[str, object], message: str) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError, match=message):
        prices(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must begin with the names of its columns"),
        ("a,b\n1,2\n", "line 1: must begin with the names of its columns"),
        ("accelerator_id,usd_per_hour\nh100,nan\n", r"line 2: usd_per_hour: must be US dollars"),
        ("accelerator_id,usd_per_hour\nh100,-2\n", r"line 2: usd_per_hour: must be US dollars"),
        ("accelerator_id,usd_per_hour\nh100,\n", r"line 2: usd_per_hour: is missing"),
        ("accelerator_id,usd_per_hour\nh10,2\n", r"line 2: accelerator_id: 'h10' is not a known accelerator: h100-sxm5-80gb"),
        ("accelerator_id,usd_per_hour\nh100,2,3\n", "line 2: has 3 cells, and 2 columns"),
        ("accelerator_id,usd_per_hour,kind\nh100,2,stolen\n", "line 2: kind: must be"),
        ("accelerator_id,usd_per_hour,date\nh100,2,yesterday\n", "line 2: date: must be a date"),
        ("accelerator_id,usd_per_hour,date\nh100,2,2026-02-31\n", "line 2: date: must be a day of the calendar"),
        ("accelerator_id,usd_per_hour,eval\nh100,2,x\n", "line 2: eval: is not known"),
        ('accelerator_id,usd_per_hour\n"h100,2\n', "is no CSV"),
        ("accelerator_id,usd_per_hour\n" + "x" * 200_000 + ",2\n", "is no CSV"),
    ],
)
def test_a_broken_table_names_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    """And nothing of it is used."""
    table = tmp_path / "own.csv"
    table.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=message):
        prices(file=table)


def test_names_of_a_table_control_no_terminal(tmp_path: Path) -> None:
    """What a table calls its machines is text."""
    table = tmp_path / "own.csv"
    table.write_text(
        "instance,accelerator_id,usd_per_hour,region,source\n\x1b[31mbox,h100,2,\x1b[2J,\x1b]0;x\n", encoding="utf-8"
    )
    price = prices(file=table).of_gpus(H100, 1)

    assert price is not None
    assert "\x1b" not in price.name + price.region + price.source + price.origin()


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    """Is an error with its path."""
    with pytest.raises(ConfigError, match="is not there"):
        prices(file=tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="is not a regular file"):
        prices(file=tmp_path)

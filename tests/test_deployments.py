"""Published deployments beside ours: the table of ``docs/cost.md`` and the statements that it is made of."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from hwcalc import plan, speed
from scripts.deployments import BEGINS, ENDS, PAGE, Answer, Statement, answered, published, table, verdict

STATEMENTS = published().statements
SOURCES = published().sources
LLAMA_3_8B_READ_BYTES = 15_009_914_880
"""Weights that a step reads, as docs/speed.md writes them out: 32 layers, the head, and a row of the embedding."""


def test_the_page_has_the_table_as_it_is_now() -> None:
    """It is renewed by ``python scripts/deployments.py --write``."""
    shown = PAGE.read_text(encoding="utf-8").partition(f"{BEGINS}\n")[2].partition(f"\n{ENDS}")[0]

    assert shown == table()


def test_statements_have_a_source_and_a_day() -> None:
    """Or a month, where no more is known."""
    assert len(STATEMENTS) >= 20
    assert {said.source for said in STATEMENTS} == SOURCES.keys()
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", source.date)


@pytest.mark.parametrize("said", [said for said in STATEMENTS if said.usd_per_million and said.usd_per_hour])
def test_dollars_are_those_of_speed_and_price_or_the_note_says_why(said: Statement) -> None:
    """Dollars per million are dollars an hour / (tokens/s x 3,600) x 1,000,000, to the digits of the statement."""
    assert said.usd_per_hour is not None
    assert said.usd_per_million is not None
    assert said.tokens_per_s is not None
    made = said.usd_per_hour / (Decimal(said.tokens_per_s) * 3600) * 1_000_000

    assert abs(made / said.usd_per_million - 1) < Decimal("0.06") or "a third of the time" in said.note


def test_a_statement_above_the_bandwidth_is_above_the_bound() -> None:
    """3,500 tokens/s of one request read 15.0 GB of weights 3,500 times a second: 52.5 TB/s, of the 2.039 TB/s of an A100."""
    said = next(said for said in STATEMENTS if said.source == "gpu-tracker")
    kind, times = verdict(said, answered(said))

    assert kind == "the bound"
    assert times == pytest.approx(3500 * LLAMA_3_8B_READ_BYTES / 2.039e12, rel=0.01)


@pytest.mark.parametrize(
    ("stated", "low", "high", "expected"),
    [
        (100.0, 50.0, 150.0, ("in the range", 1)),
        (40.0, 50.0, 150.0, ("ours is faster", 1.25)),
        (180.0, 50.0, 150.0, ("ours is slower", 1.2)),
        (300.0, 50.0, 150.0, ("the bound", 1.5)),
        (100.0, None, None, ("below the bound", 1)),
    ],
)
def test_verdict(stated: float, low: float | None, high: float | None, expected: tuple[str, float]) -> None:
    """100 of 50 to 150 is in the range; 50 is 1.25 times 40, 180 is 1.2 times 150, and 300 is 1.5 times the bound, 200."""
    said = Statement(source="", model="", options={}, load=(1, 1, 1), tokens_per_s=stated)
    answer = Answer(gpus="", fits=True, most=1, price=None, low=low, high=high, bound=200.0)

    assert verdict(said, answer) == expected


def test_what_notes_say_of_us() -> None:
    """A server by defaults, further tokens that are predicted, and the fewest GPUs."""
    saturated = next(said for said in STATEMENTS if said.part == "C1, saturated")
    service = next(said for said in STATEMENTS if said.source == "deepseek")
    fewest = next(said for said in STATEMENTS if said.source == "cursor")
    by_default = speed(saturated.model, tuned=False, **saturated.speed_options).output_tokens_per_s
    predicted = speed(service.model, accepted_tokens=1.85, **service.speed_options).decode_tokens_per_s
    fit = plan(fewest.model, engine="vllm", gpu="a100-sxm4-80gb", seq=sum(fewest.load[:2])).fit

    assert by_default.low < saturated.tokens_per_s < by_default.high
    assert service.tokens_per_s is not None
    assert predicted.high < service.tokens_per_s
    assert fit is not None
    assert fit.min_gpus == 2


def test_the_price_written_out_is_that_of_the_example_above_it() -> None:
    """Speeds are fitted anew now and then: the formula's numbers must be those that the example prints."""
    page = PAGE.read_text(encoding="utf-8")
    [(hour, rate, use, price)] = re.findall(
        r"^    ([\d.]+) x 1,000,000 / \(3,600 x ([\d,]+) x ([\d.]+)\) = ([\d.]+)$", page, re.MULTILINE
    )
    assert f"costs    ${hour}/h" in page
    assert f", {rate} in all" in page
    assert f"tokens   ${price} a million" in page
    assert float(price) == round(float(hour) * 1e6 / (3600 * float(rate.replace(",", "")) * float(use)), 2)

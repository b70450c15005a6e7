"""What a plan costs: each figure by four numbers, each price by a row with its date, and limits in recommend and check."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc
from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan
from hwcalc.planner.speed_result import COST_COLUMNS, CostInfo
from tests.hwcalc.command import QWEN, Capture, run

SERVED: Final[dict[str, Any]] = {"engine": "vllm", "seq": "8k", "batch": 8}


def cost_of(plan: Plan) -> CostInfo:
    """The cost of a plan that has one."""
    assert plan.cost is not None
    return plan.cost


def test_a_million_tokens_by_four_numbers() -> None:
    """Dollars an hour x 1,000,000 / (3,600 s x tokens per second x use); the fast end of the speed is the low end of the price."""
    plan = hwcalc.plan(QWEN, gpu="h100", price={"h100": "3.60/h"}, use="50%", **SERVED)
    cost = cost_of(plan)
    assert plan.speed is not None
    speed, tokens = plan.speed.decode_tokens_per_s, cost.usd_per_million_tokens
    assert speed is not None
    assert tokens is not None
    assert speed.expected is not None
    assert speed.low is not None
    assert speed.high is not None

    assert (cost.usd_per_hour, cost.usd_per_month, cost.use) == (3.6, 2628, 0.5)
    # 3.6 x 10^6 / 3600 = 1,000 dollars for a second at full use, twice that at half.
    assert tokens.expected == pytest.approx(2000 / speed.expected)
    assert tokens.low == pytest.approx(2000 / speed.high)
    assert tokens.high == pytest.approx(2000 / speed.low)
    # Eight users share the 2,628 dollars of a month.
    assert (cost.users, cost.usd_per_user_month) == (8, 328.5)


def test_an_instance_says_its_price_unasked() -> None:
    """And traces it to a row with date and source; a GPU says it where it is asked for."""
    cost = cost_of(hwcalc.plan(QWEN, instance="p5.48xlarge", **SERVED))

    assert (cost.usd_per_hour, cost.price.name, cost.price.date) == (55.04, "aws/p5.48xlarge", "2026-07-20")
    assert cost.price.source.startswith("https://github.com/aws/karpenter-provider-aws/")
    assert hwcalc.plan(QWEN, gpu="h100", **SERVED).cost is None
    two = cost_of(hwcalc.plan(QWEN, gpu="2xh100", cost=True, **SERVED))
    assert (two.usd_per_hour, two.price.usd_per_hour, two.price.name) == (5.38, 2.69, "runpod/pod community")


def test_an_old_price_says_so(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the document, beside the price and in the note: on 2027-06-01 a price of 2026-07-20 is 316 days old."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(datetime(2027, 6, 1, tzinfo=UTC).timestamp())))

    assert cost_of(hwcalc.plan(QWEN, instance="p5.48xlarge", **SERVED)).price.old
    out = run(capsys, QWEN, "--engine", "vllm", "--instance", "p5.48xlarge", "--seq", "8k")[1]
    assert "(aws/p5.48xlarge, on demand, 2026-07-20, older than 180 days)" in out
    assert "on 2026-07-20, more than 180 days ago: aws/karpenter-provider-aws." in out


def test_within_limits_of_time_the_users_are_those_within() -> None:
    """Tokens are those of the most users within the limits, and each of them has a part of the month."""
    plan = hwcalc.plan(QWEN, engine="vllm", gpu="h100", seq="8k", prompt="6k", ttft="2s", min_rate=20, price={"h100": "2/h"})
    cost, within = cost_of(plan), plan.within

    assert within is not None
    assert within.users
    assert within.at_users is not None
    assert (cost.users, cost.usd_per_user_month) == (within.users, 1460 / within.users)
    assert cost.tokens_per_s == within.at_users.output_tokens_per_s.expected


def test_what_has_no_price_says_so(capsys: Capture) -> None:
    """Nothing is guessed: neither for a GPU that nobody rents with a date, nor of tokens that do not fit."""
    plan = hwcalc.plan(QWEN, gpu="rtx-4090", cost=True, engine="vllm", seq="4k")
    assert plan.cost is None
    assert [note.message for note in plan.notes if note.code == "no-price"] == [
        "No price of 1 x rtx-4090 is known with its date. Give yours: --price rtx-4090=2.50/h"
    ]
    assert "costs    No price of 1 x rtx-4090" in run(capsys, QWEN, "--gpu", "rtx-4090", "--cost", "--seq", "4k")[1]
    too_small = cost_of(hwcalc.plan(QWEN, gpu="l4", cost=True, engine="vllm", seq="32k"))
    assert too_small.usd_per_million_tokens is None


@pytest.mark.parametrize("use", [0, "0%", 1.5])
def test_use_is_a_share(use: float | str) -> None:
    """Of the time: none of it would make each token cost without end."""
    with pytest.raises(UsageError, match="use is"):
        hwcalc.plan(QWEN, gpu="h100", use=use, **SERVED)


def test_the_command_prints_date_and_source(capsys: Capture) -> None:
    """Each price beside its row and its day, on the first screen; the note has the source."""
    status, out, _ = run(capsys, QWEN, "--engine", "vllm", "--instance", "p5.48xlarge", "--seq", "8k")

    assert status == 0
    assert "  costs    $55.04/h, $40,179/month (aws/p5.48xlarge, on demand, 2026-07-20)\n" in out
    assert "Price: aws/p5.48xlarge, on demand in us-east-1 on 2026-07-20: aws/karpenter-provider-aws." in out
    for words, said in (
        (("--price", "h100=2.50/h"), "$2.50/h, $1,825/month (h100-sxm5-80gb, your price)"),
        (("--own", "h100", "--kwh", "0.2"), "$0.14/h, $102.20/month (h100-sxm5-80gb, power only)"),
        (("--spot", "--gpus", "8"), "$19.71/h, $14,388/month (coreweave/HGX H100, spot, 2026-09-20)"),
    ):
        assert said in run(capsys, QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "8k", *words)[1]


def test_what_is_rented_beside_what_is_owned_is_said(capsys: Capture) -> None:
    """A node of more boards than one owns has the price of a rented one, and each command with its price says so."""
    own, two = ("--own", "h100", "--kwh", "0.2"), ("--engine", "vllm", "--gpu", "2xh100", "--seq", "8k")
    words = "Counted as rented: more h100-sxm5-80gb than the 1 that you own.\n"

    assert f"  costs    {words}" in run(capsys, QWEN, *two, *own)[1]
    assert words in run(capsys, "compare", QWEN, "--engine", "vllm", "--gpu", "h100,2xh100", "--seq", "8k", *own)[1]
    assert "rented" not in run(capsys, QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "8k", *own)[1]
    assert cost_of(hwcalc.plan(QWEN, gpu="2xh100", own="h100", kwh="0.2", **SERVED)).owned == 1
    assert cost_of(hwcalc.plan(QWEN, gpu="2xh100", cost=True, **SERVED)).owned is None


@pytest.mark.parametrize("limits", [(), ("--prompt", "6k", "--ttft", "2s")])
def test_the_price_asked_for_is_in_a_narrow_table(
    limits: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 columns other figures leave first, and of prices within limits of time that of tokens; a node without a price says why its cells are
    empty, once for all models.
    """
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run(
        capsys,
        "compare",
        QWEN,
        "openai/gpt-oss-120b",
        "--engine",
        "vllm",
        "--gpu",
        "8xh200,2xl40s",
        "--seq",
        "8k",
        "--cost",
        *limits,
    )
    titles = next(line for line in out.splitlines() if "verdict" in line).split()

    assert status == 0
    assert {"$/h", *(("users", "$/user") if limits else ("$/1M",))} <= set(titles)
    assert "$/1M" in out
    assert max(map(len, out.splitlines())) <= 80
    assert " ".join(err.split()).count("No price of 2 x l40s is known with its date. Give yours: --price l40s=2.50/h") == 1


def test_a_factor_of_a_price_has_the_digits_that_it_takes() -> None:
    """4 boards of 0.105 dollars an hour are 0.42."""
    plan = hwcalc.plan(QWEN, gpu="4xh100", own="4xh100", kwh="0.15", **SERVED)
    (price,) = [note.message for note in plan.notes if note.code == "price"]

    assert price.startswith("Price: 4 x $0.105, ")


def test_instances_are_listed_with_their_prices(capsys: Capture) -> None:
    """On demand with the day; of one instance those of spot machines too, with their sources; a box that one buys has none."""
    listed = {line.split()[0]: line for line in run(capsys, "instances", "h100")[1].splitlines()}
    assert "$55.04  2026-07-20" in listed["aws/p5.48xlarge"]
    assert "$" not in listed["box/dgx-h100"]
    one = run(capsys, "instances", "a3-highgpu-8g")[1]
    assert "$88.49 an hour, on demand in us-central1 on 2026-08-03: https://github.com/cloudpilot-ai/" in one
    assert "$36.32 an hour, spot in us-east4 on 2026-08-03: https://" in one


def test_recommended_by_cost_within_a_budget() -> None:
    """The cheapest first, none above the budget and none without a price; what the budget leaves out is counted."""
    cheap = hwcalc.recommend(QWEN, engine="vllm", seq="16k", batch=4, sort="cost", budget="2000/month", strict=True)
    hourly = [offer.cost.usd_per_hour for offer in cheap.offers if offer.cost is not None]

    assert len(hourly) == len(cheap.offers) > 2
    assert hourly == sorted(hourly)
    assert hourly[-1] <= 2000 / 730
    assert cheap.over_budget
    assert cheap.unpriced
    assert {*COST_COLUMNS} <= cheap.records()[0].keys()
    none = hwcalc.recommend(QWEN, engine="vllm", seq="16k", batch=4, budget="0.01/h")
    assert not none.offers
    assert none.nearest is not None
    assert none.nearest.cost == cheap.offers[0].cost
    with pytest.raises(UsageError, match="budget is not said per hour or month: '2000'"):
        hwcalc.recommend(QWEN, budget="2000")


def test_compared_nodes_have_prices(capsys: Capture) -> None:
    """In the document, as columns, and with their days below the table."""
    words = ("compare", QWEN, "--engine", "vllm", "--seq", "8k", "--instance", "p5.48xlarge,g6.12xlarge")
    document = json.loads(run(capsys, *words, "--json")[1])
    out = run(capsys, *words)[1]

    assert [variant["cost"]["usd_per_hour"] for variant in document["variants"]] == [55.04, 4.6016]
    assert "Prices: aws/p5.48xlarge, on demand, 2026-07-20; aws/g6.12xlarge, on demand, 2026-07-20." in out
    assert "$55.04" in out
    # At 2 dollars an hour the users within limits of time share 1,460 dollars a month.
    limited = ("compare", QWEN, "--engine", "vllm", "--seq", "8k", "--gpu", "l40s", "--price", "l40s=2/h", "--min-rate", "20")
    cost, table = json.loads(run(capsys, *limited, "--json")[1])["variants"][0]["cost"], run(capsys, *limited)[1]
    assert "$/user" in table
    assert f"${1460 / cost['users']:.2f}" in table
    assert "$/user" not in out


@pytest.mark.parametrize(
    ("check", "status", "said"),
    [
        ("instance: p5.48xlarge, max_cost: 10/h", 1, "holds with instance: aws/p5.4xlarge"),
        ("gpu: 4xh100, max_cost: 2000/month", 1, "holds with gpu: 1xh100"),
        ("gpu: h100, gpus: 4, max_cost: 2000/month", 1, "holds with gpus: 1"),
        ("gpu: h100, max_cost: 2000/month", 0, ""),
        (
            "gpu: h100, max_cost: 2000/month, price: {h100: 3/h}",
            1,
            "$3.00 an hour (h100-sxm5-80gb, your price), at most $2.74 an hour",
        ),
        ("gpu: rtx-4090, max_cost: 2000/month", 3, "No price of 1 x rtx-4090"),
        ("gpu: h100, max_cost: 2000", 2, "max_cost is not said per hour or month"),
        ("kv_memory: 1GiB, max_cost: 1/h", 2, "max_cost needs an accelerator"),
    ],
)
def test_a_check_limits_cost(capsys: Capture, tmp_path: Path, check: str, status: int, said: str) -> None:
    """Status 1 over the limit, with the edit that keeps it."""
    file = tmp_path / "kvplan.yaml"
    file.write_text(f"schema_version: 1\nchecks:\n- {{model: {QWEN}, engine: vllm, seq: 4k, {check}}}\n", encoding="utf-8")
    ended, out, err = run(capsys, "check", str(file))

    assert ended == status
    assert said in out + err

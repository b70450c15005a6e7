"""SGLang's memory as a form: the same integers as the plan, over a sample of the catalog, one by one and as arrays."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.sglang.curve import PoolCurve
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.engines.sglang.pools import Demand
from hwcalc.planner.context import open_request
from tests.effort import cases
from tests.hwcalc.engines.form_points import compare_plans, compare_sample, open_drawn

SAMPLED: Final = cases(70, 160)
POINTS: Final = 5
UNLIKE: Final = (
    "meta-llama/Llama-3.1-8B",
    "openai/gpt-oss-20b",
    "google/gemma-4-E2B-it",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "state-spaces/mamba-2.8b-hf",
)
"""Models whose pools are divided in different ways."""
GPUS: Final = (None, "h100-sxm5-80gb", "h100-sxm5-80gb", "l4", "b200-180gb", "mi300x", "a100-sxm4-80gb")
DTYPES: Final = (None, None, "fp8", "bf16", "nvfp4", "fp4_mx_block16")
LAYOUTS: Final[tuple[dict[str, int], ...]] = (
    {}, {}, {"tp": 2}, {"tp": 8}, {"dp": 2}, {"tp": 2, "dp": 3}, {"pp": 2}, {"pp": 9}, {"tp": 2, "pp": 3},
)  # fmt: skip
OPTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("page_size", ("1", "16", "64", "256")),
    ("max_running_requests", ("1", "64", "1000", "100000")),
    ("max_total_tokens", ("100", "4097", "10000000")),
    ("swa_full_tokens_ratio", ("0.05", "0.3", "1")),
    ("disable_radix_cache", ("true",)),
    ("disable_overlap_schedule", ("true",)),
    ("mamba_full_memory_ratio", ("0.1", "2", "17.3")),
    ("max_mamba_cache_size", ("1", "100", "5000")),
    ("mamba_scheduler_strategy", ("no_buffer", "extra_buffer")),
    ("speculative", ("eagle:1:4", "eagle:2:8")),
    ("enable_dp_attention", ("true",)),
    ("mem_fraction_static", ("0.5", "0.95")),
)
LARGEST: Final = 2**60


def sglang(occupancy: Occupancy) -> SglangOccupancy:
    """The same, with the answers that SGLang alone has."""
    assert isinstance(occupancy, SglangOccupancy)
    return occupancy


def asked_of(draw: random.Random) -> dict[str, Any]:
    """Options by chance, without length and batch."""
    options = {name: draw.choice(values) for name, values in OPTIONS if draw.random() < 0.15}
    asked = {"gpu": draw.choice(GPUS), "dtype": draw.choice(DTYPES), "weights": draw.choice((None, None, "fp8"))}
    given = {"kv_memory": 20 * 2**30} if asked["gpu"] and draw.random() < 0.1 else {}
    return {"engine": "sglang", **asked, **draw.choice(LAYOUTS), "engine_options": options, **given}


def test_a_form_is_its_requests() -> None:
    """Pools of tokens, windows and states, options, layouts and budgets; at lengths and batches by chance."""
    forms, curves, verdicts = compare_sample(SAMPLED, POINTS, UNLIKE, asked_of)

    assert curves > forms > SAMPLED // 3
    assert {(True,) * 3, (False,) * 3} <= verdicts


@pytest.mark.parametrize("name", UNLIKE)
def test_every_number_of_the_plan(name: str) -> None:
    """The longest length and the most sequences too, which are searched for on the form."""
    compare_plans(name, "sglang", many=2_049)


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("layout", [{}, {"pp": 9}])
@pytest.mark.parametrize("gpu", [None, "b200-180gb"])
def test_the_least_budget_is_where_halving_ends(name: str, layout: dict[str, int], gpu: str | None) -> None:
    """The search begins between bounds, and ends where it would end that halves everything up to 2^60 bytes."""
    draw = random.Random(name)  # noqa: S311 - a sample
    for _ in range(6):
        opened = open_drawn(name, draw, engine="sglang", gpu=gpu, engine_options={}, **layout)
        if opened is None:
            continue
        rules, demand, low, high = sglang(opened).deployment.pool_rules, sglang(opened).demand, 0, LARGEST
        if not rules.holds(rules.figures(high), demand):
            continue
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if rules.holds(rules.figures(middle), demand) else (middle, high)

        assert opened.needed_bytes == high


@pytest.mark.parametrize("name", UNLIKE)
def test_no_smaller_budget_holds_more(name: str) -> None:
    """Below the lower bound nothing is held and above the upper one everything, also where states have a share of each budget."""
    opened = sglang(open_request(load_model(name, offline=True), engine="sglang", gpu="b200-180gb", seq=1_000))
    rules, page = opened.deployment.pool_rules, opened.settings.page_size
    for requests, pages in ((1, 1), (3, 40), (50, 9_999), (200, 250)):
        demand = Demand(requests, pages * page, min(pages, 3) * page)
        low, high = rules.bounds(demand)

        assert low < high
        assert not any(rules.holds(rules.figures(size), demand) for size in range(max(0, low - 10**9), low + 1, 10**6 + 3))
        assert all(rules.holds(rules.figures(size), demand) for size in range(high, high + 10**9, 10**6 + 3))


def test_least_budgets_do_not_fall() -> None:
    """A longer sequence, and one sequence more, never needs fewer bytes in a pool of tokens and one of windows."""
    opened = open_request(load_model("openai/gpt-oss-20b", offline=True), engine="sglang", seq=1_000)
    curve = opened.curve()

    assert isinstance(curve, PoolCurve)
    assert all(one <= two for one, two in pairwise(curve.needed_bytes(tokens, 2) for tokens in range(1, 4_000, 7)))
    assert all(one <= two for one, two in pairwise(curve.needed_bytes(1_000, batch) for batch in range(1, 2_048, 7)))


def test_gpt_oss_by_hand() -> None:
    """12 full layers and 12 with windows of 8 x 64 x 2 x 2 bytes a token; windows have 0.8 places for each token, in pages of one.

    1,000 tokens are 1,000 places, 256 of them in the pool of windows at the least, for 127 + 128 + 1: 24,576 + 0.8 x 24,576 = 44,236.8
    bytes a token, and the pool of a thousand tokens has 800 places for windows. In binary 0.8 is a little more, which takes one byte.
    """
    opened = open_request(load_model("openai/gpt-oss-20b", offline=True), engine="sglang", seq=1_000)
    curve = opened.curve()

    assert isinstance(curve, PoolCurve)
    assert [pages.at(1_000) for pages in curve.deployment.pages] == [1_000, 256]
    assert curve.needed_bytes(1_000, 1) == 44_236_800 + 1


@pytest.mark.parametrize(
    "change", [{"shared_prefix": 100, "batch": 2}, {"samples": 2, "prompt": 100}, {"lengths": (100, 200), "seq": None}]
)
def test_no_form_rather_than_a_wrong_one(change: dict[str, Any]) -> None:
    """Sequences that are unlike or share something have none."""
    asked: dict[str, Any] = {"engine": "sglang", "gpu": "h100-sxm5-80gb", "seq": 512, **change}
    opened = open_request(load_model("Qwen/Qwen3-8B", offline=True), **asked)

    assert opened.form() is None
    assert opened.curve() is None

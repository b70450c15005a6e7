"""The search for settings: against replays of every setting, in less work, and what is told of the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwcalc
from hwcalc.engines import ENGINES, find_engine
from hwcalc.errors import KvplanError, NoRoomError, UnsupportedError, UsageError
from hwcalc.replay.compare import compare_settings
from hwcalc.replay.tune import Tuning, rounds_for

QWEN: Final = "Qwen/Qwen3-8B"
WORDS: Final = "prompt=p50=1k,p95=4k,max=7k output=30 arrival=poisson=0.5 requests=70"
ON_L4: Final[dict[str, Any]] = {"gpu": "l4", "seq": "8k", "ttft": "2s", "itl": "120ms"}
GRID: Final = (["2", "8", "64"], ["1024", "2048"])
"""The most requests at once, and the chunks of their prompts."""


@cache
def tuned(engine: str = "vllm", words: str = WORDS, **options: Any) -> Tuning:
    """The search with the bf16 cache on an L4."""
    return hwcalc.tune(QWEN, words, engine=engine, **{**ON_L4, "dtype": "bf16", "top": 0, **options})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_setting_is_as_if_it_were_replayed_alone(engine: str) -> None:
    """The best is the one with the most requests within the limits a second, of those replayed one by one."""
    names = [find_engine(engine)[0].facts.users_option, find_engine(engine)[0].facts.chunk_option]
    grid = dict(zip(names, GRID, strict=True))
    search = hwcalc.tune(QWEN, WORDS, engine=engine, dtype="bf16", settings=grid, top=0, **ON_L4)
    every = compare_settings(QWEN, WORDS, grid, engine=engine, dtype="bf16", **ON_L4).settings
    within = {tuple(setting.changed.values()): setting.traffic for setting in every if setting.traffic is not None}
    rates = [
        traffic.goodput.requests_per_s
        for traffic in within.values()
        if traffic.goodput is not None and traffic.goodput.share >= Fraction(95, 100) and traffic.goodput.requests_per_s
    ]

    assert len(within) == 6
    assert rates, "a grid of which nothing holds says little"
    assert f"{search.best[0].goodput_per_gpu:.3g}" == f"{max(rates):.3g}"
    assert all(trial.traffic == within[tuple(trial.changed[name] for name in names)] for trial in search.best)
    assert sum(1 + trial.alike for trial in search.best) == 6
    assert search.work <= 6


def test_the_best_is_first() -> None:
    """Those that hold come first, by their goodput; the engine's own setting is among them, and no better."""
    search = tuned()
    told = [(trial.holds, float(f"{trial.goodput_per_gpu:.3g}")) for trial in search.best]

    assert [holds for holds, _ in told] == sorted((holds for holds, _ in told), reverse=True)
    assert max(rate for holds, rate in told if holds) == told[0][1]
    # No more than 6 requests ever run, so that most of the settings which allow 16 and more need no replay.
    assert search.work < search.replayed
    assert search.default is not None
    assert search.default.changed == {"gpu": "l4", "tp": "1", "dp": "1"}
    assert search.default.goodput_per_gpu <= told[0][1]
    assert search.command == "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --kv-cache-dtype bfloat16 " + " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in search.best[0].changed.items() if name.startswith("max")
    )
    others = search.same + search.too_slow + search.too_large + search.left_out + sum(search.dropped.values())
    assert search.settings == 36 == others + search.replayed


def test_more_settings_than_replays_are_halved() -> None:
    """Half of them are left each time, the last on all requests; the budget is kept. The same call gives the same answer."""
    words = "prompt=p50=1k,p95=4k,max=7k output=4 arrival=poisson=1 requests=140"
    grid = dict(zip(("max_num_seqs", "max_num_batched_tokens"), GRID, strict=True))
    options: dict[str, Any] = {"budget": 5, "settings": grid, "top": 0, "dtype": "bf16", **ON_L4}
    search = hwcalc.tune(QWEN, words, **options)

    assert (search.replayed, search.work <= search.budget) == (6, True)
    assert {trial.traffic.requests for trial in search.best} == {140}
    assert sum(1 + trial.alike for trial in search.best) == 1
    with ThreadPoolExecutor(2) as executor:
        assert hwcalc.tune(QWEN, words, executor=executor, **options) == search


def test_the_forecast_chooses_where_the_first_round_would_be_too_short() -> None:
    """Of 24 settings for 40 requests two can be replayed: those that the formula expects to serve most."""
    search = tuned(words="prompt=2k output=20 arrival=poisson=1 requests=40", budget=2)

    assert (search.replayed, search.left_out > 0, search.work) == (2, True, 2)


@given(number=st.integers(1, 5000), budget=st.integers(1, 300), requests=st.integers(1, 100_000))
def test_rounds_keep_the_budget(number: int, budget: int, requests: int) -> None:
    """All rounds together cost no more replays than the budget; with fewer settings there is one round."""
    left, halvings = rounds_for(number, budget, requests)
    cost = sum(Fraction(left, 2**turn) * Fraction(2**turn, 2**halvings) for turn in range(halvings + 1))

    assert cost <= budget
    assert (left, halvings) == (number, 0) or number > budget
    assert halvings == 0 or requests >> halvings >= 32


def test_more_gpus_are_left_out_where_they_cannot_pay() -> None:
    """A GPU that serves all requests serves more than each of two; two, replayed by themselves, show it."""
    words = "prompt=1k output=20 arrival=poisson=1 requests=40"
    fixed: dict[str, Any] = {
        "gpu": "2xh100",
        "settings": {"max_num_seqs": ["64"]},
        "engine_options": {"max_num_batched_tokens": "2048"},
    }
    search = hwcalc.tune(QWEN, words, ttft="2s", dtype="bf16", **fixed)
    two = hwcalc.tune(QWEN, words, ttft="2s", dtype="bf16", tp=2, **fixed)

    assert (search.best[0].gpus, search.too_large, search.searched["tp"]) == (1, 2, ["1", "2"])
    assert two.best[0].changed["tp"] == "2"
    assert two.best[0].goodput_per_gpu < search.best[0].goodput_per_gpu


@pytest.mark.parametrize("limit", ["ttft", "itl", "e2e"])
@pytest.mark.parametrize(
    "server",
    [
        {"gpu": "l4", "dtype": "bf16", "engine_options": {"max_num_batched_tokens": "2048"}},
        {"gpu": "l4", "dtype": "bf16", "engine_options": {"max_num_batched_tokens": "2048", "speculative": "ngram:3"}},
        {"gpu": "h100", "dtype": "bf16", "engine": "sglang", "engine_options": {"chunked_prefill_size": "2048"}},
        {"gpu": "rtx-4090", "dtype": "f16", "engine": "llamacpp", "weights": "q4_k_m", "engine_options": {"n_ubatch": "512"}},
    ],
    ids=["vllm", "drafts", "sglang", "llamacpp"],
)
def test_too_slow_is_what_a_request_alone_does_not_keep(server: dict[str, Any], limit: str) -> None:
    """With a limit of what one request takes it holds; with half of that nothing does, which is known of all but the nearest without a replay."""
    words = "prompt=3k output=9 requests=1"
    alone = hwcalc.simulate(QWEN, words, seq="4k", **server).traffic
    took = {"ttft": alone.ttft, "itl": alone.tpot, "e2e": alone.e2e}[limit]
    assert took is not None
    limits: list[dict[str, Any]] = [{limit: took.max * times} for times in (1.001, 0.5)]
    kept, missed = (hwcalc.tune(QWEN, words, seq="4k", **server, **one) for one in limits)

    assert (kept.holds, kept.too_slow) == (True, 0)
    assert not missed.holds
    assert missed.best[0].excess == pytest.approx(2)
    # Drafts may all be accepted.
    assert (missed.too_slow > 0, missed.replayed) == (True, 1) or "speculative" in server["engine_options"]


def test_engines_say_what_is_searched() -> None:
    """Each engine that is replayed names options that it has, with values that it takes."""
    replayed = [engine for engine in (find_engine(name)[0] for name in ENGINES) if engine.scheduler is not None]

    assert {engine.name for engine in replayed} >= {"vllm", "sglang", "llamacpp"}
    for engine in replayed:
        for name, option in engine.facts.trade_offs.items():
            assert name == "dtype" or [engine.options[name].check(name, value) is not None for value in option.values]
    assert "enable_prefix_caching" not in tuned().searched
    fixed = {"max_num_seqs": "8", "max_num_batched_tokens": "2048"}
    shared = hwcalc.tune(QWEN, "prompt=500 prefix=1k groups=2 output=2 requests=4", engine_options=fixed, **ON_L4)
    assert shared.searched["enable_prefix_caching"] == ["default", "false"]


def test_experts_are_dealt_over_replicas() -> None:
    """A mixture of experts is searched with whole experts on each rank, as people run it."""
    model = "Qwen/Qwen3-30B-A3B"
    words = "prompt=500 output=5 requests=3"
    search = hwcalc.tune(
        model,
        words,
        gpu="2xh100",
        seq="4k",
        ttft="9s",
        dtype="bf16",
        engine_options={"max_num_batched_tokens": "2048", "max_num_seqs": "64"},
        top=0,
    )

    assert {"gpu": "h100-sxm5-80gb", "tp": "1", "dp": "2", "ep": "2"} in [trial.changed for trial in search.best]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, UsageError, "no limit of time is given"),
        ({"ttft": "2s", "gpu": None}, UsageError, "no hardware is named"),
        ({"ttft": "2s", "share": "0%"}, UsageError, "share is 0"),
        ({"ttft": "2s", "share": "101%"}, UsageError, "share is 1.01"),
        ({"ttft": "2s", "budget": 0}, UsageError, "budget"),
        ({"ttft": "2s", "tp": 3}, UsageError, "no layout of up to 1 x l4 with tp 3"),
        ({"ttft": "2s", "settings": {"max_num_seqs": [8, "many"]}}, UsageError, "max_num_seqs is not a number"),
        ({"ttft": "2s", "settings": {"colour": ["red"]}}, UsageError, "'colour' is not known to vllm"),
        (
            {"ttft": "2s", "settings": {"watermark": [number / 1000 for number in range(900)]}},
            UsageError,
            "are too many to search",
        ),
        ({"ttft": "2s", "colour": "red"}, UsageError, "tune takes no"),
        ({"ttft": "2s", "engine": "mlx"}, UnsupportedError, "no rules of mlx's scheduler"),
        ({"ttft": "2s", "seq": "40k", "kv_memory": "2GiB"}, NoRoomError, "does not fit with a sequence of 40,960 tokens"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[KvplanError], said: str) -> None:
    """What was given, and what would do."""
    with pytest.raises(error, match=said):
        hwcalc.tune(QWEN, "prompt=1k output=5 requests=2", **{"gpu": "l4", "seq": "8k", **options})

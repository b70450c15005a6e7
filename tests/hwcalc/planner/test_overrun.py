"""The chance that users overrun the pool: against brute force, and by the rules of each engine."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import load_model, plan
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.planner import overrun
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.overrun import Filled, Together, pools_of
from hwcalc.workload.lengths import read_lengths
from hwcalc.workload.opening import held_lengths
from tests.hwcalc.command import QWEN

UNITS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=4)


def _pool(units: Sequence[int], weights: Sequence[int], total: int) -> Filled:
    shares = np.array(weights, float) / sum(weights)
    return Filled(name="blocks", units=np.array(units, np.int64), shares=shares, total=total)


def _brute_force(pools: Sequence[Sequence[int]], weights: Sequence[int], totals: Sequence[int], number: int) -> Fraction:
    """The chance, over all ways in which so many sequences can have their lengths."""
    whole, over = sum(weights), 0
    for places in product(range(len(weights)), repeat=number):
        ways = 1
        for place in places:
            ways *= weights[place]
        if any(sum(units[place] for place in places) > total for units, total in zip(pools, totals, strict=True)):
            over += ways
    return Fraction(over, whole**number)


@given(UNITS, st.integers(0, 40), st.integers(0, 5))
def test_the_chance_is_that_of_brute_force(given_units: list[tuple[int, int]], total: int, number: int) -> None:
    """Every way in which up to five sequences have one of up to four lengths."""
    units, weights = zip(*given_units, strict=True)
    low, high = Together(pools=(_pool(units, weights, total),)).chances(number)

    assert low == high == pytest.approx(float(_brute_force([units], weights, [total], number)), abs=1e-12)


@settings(max_examples=40)
@given(UNITS, st.data(), st.integers(0, 30), st.integers(0, 30), st.integers(1, 4))
def test_bounds_of_two_pools_hold_the_truth(
    given_units: list[tuple[int, int]], data: st.DataObject, total: int, other: int, number: int
) -> None:
    """Both pools fill with the same sequences; what is drawn is within its error, or nearly so."""
    units, weights = zip(*given_units, strict=True)
    second = data.draw(st.lists(st.integers(0, 12), min_size=len(units), max_size=len(units)))
    pools = Together(pools=(_pool(units, weights, total), _pool(second, weights, other)))
    low, high = pools.chances(number)
    truth = float(_brute_force([units, second], weights, [total, other], number))
    drawn, error = pools.sampled(number, 2000)

    assert low - 1e-12 <= truth <= high + 1e-12
    assert drawn == pytest.approx(truth, abs=3 * error)


@settings(max_examples=40)
@given(UNITS, st.integers(0, 3000), st.integers(1, 3))
def test_more_users_are_never_less_likely_to_overrun(given_units: list[tuple[int, int]], total: int, copies: int) -> None:
    """And so many may run that one more would be too many; nobody overruns where all fit at their longest."""
    units, weights = zip(*given_units, strict=True)
    pools = Together(pools=(_pool(units, weights, total),), copies=copies)
    bound = 400
    most = pools.most(0.01, bound)
    numbers = sorted({1, 2, 5, most, most + 1, 2 * most + 7, bound})
    chances = [pools.chances(number)[1] for number in numbers]

    assert all(early <= late + 1e-10 for early, late in pairwise(chances))
    assert pools.chances(most)[1] <= 0.01 + 1e-10
    assert most == bound or pools.chances(most + 1)[1] > 0.01 - 1e-10
    fitting = total // max(*units, 1) * copies
    assert pools.chances(fitting) == (0.0, 0.0)


def test_long_convolutions_are_exact() -> None:
    """30 sequences of 1 to 200 units, equally likely: against sums of whole numbers, far into the tail."""
    ways = [1]
    for _ in range(30):
        # One sequence more adds 1 to 200: a window over the ways before it, one place on.
        upto = list(accumulate(ways, initial=0))
        last = len(ways)
        ways = [upto[min(place, last)] - upto[max(place - 200, 0)] if place else 0 for place in range(last + 200)]

    for total in (3_000, 3_400, 3_900):
        pools = Together(pools=(_pool(range(1, 201), [1] * 200, total),))
        over = Fraction(sum(ways[total + 1 :]), 200**30)
        assert pools.chances(30)[1] == pytest.approx(float(over), abs=1e-11)


def test_what_is_rounded_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 units that are told apart, the bounds hold the exact chance."""
    exact = Together(pools=(_pool(range(1, 200), [1] * 199, 1009),)).chances(9)
    monkeypatch.setattr(overrun, "MOST_BINS", 64)
    low, high = Together(pools=(_pool(range(1, 200), [1] * 199, 1009),)).chances(9)

    assert exact[0] == exact[1]
    assert low < exact[0] < high


def test_replicas_have_their_share_of_users() -> None:
    """Five users over two replicas: three and two, each with a pool; one overrun is enough."""
    pool = _pool([1, 2], [1, 1], 4)
    three, two = pool.chances(3)[0], pool.chances(2)[0]

    # Of three users two or three need 2 blocks each: 5 or 6 blocks of 4.
    assert (three, two) == (0.5, 0.0)
    assert Together(pools=(pool,), copies=2).chances(5)[0] == pytest.approx(0.5)
    assert Together(pools=(pool,), copies=2).chances(6)[0] == pytest.approx(0.75)


def test_vllm_counts_its_own_blocks() -> None:
    """101 blocks, of which one is the null block; 60 users of 16 or 32 tokens take 60 blocks and one more with even odds.

    They overrun 100 blocks if more than 40 of them are long. Qwen3-8B has blocks of 16 tokens: 2 x 36 layers x 8 heads x 128 x 2 bytes x 16.
    """
    block = 2 * 36 * 8 * 128 * 2 * 16
    info = plan(QWEN, seq=32, batch=60, avg_seq="16,32", engine="vllm", kv_memory=101 * block + 5).overrun
    long = sum(comb(60, number) for number in range(41, 61))

    assert info is not None
    assert (info.pool, info.pool_units, info.mean_units, info.mean_tokens) == ("blocks", 100, 1.5, 24)
    assert info.chance == pytest.approx(long / 2**60, rel=1e-6)
    assert (info.chance_error, info.samples) == (0, None)
    assert info.chance_high == info.chance, "the budget is given"
    # With 57 users more than 43 must be long: the sum over 44 to 57 of C(57, k) / 2^57 is at most 1 %; 58 users would be more.
    most = max(users for users in range(50, 100) if sum(comb(users, k) for k in range(101 - users, users + 1)) / 2**users <= 0.01)
    assert info.max_users == info.expected_max_users == most


@pytest.mark.parametrize(
    ("model", "engine", "size", "unknown"),
    [
        (QWEN, "vllm", "2GiB", ""),
        ("openai/gpt-oss-20b", "vllm", "1GiB", ""),
        ("google/gemma-3-27b-it", "vllm", "6GiB", ""),
        (QWEN, "reference", "2GiB", ""),
        (QWEN, "sglang", "2GiB", ""),
        ("openai/gpt-oss-20b", "sglang", "1GiB", ""),
        (QWEN, "lmdeploy", "2GiB", ""),
        (QWEN, "mistral-rs", "2GiB", ""),
        (QWEN, "transformers", "2GiB", "unknown"),
        (QWEN, "mlx", "2GiB", "unknown"),
        (QWEN, "tensorrt-llm", "2GiB", "unknown"),
        (QWEN, "llamacpp", "2GiB", "unknown"),
    ],
)
def test_unlike_sequences_fit_where_their_units_do(model: str, engine: str, size: str, unknown: str) -> None:
    """A plan of lengths that are named one by one fits just if the sums of what each takes do, pool by pool."""
    spec, longest = load_model(model), 8192
    opened = open_request(spec, **read_options({"engine": engine, "kv_memory": size, "seq": longest}).keywords())
    uniform = read_lengths(f"min=1,max={longest}")
    if unknown:
        with pytest.raises(UnsupportedError, match="avg_seq"):
            pools_of(opened, 2**31, uniform)
        return
    pools = pools_of(opened, opened.setup.hardware.kv_memory or 0, uniform)
    drawn = np.random.default_rng(0)
    verdicts = []
    for number in (2, 3, 4, 6, 8):
        lengths = sorted({int(one) for one in drawn.integers(16, longest, number)}, reverse=True)
        fits = all(sum(int(pool.units[length - 1]) for length in lengths) <= pool.total for pool in pools.pools)
        fit = plan(spec, engine=engine, kv_memory=size, lengths=lengths, batch=len(lengths)).fit
        assert fit is not None
        assert fit.fits is fits, lengths
        verdicts.append(fits)
    assert set(verdicts) == {True, False}


def test_lengths_at_a_random_moment_of_decoding() -> None:
    """A request of 100 + 3 tokens stores 100, 101 and 102 tokens in its steps; one of 5 + 1 stores 5 in its only step."""
    held, about = held_lengths("prompt=100 output=3 requests=5", 1000)

    assert held.masses[[100, 101, 102]] == pytest.approx([1 / 3] * 3)
    assert "random moment" in about
    assert held_lengths("prompt=100 output=30 requests=5", 110)[0].masses[[109, 110]] == pytest.approx([1 / 30, 20 / 30])


def test_words_of_average_lengths(tmp_path: pytest.TempPathFactory) -> None:
    """A bare number is a mean, others are themselves; a trace and a file of lengths are read."""
    assert held_lengths("4k", 32768)[0].mean == pytest.approx(4096)
    assert held_lengths("1k,3k", 32768)[0].mean == 2048
    assert held_lengths("tests/readme/trace.jsonl", 32768)[0].longest == 2600 + 540 - 1
    file = f"{tmp_path}/lengths.txt"
    with open(file, "w", encoding="utf-8") as opened:  # noqa: PTH123 - a path as users type it
        opened.write("# of last week\n100\n300\n")
    assert held_lengths(file, 32768)[0].mean == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"avg_seq": "p50=2k"}, "one quantile"),
        ({"avg_seq": "64k"}, "mean"),
        ({"avg_seq": "no/such.csv"}, "is not there"),
        ({"avg_seq": "4k", "samples": 2, "prompt": 100}, "not with"),
        ({"avg_seq": "4k", "shared_prefix": 100}, "not with"),
        ({"avg_seq": "4k", "engine": "llamacpp"}, "no pool"),
    ],
)
def test_what_has_no_answer_is_refused(options: dict[str, object], said: str) -> None:
    """Wrong words, loads of other shapes, engines without such a pool."""
    with pytest.raises(KvplanError, match=said):
        plan(QWEN, **{"seq": "32k", "engine": "vllm", "gpu": "h100", **options})  # type: ignore[arg-type]


def test_without_a_pool_there_is_a_note() -> None:
    """Nothing says how much memory there is."""
    planned = plan(QWEN, seq="32k", avg_seq="4k")

    assert planned.overrun is None
    assert any("--avg-seq: no effect" in note.message for note in planned.notes)
    assert planned.request.avg_seq == "4k"


def test_states_limit_how_many_run() -> None:
    """SGLang has a slot for the states of each request: more requests than slots wait, and so overrun nothing."""
    info = plan(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", seq="32k", batch=5000, avg_seq="1k", engine="sglang", gpu="h200", gpus=2
    ).overrun

    assert info is not None
    assert info.limiting == "running requests"
    assert info.expected_max_users < 5000
    assert info.chance == 0


def test_a_length_beyond_the_longest_is_refused() -> None:
    """Every length is told apart, up to 8 million tokens."""
    with pytest.raises(UsageError, match="avg_seq"):
        held_lengths("4k", 2**30)

"""Distributions of lengths, arrivals, and workloads made of words."""

from __future__ import annotations

from itertools import islice
from math import exp, log
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.errors import TraceError, UsageError
from hwcalc.workload.lengths import Lengths, read_lengths
from hwcalc.workload.made import KEYS, made, read_arrivals
from hwcalc.workload.request import Segment

WORDS = st.one_of(
    st.lists(st.integers(1, 500), min_size=1, max_size=5).map(lambda values: ",".join(map(str, values))),
    st.tuples(st.integers(1, 50), st.integers(51, 400)).map(lambda ends: f"min={ends[0]},max={ends[1]}"),
    st.tuples(st.integers(1, 50), st.integers(51, 400)).map(lambda points: f"p50={points[0]},p95={points[1]},max=500"),
    st.tuples(st.integers(2, 90), st.integers(100, 400)).map(lambda ends: f"mean={ends[0]},max={ends[1]}"),
)


def test_quantiles_are_those_of_the_words() -> None:
    """Half of all lengths are at most 2,048 tokens and 95 % at most 16,384, exactly."""
    lengths = read_lengths("p50=2k,p95=16k")

    assert (lengths.quantile(0.5), lengths.quantile(0.95)) == (2048, 16384)
    assert lengths.cumulative(np.array([2048, 16384])) == pytest.approx([0.5, 0.95], abs=1e-12)


def test_two_quantiles_make_a_lognormal_distribution() -> None:
    """Its mean is exp(mu + sigma^2 / 2), with mu = log p50 and sigma = (log p95 - log p50) / 1.6449; lengths are rounded up."""
    sigma = (log(400) - log(100)) / 1.6448536269514722

    # Rounding up adds half a token on average.
    assert read_lengths("p50=100,p95=400").mean == pytest.approx(100 * exp(sigma**2 / 2) + 0.5, rel=1e-3)


def test_a_third_quantile_bends_the_distribution() -> None:
    """All three hold."""
    lengths = read_lengths("p50=100,p90=1000,p99=1100")

    assert [lengths.quantile(share) for share in (0.5, 0.9, 0.99)] == [100, 1000, 1100]


def test_uniform_and_listed_lengths() -> None:
    """Each of 1 to 4 has a quarter; of 1, 2, 2 and 8 x 2 a fifth, two and two."""
    assert read_lengths("min=1,max=4").masses.tolist() == [0, 0.25, 0.25, 0.25, 0.25]
    assert read_lengths("1,2,2,8*2").masses[[1, 2, 8]] == pytest.approx([0.2, 0.4, 0.4])
    assert read_lengths([1, "2", 2, 8, 8]).mean == pytest.approx(21 / 5)


@pytest.mark.parametrize(("mean", "longest"), [(4, 7), (2, 7), (6, 7), (300, 32768), (5, None)])
def test_a_mean_makes_a_geometric_distribution(mean: int, longest: int | None) -> None:
    """It has that mean, and each length is the same number of times as likely as the one before."""
    lengths = read_lengths(f"mean={mean}", longest=longest)
    masses = lengths.masses[1:5]

    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    assert masses[1] / masses[0] == pytest.approx(masses[3] / masses[2], rel=1e-6)


@settings(max_examples=60)
@given(WORDS)
def test_every_distribution_is_one(words: str) -> None:
    """Shares sum to 1, none is negative, and a quantile is the least length that has its share."""
    lengths = read_lengths(words)
    masses = lengths.masses
    upto = masses.cumsum()

    assert masses.min() >= -1e-12
    assert upto[-1] == pytest.approx(1)
    for share in (0.1, 0.5, 0.937):
        length = lengths.quantile(share)
        assert upto[length] >= share - 1e-9
        assert upto[length - 1] < share + 1e-9
    assert lengths.quantile(0) == lengths.shortest
    assert lengths.quantile(1) == lengths.longest


def test_a_limit_cuts_what_is_longer() -> None:
    """Of 1k, 8k and 64k at most 16k tokens are 1k, 8k and 16k."""
    assert read_lengths("1k,8k,64k", longest=16384).longest == 16384
    assert read_lengths("p50=2k,p95=16k", longest=4096).quantile(0.99) == 4096


def test_lengths_of_a_file(tmp_path: Path) -> None:
    """One in a line, with comments."""
    file = tmp_path / "lengths.txt"
    file.write_text("# measured\n100\n\n1k # long\n100\n")

    assert read_lengths(str(file)).masses[[100, 1024]] == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(
    "words",
    ["", "p50=2k", "p50=2k,p50=3k", "p50=4k,p95=2k", "p0=1,p95=2k", "min=5,max=3", "min=5", "mean=2k,p50=1k", "mean=9,max=5", "1k,0", "-5", "max=1k", "1k*0", "q50=1k,p95=2k"],
)  # fmt: skip
def test_wrong_words_are_refused_with_those_that_are_allowed(words: str) -> None:
    """The hint has examples."""
    with pytest.raises(UsageError) as caught:
        read_lengths(words, "prompt")
    assert "Allowed" in caught.value.hint or "Write" in caught.value.hint


def test_a_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    """The error has the number of the line; a file that is not there is said so."""
    file = tmp_path / "lengths.txt"
    file.write_text("100\nmany\n")

    with pytest.raises(UsageError, match="line 2"):
        read_lengths(str(file))
    with pytest.raises(TraceError, match="is not there"):
        read_lengths(str(tmp_path / "none.txt"))


def test_arrivals() -> None:
    """All at once; four a second; and at random with that rate, whatever the burstiness."""
    assert list(islice(read_arrivals("once").times("0"), 3)) == [0, 0, 0]
    assert list(islice(read_arrivals("rate=4").times("0"), 3)) == [0, 0.25, 0.5]
    for words in ("poisson=4", "poisson=4/s,burstiness=0.5"):
        times = list(islice(read_arrivals(words).times("0"), 20001))
        # 20,000 gaps: the mean is within 5 standard errors, which are sqrt(2 / 20,000) of it.
        assert times[-1] / 20000 == pytest.approx(0.25, rel=0.05)
        assert times == list(islice(read_arrivals(words).times("0"), 20001))


@pytest.mark.parametrize("words", ["", "often", "rate=0", "poisson", "rate=4,burstiness=2", 4])
def test_wrong_arrivals_are_refused(words: object) -> None:
    """The hint has the words that there are."""
    with pytest.raises(UsageError, match="arrival"):
        read_arrivals(words)


def test_a_workload_of_words_is_reproducible_and_its_lengths_do_not_follow_arrivals() -> None:
    """The same words make the same requests; another seed makes others; other arrivals leave the lengths."""
    words = "prompt=p50=100,p95=900 output=mean=20 requests=50 "
    lengths = [request.prompt_tokens for request in made(words)]

    assert list(made(words)) == list(made(words))
    assert lengths == [request.prompt_tokens for request in made(f"{words} arrival=poisson=4")]
    assert lengths != [request.prompt_tokens for request in made(f"{words} seed=1")]
    assert made(words).count == len(lengths) == 50


def test_groups_share_their_prefix() -> None:
    """Two prefixes of 64 tokens before prompts of 10."""
    requests = list(made("prompt=10 output=5 prefix=64 groups=2 requests=40"))

    assert {request.prompt_tokens for request in requests} == {74}
    assert {request.prefix for request in requests} == {(Segment(("group", number), 64),) for number in (0, 1)}


def test_a_turn_has_all_before_it_in_its_prompt() -> None:
    """Turns of 10 tokens with answers of 5 have prompts of 10, 25 and 40, each sent after the one before."""
    requests = list(made("prompt=10 output=5 turns=3 think=2 requests=6 arrival=rate=1"))
    first = [request for request in requests if request.session == 0]

    assert [request.prompt_tokens for request in first] == [10, 25, 40]
    assert [request.after for request in first] == [None, first[0].number, first[1].number]
    assert first[1].prefix == (*first[0].prefix, Segment(first[0].output_id, 5), Segment(("turn", 0, 1), 10))
    assert all(request.wait_s > 0 for request in first[1:])
    assert [request.number for request in requests] == list(range(6))
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)


def test_a_session_ends_before_it_is_too_long() -> None:
    """With at most 30 tokens the second turn, of 25 + 5, is the last."""
    requests = list(made("prompt=10 output=5 turns=3 requests=4 max=30"))

    assert max(request.total_tokens for request in requests) == 30
    assert len(requests) == 4


def test_some_users_give_up() -> None:
    """About a tenth of 2,000, after 3 seconds on average."""
    times = [request.cancel_after_s for request in made("prompt=10 output=5 cancel=10% cancel_after=3 requests=2000")]
    given = [seconds for seconds in times if seconds is not None]

    assert len(given) == pytest.approx(200, abs=60)
    assert sum(given) / len(given) == pytest.approx(3, rel=0.4)


@pytest.mark.parametrize(
    "words",
    ["prompt=10", "output=5", "prompt", "prompt=10 output=5 prompts=3", "prompt=10 output=5 prompt=3", "prompt=10 output=5 cancel=2", "prompt=10 output=5 think=long", "prompt=10 output=5 requests=0"],
)  # fmt: skip
def test_wrong_words_of_a_workload_are_refused(words: str) -> None:
    """Each with a hint."""
    with pytest.raises(UsageError) as caught:
        made(words)
    assert caught.value.hint


def test_every_key_has_a_meaning() -> None:
    """All keys together make a workload."""
    assert set(KEYS) == {"prompt", "output", "requests", "arrival", "concurrency", "prefix", "groups", "samples", "turns", "think", "cancel", "cancel_after", "max", "seed"}  # fmt: skip
    words = dict.fromkeys(KEYS, 3) | {"arrival": "rate=1", "cancel": 0.5, "max": 100}
    assert len(list(made(words))) == 3


def test_random_lengths_have_the_distribution() -> None:
    """Of 20,000 draws the share of short ones is that of the distribution, within 5 standard errors."""
    lengths: Lengths = read_lengths("p50=2k,p95=16k")
    drawn = Random(0)  # noqa: S311 - nothing is secret
    short = sum(lengths.quantile(drawn.random()) <= 1000 for _ in range(20000)) / 20000

    assert short == pytest.approx(float(lengths.cumulative(np.array([1000]))[0]), abs=0.02)

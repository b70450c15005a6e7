"""Users within limits of time: the queue's formula by hand, the search against trying every number, and laws."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import ModelSpec, load_model, plan
from hwcalc.engines.setup import Load, Sharing
from hwcalc.errors import UsageError
from hwcalc.library.plan import open_loaded
from hwcalc.planner.forecast import forecast
from hwcalc.planner.result import Plan
from hwcalc.planner.step_time import step_times
from hwcalc.planner.within import Limits, lengths_of, waiting
from hwcalc.planner.within_result import WithinInfo
from hwcalc.report.emit import commands_to_start
from hwcalc.report.verdict import verdict
from hwcalc.report.within import within_lines

LLAMA = "meta-llama/Llama-3.1-8B"
ON_H100: dict[str, Any] = {"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 8192}


@cache
def llama() -> ModelSpec:
    """The model, loaded once."""
    return load_model(LLAMA, offline=True)


def planned(**options: Any) -> Plan:
    """A plan on one H100."""
    return plan(llama(), **{**ON_H100, **options})


def within(**options: Any) -> WithinInfo:
    """What a plan says of users within its limits."""
    found = planned(**options).within
    assert found is not None
    return found


def test_waiting_for_one_place() -> None:
    """For one server and equal times it is Pollaczek and Khinchine's formula: share x time / (1 - share) / 2."""
    assert waiting(0.8, 1, 3.0) == pytest.approx(0.8 * 3.0 / 0.2 / 2)
    assert waiting(1.0, 1, 3.0) == float("inf")


def test_waiting_for_one_of_two_places() -> None:
    """Erlang's C for two servers with one busy on average is 1/3, and one place is free: a third of the time, halved for equal times.

    B(1) = 1 / (1 + 1) = 1/2, B(2) = 1/2 / (2 + 1/2) = 1/5; C = B / (1 - 1/2 x (1 - B)) = 0.2 / 0.6.
    """
    assert waiting(1.0, 2, 6.0) == pytest.approx(6.0 / 3 / (2 - 1) / 2)


@pytest.mark.parametrize(
    ("load", "hit", "lengths"),
    [
        (Load(seq=8192), None, (7680, 0, 512)),
        (Load(seq=800), None, (700, 0, 100)),
        (Load(seq=8192, prompt=8000), None, (8000, 0, 192)),
        (Load(seq=100, prompt=100), None, (99, 0, 1)),
        (Load(seq=1), None, (1, 0, 1)),
        (Load(seq=8192, sharing=Sharing(prefix=1000)), None, (7680, 1000, 512)),
        (Load(seq=8192, sharing=Sharing(prefix=1000)), 0.5, (7680, 3840, 512)),
        (Load(seq=8192), 1.0, (7680, 7679, 512)),
        (Load(seq=8192, batch=2, lengths=(8192, 4096)), None, (5632, 0, 512)),
    ],
)
def test_lengths(load: Load, hit: float | None, lengths: tuple[int, int, int]) -> None:
    """An eighth of a sequence is output unless the prompt is given, at most 512 tokens; one token of a prompt is always computed."""
    assert lengths_of(load, hit) == lengths


def test_the_most_users_are_those_of_trying_each() -> None:
    """One user more than the answer has fewer than 40 tokens per second, by the forecast."""
    found = within(ttft="1s", min_rate=40)
    times = step_times(open_loaded(llama(), ON_H100)[0])
    assert times is not None
    rates = {users: 1 / forecast(times, 7680, 512, users).itl_s.expected for users in range(1, 55)}

    assert found.users == max(users for users, rate in rates.items() if rate >= 40)
    assert found.limiting == "min_rate"
    assert found.at_users is not None
    assert 1 / found.at_users.itl_s.expected == pytest.approx(rates[found.users])  # type: ignore[operator]
    assert [one.flag for one in found.settings] == [f"--max-num-seqs {found.users}", "--max-num-batched-tokens 8192"]
    # Nothing is to be served faster than the memory is read, and what is sure is fewer.
    assert found.users_low is not None
    assert found.users_low < found.users < found.users_bound


def test_memory_is_a_limit_too() -> None:
    """With all the time of the world as many are served as fit."""
    found = planned(e2e="1h")

    assert found.within is not None
    assert found.fit is not None
    assert found.within.users == found.fit.expected_max_batch
    assert found.within.users_low == found.fit.max_batch
    assert found.within.limiting == found.fit.expected_limiting


def test_times_are_of_those_that_are_held() -> None:
    """Of 500 sequences of 1 GiB an H100 holds some 50, so each user's times are those of as many at once, with the number."""
    plan = planned(batch=500, ttft="1s", itl="30ms")
    found, fit = plan.within, plan.fit
    assert found is not None
    assert fit is not None
    assert fit.max_batch is not None
    alone = within(batch=fit.max_batch, ttft="1s", itl="30ms")
    each = dict(within_lines(plan))["each"]

    # 8,192 tokens x 32 layers x 2 x 8 heads x 128 x 2 bytes are 1 GiB; the pool has what 72.85 GiB leave beside 17 of weights and rest.
    assert 50 <= fit.max_batch <= 56
    assert (found.at_batch.users, found.at_held) == (500, alone.at_batch)
    assert alone.at_held is None
    assert each.startswith(
        f"with {fit.max_batch} at once, as memory holds no more of the 500, their prompts computed in between: "
    )


def test_planned_users_hold_the_limits_or_not() -> None:
    """As many as the answer says are within, and one more is not: the plan says no."""
    users = within(min_rate=40).users
    assert users is not None

    assert not planned(min_rate=40, batch=users).refutes
    more = planned(min_rate=40, batch=users + 1)
    assert more.refutes
    assert more.within is not None
    assert more.within.holds is False
    assert more.within.at_batch.users == users + 1


def test_a_chunk_keeps_tokens_coming() -> None:
    """The users are those of the engine's own chunk. A smaller one is told of, with which no step is longer than the limit between tokens."""
    found = within(itl="40ms")

    assert found.at_users is not None
    assert [(one.option, one.value) for one in found.settings] == [
        ("max_num_seqs", found.users),
        ("max_num_batched_tokens", 8192),
    ]
    assert found.chunk is not None
    assert found.chunk.step_with_prompt_s <= 0.04 < (found.at_users.step_with_prompt_s or 0)
    assert found.chunk.setting.flag == f"--max-num-batched-tokens {found.chunk.setting.value}"
    # It costs time to the first token, and never adds users.
    assert found.users is not None
    assert found.chunk.users <= found.users
    assert (found.chunk.ttft_s.expected or 0) > (found.at_users.ttft_s.expected or 0)
    assert within(min_rate=40).chunk is None


def test_the_answer_and_the_verdict_are_of_the_same_chunk() -> None:
    """As many as the answer says hold the limit between tokens, and one more does not."""
    users = within(itl="25ms").users
    assert users is not None

    assert within(itl="25ms", batch=users).holds is True
    assert within(itl="25ms", batch=users + 1).holds is False


def test_users_have_the_lengths_that_they_really_have() -> None:
    """A mean of 2,048 tokens leaves an eighth for the output: 1,792 + 256. The memory holds as many as seldom overrun it."""
    found = planned(batch=10, avg_seq="min=2k,max=2k", e2e="1h")

    assert found.within is not None
    assert found.overrun is not None
    assert (found.within.prompt_tokens, found.within.output_tokens) == (1792, 256)
    assert found.within.users == found.overrun.expected_max_users
    assert found.within.users_low == found.overrun.max_users


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        ("vllm", "--max-num-seqs {users} --max-num-batched-tokens 8192"),
        ("sglang", "--max-running-requests {users} --chunked-prefill-size 8192"),
        # Slots divide the context among them.
        ("llamacpp", "-c {tokens} -np {users} -ub 512"),
    ],
)
def test_what_starts_keeps_the_limits(engine: str, start: str) -> None:
    """The command has what the answer says to set."""
    found = planned(engine=engine, ttft="3s")
    assert found.within is not None
    users = found.within.users or 0

    assert start.format(users=users, tokens=users * 8192) in commands_to_start(found)[0][1]


def test_nobody_within_what_nothing_can() -> None:
    """A limit below the bound has nobody, and says which."""
    found = within(itl="1ms")

    assert (found.users, found.users_low, found.users_bound, found.at_users) == (0, 0, 0, None)
    assert found.limiting == "itl"
    assert found.holds is False


def test_an_engine_that_was_not_measured_has_the_bound() -> None:
    """Nothing is expected of the formulas alone: whether users are within is not known, unless the bound says no."""
    found = within(engine="reference", min_rate=40)

    assert found.users is None
    assert found.users_bound > 0
    assert found.holds is None
    assert within(engine="reference", itl="1ms").holds is False


def test_arrivals() -> None:
    """Fewer may arrive than are served at full load; as many are served at once as arrive in the time of each (Little)."""
    found = within(ttft="2s", rate=1.0)
    arrivals, users = found.arrivals, found.users
    assert arrivals is not None
    assert users is not None
    assert arrivals.most_rate is not None
    assert arrivals.most_rate_low is not None
    assert arrivals.at_once is not None
    assert found.at_users is not None
    full = users / found.at_users.e2e_s.expected  # type: ignore[operator]

    assert 0 < arrivals.most_rate_low < arrivals.most_rate < full
    assert found.holds is True
    times = step_times(open_loaded(llama(), ON_H100)[0])
    assert times is not None
    assert arrivals.at_once == pytest.approx(forecast(times, 7680, 512, arrivals.at_once).cycle_s.expected, rel=1e-3)
    beyond = within(ttft="2s", rate=2 * full)
    assert beyond.arrivals is not None
    assert beyond.arrivals.at_once is None
    assert beyond.holds is False


@given(st.sampled_from(["ttft", "itl", "e2e"]), st.floats(0.005, 30), st.floats(1, 3))
@settings(max_examples=8, deadline=None)
def test_more_time_never_serves_fewer(name: str, seconds: float, factor: float) -> None:
    """A looser limit, and a larger part of the prompts in the cache, serve as many or more. What is sure is never more than expected."""
    tight, loose = within(**{name: seconds}), within(**{name: seconds * factor})

    assert (tight.users or 0) <= (loose.users or 0)
    assert (tight.users_low or 0) <= (tight.users or 0) <= tight.users_bound
    assert (tight.users or 0) <= (within(**{name: seconds}, prefix_hit=0.5).users or 0)


def test_limits_of_options() -> None:
    """Options that are no limits are none."""
    assert Limits.of({"revision": "main"}) is None
    assert Limits.of({"ttft": 2.0}) == Limits(ttft=2.0)


def test_accepted_drafts_leave_room_for_users() -> None:
    """Tokens that come several at a time come more often: as many users or more."""
    plain, drafted = (within(itl="20ms", **more) for more in ({}, {"accepted_tokens": 2.5}))

    assert (drafted.users or 0) > (plain.users or 0)
    assert (drafted.at_batch.itl_s.expected or 0) < (plain.at_batch.itl_s.expected or 0)
    # What computes a prompt is as it was.
    assert drafted.at_batch.ttft_s == plain.at_batch.ttft_s


def test_branches_are_refused() -> None:
    """A request of several sequences has no forecast, and the error says what to leave out."""
    with pytest.raises(UsageError, match="limits of time"):
        planned(ttft="2s", samples=2, prompt=4096)


def test_limits_without_an_accelerator_have_no_answer() -> None:
    """The plan says so, and nobody takes that for a yes."""
    found = plan(llama(), seq=8192, ttft="2s", itl="50ms")

    assert any(note.message.startswith("--ttft, --itl: how fast requests are served") for note in found.warnings)
    assert found.refutes


def test_what_nobody_can_say_is_in_the_verdict() -> None:
    """It fits, and whether it is fast enough is not known, or known not to be."""
    assert verdict(planned(engine="reference", ttft="1s")).endswith("; not known to be within the limits of time")
    assert verdict(planned(itl="1ms")).endswith("; not within the limits of time")
    assert "time" not in verdict(planned(ttft="1s"))

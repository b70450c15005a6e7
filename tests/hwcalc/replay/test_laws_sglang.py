"""What holds of SGLang's scheduler whatever the requests are."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc.replay.core import Server, replay
from hwcalc.replay.decoding import State
from hwcalc.replay.sglang.hybrid import SecondCache, StateScheduler, WindowScheduler
from hwcalc.replay.sglang.policies import POLICIES
from hwcalc.replay.sglang.rules import SchedulerRules
from hwcalc.replay.sglang.scheduler import SglangScheduler
from hwcalc.replay.sglang.tree import EVICTION
from hwcalc.workload.opening import workload_of_rows
from hwcalc.workload.request import Workload

_POOL = 640


class Checked(SglangScheduler):
    """Looks after each pass whether the pool is what requests and the tree hold."""

    def step(self, turn: int, most: int) -> int:
        taken = super().step(turn, most)
        cache, rules = self.cache, self.rules
        nodes = list(cache.nodes())
        assert cache.evictable == sum(node.tokens for node in nodes if not node.locks)
        assert min(cache.free, cache.evictable, cache.used) >= 0
        alive = {live.number: live for live in (*self.running, *(() if self._last is None else self._last.requests))}
        if self.chunk is not None:
            alive[self.chunk.number] = self.chunk
        own = 0
        for live in alive.values():
            if live.state in (State.PREFILL, State.DECODE):
                stored = self.running.stored(live) if live.state is State.DECODE else live.stored
                own += rules.pages(stored) - live.protected
        ending = {
            live.number: live for bucket in self.running._due.values() for live in bucket.values() if live.state is State.ENDING
        }
        own += sum(rules.pages(live.stored) - live.protected for live in ending.values())
        # Nothing is lost, and nothing is held twice.
        assert cache.used == own + sum(node.tokens for node in nodes if node.locks)
        return taken


class CheckedWindows(WindowScheduler):
    """The same of the pool of windows."""

    def step(self, turn: int, most: int) -> int:
        taken = super().step(turn, most)
        _check_second(self.cache)
        return taken


class CheckedStates(StateScheduler):
    """The same of the slots for states."""

    def step(self, turn: int, most: int) -> int:
        taken = super().step(turn, most)
        _check_second(self.cache)
        return taken


def _check_second(cache: SecondCache) -> None:
    nodes = list(cache.nodes())
    assert cache.evictable == sum(node.tokens for node in nodes if not node.locks)
    assert cache.second_evictable == sum(node.part for node in nodes if not node.part_locks)
    assert min(cache.free, cache.used, cache.second_free, cache.second_used, cache.second_evictable) >= 0


class Single(SglangScheduler):
    """Takes its steps one by one."""

    def steps_alike(self) -> int:
        return 0


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Workload, SchedulerRules]:
    """A few requests, and settings."""
    rows, arrival = list[tuple[Any, ...]](), 0
    for _ in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from((0, 0, 1, 3, 30)))
        prompt, output = draw(st.integers(1, 180)), draw(st.integers(1, 40))
        group = draw(st.sampled_from((None, 0, 1)))
        tokens = draw(st.integers(0, prompt)) if group is not None else 0
        rows.append((arrival, prompt, output, group, tokens, None, output + draw(st.sampled_from((0, 0, 30)))))
    page = draw(st.sampled_from((1, 1, 16)))
    rules = SchedulerRules(
        max_total_num_tokens=_POOL,
        page_size=page,
        max_running_requests=draw(st.sampled_from((3, 100))),
        context_length=4096,
        chunked_prefill_size=draw(st.sampled_from((None, 64, 256))),
        schedule_policy=draw(st.sampled_from(POLICIES)),
        schedule_conservativeness=draw(st.sampled_from((0.02, 1.0))),
        radix_eviction_policy=draw(st.sampled_from(sorted(EVICTION))),
        disable_radix_cache=draw(st.booleans()),
        overlap=draw(st.booleans()),
        enable_mixed_chunk=draw(st.booleans()),
    )
    return workload_of_rows(rows), rules


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_pool(scenario: tuple[Workload, SchedulerRules]) -> None:
    """No token is lost or held twice, the pool is never overrun, and at the end only the tree has some."""
    workload, rules = scenario
    scheduler = Checked(rules)
    replay([Server(scheduler, None)], workload)

    totals = scheduler.totals(0)
    assert totals["peak_used_tokens"] <= rules.max_total_num_tokens
    assert totals["final_used_tokens"] == 0
    assert all(finish is not None for finish in scheduler.requests.finishes)


@settings(max_examples=40, deadline=None)
@given(scenarios(), st.booleans())
def test_second_pool(scenario: tuple[Workload, SchedulerRules], windows: bool) -> None:
    """Nor is the second pool overrun, of which requests hold nothing at the end."""
    workload, rules = scenario
    if windows:
        chunk = min(rules.chunked_prefill_size or 256, 64)
        scheduler: SglangScheduler = CheckedWindows(replace(rules, swa_tokens=320, sliding_window=48, chunked_prefill_size=chunk))
    else:
        # States that are copied in place take pages of one token, and no overlap.
        scheduler = CheckedStates(replace(rules, page_size=1, overlap=False, max_running_requests=3, state_slots=12))
    replay([Server(scheduler, None)], workload)

    totals = scheduler.totals(0)
    assert totals["final_used_tokens"] == 0
    assert totals["final_second_pool"][0] == 0
    assert all(finish is not None for finish in scheduler.requests.finishes)


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_tokens_are_computed_once(scenario: tuple[Workload, SchedulerRules]) -> None:
    """Every token of a prompt and an output but the last is computed or found, unless something was retracted."""
    workload, rules = scenario
    scheduler = SglangScheduler(rules)
    replay([Server(scheduler, None)], workload)

    totals = scheduler.totals(0)
    if totals["retractions"]:
        return
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in workload)
    stops = sum(reason == "stop" for reason in scheduler.requests.reasons)
    done = totals["computed_tokens"] + totals["hit_tokens"]
    # With overlap a decode is planned before a stop token is seen.
    assert needed <= done <= needed + (stops if rules.overlap else 0)


@settings(max_examples=30, deadline=None)
@given(scenarios())
def test_one_at_a_time(scenario: tuple[Workload, SchedulerRules]) -> None:
    """Steps that are taken together are the same as steps one by one."""
    workload, rules = scenario
    together, alone = SglangScheduler(rules), Single(rules)
    for scheduler in (together, alone):
        replay([Server(scheduler, None)], workload)

    assert list(together.steps) == list(alone.steps)
    assert together.ratios == alone.ratios
    columns = together.request_columns
    assert together.requests.rows(columns) == alone.requests.rows(columns)

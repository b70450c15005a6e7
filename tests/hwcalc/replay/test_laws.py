"""What holds for all workloads: blocks are neither lost nor held twice, and tokens are computed once unless somebody is preempted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.replay.core import Seconds, Server, StepLoad, replay
from hwcalc.replay.simulate import deploy
from hwcalc.replay.vllm.groups import PLAIN
from hwcalc.replay.vllm.scheduler import VllmScheduler
from hwcalc.workload.opening import workload_of_rows
from hwcalc.workload.request import Workload
from tests.golden_configs import config_as_run

LENGTH: Final = 512
MODELS: Final = {
    "full": ({}, "Qwen/Qwen3-8B"),
    "window": ({"sliding_window": 64}, "mistralai/Mistral-7B-v0.1"),
    "both": ({}, "openai/gpt-oss-20b"),
}


class Checked(VllmScheduler):
    """The scheduler, which counts its blocks after every step."""

    def step(self, turn: int, most: int) -> int:
        taken = super().step(turn, most)
        pool = self.cache.pool
        holders = Counter[int]()
        plain = 0
        for live in self.running.values():
            if live.counted:
                self._read(live)
            for table in live.tables:
                plain += table.columns.count(PLAIN)
                holders.update(column for column in table.columns if column)
        held = {block: count for block, count in pool._held.items() if count}
        ended = sum(entry.ended for entry in pool._queue)
        # Each named block has as many holders as the pool counts, and every block is somewhere, once.
        assert holders == held
        assert plain + len(held) == pool.used
        assert pool.unnamed + sum(not count for count in pool._held.values()) + ended == pool.free >= 0
        return taken


class Single(VllmScheduler):
    """The scheduler, which takes no two steps together."""

    def step(self, turn: int, most: int) -> int:
        return super().step(turn, 1)


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[str, Workload, int, dict[str, Any]]:
    """A model, requests of which some begin alike, a pool in which one of them fits, and settings."""
    name = draw(st.sampled_from(sorted(MODELS)))
    rows, now = [], 0
    for _ in range(draw(st.integers(1, 14))):
        now += draw(st.integers(0, 6))
        prompt = draw(st.integers(1, 300))
        output = draw(st.integers(1, 80))
        group = draw(st.sampled_from([None, "a", "b"]))
        rows.append((now, prompt, output, group, 0 if group is None else draw(st.integers(0, prompt))))
    options = {
        "max_num_batched_tokens": draw(st.sampled_from([24, 64, 300])),
        "max_num_seqs": draw(st.sampled_from([2, 5, 16])),
        "async_scheduling": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "max_model_len": LENGTH,
    }
    blocks = draw(st.sampled_from([70, 90, 140, 1000]))
    return name, workload_of_rows(rows), blocks, options


def run(name: str, workload: Workload, blocks: int, options: Mapping[str, Any], seconds: Seconds | None = None) -> Server:
    """The server after a checked replay."""
    changed, model = MODELS[name]
    deployed = deploy({**config_as_run(model), **changed}, engine="vllm", blocks=blocks, engine_options=dict(options))
    plain = deployed.scheduler()
    assert isinstance(plain, VllmScheduler)
    server = Server(Checked(plain.rules, blocks), seconds)
    replay([server], workload)
    return server


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_blocks_and_tokens(scenario: tuple[str, Workload, int, dict[str, Any]]) -> None:
    """All requests end, all blocks come back, and what is computed is what was asked for and not found, if nobody was preempted."""
    name, workload, blocks, options = scenario
    server = run(name, workload, blocks, options)
    totals, log = server.scheduler.totals(server.turns), server.scheduler.requests
    requests = list(workload)

    assert not server.stalled
    assert totals["used_blocks_after"] == 0
    assert None not in log.finishes
    assert all(used <= blocks for used in server.scheduler.steps.column("used_blocks"))
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    if not totals["preemptions"]:
        assert totals["scheduled_tokens"] == needed - totals["prefix_cache"]["hits"]
    else:
        again = sum(tokens for _, _, tokens in log.preemptions)
        assert totals["scheduled_tokens"] <= needed + again


def _longer_with_context(load: StepLoad) -> float:
    return 0.5 + load.decode_tokens / 1024


@settings(max_examples=15, deadline=None)
@given(scenarios(), st.sampled_from([None, _longer_with_context]))
def test_one_at_a_time(scenario: tuple[str, Workload, int, dict[str, Any]], seconds: Seconds | None) -> None:
    """Steps that are taken together are the same as steps one by one, also where each takes its own time."""
    name, workload, blocks, options = scenario
    together = run(name, workload, blocks, options, seconds)
    changed, model = MODELS[name]
    deployed = deploy({**config_as_run(model), **changed}, engine="vllm", blocks=blocks, engine_options=dict(options))
    plain = deployed.scheduler()
    assert isinstance(plain, VllmScheduler)
    alone = Server(Single(plain.rules, blocks), seconds)
    replay([alone], workload)

    assert list(together.scheduler.steps) == list(alone.scheduler.steps)
    columns = plain.request_columns
    assert together.scheduler.requests.rows(columns) == alone.scheduler.requests.rows(columns)
    assert together.turns == alone.turns
    assert [*together.ends, *together.gaps] == [*alone.ends, *alone.gaps]


@settings(max_examples=25, deadline=None)
@given(scenarios())
def test_caching_computes_no_more(scenario: tuple[str, Workload, int, dict[str, Any]]) -> None:
    """In a pool in which nobody is preempted, a prefix cache saves tokens or changes nothing."""
    name, workload, _, options = scenario
    cached, plain = (run(name, workload, 4000, {**options, "enable_prefix_caching": on}) for on in (True, False))
    with_cache, without = (server.scheduler.totals(server.turns) for server in (cached, plain))

    assert with_cache["scheduled_tokens"] <= without["scheduled_tokens"]
    assert with_cache["preemptions"] == without["preemptions"] == 0

"""What holds of llama-server's slots whatever the requests are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.errors import KvplanError
from hwcalc.replay.core import Server, replay
from hwcalc.replay.llamacpp.scheduler import LlamacppScheduler, SlotRules
from hwcalc.replay.simulate import deploy, simulate
from hwcalc.units import MIB
from hwcalc.workload.opening import workload_of_rows
from hwcalc.workload.request import Workload

_QWEN = "Qwen/Qwen3-8B"


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Workload, SlotRules]:
    """A few requests, and settings."""
    rows, arrival = list[tuple[Any, ...]](), 0
    for _ in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from((0, 0, 1, 3, 30)))
        prompt, output = draw(st.integers(1, 180)), draw(st.integers(1, 40))
        group = draw(st.sampled_from((None, 0, 1)))
        rows.append((arrival, prompt, output, group, draw(st.integers(0, prompt)) if group is not None else 0))
    slots, unified = draw(st.integers(1, 4)), draw(st.booleans())
    rules = SlotRules(
        n_parallel=slots,
        n_ctx=256 * slots,
        n_ctx_slot=256 * (slots if unified else 1),
        kv_unified=unified,
        n_batch=draw(st.sampled_from((16, 2048))),
        n_ubatch=16,
        cont_batching=draw(st.booleans()),
        cache_prompt=draw(st.booleans()),
        slot_prompt_similarity=draw(st.sampled_from((0.0, 0.1, 0.8))),
        cache_idle_slots=draw(st.booleans()),
        cache_ram_mib=draw(st.sampled_from((-1, 0, 1))),
        saved_token_bytes=MIB // 300,
    )
    return workload_of_rows(rows), rules


@settings(max_examples=80, deadline=None)
@given(scenarios())
def test_cells(scenario: tuple[Workload, SlotRules]) -> None:
    """The cells are never overrun, all requests end, and every token of a prompt and an output but the last is computed or found."""
    workload, rules = scenario
    scheduler = LlamacppScheduler(rules)
    log = replay([Server(scheduler, None)], workload)

    used, cached = scheduler.steps.column("used_cells"), scheduler.steps.column("cached_cells")
    assert all(mine + theirs <= rules.n_ctx for mine, theirs in zip(used, cached, strict=True))
    ended = [number for number, finish in enumerate(log.finishes) if finish is not None]
    assert sorted([*ended, *log.refused]) == list(range(len(log)))
    if log.refused:
        return
    totals = scheduler.totals(0)
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in workload)
    assert totals["scheduled_tokens"] + totals["prefix_cache"]["hits"] == needed


def test_a_turn_goes_on_in_its_slot() -> None:
    """The second prompt of 150 tokens begins with the 100 of the first and its output, of which the last of 20 tokens is never stored."""
    simulation = simulate(
        _QWEN, [(0, 100, 20), (30, 150, 5, "r0", 120)], engine="llamacpp", seq="1k", engine_options={"n_seq_max": 2}
    )
    assert simulation.requests == [(0, 0, 19, 0, 0), (30, 30, 34, 119, 0)]
    assert simulation.totals["scheduled_tokens"] == 100 + 19 + (150 - 119) + 4


def test_cells_that_run_out_are_told_apart_from_prompts_that_are_too_long() -> None:
    """Two slots share 256 cells: with prompts of 100 they are full after 28 tokens each, and the 29 that each has had by then count.

    A prompt of 300 is refused by itself.
    """
    options = {"n_seq_max": 2, "kv_unified": "true", "n_ctx": 256}
    both, long = (
        simulate(_QWEN, rows, engine="llamacpp", engine_options=options) for rows in ([(0, 100, 1000)] * 2, [(0, 300, 5)])
    )

    assert [record["output_tokens"] for record in both.records()] == [1 + (256 - 2 * 100) // 2] * 2
    assert [note.message for note in both.traffic.warnings] == [
        "2 requests were given up while they were served: the cells that all slots share ran out."
    ]
    assert [note.message for note in long.traffic.warnings] == [
        "1 request was refused, as all are that have a prompt of 256 tokens or more, which a slot's context does not hold with an answer."
    ]
    assert (both.totals["refused"], long.totals["refused"]) == (2, 1)


@pytest.mark.parametrize(
    ("model", "given", "said", "hint"),
    [
        (_QWEN, {"engine_options": {"cache_ram": "1"}}, "cache_ram", "cache_ram_mib"),
        (_QWEN, {"engine_options": {"slot_prompt_similarity": "2"}}, "slot_prompt_similarity", "1"),
        (_QWEN, {"blocks": 100}, "cells of its context", "n_seq_max"),
        (_QWEN, {"gpu": "l4", "seq": "512k", "engine_options": {"n_gpu_layers": "all"}}, "does not fit", "--seq"),
        ("google/gemma-3-27b-it", {"seq": "8k"}, "windows", "swa_full"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"seq": "8k"}, "states", "Replay a model"),
    ],
)
def test_refused(model: str, given: dict[str, Any], said: str, hint: str) -> None:
    """The error says what was given, and what to do instead."""
    with pytest.raises(KvplanError) as raised:
        deploy(model, engine="llamacpp", **given)
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")

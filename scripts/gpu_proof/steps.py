"""The table of steps: what each proves, its share of the time, and the allocator's settings under which it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas.record import Record
from scripts.gpu_proof.cases import Run
from scripts.gpu_proof.machine import bandwidth_step, context_step, live_step
from scripts.gpu_proof.memory import allocator_step, fill_step, find_max_step, free_step, lists_step, policy_step
from scripts.gpu_proof.record import CaseRecord

ALLOCATORS: Final = {"default": None, "expandable": "expandable_segments:True"}
"""Values of PYTORCH_ALLOC_CONF, which holds for a process from its start; ``None`` is to leave it unset."""
_BOTH: Final = ("default", "expandable")


class Step(Record):
    """``share`` is its part of the time; ``cpu`` says that it can be rehearsed without CUDA."""

    name: str
    what: str
    share: int
    run: Callable[[Run], Iterator[CaseRecord]]
    allocators: tuple[str, ...] = ("default",)
    cpu: bool = False


STEPS: Final = {
    step.name: step
    for step in (
        Step(
            name="context",
            what="what a context takes: before and after its start, a matrix product, attention; cuBLAS workspaces",
            share=50,
            run=context_step,
        ),
        Step(
            name="lists",
            what="allocated and reserved bytes of 200 random lists of sizes, by the allocator's rules, tolerance 0",
            share=50,
            run=lists_step,
            allocators=_BOTH,
        ),
        Step(
            name="allocator",
            what="allocated and reserved bytes of 20 models in 3 dtypes and of vLLM's pool, against kvplan, tolerance 0",
            share=90,
            run=allocator_step,
            allocators=_BOTH,
        ),
        Step(
            name="free",
            what="whether mem_get_info drops by exactly what is reserved: 1 to 128 GiB at once, and many small tensors",
            share=45,
            run=free_step,
            allocators=_BOTH,
        ),
        Step(
            name="fill",
            what="kvplan probe --fill: every byte written and read back, the last time in all the memory that there is",
            share=50,
            run=fill_step,
            allocators=_BOTH,
            cpu=True,
        ),
        Step(
            name="find-max",
            what="kvplan probe --find-max: the largest batch or sequence that allocates, against the planner's answer",
            share=60,
            run=find_max_step,
            allocators=_BOTH,
            cpu=True,
        ),
        Step(
            name="policy",
            what="kvplan probe --policy: caches that are cut, grown and moved from block to block, against the plan",
            share=60,
            run=policy_step,
            cpu=True,
        ),
        Step(
            name="bandwidth",
            what="kvplan probe --bandwidth: reading the cache beside a plain copy, by the clock and by events",
            share=40,
            run=bandwidth_step,
            cpu=True,
        ),
        Step(
            name="live",
            what="kvplan probe --live: small real models, their caches' bytes and cached decoding (needs transformers)",
            share=95,
            run=live_step,
            cpu=True,
        ),
    )
}

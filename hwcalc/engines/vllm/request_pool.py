"""The pool for requests of several sequences, or of sequences that have tokens in common: how many requests it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import step
from hwcalc.engines.vllm.counts import longest
from hwcalc.engines.vllm.pool import usable_blocks

if TYPE_CHECKING:
    from hwcalc.engines.vllm.opened import VllmOpened

__all__ = ["of_requests"]


def of_requests(opened: VllmOpened, pool: PoolInfo) -> PoolInfo:
    """The pool with as many requests as fit with all their branches. The figures of the log know nothing of what they have in common."""
    layout = opened.layout
    if not any(layout.stage_bytes):
        return pool
    own = usable_blocks(layout, opened.settings, pool.budget_bytes) // layout.schedulers
    most = longest(lambda requests: opened.blocks_for(requests) <= own, own)
    held, more = (opened.blocks_for(requests) for requests in (max(1, most), max(1, most) + 1))
    each = more - held
    shared = held - each * max(1, most)
    taken = step(
        "max_requests",
        "floor((usable_blocks - shared_blocks) / blocks_of_each)",
        layout.schedulers * most,
        unit="requests",
        usable_blocks=own,
        shared_blocks=shared,
        blocks_of_each=each,
    )
    # Where the first requests share less than the later ones, no single division gives the number.
    divides = layout.schedulers == 1 and max(0, own - shared) // each == most
    steps = tuple(one for one in pool.steps if one.name != "max_requests")
    return replace(pool, max_requests=layout.schedulers * most, steps=(*steps, taken) if divides else steps)

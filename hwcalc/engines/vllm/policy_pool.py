"""The pool under a cache policy: how many requests it holds, and how long they may be.

Its blocks, and the figures of the log, are those of the same pool without a policy: the log knows nothing of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.counts import longest
from hwcalc.engines.vllm.evicting import most_requests
from hwcalc.engines.vllm.opened import of_vllm
from hwcalc.engines.vllm.pool import usable_blocks
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.engines.vllm.opened import VllmOpened

__all__ = ["under_policy"]


def under_policy(opened: VllmOpened, pool: PoolInfo, bound: int) -> PoolInfo:
    """The same pool for requests of which a policy drops tokens. One sequence must fit with its prompt.

    Where nothing of it goes, it is checked as without a policy. The engine has no words for one that a policy cuts.
    """
    layout = opened.layout
    usable = usable_blocks(layout, opened.settings, pool.budget_bytes)
    own = usable // layout.schedulers
    requests = layout.schedulers * most_requests(own, opened.blocks, opened.prompt_peak)
    alone = _alone(opened, opened.tokens) or 0
    whole, starts = alone == layout.total_blocks(opened.tokens), pool.max_seq or 0
    known: dict[int, bool] = {}

    def fits(length: int) -> bool:
        if length not in known:
            blocks = _alone(opened, length)
            if blocks is None:
                known[length] = length < opened.tokens
            else:
                known[length] = length <= starts if blocks == layout.total_blocks(length) else blocks <= own
        return known[length]

    most = bound if fits(bound) else longest(fits, bound)

    return replace(
        pool,
        blocks_per_request=opened.blocks,
        max_requests=requests,
        max_seq=0 if most and _alone(opened, most) is None else most,
        needed_bytes=pool.needed_bytes if whole else alone * max(layout.stage_bytes),
        fits=pool.fits if whole else alone <= own,
        message=pool.message if whole else None,
        steps=(*_steps(opened, pool, requests),),
    )


def _alone(opened: VllmOpened, length: int) -> int | None:
    """Blocks of one sequence at its fullest; ``None`` if the policy cannot work at this length, as on a prompt that is too short."""
    try:
        blocks, peak = of_vllm(opened.sized(seq=length)).counts
    except UsageError:
        return None
    return blocks if peak is None else peak.blocks


def _steps(opened: VllmOpened, pool: PoolInfo, requests: int) -> tuple[Step, ...]:
    """The steps of the pool with those of its requests under the policy. What the log counts keeps its blocks, by another name."""
    peak, usable = opened.prompt_peak, usable_blocks(opened.layout, opened.settings, pool.budget_bytes)
    kept = [_renamed(one) for one in pool.steps if one.name != "max_requests"]
    sizes = {"usable_blocks": usable, "blocks_per_request": opened.blocks}
    formula = "floor(usable_blocks / blocks_per_request)"
    if peak is not None and usable // peak.blocks < peak.at_once:
        formula, sizes = "floor(usable_blocks / prompt_blocks)", {"usable_blocks": usable, "prompt_blocks": peak.blocks}
    elif peak is not None:
        sizes |= {"prompts": peak.at_once, "prompt_blocks": peak.blocks}
        formula = "prompts + floor((usable_blocks - prompts x prompt_blocks) / blocks_per_request)"
    if opened.layout.schedulers > 1:
        return tuple(kept)
    return (*kept, step("max_requests", formula, requests, unit="requests", **sizes))


def _renamed(one: Step) -> Step:
    terms = tuple(
        replace(term, name="blocks_without_policy") if term.name == "blocks_per_request" else term for term in one.terms
    )
    return replace(one, terms=terms, formula=one.formula.replace("blocks_per_request", "blocks_without_policy"))

"""The pools of a byte budget in the figures of SGLang's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.sglang.steps import pool_steps
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy
    from hwcalc.engines.sglang.sizes import Sizes

_LONGEST = 2**40


def plan_pool(opened: SglangOccupancy, budget: int) -> PoolInfo:
    """The pools of one replica. ``tokens`` is ``max_total_num_tokens`` and ``max_requests`` is ``max_running_requests``."""
    sizes, own = opened.sizes(max(0, budget)), opened.settings
    held = opened.at_once(sizes)
    page = own.page_size
    cell = int(sizes.cell) if sizes.cell == int(sizes.cell) else None
    return PoolInfo(
        budget_bytes=budget,
        tokens=sizes.tokens if sizes.error is None else None,
        bytes_per_token=cell if cell is not None else round(sizes.cell),
        blocks=sizes.tokens // page,
        block_size=page,
        bytes_per_block=round(sizes.cell * page),
        blocks_per_request=opened.paged(opened.tokens) // page,
        max_concurrency=None,
        max_requests=sizes.running,
        max_seq=_longest(opened, sizes),
        swa_tokens=sizes.swa_tokens,
        state_slots=sizes.slots,
        needed_bytes=opened.least_bytes,
        fits=held > 0 and budget >= 0,
        message=_message(opened, sizes, held),
        requires=(),
        definition=Definition.ENGINE,
        steps=pool_steps(opened, sizes, max(0, budget), held),
        at_once=held,
    )


def _longest(opened: SglangOccupancy, sizes: Sizes) -> int:
    """The longest sequence that one request could have."""
    if sizes.error is not None:
        return 0
    bound = max(opened.tokens, opened.model.max_position_embeddings or 0)
    if sizes.swa_tokens is not None and opened.window_tokens(_LONGEST) > sizes.swa_tokens:
        bound = min(bound, sizes.swa_tokens)
    return min(bound, sizes.tokens)


def _message(opened: SglangOccupancy, sizes: Sizes, held: int) -> str | None:
    if sizes.error is not None:
        return sizes.error
    if held:
        return None
    return f"The input ({opened.tokens} tokens) is longer than the pool ({sizes.tokens} tokens)."

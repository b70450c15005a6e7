"""The pool that LMDeploy makes of a byte budget, as its log counts.

Sources: pytorch/engine/executor/base.py, pytorch/engine/engine.py _get_max_session_len, pytorch/paging/block_manager;
src/turbomind/models/llama/BlockManager.cc and engine/engine.cc of 0.14.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.pooled import request_steps
from hwcalc.engines.steps import Step, step
from hwcalc.model import Definition
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy

LEAST_BLOCKS: Final = 16
"""PyTorch does not start with fewer."""
TOO_FEW: Final = 2
"""With so few it does not even look for a smaller forward pass."""


def pool_blocks(opened: LmdeployOccupancy, budget: int) -> int:
    """The blocks of a budget, behind the state slots."""
    if opened.settings.num_gpu_blocks is not None:
        return opened.settings.num_gpu_blocks
    return max(0, budget - opened.state_bytes) // max(1, opened.layout.block_bytes)


def most_tokens(opened: LmdeployOccupancy, blocks: int) -> int:
    """The longest session. With a window the blocks behind it are freed, and only the prompt must fit."""
    settings = opened.settings
    if settings.window and settings.window <= (blocks - settings.reserved_blocks) * settings.block_size:
        return max(0, blocks - settings.reserved_blocks) * settings.block_size
    return max(0, blocks - settings.spare_blocks) * settings.block_size


def plan_pool(opened: LmdeployOccupancy, budget: int, bound: int) -> PoolInfo:
    """The pool of one replica, for requests of the planned length. The longest one is looked for up to ``bound`` tokens."""
    settings, layout = opened.settings, opened.layout
    blocks, per_request = pool_blocks(opened, budget), opened.blocks_for(1)
    usable = max(0, blocks - settings.reserved_blocks)
    longest = most_tokens(opened, blocks)
    message = _message(opened, budget, blocks, longest)
    return PoolInfo(
        budget_bytes=budget,
        tokens=blocks * settings.block_size,
        bytes_per_token=layout.block_bytes // settings.block_size,
        blocks=blocks,
        block_size=settings.block_size,
        bytes_per_block=layout.block_bytes,
        blocks_per_request=per_request,
        max_concurrency=None,
        max_requests=_most_requests(opened, usable, per_request) if message is None else 0,
        max_seq=min(bound, longest),
        swa_tokens=None,
        state_slots=settings.slots or None,
        needed_bytes=per_request * layout.block_bytes + opened.state_bytes,
        fits=message is None,
        message=message,
        requires=(),
        definition=Definition.ENGINE,
        steps=_steps(opened, budget, blocks, per_request),
    )


def _most_requests(opened: LmdeployOccupancy, usable: int, per_request: int) -> int:
    """How many requests of the planned length the blocks hold; where they begin alike, those behind the first take fewer."""
    if not opened.together.unlike:
        return usable // max(1, per_request)
    from bisect import bisect_right

    return bisect_right(range(1, usable + 1), usable, key=opened.blocks_for)


def holds(opened: LmdeployOccupancy, budget: int) -> bool:
    """Whether the planned sequences fit into the budget at once."""
    blocks = pool_blocks(opened, budget)
    if budget < 0 or _message(opened, budget, blocks, most_tokens(opened, blocks)) is not None:
        return False
    return opened.blocks_for(opened.request.replica_requests) <= blocks - opened.settings.reserved_blocks


def longest(opened: LmdeployOccupancy, budget: int, bound: int) -> int | None:
    """The most tokens of each planned sequence; ``None`` where they are unlike or a window frees blocks."""
    if opened.together.unlike or opened.settings.window:
        return None
    blocks = pool_blocks(opened, budget)
    if _message(opened.sized(seq=1), budget, blocks, most_tokens(opened, blocks)) is not None:
        return 0
    own = (blocks - opened.settings.reserved_blocks) // opened.request.replica_batch
    return min(bound, own * opened.settings.block_size, most_tokens(opened, blocks))


def refusal(opened: LmdeployOccupancy, budget: int, blocks: int) -> str | None:
    """Why LMDeploy does not start with this pool, in its own words; ``None`` if it does."""
    settings = opened.settings
    fixed = (settings.num_gpu_blocks or 0) * opened.layout.block_bytes
    if fixed and fixed + opened.state_bytes > budget:
        return f"CUDA out of memory. Tried to allocate {fixed / GIB:,.2f} GiB."
    if settings.slots and budget <= opened.state_bytes:
        if settings.pytorch:
            return "No enough gpu memory for state cache. Please reduce max_batch_size."
        return "Please decrease max_batch_size to reduce total linear state size or increase cache_max_entry_count."
    if settings.pytorch and blocks < LEAST_BLOCKS:
        return f"No enough gpu memory for {'kv cache' if blocks <= TOO_FEW else 'runtime'}."
    return None


def _message(opened: LmdeployOccupancy, budget: int, blocks: int, longest: int) -> str | None:
    """Why LMDeploy does not start, or takes no request of this length."""
    settings, refused = opened.settings, refusal(opened, budget, blocks)
    # With a window a session has no end, but its blocks must be there.
    if (
        refused is not None
        or opened.tokens <= longest
        or (settings.window and opened.blocks <= blocks - settings.reserved_blocks)
    ):
        return refused
    if settings.pytorch:
        return f"A session has at most {longest:,} tokens: one block is reserved, and sessions end a block earlier."
    return f"`session_len` truncated to {longest} due to limited KV cache memory"


def _kept_free(opened: LmdeployOccupancy, budget: int) -> tuple[Step, ...]:
    """What the share leaves alone, of what is free behind states and a forward pass; TurboMind's share is of all that is free."""
    found, settings = opened.budget, opened.settings
    if found is None or budget != found.expected or opened.request.hardware.margin or settings.num_gpu_blocks is not None:
        return ()
    shared, ratio = budget + found.margin_bytes - (opened.state_bytes if settings.pytorch else 0), float(settings.ratio)
    if not shared - int(shared * ratio) == found.margin_bytes > 0:
        return ()
    return (
        step(
            "margin",
            "free_after_pass - floor(free_after_pass x cache_max_entry_count)",
            found.margin_bytes,
            free_after_pass=shared,
            cache_max_entry_count=ratio,
        ),
    )


def _steps(opened: LmdeployOccupancy, budget: int, blocks: int, per_request: int) -> tuple[Step, ...]:
    settings, size = opened.settings, opened.layout.block_bytes
    if settings.num_gpu_blocks is not None:
        name = "num_gpu_blocks" if settings.pytorch else "cache_max_entry_count"
        first = step("blocks", name, blocks, unit="blocks", **{name: blocks})
    elif settings.slots:
        first = step(
            "blocks",
            "max(0, floor((budget - slots x slot_bytes) / bytes_per_block))",
            blocks,
            unit="blocks",
            budget=budget,
            slots=settings.slots,
            slot_bytes=opened.layout.slot_bytes,
            bytes_per_block=size,
        )
    else:
        first = step("blocks", "floor(budget / bytes_per_block)", blocks, unit="blocks", budget=budget, bytes_per_block=size)
    each = 0 if opened.together.unlike else per_request
    return (
        *_kept_free(opened, budget),
        first,
        *request_steps(
            blocks,
            max(0, blocks - settings.reserved_blocks),
            settings.block_size,
            each,
            kept="reserved",
            count=settings.reserved_blocks,
        ),
    )

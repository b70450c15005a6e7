"""The pool of a budget: blocks, in the figures of the log.

``KV-cache blocks: N, size: B`` counts the blocks of the warm-up batch again, which are free by then, so that the pool is all that is left
(``warmup`` in ``flash_causal_lm.py``). Block 0 is for health checks (``backends/v3/src/{radix,block_allocator}.rs``). Read, not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.pages import request_steps
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import bytes_of
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.tgi.deployment import TgiOccupancy

_SHORT: Final = "Not enough memory to handle {tokens} prefill tokens. You need to decrease `--max-batch-prefill-tokens`"


def block_bytes(opened: TgiOccupancy) -> int:
    """What a block takes of a GPU."""

    def counted() -> int:
        one = opened.replica.sized(seq=1, batch=1)
        return sum(group.count * bytes_of(one.rank_tensors[group.kind]) for group in one.stack.groups)

    return opened.shared("block bytes", counted)


def plan_pool(opened: TgiOccupancy, budget: int) -> PoolInfo:
    """The pool of a budget in bytes."""
    block, size = opened.settings.block_size, block_bytes(opened)
    blocks = max(0, budget) // size
    usable, branches = max(0, blocks - 1), opened.request.sharing.branches
    per_request = branches * -(-opened.tokens // block)
    requests = usable // per_request
    bound = max(opened.tokens, opened.model.max_position_embeddings or 0)
    message = None
    if not blocks:
        message = _SHORT.format(tokens=opened.settings.prefill_tokens)
    elif not requests:
        message = f"Not enough memory to handle `max_total_tokens={opened.tokens}`"
    return PoolInfo(
        budget_bytes=budget,
        tokens=blocks * block,
        bytes_per_token=size // block,
        blocks=blocks,
        block_size=block,
        bytes_per_block=size,
        blocks_per_request=per_request,
        max_concurrency=None,
        max_requests=requests,
        max_seq=min(bound, usable // branches * block),
        swa_tokens=None,
        state_slots=None,
        needed_bytes=(per_request + 1) * size,
        fits=message is None,
        message=message,
        requires=(),
        definition=Definition.ENGINE,
        steps=_steps(budget, size, block, blocks, per_request),
    )


def _steps(budget: int, size: int, block: int, blocks: int, per_request: int) -> tuple[Step, ...]:
    return (
        step("blocks", "max(0, floor(budget / bytes_per_block))", blocks, unit="blocks", budget=budget, bytes_per_block=size),
        *request_steps(blocks, block, per_request, kept="health_block"),
    )

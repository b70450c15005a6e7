"""The pool of PagedAttention: blocks for a byte budget, in the figures of the log.

Read, not run: ``calculate_cache_config`` in ``mistralrs-core/src/paged_attention/mod.rs`` of 0.9.2 (commit 9e922623f24b). Its MB are 2^20
bytes, and its divisions are those of whole numbers.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.mistral_rs.layers import counted_elements, is_state, layer_tensors, shard
from hwcalc.engines.mistral_rs.opened import MistralOpened, of_mistral
from hwcalc.engines.pages import request_steps
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.ranks import stage_groups
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas import Role
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.units import MIB

__all__ = ["PageBlocks", "Pages", "blocks_of", "pages_of", "plan_pool"]

_NO_BLOCKS: Final = (
    "Num GPU blocks is 0. This means there is not enough memory. Either reduce the memory amount/utilization/context size or disable "
    "PagedAttention."
)


class Pages(Record):
    """The blocks of a rank. ``elements`` are those by which blocks are counted, of all layers, also with several pipeline stages.

    ``stages`` says for each pipeline stage what a block takes there, and what all slots of states.
    """

    block_size: int
    item_bytes: int
    elements: int
    stages: tuple[tuple[int, int], ...]

    @property
    def state_bytes(self) -> int:
        """The states of the stage that has most."""
        return max(states for _, states in self.stages)

    def needed(self, blocks: int) -> int:
        """Bytes of so many blocks, and of the states, on the fullest stage."""
        return max(blocks * block + states for block, states in self.stages)


def pages_of(opened: MistralOpened) -> Pages:
    """The blocks of a rank, for a request with pages."""
    return opened.shared("pages", lambda: _pages(opened))


def _pages(opened: MistralOpened) -> Pages:
    tp, block = opened.request.parallel.tp, opened.settings.block_size
    local = of_mistral(opened.replica.single.sized(seq=1))
    kinds = {group.kind: shard(opened.model, group.kind, tp) for group in opened.stack.groups}
    paged: dict[object, int] = {}
    states: dict[object, int] = {}
    for kind, part in kinds.items():
        tensors = layer_tensors(part, local, tp)
        states[kind] = sum(tensor.bytes for tensor in tensors if tensor.once)
        paged[kind] = bytes_of(tensors) - states[kind]
    return Pages(
        block_size=block,
        item_bytes=opened.dtypes.roles[Role.KEY].block_bytes,
        elements=sum(group.count * counted_elements(kinds[group.kind], opened, tp) for group in opened.stack.groups),
        stages=tuple(
            (sum(group.count * paged[group.kind] for group in groups), sum(group.count * states[group.kind] for group in groups))
            for groups in stage_groups(opened)
        ),
    )


class PageBlocks(Record):
    """The blocks that a budget makes, counted in whole MB, of which one is nobody's.

    ``state_bytes`` of a budget are for the states; ``wanted_mb`` is what the user asks for in place of all that is free. On Metal
    ``token_bytes`` are those of a token of the longest context, of which the pool has no more; elsewhere 0.
    """

    page_bytes: tuple[int, int, int]
    """Bytes of a number, tokens of a block, and numbers of a token."""
    state_bytes: int
    wanted_mb: int | None
    token_bytes: int

    def size_mb(self, budget: int, tokens: int, sequences: int, *, capped: bool = True) -> tuple[int, int, int | None]:
        """MB of the pool, those that are free, and those that the longest context takes where they are a limit."""
        from hwcalc.engines.mistral_rs.command import mapped_tokens

        free = larger(budget - self.state_bytes, 0) // MIB
        size = free if self.wanted_mb is None else self.wanted_mb
        if not self.token_bytes or not capped:
            return size, free, None
        cap = mapped_tokens(tokens, paged=True) * sequences * self.token_bytes // MIB
        return smaller(size, cap), free, cap

    def count(self, size_mb: int) -> int:
        """Blocks of so many MB."""
        item, size, elements = self.page_bytes
        return size_mb * MIB // item // size // elements

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences fit."""
        size, free, _ = self.size_mb(budget_bytes, tokens, sequences)
        return (size <= free) & (self.count(size) - 1 >= sequences * -(-tokens // self.page_bytes[1]))


def blocks_of(opened: MistralOpened) -> PageBlocks | None:
    """The blocks of any budget; ``None`` if no layer has pages."""
    pages, gpu = pages_of(opened), opened.request.hardware.gpu
    if not pages.elements:
        return None
    metal = gpu is not None and gpu.vendor.lower() == "apple"
    return PageBlocks(
        page_bytes=(pages.item_bytes, pages.block_size, pages.elements),
        state_bytes=_states(opened),
        wanted_mb=_wanted_mb(opened),
        token_bytes=pages.item_bytes * pages.elements if metal else 0,
    )


def plan_pool(opened: MistralOpened, budget: int, *, capped: bool = True) -> PoolInfo:
    """The pool of a budget. What a GPU has left is for the states too; ``--kv-memory`` is for pages alone, as ``--pa-memory-mb``.

    ``capped`` is off for who looks for the longest sequence: the cap of Metal follows from what is planned.
    """
    pages, made = pages_of(opened), blocks_of(opened)
    assert made is not None, "a pool without pages"
    size, free, cap = made.size_mb(budget, opened.tokens, opened.request.replica_batch, capped=capped)
    blocks = made.count(size)
    message = _message(size, free, blocks)
    usable, per_request = max(0, blocks - 1), -(-opened.tokens // pages.block_size) * opened.request.sharing.branches
    bound = max(opened.tokens, opened.model.max_position_embeddings or 0)
    slots = opened.slots if any(is_state(group.kind) for group in opened.stack.groups) else None
    requests = usable // per_request
    fits = message is None and requests > 0
    if message is None and not fits:
        held = blocks * pages.block_size
        message = f"Sequence 0 with {opened.tokens} tokens exceeds the total KV cache capacity of {held} tokens."
        if opened.tokens <= held:
            message = f"Sequence 0 with {opened.tokens} tokens cannot be scheduled: KV cache exhausted even after preempting all running sequences."
    return PoolInfo(
        budget_bytes=budget,
        tokens=blocks * pages.block_size,
        bytes_per_token=pages.elements * pages.item_bytes,
        blocks=blocks,
        block_size=pages.block_size,
        bytes_per_block=pages.elements * pages.item_bytes * pages.block_size,
        blocks_per_request=per_request,
        max_concurrency=None,
        max_requests=requests,
        max_seq=min(bound, usable // opened.request.sharing.branches * pages.block_size),
        swa_tokens=None,
        state_slots=slots,
        needed_bytes=_needed(opened, per_request),
        fits=fits,
        message=message,
        requires=(),
        definition=Definition.ENGINE,
        steps=(*_size_steps(opened, budget, size, made.wanted_mb, cap), *_block_steps(opened, size, blocks, per_request)),
    )


def _states(opened: MistralOpened) -> int:
    return pages_of(opened).state_bytes if opened.request.hardware.kv_memory is None else 0


def _needed(opened: MistralOpened, per_request: int) -> int:
    """The budget with which one request fits: whole MB for its blocks and the null block, and the states."""
    pages = pages_of(opened)
    size = (per_request + 1) * pages.block_size * pages.elements * pages.item_bytes
    return -(-size // MIB) * MIB + _states(opened)


def _wanted_mb(opened: MistralOpened) -> int | None:
    settings, pages = opened.settings, pages_of(opened)
    if settings.context_tokens is not None:
        return -(-settings.context_tokens * pages.item_bytes * pages.elements // MIB)
    return settings.memory_mb


def _message(size: int, free: int, blocks: int) -> str | None:
    if size > free:
        return f"PagedAttention KV cache requires {size} MB but only {free} MB is safely available after model loading."
    return _NO_BLOCKS if not blocks else None


def _size_steps(opened: MistralOpened, budget: int, size: int, wanted: int | None, cap: int | None) -> tuple[Step, ...]:
    pages, settings = pages_of(opened), opened.settings
    if wanted is not None and settings.context_tokens is not None:
        made = step(
            "pool_mb",
            "ceil(context_tokens x item_bytes x elements_per_token / mb)",
            wanted,
            unit="MB",
            context_tokens=settings.context_tokens,
            item_bytes=pages.item_bytes,
            elements_per_token=pages.elements,
            mb=MIB,
        )
    elif wanted is not None:
        made = step("pool_mb", "pa_memory_mb", wanted, unit="MB", pa_memory_mb=wanted)
    else:
        states = _states(opened)
        free = max(0, budget - states) // MIB
        made = step("pool_mb", "max(0, floor((budget - states) / mb))", free, unit="MB", budget=budget, states=states, mb=MIB)
    if cap is None or size == int(made.expected):
        return (made,)
    return (made, step("capped_mb", "min(pool_mb, model_mb)", size, unit="MB", pool_mb=int(made.expected), model_mb=cap))


def _block_steps(opened: MistralOpened, size: int, blocks: int, per_request: int) -> tuple[Step, ...]:
    pages = pages_of(opened)
    return (
        step(
            "blocks",
            "floor(floor(floor(pool_mb x mb / item_bytes) / block_size) / elements_per_token)",
            blocks,
            unit="blocks",
            pool_mb=size,
            mb=MIB,
            item_bytes=pages.item_bytes,
            block_size=pages.block_size,
            elements_per_token=pages.elements,
        ),
        *request_steps(blocks, pages.block_size, per_request, kept="null_block"),
    )

"""The pool that LMDeploy makes of a byte budget, as its log counts, and the budget: a share of what is free once the weights are loaded.

PyTorch takes the state slots off what is free, then ``(max_prefill_token_num + 2 x max_batch_size) x vocab_size x 2`` bytes for a forward
pass, and gives ``cache_max_entry_count`` of the rest to blocks. If those are fewer than 16, it halves the tokens of a prompt until they are
not. TurboMind takes its share of all that is free, and the state slots off that.

Sources: pytorch/engine/executor/base.py _get_runtime_size, update_configs, pytorch/engine/engine.py _get_max_session_len,
pytorch/paging/block_manager; src/turbomind/models/llama/{BlockManager,SequenceManager}.cc and engine/engine.cc of 0.14.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.costs import communication, estimated
from hwcalc.engines.extra_models import beside
from hwcalc.engines.loaded import budget_of, loaded
from hwcalc.engines.noted import Noted
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.pooled import BlockPool, request_steps
from hwcalc.engines.steps import Step, step
from hwcalc.formulas.arithmetic import larger, mapped
from hwcalc.model import Definition
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy
    from hwcalc.engines.lmdeploy.settings import LmdeploySettings

_LEAST_BLOCKS: Final = 16
"""PyTorch does not start with fewer."""
_TOO_FEW: Final = 2
"""With so few it does not even look for a smaller forward pass."""


class LmdeployPool(BlockPool):
    """Blocks behind the slots of recurrent states, which are there whatever is planned."""

    settings: LmdeploySettings
    slot_bytes: int

    @property
    def state_bytes(self) -> int:
        """Bytes of all slots of recurrent states."""
        return self.settings.slots * self.slot_bytes

    def blocks(self, budget_bytes: int) -> int:
        if self.settings.num_gpu_blocks is not None:
            return self.settings.num_gpu_blocks
        made: int = larger(budget_bytes - self.state_bytes, 0) // max(1, self.block_bytes)
        return made

    def usable(self, budget_bytes: int) -> int:
        """Blocks for sequences; -1 where LMDeploy does not start."""

        def of(size: int) -> int:
            return -1 if size < 0 or self.refusal(size) is not None else self.free_blocks(size)

        usable: int = mapped(of, budget_bytes)
        return usable

    def session_tokens(self, budget_bytes: int) -> int:
        """The longest session. With a window the blocks behind it are freed, and only the prompt must fit."""
        settings, blocks = self.settings, self.blocks(budget_bytes)
        behind = (blocks - self.reserved) * self.block_size
        if settings.window and settings.window <= behind:
            return max(0, behind)
        return max(0, blocks - settings.spare_blocks) * self.block_size

    def hold(self, budget_bytes: int, tokens: int, sequences: int, demand: int | None = None) -> bool:
        held = super().hold(budget_bytes, tokens, sequences, demand)
        # With a window a session has no end.
        return held if self.settings.window else held & (tokens <= mapped(self.session_tokens, budget_bytes))

    def longest(self, budget_bytes: int, sequences: int, bound: int) -> int:
        most = bound if self.settings.window else min(bound, self.session_tokens(budget_bytes))
        return super().longest(budget_bytes, sequences, most)

    def refusal(self, budget_bytes: int) -> str | None:
        """Why LMDeploy does not start with this budget, in its own words; ``None`` if it does."""
        settings, blocks = self.settings, self.blocks(budget_bytes)
        fixed = (settings.num_gpu_blocks or 0) * self.block_bytes
        if fixed and fixed + self.state_bytes > budget_bytes:
            return f"CUDA out of memory. Tried to allocate {fixed / GIB:,.2f} GiB."
        if settings.slots and budget_bytes <= self.state_bytes:
            if settings.pytorch:
                return "No enough gpu memory for state cache. Please reduce max_batch_size."
            return "Please decrease max_batch_size to reduce total linear state size or increase cache_max_entry_count."
        if settings.pytorch and blocks < _LEAST_BLOCKS:
            return f"No enough gpu memory for {'kv cache' if blocks <= _TOO_FEW else 'runtime'}."
        return None

    def message(self, budget_bytes: int, tokens: int) -> str | None:
        """Why LMDeploy does not start, or takes no request of so many tokens."""
        refused, longest = self.refusal(budget_bytes), self.session_tokens(budget_bytes)
        # With a window a session has no end, but its blocks must be there.
        fits = self.settings.window and self.demand(tokens, 1) <= self.blocks(budget_bytes) - self.reserved
        if refused is not None or tokens <= longest or fits:
            return refused
        if self.settings.pytorch:
            return f"A session has at most {longest:,} tokens: one block is reserved, and sessions end a block earlier."
        return f"`session_len` truncated to {longest} due to limited KV cache memory"


def plan_pool(occupancy: LmdeployOccupancy, pool: LmdeployPool, budget: int) -> PoolInfo:
    """The pool of one replica, for requests of the planned length."""
    settings, blocks, per_request = pool.settings, pool.blocks(budget), occupancy.blocks_for(1)
    usable, message = pool.free_blocks(budget), pool.message(budget, occupancy.tokens)
    bound = max(occupancy.tokens, occupancy.model.max_position_embeddings or 0)
    return PoolInfo(
        budget_bytes=budget,
        tokens=blocks * pool.block_size,
        bytes_per_token=pool.block_bytes // pool.block_size,
        blocks=blocks,
        block_size=pool.block_size,
        bytes_per_block=pool.block_bytes,
        blocks_per_request=per_request,
        max_concurrency=None,
        max_requests=_most_requests(occupancy, usable, per_request) if message is None else 0,
        max_seq=min(bound, pool.session_tokens(budget)),
        swa_tokens=None,
        state_slots=settings.slots or None,
        needed_bytes=per_request * pool.block_bytes + pool.state_bytes,
        fits=message is None,
        message=message,
        requires=(),
        definition=Definition.ENGINE,
        steps=(
            *_kept_free(occupancy, pool, budget),
            _blocks_step(pool, budget),
            *request_steps(
                blocks,
                usable,
                pool.block_size,
                0 if occupancy.together.unlike else per_request,
                kept=pool.reserved_for,
                count=pool.reserved,
            ),
        ),
    )


def _most_requests(occupancy: LmdeployOccupancy, usable: int, per_request: int) -> int:
    """How many requests of the planned length the blocks hold; where they begin alike, those behind the first take fewer."""
    if not occupancy.together.unlike:
        return usable // max(1, per_request)
    from bisect import bisect_right

    return bisect_right(range(1, usable + 1), usable, key=occupancy.blocks_for)


def _kept_free(occupancy: LmdeployOccupancy, pool: LmdeployPool, budget: int) -> tuple[Step, ...]:
    """What the share leaves alone, of what is free behind states and a forward pass; TurboMind's share is of all that is free."""
    planned, settings = occupancy.budget, pool.settings
    if planned is None or budget != planned.expected or occupancy.setup.hardware.margin or settings.num_gpu_blocks is not None:
        return ()
    shared, ratio = budget + planned.margin_bytes - (pool.state_bytes if settings.pytorch else 0), float(settings.ratio)
    if not shared - int(shared * ratio) == planned.margin_bytes > 0:
        return ()
    return (
        step(
            "margin",
            "free_after_pass - floor(free_after_pass x cache_max_entry_count)",
            planned.margin_bytes,
            free_after_pass=shared,
            cache_max_entry_count=ratio,
        ),
    )


def _blocks_step(pool: LmdeployPool, budget: int) -> Step:
    settings, size, blocks = pool.settings, pool.block_bytes, pool.blocks(budget)
    if settings.num_gpu_blocks is not None:
        name = "num_gpu_blocks" if settings.pytorch else "cache_max_entry_count"
        return step("blocks", name, blocks, unit="blocks", **{name: blocks})
    if settings.slots:
        return step(
            "blocks",
            "max(0, floor((budget - slots x slot_bytes) / bytes_per_block))",
            blocks,
            unit="blocks",
            budget=budget,
            slots=settings.slots,
            slot_bytes=pool.slot_bytes,
            bytes_per_block=size,
        )
    return step("blocks", "floor(budget / bytes_per_block)", blocks, unit="blocks", budget=budget, bytes_per_block=size)


class Shares(NamedTuple):
    """What becomes of the free memory: bytes for a forward pass, for the cache (blocks and states), and what stays free."""

    runtime: int
    cache: int
    unused: int


def shares_of(pool: LmdeployPool, vocab_size: int, free: int) -> Shares:
    """What LMDeploy makes of ``free`` bytes, the fewest of all ranks. It computes its share in floating point.

    Llama-3-8B on an H100 with 60 GiB free: the forward pass gets (8,192 + 2 x 1,024) x 128,256 x 2 = 2,626,682,880 bytes, and blocks
    int(61,797,826,560 x 0.8) = 49,438,261,248, which are 5,893 of 8,388,608.
    """
    settings, states = pool.settings, pool.state_bytes
    if settings.num_gpu_blocks is not None:
        return Shares(0, free, 0)
    if not settings.pytorch:
        cache = int(free * settings.ratio) if free > 0 else free
        return Shares(0, cache, free - cache)
    left, block = free - states, max(1, pool.block_bytes)
    tokens = settings.prefill_tokens
    while True:
        runtime = (tokens + 2 * settings.max_batch_size) * vocab_size * 2
        shared = int((left - runtime) * settings.ratio)
        blocks = shared // block
        if blocks >= _LEAST_BLOCKS or blocks <= _TOO_FEW or tokens <= 1:
            break
        tokens //= 2
    if left < runtime:
        return Shares(runtime, free - runtime, 0)
    return Shares(runtime, states + shared, free - runtime - states - shared)


def plan_budget(occupancy: LmdeployOccupancy, pool: LmdeployPool) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    memory_and_weights = loaded(occupancy)
    if memory_and_weights.value is None:
        return Noted(None, memory_and_weights.notes)
    gpu, memory, weights = memory_and_weights.value
    extra = beside(occupancy)
    # Kernels are loaded by the first forward pass, which comes later.
    context = estimated("context", Section.OVERHEAD, runtime_profile().estimate("context.cuda"))
    parts = (*weights, *extra.value, context, *communication(occupancy.setup.parallel, gpu))
    settings = pool.settings
    before, notes = budget_of(occupancy, memory, parts, tokens=settings.prefill_tokens, rows=settings.max_batch_size)
    words = occupancy.model.vocab_size or 0
    ends = [shares_of(pool, words, free) for free in (before.low, before.expected, before.high)]
    return Noted(_less(settings, words, before, ends), (*memory_and_weights.notes, *extra.notes, *notes))


def _less(settings: LmdeploySettings, words: int, before: Budget, ends: list[Shares]) -> Budget:
    """The equation with what LMDeploy does not give to the cache: a part for the forward pass, and the rest, which it leaves alone."""
    parts = (*before.parts, *_forward_pass(settings, words, ends))
    # The share that is left alone at the expected end counts at every end, so that the ends stay in order: the range is a little wider.
    low, expected, high = (size - ends[1].unused for size in before.usable)
    return replace(
        before,
        requested_bytes=expected,
        usable=(low, expected, high),
        margin_bytes=before.total_bytes - expected,
        parts=parts,
        low=low - sum(part.high for part in parts),
        expected=expected - sum(part.expected for part in parts),
        high=high - sum(part.low for part in parts),
    )


def _forward_pass(settings: LmdeploySettings, words: int, ends: list[Shares]) -> tuple[BudgetPart, ...]:
    """The memory that PyTorch keeps for a forward pass: less where little is free."""
    low, expected, high = min(each.runtime for each in ends), ends[1].runtime, max(each.runtime for each in ends)
    if not high:
        return ()
    tokens = tuple(size // (2 * words) - 2 * settings.max_batch_size for size in (low, expected, high))
    return (
        BudgetPart(
            name="forward pass",
            section=Section.ACTIVATIONS,
            low=low,
            expected=expected,
            high=high,
            source="LMDeploy 0.14 executor/base.py _get_runtime_size",
            definition=Definition.ENGINE,
            steps=(
                step(
                    "forward pass",
                    "(prefill_tokens + 2 x max_batch_size) x vocab_size x 2",
                    (low, expected, high),
                    prefill_tokens=(tokens[0], tokens[1], tokens[2]),
                    max_batch_size=settings.max_batch_size,
                    vocab_size=words,
                ),
            ),
        ),
    )

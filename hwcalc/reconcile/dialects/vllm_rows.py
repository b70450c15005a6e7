"""What vLLM's log says of memory and pool, beside what a plan says: the rows of a comparison.

The pool is compared by the budget that the log states, and the memory equation if the GPU is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.engines.memory import ACTIVATION, GRAPHS, NON_TORCH, Budget, Section
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.planner.solve import last_yes
from hwcalc.reconcile.facts import Fact, Facts, Number, Range, Row, compared, device_memory, spread, total
from hwcalc.units import MIB

_BESIDE_ON_ROCM: Final = 512 * MIB
"""The most that loading takes beside the weights: blocks of the allocator and kernels."""
_WEIGHTS: Final = ("rotary table",)
"""Overheads that vLLM allocates while it loads the model, and counts as weights."""
_MOST_BLOCKS: Final = 2**40


class Pools(Record):
    """The pool for the lowest, expected and highest budget that the rounding in the log allows."""

    low: PoolInfo
    expected: PoolInfo
    high: PoolInfo
    base: str
    """The source of the budget. A figure is not compared with a prediction that was made from it."""
    known: bool = False
    """True if this is the budget that vLLM itself had, up to rounding: then its counts must match to the block."""

    @classmethod
    def of(cls, occupancy: VllmOccupancy, ends: Sequence[int], base: str, *, known: bool = False) -> Pools:
        """The pools of these bytes: expected, low and high, or one number for all."""
        expected, *others = (_pool(occupancy, size) for size in ends)
        low, high = others or (expected, expected)
        return cls(low=low, expected=expected, high=high, base=base, known=known)

    def range(self, read: Callable[[PoolInfo], Number | None]) -> Range | None:
        """One figure of the three pools as a range; ``None`` if the expected pool lacks it. An end that lacks it is left out."""
        expected = read(self.expected)
        ends = (read(pool) for pool in (self.low, self.high))
        return None if expected is None else spread(expected, *(end for end in ends if end is not None))


def equation_rows(facts: Facts, occupancy: VllmOccupancy, budget: Budget | None, tolerance: float) -> list[Row]:
    """Rows for memory beside the cache: the weights always, the rest if the GPU is known."""
    from hwcalc.engines.vllm.memory import rotary_parts

    parts = (*(occupancy.weights.value or ()), *rotary_parts(occupancy.model)) if budget is None else budget.parts
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | Number | None, definition: str, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, tolerance, definition, meaning))

    def named(names: tuple[str, ...]) -> Range | None:
        return total(part for part in parts if part.name in names)

    known = any(part.section is Section.WEIGHTS for part in parts)
    weights = [part for part in parts if part.section is Section.WEIGHTS or part.name in _WEIGHTS] if known else []
    definition = "exact" if all(part.low == part.expected == part.high for part in weights) else "estimate"
    meaning, held = "weights of the fullest rank, and the tables made beside them", total(weights)
    if held is not None and "rocm" in facts:
        # There it is what the device has less, with what lies outside of torch.
        held, definition = replace(held, high=held.high + _BESIDE_ON_ROCM), "estimate"
    row("weights", facts.largest("weights_bytes"), held, definition, meaning)
    if budget is None:
        return rows
    memory = device_memory(occupancy)
    gpu, more = occupancy.setup.hardware.gpu, 0
    if memory is not None and "wsl" in facts and gpu is not None and gpu.memory_total_mib is not None:
        # Windows tells programs of all of the memory.
        more = max(0, gpu.memory_total_mib * MIB - int(memory.high))
        memory = replace(memory, high=memory.high + more)
    row("device memory", facts.smallest("total_bytes"), memory, "profile", "memory of the GPU that programs see")
    asked = spread(budget.requested_bytes)
    if memory is not None and budget.total_bytes:
        share = budget.requested_bytes / budget.total_bytes
        asked = Range(low=int(memory.low * share), expected=budget.requested_bytes, high=int(memory.high * share))
    row("requested", facts.smallest("requested_bytes"), asked, "engine", "the share of it that vLLM asks for")
    activation, graphs, with_graphs = named(ACTIVATION), named(GRAPHS), "activation_with_graphs" in facts
    peak, meaning = activation, "peak of the profile run above the weights"
    if with_graphs and peak is not None:
        # Some of the peak stays allocated, and vLLM counts that as consumed.
        least = graphs or spread(0)
        peak = Range(low=least.low, expected=peak.expected + least.expected, high=peak.high + least.high)
        meaning = "what only the profile run needs, and the estimate of CUDA graphs"
    row("activation peak", facts.largest("activation_bytes"), peak, "estimate", meaning)
    outside = facts.largest("non_torch_bytes")
    # With the allocator of sleep mode torch does not see its own memory, and the difference is below zero.
    if outside is None or (not isinstance(outside.value, str) and outside.value >= 0):
        row("non-torch", outside, named(NON_TORCH), "estimate", "kernels, handles and communication outside of torch")
    if known:
        consumed = total([*weights, *(part for part in parts if part.name in NON_TORCH)])
        if consumed is not None and with_graphs and activation is not None:
            consumed = replace(consumed, high=consumed.high + activation.high)
        row("consumed", facts.largest("consumed_bytes"), consumed, "estimate", "weights and what is outside of torch")
        reached = total([*weights, *(part for part in parts if part.name in ACTIVATION)])
        meaning = "weights and activations: what torch allocates at most"
        row("torch peak", facts.largest("torch_peak_bytes"), reached, "estimate", meaning)
    captured = facts.largest("graphs_estimated_bytes") or facts.largest("graphs_bytes")
    row("CUDA graphs", captured, graphs, "estimate", "the pool of CUDA graphs, as vLLM estimates it beforehand")
    expected, low, high = clipped(budget)
    left = Range(
        low=low, expected=expected, high=high + round(more * (budget.requested_bytes / budget.total_bytes if more else 0))
    )
    row("available", _budget_fact(facts), left, "estimate", "what the equation leaves for the cache")
    return rows


def _budget_fact(facts: Facts) -> Fact | None:
    exact = facts.smallest("pool_bytes")
    return exact if exact is not None and exact.low == exact.high else facts.smallest("available_bytes") or exact


def pools_of(facts: Facts, occupancy: VllmOccupancy, budget: Budget | None) -> Pools | None:
    """The pools for the best known budget.

    In order of preference: an option, the available bytes of the log, those of a refusal, the log's blocks, the memory equation, the
    log's tokens. ``None`` if none is known.
    """
    given, stated, refused = occupancy.setup.hardware.kv_memory, _budget_fact(facts), facts.smallest("refused_bytes")
    option = facts.number("kv_cache_memory_bytes")
    # Each rank must have stated its budget, or the user or the log states it once for all.
    ranks = occupancy.setup.parallel.tp * occupancy.setup.parallel.pp
    stated_by_all = ranks == 1 or len(facts.ranks("available_bytes")) >= ranks
    block = _pool(occupancy, 0).bytes_per_block or 0
    if given is not None or option is not None:
        return Pools.of(occupancy, [int(given if given is not None else option or 0)], "kv_memory", known=True)
    if stated is not None:
        return Pools.of(occupancy, _ends(stated), "available_bytes", known=stated_by_all)
    if refused is not None:
        # The available memory that a refusal states does not include the null block.
        ends = _ends(refused)
        block = _pool(occupancy, ends[0]).bytes_per_block or 0
        return Pools.of(occupancy, [end + block for end in ends], "refused_bytes", known=stated_by_all)
    if (blocks := facts.smallest("blocks")) is not None:
        return Pools.of(occupancy, [int(blocks.value) * block], "blocks", known=True)
    if budget is not None:
        return Pools.of(occupancy, clipped(budget), "equation")
    if (counted := facts.smallest("tokens")) is not None:
        size = _blocks_of_tokens(int(counted.value), occupancy) * block
        return Pools.of(occupancy, [size], "tokens", known=True)
    return None


def clipped(budget: Budget) -> list[int]:
    """The expected, low and high bytes of a budget; none is below zero."""
    return [max(0, size) for size in (budget.expected, budget.low, budget.high)]


def _blocks_of_tokens(tokens: int, occupancy: VllmOccupancy) -> int:
    """The fewest blocks that vLLM's log would print as this number of tokens, by the rule of its version."""
    block = _pool(occupancy, 0).bytes_per_block
    if not block:
        return 0

    def printed(blocks: int) -> int:
        return _pool(occupancy, blocks * block).tokens or 0

    return 1 + last_yes(lambda blocks: printed(blocks) < tokens, _MOST_BLOCKS)


def _ends(fact: Fact) -> list[int]:
    """The bytes of a fact, and the least and most that they may have been before they were rounded."""
    ends = (fact.value, *(fact.value if end is None else end for end in (fact.low, fact.high)))
    return [max(0, int(end)) for end in ends]


def _pool(occupancy: VllmOccupancy, size: int) -> PoolInfo:
    # Its notes are not kept: these sizes are not the planned one.
    pool = occupancy.pool(size).value
    assert pool is not None
    return pool


def layout_rows(facts: Facts, occupancy: VllmOccupancy) -> list[Row]:
    """Rows that do not depend on the budget: block sizes, the padding of states, the needs of one request. None is an estimate."""
    from hwcalc.engines.vllm.layer_specs import STATE_KINDS, state_bytes

    groups, pool, settings = occupancy.groups, _pool(occupancy, 0), occupancy.settings
    least = min((group.block_size for group in groups), default=None)
    fact, meaning = facts.smallest("smallest_block_tokens"), "tokens of the smallest block of any group"
    rows = compared("block size", fact, least, 0.0, "engine", meaning)
    fact, meaning = facts.smallest("attention_block_tokens"), "tokens: its page is at least a state's"
    rows += compared("attention block", fact, pool.block_size, 0.0, "engine", meaning)
    page = next((group.page_bytes for group in groups if group.kind == "state"), None)
    kinds = [group.kind for group in occupancy.model.stack_for("vllm").groups if isinstance(group.kind, STATE_KINDS)]
    if page and kinds:
        conv, ssm = FLOATS[settings.conv].number_bytes, FLOATS[settings.state].number_bytes
        sizes = (
            state_bytes(kind, tp=settings.tp, speculated=settings.speculated, conv_bytes=conv, ssm_bytes=ssm) for kind in kinds
        )
        largest = max(sizes)
        padding, meaning = 100 * (page - largest) / largest, "of a state's bytes, to fill a page"
        rows += compared("state padding", facts.smallest("mamba_padding_percent"), padding, 0.0, "engine", meaning)
    meaning = "the cache of one longest request"
    rows += compared("needed", facts.largest("needed_bytes"), pool.needed_bytes, 0.0, "engine", meaning)
    return rows


def pool_rows(facts: Facts, occupancy: VllmOccupancy, pools: Pools, tolerance: float) -> list[Row]:
    """Rows for blocks, tokens, concurrency, and the figures of a refusal."""
    definition = "estimate" if pools.base == "equation" else "engine"
    allowed = 0.0 if pools.known else tolerance
    rows: list[Row] = []

    def row(name: str, fact: str, predicted: Range | None, meaning: str) -> None:
        rows.extend(compared(name, facts.smallest(fact), predicted, allowed, definition, meaning))

    if pools.base not in ("blocks", "tokens"):
        row("blocks", "blocks", pools.range(lambda pool: pool.blocks), "budget / bytes of a block, the least of all ranks")
        pools = _of_stated_blocks(facts, occupancy, pools)
    if pools.base != "tokens":
        tokens = pools.range(lambda pool: pool.tokens) if pools.expected.fits else spread(0)
        fact, meaning = facts.smallest("tokens"), "the log's count, by the rule of its version"
        counted = compared("tokens", fact, tokens, allowed, definition, meaning)
        if all(row.within for row in counted) and (nearest := _nearest_printed(facts, occupancy)) is not None:
            meaning = "the nearest count that the log could print: no number of blocks gives the log's"
            counted = compared("tokens", fact, nearest, 0.0, "engine", meaning)
        rows += counted
    row("concurrency", "concurrency", pools.range(_concurrency), "blocks / blocks of one longest request")
    stored = pools.range(lambda pool: (pool.blocks or 0) * (pool.block_size or 0))
    row("tokens stored", "stored_tokens", stored, "blocks x tokens of a block")
    longest = pools.range(lambda pool: None if pool.max_seq is None else min(pool.max_seq, occupancy.tokens))
    row("longest request", "longest_tokens", longest, "tokens of the longest request that would fit")
    return rows


def _of_stated_blocks(facts: Facts, occupancy: VllmOccupancy, pools: Pools) -> Pools:
    """The pool of the log's own blocks, if the budget allows so many: what else the log counts follows from them exactly."""
    stated = facts.smallest("blocks")
    if stated is None or isinstance(stated.value, str):
        return pools
    counted = _pool(occupancy, int(stated.value) * (pools.expected.bytes_per_block or 0))
    span = pools.range(lambda pool: pool.blocks)
    beyond = pools.known and (span is None or not span.low <= stated.value <= span.high)
    if beyond or counted.blocks != stated.value:
        return pools
    return Pools(low=counted, expected=counted, high=counted, base=pools.base, known=pools.known)


def _nearest_printed(facts: Facts, occupancy: VllmOccupancy) -> int | None:
    """The count of tokens nearest to the log's that some number of blocks gives; ``None`` if the log's own is one."""
    fact = facts.smallest("tokens")
    block = _pool(occupancy, 0).bytes_per_block
    if fact is None or isinstance(fact.value, str) or not block:
        return None
    tokens = int(fact.value)
    blocks = _blocks_of_tokens(tokens, occupancy)
    near = [_pool(occupancy, count * block).tokens or 0 for count in (blocks, blocks - 1) if count >= 0]
    return None if tokens in near else min(near, key=lambda count: abs(count - tokens))


def _concurrency(pool: PoolInfo) -> Number | None:
    if pool.max_concurrency is not None:
        return pool.max_concurrency
    return pool.blocks / pool.blocks_per_request if pool.blocks is not None and pool.blocks_per_request else None

"""Compare vLLM's figures with the plan's: the pool by the budget that the log states, and the memory equation if the GPU is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.engines.memory import ACTIVATION, GRAPHS, NON_TORCH, Budget, BudgetPart, Section
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.solve import last_yes
from hwcalc.reconcile.facts import Fact, Facts, Number, Range, Row, compared, spread

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
    """Whether this is the budget that vLLM itself had, up to rounding: then its counts must match to the block."""

    def range(self, read: Callable[[PoolInfo], Number | None]) -> Range | None:
        """One figure of the three pools as a range; ``None`` if the expected pool lacks it. An end that lacks it is left out."""
        middle = read(self.expected)
        if middle is None:
            return None
        ends = [read(pool) for pool in (self.low, self.high)]
        known = [end for end in ends if end is not None]
        return Range(low=min([middle, *known]), expected=middle, high=max([middle, *known]))


def compare(facts: Facts, occupancy: VllmOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
    """A row for every figure that the log and the plan have, and notes about what could not be compared."""
    budget = occupancy.budget if occupancy.setup.hardware.gpu is not None else None
    rows = [*_equation(facts, occupancy, budget, tolerance), *_layout_rows(facts, occupancy)]
    notes: list[Note] = []
    if facts.word("engine_core") == "v0" and occupancy.settings.rules.engine != "V0":
        message = "The log is of the older engine (V0), whose rules kvplan knows for releases before 0.8: what follows is V1's."
        notes.append(Note(code="other-engine", message=message))
    pools = _pools(facts, occupancy, budget)
    if pools is None:
        if any(name in facts for name in ("tokens", "blocks", "concurrency", "needed_bytes")):
            message = "The log does not say how many bytes the cache has: give them with --kv-memory, or name the GPU with --gpu."
            notes.append(Note(code="budget-unknown", message=message))
        return rows, notes
    rows += _pool_rows(facts, occupancy, pools, tolerance)
    if pools.base == "blocks" and budget is not None:
        # The pool was planned from the log's blocks, so these are compared with the blocks that the GPU has room for.
        room = _range_of(budget, occupancy).range(lambda pool: pool.blocks)
        meaning = "what the equation leaves for the cache / bytes of a block"
        rows += compared("blocks", facts.smallest("blocks"), room, tolerance, definition="estimate", meaning=meaning)
    if occupancy.setup.hardware.gpu is None and "available_bytes" in facts:
        message = (
            "Without a GPU only weights and pool are compared: name it with --gpu for activations, overheads and the budget."
        )
        notes.append(Note(code="no-gpu", message=message))
    if occupancy.setup.parallel.pp > 1:
        message = "The pool is that of the rank with the smallest budget; the pipeline stage with the widest blocks is planned."
        notes.append(Note(code="smallest-rank", message=message))
    return rows, notes


def _equation(facts: Facts, occupancy: VllmOccupancy, budget: Budget | None, tolerance: float) -> list[Row]:
    """Rows for memory beside the cache: the weights always, the rest if the GPU is known."""
    from hwcalc.engines.vllm.memory import rotary_parts

    parts = (*(occupancy.weights.value or ()), *rotary_parts(occupancy.model)) if budget is None else budget.parts
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | None, definition: str, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, tolerance, definition=definition, meaning=meaning))

    known = any(part.section is Section.WEIGHTS for part in parts)
    weights = [part for part in parts if part.section is Section.WEIGHTS or part.name in _WEIGHTS]
    exact = all(part.low == part.expected == part.high for part in weights)
    meaning = "weights of the fullest rank, and the tables made beside them"
    row("weights", facts.largest("weights_bytes"), _sum(weights) if known else None, "exact" if exact else "estimate", meaning)
    if budget is None:
        return rows
    memory = _visible(occupancy)
    row("device memory", facts.smallest("total_bytes"), memory, "profile", "memory of the GPU that programs see")
    asked = spread(budget.requested_bytes)
    if memory is not None and budget.total_bytes:
        share = budget.requested_bytes / budget.total_bytes
        asked = Range(low=int(memory.low * share), expected=budget.requested_bytes, high=int(memory.high * share))
    row("requested", facts.smallest("requested_bytes"), asked, "engine", "the share of it that vLLM asks for")
    peak, meaning = _named(parts, ACTIVATION), "peak of the profile run above the weights"
    with_graphs = "activation_with_graphs" in facts
    if with_graphs and peak is not None:
        # Some of the peak stays allocated, and vLLM counts that as consumed.
        least = _named(parts, GRAPHS) or spread(0)
        peak = Range(low=least.low, expected=peak.expected + least.expected, high=peak.high + least.high)
        meaning = "what only the profile run needs, and the estimate of CUDA graphs"
    row("activation peak", facts.largest("activation_bytes"), peak, "estimate", meaning)
    outside, stated = _named(parts, NON_TORCH), facts.largest("non_torch_bytes")
    # With the allocator of sleep mode torch does not see its own memory, and the difference is below zero.
    if stated is None or _at_least(stated, 0):
        row("non-torch", stated, outside, "estimate", "kernels, handles and communication outside of torch")
    consumed = _sum([*weights, *(part for part in parts if part.name in NON_TORCH)]) if known else None
    if consumed is not None and with_graphs:
        kept = _named(parts, ACTIVATION) or spread(0)
        consumed = Range(low=consumed.low, expected=consumed.expected, high=consumed.high + kept.high)
    row("consumed", facts.largest("consumed_bytes"), consumed, "estimate", "weights and what is outside of torch")
    reached = _sum([*weights, *(part for part in parts if part.name in ACTIVATION)]) if known else None
    row(
        "torch peak",
        facts.largest("torch_peak_bytes"),
        reached,
        "estimate",
        "weights and activations: what torch allocates at most",
    )
    graphs = _named(parts, GRAPHS)
    name = "graphs_estimated_bytes" if "graphs_estimated_bytes" in facts else "graphs_bytes"
    row("CUDA graphs", facts.largest(name), graphs, "estimate", "the pool of CUDA graphs, as vLLM estimates it beforehand")
    left = Range(low=max(0, budget.low), expected=max(0, budget.expected), high=max(0, budget.high))
    row("available", _budget_fact(facts), left, "estimate", "what the equation leaves for the cache")
    return rows


def _at_least(fact: Fact, least: Number) -> bool:
    return not isinstance(fact.value, str) and fact.value >= least


def _budget_fact(facts: Facts) -> Fact | None:
    exact = facts.smallest("pool_bytes")
    return exact if exact is not None and exact.low == exact.high else facts.smallest("available_bytes") or exact


def _pools(facts: Facts, occupancy: VllmOccupancy, budget: Budget | None) -> Pools | None:
    """The pools for the best known budget.

    In order of preference: an option, the available bytes of the log, those of a refusal, the log's blocks, the memory equation, the
    log's tokens. ``None`` if none is known.
    """
    ends: tuple[int, int, int] | None = None
    base = ""
    given, stated, refused = occupancy.setup.hardware.kv_memory, _budget_fact(facts), facts.smallest("refused_bytes")
    option = facts.number("kv_cache_memory_bytes")
    if given is not None or option is not None:
        size = int(given if given is not None else option or 0)
        ends, base = (size, size, size), "kv_memory"
    elif stated is not None:
        ends, base = _ends(stated), "available_bytes"
    elif refused is not None:
        # The available memory that a refusal states does not include the null block.
        block = _pool(occupancy, _ends(refused)[1]).bytes_per_block or 0
        low, middle, high = _ends(refused)
        ends, base = (low + block, middle + block, high + block), "refused_bytes"
    elif (blocks := facts.smallest("blocks")) is not None:
        block = _pool(occupancy, 0).bytes_per_block or 0
        size = int(blocks.value) * block
        ends, base = (size, size, size), "blocks"
    elif budget is not None:
        ends, base = (max(0, budget.low), max(0, budget.expected), max(0, budget.high)), "equation"
    elif (counted := facts.smallest("tokens")) is not None:
        size = _blocks_of_tokens(int(counted.value), occupancy) * (_pool(occupancy, 0).bytes_per_block or 0)
        ends, base = (size, size, size), "tokens"
    if ends is None:
        return None
    least, expected, most = (_pool(occupancy, size) for size in ends)
    return Pools(low=least, expected=expected, high=most, base=base, known=_is_known(facts, occupancy, base))


def _is_known(facts: Facts, occupancy: VllmOccupancy, base: str) -> bool:
    """Whether the budget is that of the smallest rank: the user or the log states it once for all, or each rank states its own."""
    if base in ("kv_memory", "blocks", "tokens"):
        return True
    if base not in ("available_bytes", "refused_bytes"):
        return False
    ranks = occupancy.setup.parallel.tp * occupancy.setup.parallel.pp
    return ranks == 1 or len(facts.ranks("available_bytes")) >= ranks


def _range_of(budget: Budget, occupancy: VllmOccupancy) -> Pools:
    """The pools for the budget of the memory equation."""
    low, expected, high = (_pool(occupancy, max(0, size)) for size in (budget.low, budget.expected, budget.high))
    return Pools(low=low, expected=expected, high=high, base="equation")


def _blocks_of_tokens(tokens: int, occupancy: VllmOccupancy) -> int:
    """The fewest blocks that vLLM's log would print as this number of tokens, by the rule of its version."""
    block = _pool(occupancy, 0).bytes_per_block
    if not block:
        return 0

    def printed(blocks: int) -> int:
        return _pool(occupancy, blocks * block).tokens or 0

    return 1 + last_yes(lambda blocks: printed(blocks) < tokens, _MOST_BLOCKS)


def _ends(fact: Fact) -> tuple[int, int, int]:
    low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
    return max(0, int(low)), max(0, int(fact.value)), max(0, int(high))


def _pool(occupancy: VllmOccupancy, size: int) -> PoolInfo:
    # Not `opened.pool`, which would keep the notes: these sizes are not the planned one.
    pool = occupancy.pool(size).value
    assert pool is not None
    return pool


def _layout_rows(facts: Facts, occupancy: VllmOccupancy) -> list[Row]:
    """Rows that do not depend on the budget: block sizes, the padding of states, the needs of one request. None is an estimate."""
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Number | None, meaning: str) -> None:
        known = None if predicted is None else spread(predicted)
        rows.extend(compared(name, fact, known, 0.0, definition="engine", meaning=meaning))

    groups, pool = occupancy.groups, _pool(occupancy, 0)
    least = min((group.block_size for group in groups), default=None)
    row("block size", facts.smallest("smallest_block_tokens"), least, "tokens of the smallest block of any group")
    row("attention block", facts.smallest("attention_block_tokens"), pool.block_size, "tokens: its page is at least a state's")
    row(
        "state padding",
        facts.smallest("mamba_padding_percent"),
        _padding(occupancy, groups),
        "of a state's bytes, to fill a page",
    )
    row("needed", facts.largest("needed_bytes"), pool.needed_bytes, "the cache of one longest request")
    return rows


def _pool_rows(facts: Facts, occupancy: VllmOccupancy, pools: Pools, tolerance: float) -> list[Row]:
    """Rows for blocks, tokens, concurrency, and the figures of a refusal."""
    definition = "estimate" if pools.base == "equation" else "engine"
    allowed = 0.0 if pools.known else tolerance
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | None, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, allowed, definition=definition, meaning=meaning))

    if pools.base not in ("blocks", "tokens"):
        blocks = pools.range(lambda pool: pool.blocks)
        row("blocks", facts.smallest("blocks"), blocks, "budget / bytes of a block, the least of all ranks")
        pools = _of_stated_blocks(facts, occupancy, pools)
    if pools.base != "tokens":
        tokens = pools.range(lambda pool: pool.tokens) if pools.expected.fits else spread(0)
        fact, meaning = facts.smallest("tokens"), "the log's count, by the rule of its version"
        counted = compared("tokens", fact, tokens, allowed, definition=definition, meaning=meaning)
        if all(row.within for row in counted) and (nearest := _nearest_printed(facts, occupancy)) is not None:
            meaning = "the nearest count that the log could print: no number of blocks gives the log's"
            counted = compared("tokens", fact, nearest, 0.0, definition="engine", meaning=meaning)
        rows += counted
    row("concurrency", facts.smallest("concurrency"), pools.range(_concurrency), "blocks / blocks of one longest request")
    stored = pools.range(lambda pool: (pool.blocks or 0) * (pool.block_size or 0))
    row("tokens stored", facts.smallest("stored_tokens"), stored, "blocks x tokens of a block")
    longest = pools.range(lambda pool: None if pool.max_seq is None else min(pool.max_seq, occupancy.tokens))
    row("longest request", facts.smallest("longest_tokens"), longest, "tokens of the longest request that would fit")
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


def _nearest_printed(facts: Facts, occupancy: VllmOccupancy) -> Range | None:
    """The count of tokens nearest to the log's that some number of blocks gives; ``None`` if the log's own is one."""
    fact = facts.smallest("tokens")
    block = _pool(occupancy, 0).bytes_per_block
    if fact is None or isinstance(fact.value, str) or not block:
        return None
    tokens = int(fact.value)
    blocks = _blocks_of_tokens(tokens, occupancy)
    near = [_pool(occupancy, count * block).tokens or 0 for count in (blocks, blocks - 1) if count >= 0]
    return None if tokens in near else spread(min(near, key=lambda count: abs(count - tokens)))


def _concurrency(pool: PoolInfo) -> Number | None:
    if pool.max_concurrency is not None:
        return pool.max_concurrency
    return pool.blocks / pool.blocks_per_request if pool.blocks is not None and pool.blocks_per_request else None


def _padding(occupancy: VllmOccupancy, groups: tuple[PoolGroup, ...]) -> Number | None:
    """By how many percent a state's page is larger than the state; ``None`` without states or state pages."""
    from hwcalc.engines.vllm.layer_specs import STATE_KINDS, state_bytes

    page = next((group.page_bytes for group in groups if group.kind == "state"), None)
    kinds = [group.kind for group in occupancy.model.stack_for("vllm").groups if isinstance(group.kind, STATE_KINDS)]
    if not page or not kinds:
        return None
    settings = occupancy.settings
    largest = max(
        state_bytes(
            kind,
            tp=settings.tp,
            speculated=settings.speculated,
            conv_bytes=FLOATS[settings.conv].number_bytes,
            ssm_bytes=FLOATS[settings.state].number_bytes,
        )
        for kind in kinds
    )
    return 100 * (page - largest) / largest


def _sum(parts: list[BudgetPart]) -> Range:
    low, expected, high = (sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _named(parts: tuple[BudgetPart, ...], names: tuple[str, ...]) -> Range | None:
    found = [part for part in parts if part.name in names]
    return _sum(found) if found else None


def _visible(occupancy: VllmOccupancy) -> Range | None:
    from hwcalc.profiles.gpus import visible_memory

    memory = None if occupancy.setup.hardware.gpu is None else visible_memory(occupancy.setup.hardware.gpu)
    if memory is None:
        return None
    return Range(low=memory.low_bytes, expected=memory.expected_bytes, high=memory.high_bytes)


def batch_shape(occupancy: VllmOccupancy) -> tuple[int, int]:
    """Tokens of one forward pass and rows of logits of the profile run."""
    from hwcalc.engines.vllm.memory import profile_run

    settings = occupancy.settings
    run = profile_run(occupancy, settings.sequences, settings.batched_tokens)
    return run.tokens, run.rows


def overheads(facts: Facts, occupancy: VllmOccupancy) -> dict[str, int]:
    """The overheads that the log measured, as a calibration saves them: bytes of the fullest rank."""
    from hwcalc.engines.vllm.settings import graphs_subtracted

    out: dict[str, int] = {}
    graphs = (
        "graphs_estimated_bytes" if graphs_subtracted(occupancy.version) and "graphs_estimated_bytes" in facts else "graphs_bytes"
    )
    for value, name in (
        ("non_torch_bytes", "non_torch_bytes"),
        ("activation_bytes", "activation_bytes"),
        ("graphs_bytes", graphs),
    ):
        fact = facts.largest(name)
        if fact is not None and not isinstance(fact.value, str) and fact.value >= 0:
            out[value] = int(fact.value)
    consumed, weights = facts.largest("consumed_bytes"), facts.largest("weights_bytes")
    if "non_torch_bytes" not in out and consumed is not None and weights is not None:
        rest = int(consumed.value) - int(weights.value)
        if rest >= 0:
            out["non_torch_bytes"] = rest
    total, free = facts.last("total_bytes"), facts.last("free_bytes")
    if total is not None and free is not None and total.rank == free.rank and int(total.value) >= int(free.value):
        out["context_bytes"] = int(total.value) - int(free.value)
    return out

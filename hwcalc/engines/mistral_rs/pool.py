"""The pool of PagedAttention in the figures of the log, the slots of caches without pages, and what is left for them on a GPU.

``pool = total x fraction - used - reserved``, and no more than ``available - max(2 % of available, 512 MiB) - reserved``. ``used`` is weights,
context, and the states, which the pool takes off; ``reserved`` is what its loader predicts for activations: attention scores of at most
1,024 x 1,024 positions (``mapped_max_act_size_elems`` of every text loader). With NCCL, or with layers that the user maps, nothing is predicted,
so that activations have the share that stays free. Its MB are 2^20 bytes, and its divisions are those of whole numbers.

Read, not run: ``calculate_cache_config`` in ``mistralrs-core/src/paged_attention/mod.rs`` of 0.9.2 (commit 9e922623f24b).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.forms import ENDS, OPPOSITE, Curve, OwnAmount, PartForm, passed_tokens
from hwcalc.engines.general_form import growing_parts
from hwcalc.engines.memory import Budget, BudgetPart, Section, budget_of, chunk_tokens, forward, loaded_beside, outside
from hwcalc.engines.mistral_rs.layers import words_of
from hwcalc.engines.pooled import BlockPool
from hwcalc.engines.steps import Step, figure, step
from hwcalc.formulas.arithmetic import larger, largest, mapped, smaller
from hwcalc.formulas.record import Record
from hwcalc.model import Noted
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.engine import MistralOccupancy

_NO_BLOCKS: Final = (
    "Num GPU blocks is 0. This means there is not enough memory. Either reduce the memory amount/utilization/context size or disable "
    "PagedAttention."
)
_KEPT_FREE: Final = "kept free"
"""The name of the part that stays free, outside the share of mistral.rs."""
_SCORES: Final = 1024
_LEAST_FREE: Final = 512 * MIB
_ONE_IN_FREE: Final = 50
_SOURCE: Final = "mistral.rs 0.9.2 paged_attention/mod.rs device_memory_cap: 2 % of what is available, at least 512 MiB"
FIRST_SLOTS: Final = 9
SPARE_TOKENS: Final = 2048
"""What ``--max-seq-len``, by which layers are placed, is longer on Metal where the user switches pages on."""


def slots_for(sequences: int) -> int:
    """State slots without pages, which double as sequences come.

    >>> [slots_for(sequences) for sequences in (1, 9, 10, 20)]
    [9, 9, 18, 36]
    """
    slots = FIRST_SLOTS
    while slots < sequences:
        slots *= 2
    return slots


class MistralPool(BlockPool):
    """Blocks that are counted in whole MB by ``elements`` of ``item_bytes`` for each token: those of all layers, also with several stages.

    ``state_bytes`` of a budget are for the states; ``memory_mb`` or ``context_tokens`` are what the user asks for in place of all that is free. On Metal the pool has no
    more MB than the longest context takes: ``cap_mb``, once it is :meth:`under` a load.
    """

    item_bytes: int
    elements: int
    state_bytes: int
    memory_mb: int | None
    context_tokens: int | None
    is_metal: bool
    cap_mb: int | None = None

    def under(self, tokens: int, sequences: int) -> MistralPool:
        """The pool where so many sequences of so many tokens are planned."""
        if not self.is_metal:
            return self
        # The null block and a part of a MB are needed besides the longest context.
        cap = (tokens + SPARE_TOKENS) * sequences * self.item_bytes * self.elements // MIB
        return replace(self, cap_mb=cap)

    def free_mb(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        """MB that are left of a budget behind the states."""
        terms = {"budget": budget_bytes, "states": self.state_bytes, "mb": MIB}
        return figure(steps, "pool_mb", "max(0, floor((budget - states) / mb))", unit="MB", **terms)

    def size_mb(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        """MB of the pool."""
        if self.context_tokens is not None:
            formula = "ceil(context_tokens x item_bytes x elements_per_token / mb)"
            terms = {"context_tokens": self.context_tokens, "item_bytes": self.item_bytes, "elements_per_token": self.elements}
            size = figure(steps, "pool_mb", formula, unit="MB", **terms, mb=MIB)
        elif self.memory_mb is not None:
            size = figure(steps, "pool_mb", "pa_memory_mb", unit="MB", pa_memory_mb=self.memory_mb)
        else:
            size = self.free_mb(budget_bytes, steps)
        if self.cap_mb is None:
            return size
        kept = None if steps is None or size <= self.cap_mb else steps
        return figure(kept, "capped_mb", "min(pool_mb, model_mb)", unit="MB", pool_mb=size, model_mb=self.cap_mb)

    def blocks(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        return figure(
            steps,
            "blocks",
            "floor(floor(floor(pool_mb x mb / item_bytes) / block_size) / elements_per_token)",
            unit="blocks",
            pool_mb=self.size_mb(budget_bytes, steps),
            mb=MIB,
            item_bytes=self.item_bytes,
            block_size=self.block_size,
            elements_per_token=self.elements,
        )

    def starts(self, budget_bytes: int) -> bool:
        return (self.size_mb(budget_bytes) <= self.free_mb(budget_bytes)) & (budget_bytes >= 0)

    def hold(self, budget_bytes: int, tokens: int, sequences: int, demand: int | None = None) -> bool:
        pool = self.under(tokens, sequences) if self.cap_mb is None else self
        return super(MistralPool, pool).hold(budget_bytes, tokens, sequences, demand)

    def message(self, budget_bytes: int) -> str | None:
        """The reason why mistral.rs does not start, in its own words; ``None`` if it does."""
        size, free = self.size_mb(budget_bytes), self.free_mb(budget_bytes)
        if size > free:
            return f"PagedAttention KV cache requires {size} MB but only {free} MB is safely available after model loading."
        return None if self.blocks(budget_bytes) else _NO_BLOCKS


class SlotsCurve(Curve):
    """A cache without pages, whose slots of states double as sequences come.

    ``slot_bytes`` are those of a slot on each GPU, and ``all_slot_bytes`` on all together; ``copies`` are slots that are always there.
    """

    slot_bytes: tuple[int, ...]
    all_slot_bytes: int
    copies: int
    dp: int

    def _slots(self, sequences: int) -> int:
        slots: int = mapped(slots_for, sequences)
        return slots + self.copies

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        return super().bytes_on(gpu, tokens, sequences) + self._slots(sequences) * self.slot_bytes[gpu]

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        most: int = largest(self.bytes_on(gpu, tokens, sequences) for gpu in range(len(self.gpus)))
        return most

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return super().total_bytes(tokens, sequences) + self._slots(-(-sequences // self.dp)) * self.all_slot_bytes


class Scores(OwnAmount, Record):
    """Attention scores of each sequence, for each head and each pair of its tokens, of which there are at most 1,024."""

    heads: int
    element_bytes: int

    def at(self, tokens: int, sequences: int) -> int:
        size: int = sequences * self.heads * self.element_bytes * smaller(tokens, _SCORES) ** 2
        return size


def predicted(occupancy: MistralOccupancy) -> Scores | None:
    """The scores that the loader of text models predicts for activations; ``None`` for models that see pictures."""
    if "text" not in words_of(occupancy.model):
        return None
    heads = max(getattr(group.kind, "num_attention_heads", 0) for group in occupancy.deployment.plain_stack.groups)
    return Scores(heads=heads, element_bytes=occupancy.deployment.model_format.block_bytes)


def plan_budget(occupancy: MistralOccupancy) -> Noted[Budget | None]:
    """The bytes that each GPU has left for pages and states; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    found, notes = loaded_beside(occupancy)
    if found is None:
        return Noted(None, notes)
    gpu, memory, weights = found
    rows = occupancy.request.replica_batch
    parts = (*weights, *_reserved(occupancy, rows), *outside(occupancy, gpu))
    tokens = passed_tokens(occupancy.tokens, rows, chunk_tokens()[1])
    share = occupancy.deployment.settings.fraction
    budget, measured = budget_of(occupancy, memory, parts, tokens=tokens, rows=rows, share=share)
    totals = (budget.total_low_bytes, budget.total_bytes, budget.total_high_bytes)
    ends = zip((budget.low, budget.expected, budget.high), totals, budget.usable, strict=True)
    more = [kept_free(*end) for end in ends]
    if any(more):
        # What must stay free is a part where the share is nearly the whole GPU. The low end of what is left is the high end of a part.
        expected, low, high = more[1], min(more[1:]), max(more[:2])
        part = BudgetPart.of(_KEPT_FREE, Section.OVERHEAD, (low, expected, high), _SOURCE)
        left = {"low": budget.low - high, "expected": budget.expected - expected, "high": budget.high - low}
        budget = replace(budget, parts=(*budget.parts, part), **left)
    return Noted(budget, (*notes, *measured))


def _reserved(occupancy: MistralOccupancy, rows: int) -> tuple[BudgetPart, ...]:
    """The part set aside for activations. Loaders of models that see pictures count those too, by the general estimate."""
    parallel, scores, tokens = occupancy.setup.parallel, predicted(occupancy), min(occupancy.tokens, _SCORES)
    if parallel.tp * parallel.pp > 1:
        return ()
    if scores is None:
        return (forward(occupancy, chunk_tokens(), rows),)
    formula = "batch x heads x tokens x tokens x element_bytes"
    made = step("activations", formula, batch=rows, heads=scores.heads, tokens=tokens, element_bytes=scores.element_bytes)
    count, source = int(made.expected), "mistral.rs 0.9.2 auto_device_map.rs: what it predicts and reserves"
    sizes, grows = (count, count, count), (scores, scores, scores)
    return (BudgetPart.of("activations", Section.ACTIVATIONS, sizes, source, steps=(made,), grows=grows),)


def kept_free(left: int, total: int, usable: int) -> int:
    """Bytes that must stay free of those that are ``left`` of the usable ones: 2 % of what is available, at least 512 MiB."""
    available = larger(total - (usable - left), 0)
    most = larger(available - larger(available // _ONE_IN_FREE, _LEAST_FREE), 0)
    kept: int = larger(left - most, 0)
    return kept


class KeptFree(OwnAmount, Record):
    """Bytes that must stay free after the other parts, at one end of the estimates."""

    parts: tuple[PartForm, ...]
    usable: tuple[int, int, int]
    totals: tuple[int, int, int]
    end: str

    def at(self, tokens: int, sequences: int) -> int:
        more = self._of("expected", tokens, sequences)
        if self.end == "expected":
            return more
        # The low end of what is left is the high end of a part.
        other = self._of(OPPOSITE[self.end], tokens, sequences)
        size: int = smaller(more, other) if self.end == "low" else larger(more, other)
        return size

    def _of(self, end: str, tokens: int, sequences: int) -> int:
        place = ENDS.index(end)
        used = sum(getattr(part, OPPOSITE[end]).at(tokens, sequences) for part in self.parts)
        return kept_free(self.usable[place] - used, self.totals[place], self.usable[place])


def paged_parts(occupancy: MistralOccupancy, chunk: int | None) -> tuple[PartForm, ...]:
    """The parts of the equation with pages as rules, with what must stay free where that can be anything. The budget is known."""
    budget = occupancy.budget
    assert budget is not None
    totals = (budget.total_low_bytes, budget.total_bytes, budget.total_high_bytes)
    parts = tuple(part for part in growing_parts(occupancy, chunk) if part.name != _KEPT_FREE)
    # Other parts can only leave less: with none of them most must stay free.
    if not any(kept_free(usable, total, usable) for usable, total in zip(budget.usable, totals, strict=True)):
        return parts

    low, expected, high = (KeptFree(parts=parts, usable=budget.usable, totals=totals, end=end) for end in ENDS)
    free = PartForm(name=_KEPT_FREE, section=Section.OVERHEAD.value, low=low, expected=expected, high=high)
    return (*parts, free)

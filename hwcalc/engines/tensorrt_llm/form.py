"""The memory of a GPU under TensorRT-LLM as a function of length and number of sequences.

The cache is what the manager's own rules say, so that its curve is no sum of terms: pools of fixed shares, in whole pages. What stays free
is a share of what the other parts leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.budget import Section
from hwcalc.engines.calibration import measurements
from hwcalc.engines.forms import ENDS, Amount, Constant, Curve, MemoryForm, PartForm
from hwcalc.engines.request import UNSHARED
from hwcalc.engines.tensorrt_llm.memory import KEPT_FREE, dummy_rows
from hwcalc.engines.tensorrt_llm.needs import Needs
from hwcalc.engines.tensorrt_llm.opened import TensorrtOpened, of_tensorrt
from hwcalc.errors import KvplanError
from hwcalc.formulas.arithmetic import either, every, floored, larger, some
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.profiles.calibration import overheads_kind

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart
    from hwcalc.engines.tensorrt_llm.layout import Layout

__all__ = ["PoolCurve", "PoolForm", "plan_curve", "plan_form"]

_OPPOSITE = {"low": "high", "expected": "expected", "high": "low"}


def plan_form(opened: TensorrtOpened) -> MemoryForm | None:
    """The form of the family; ``None`` where sequences are not alike, or the budget is unknown or partly measured."""
    request = opened.request
    gpu = request.hardware.gpu
    if gpu is None or request.hardware.kv_memory is not None:
        return None
    curve, budget = plan_curve(opened), opened.budget
    measured = request.hardware.calibrated and measurements(gpu.id, overheads_kind(opened.engine.name)).value is not None
    if curve is None or budget is None or measured:
        return None
    parts = tuple(_part(part, opened.settings.batched_tokens) for part in budget.parts if part.name != KEPT_FREE)
    ends = {
        end: KeptFree(usable=size, others=tuple(getattr(part, _OPPOSITE[end]) for part in parts), share=opened.settings.fraction)
        for end, size in zip(ENDS, budget.usable, strict=True)
    }
    limit, limited_by = opened.engine.most_sequences(opened) or (None, None)
    return PoolForm(
        curve=curve,
        parts=(*parts, PartForm(name=KEPT_FREE, section=Section.OVERHEAD.value, **ends)),
        usable=budget.usable,
        total_bytes=budget.total_bytes,
        most_sequences=limit,
        limited_by=limited_by,
        dp=request.parallel.dp,
        cache=curve,
    )


def plan_curve(opened: TensorrtOpened) -> PoolCurve | None:
    """The cache of the family; ``None`` where sequences are not alike, or the engine refuses some lengths."""
    request = opened.request
    if request.policy is not None or request.lengths or request.sharing != UNSHARED or request.draft is not None:
        return None
    if opened.settings.interval is not None:
        return None
    try:
        layouts = tuple(_layouts(opened))
    except KvplanError:
        return None
    return PoolCurve(gpus=(), total=(), layouts=layouts, dp=request.parallel.dp, tp=request.parallel.tp)


def _layouts(opened: TensorrtOpened) -> list[tuple[int | None, Layout]]:
    """The layout of each range of lengths, with the last length of it: a window that is longer than a sequence is none."""
    found: list[tuple[int | None, Layout]] = [(window, of_tensorrt(opened.sized(seq=window)).layout) for window in opened.windows]
    longest = max(opened.windows, default=0) + 1
    return [*found, (None, of_tensorrt(opened.sized(seq=longest)).layout)]


def _part(part: BudgetPart, batch: int) -> PartForm:
    if part.grows is None:
        low, expected, high = (Constant.of(size) for size in (part.low, part.expected, part.high))
        return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)
    ends = {end: DummyBatch(rule=rule, batch=batch) for end, rule in zip(ENDS, part.grows, strict=True)}
    return PartForm(name=part.name, section=part.section.value, **ends)


@frozen
class DummyBatch:
    """A forward pass of a full batch of prompts: the longer these are, the fewer."""

    rule: Amount
    batch: int

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes, whatever the number of sequences."""
        return self.rule.at(tokens, dummy_rows(self.batch, tokens))


@frozen
class KeptFree:
    """What ``free_gpu_memory_fraction`` leaves of what the other parts leave."""

    usable: int
    others: tuple[Amount, ...]
    share: float

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        left = larger(0, self.usable - sum(part.at(tokens, sequences) for part in self.others))
        kept: int = left - floored(left * self.share)
        return kept


@frozen
class PoolCurve(Curve):
    """The cache: the smallest budget whose pools hold the sequences. ``layouts`` are those of lengths up to each number of tokens."""

    layouts: tuple[tuple[int | None, Layout], ...]
    dp: int
    tp: int

    def of(self, tokens: int, sequences: int) -> AllNeeds:
        """What so many sequences of all replicas need."""
        return AllNeeds(self.layouts, tokens, -(-sequences // self.dp))

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """As :meth:`needed_bytes`."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return AllNeeds(self.layouts, tokens, sequences).needed_bytes()

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return self.of(tokens, sequences).total_bytes(sequences, self.dp) * self.tp


@frozen
class _KnownCurve(PoolCurve):
    """A curve whose answer about some points is made: it is asked many things of the same arrays."""

    points: tuple[int, int]
    known: AllNeeds

    def of(self, tokens: int, sequences: int) -> AllNeeds:
        return self.known if tokens is self.points[0] and sequences is self.points[1] else super().of(tokens, sequences)


class AllNeeds:
    """What sequences need, each in the layout of its length."""

    def __init__(self, layouts: tuple[tuple[int | None, Layout], ...], tokens: int, sequences: int) -> None:
        self._parts: list[tuple[bool, Needs]] = []
        above = True
        for last, layout in layouts:
            here = above if last is None else above & (tokens <= last)
            if some(here):
                blocks = {window: sequences * layout.blocks(window, tokens) for window in layout.windows}
                self._parts.append((here, Needs(layout, tokens, sequences, blocks)))
            above = above & (here ^ True)

    def needed_bytes(self) -> int:
        """The cache on the fullest GPU."""
        return self._joined([needs.most for _, needs in self._parts])

    def total_bytes(self, sequences: int, dp: int) -> int:
        """On all stages, for so many sequences on all replicas."""
        return self._joined([_total(needs, sequences, dp) for _, needs in self._parts])

    def holds(self, budget: int) -> bool:
        """Whether they fit."""
        return self._joined([needs.holds(budget) * 1 for _, needs in self._parts]) == 1

    def _joined(self, values: list[int]) -> int:
        (first, found), *others = zip((here for here, _ in self._parts), values, strict=True)
        if every(first):
            return found
        for here, value in others:
            found = either(here, value, found)
        return found


def _total(needs: Needs, sequences: int, dp: int) -> int:
    """The bytes that all replicas store: what sequences hold, and what the manager keeps beside it."""
    layout, one, total = needs.layout, needs.layout.settings, 0
    every_block = {window: sequences * layout.blocks(window, needs.tokens) for window in layout.windows}
    for stage, needed in zip(layout.stages, needs.on_stages, strict=True):
        held = sum(blocks * one.block * layout.rows(stage, window) for window, blocks in every_block.items())
        if not one.v2:
            total = total + larger(held, layout.needed(stage, every_block))
            continue
        idle = layout.slots * stage.state
        own = sum(blocks * one.block * layout.rows(stage, window) for window, blocks in needs.blocks.items())
        beside = larger(0, needed - own - larger(idle, needs.batch * stage.state))
        total = total + held + larger(sequences * stage.state, dp * idle) + dp * beside
    return total


@frozen
class PoolForm(MemoryForm):
    """The memory equation, where pools of the left bytes must hold the sequences."""

    cache: PoolCurve

    def prepared(self, tokens: int, sequences: int) -> MemoryForm:
        known = _KnownCurve(**vars(self.cache), points=(tokens, sequences), known=self.cache.of(tokens, sequences))
        return replace(self, curve=known, cache=known)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return self.cache.of(tokens, sequences).needed_bytes()

    def _pool_holds(self, tokens: int, sequences: int, end: str) -> bool:
        left = self.left(tokens, sequences, end)
        return (left >= 0) & self.cache.of(tokens, sequences).holds(left)

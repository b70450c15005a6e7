"""The memory of a GPU under TensorRT-LLM as a function of length and number of sequences.

The cache is what the manager's own rules say, so that its curve is no sum of terms: pools of fixed shares, in whole pages. What stays free
is a share of what the other parts leave.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from hwcalc.engines.amounts import Amount, OwnAmount
from hwcalc.engines.budget import Section
from hwcalc.engines.calibration import measurements
from hwcalc.engines.curves import Curve
from hwcalc.engines.forms import ENDS, OPPOSITE, Memory, MemoryForm, PartForm
from hwcalc.engines.general_form import form_with
from hwcalc.engines.request import is_plain
from hwcalc.engines.tensorrt_llm.memory import KEPT_FREE, dummy_rows
from hwcalc.engines.tensorrt_llm.needs import Needs
from hwcalc.engines.tensorrt_llm.opened import TensorrtOpened, of_tensorrt
from hwcalc.errors import KvplanError
from hwcalc.formulas.arithmetic import either, every, floored, larger, some
from hwcalc.formulas.record import Record
from hwcalc.profiles.calibration import overheads_kind

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.tensorrt_llm.layout import Layout

__all__ = ["PoolCurve", "PoolForm", "plan_curve", "plan_form"]


def plan_form(opened: TensorrtOpened) -> MemoryForm | None:
    """The form of the family; ``None`` where sequences are not alike, or the budget is unknown or partly measured."""
    form = form_with(opened, lambda: _parts(opened, opened.budget))
    return None if form is None else PoolForm(**asdict(form))


def _parts(opened: TensorrtOpened, budget: Budget | None) -> tuple[PartForm, ...] | None:
    """The parts of the equation; ``None`` where some were measured, which hold for batches of one size."""
    hardware = opened.request.hardware
    assert hardware.gpu is not None
    assert budget is not None
    if hardware.calibrated and measurements(hardware.gpu.id, overheads_kind(opened.engine.name)).value is not None:
        return None
    batch, share = opened.settings.batched_tokens, opened.settings.fraction
    parts = tuple(_part(part, batch) for part in budget.parts if part.name != KEPT_FREE)
    low, expected, high = (
        KeptFree(usable=size, others=tuple(getattr(part, OPPOSITE[end]) for part in parts), share=share)
        for end, size in zip(ENDS, budget.usable, strict=True)
    )
    kept = PartForm(name=KEPT_FREE, section=Section.OVERHEAD.value, low=low, expected=expected, high=high)
    return (*parts, kept)


def plan_curve(opened: TensorrtOpened) -> PoolCurve | None:
    """The cache of the family; ``None`` where sequences are not alike, or the engine refuses some lengths."""
    request = opened.request
    if not is_plain(request):
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
        return PartForm.constant(part)
    low, expected, high = (DummyBatch(rule=rule, batch=batch) for rule in part.grows)
    return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)


class DummyBatch(OwnAmount, Record):
    """A forward pass of a full batch of prompts: the longer these are, the fewer."""

    rule: Amount
    batch: int

    def at(self, tokens: int, sequences: int) -> int:
        return self.rule.at(tokens, dummy_rows(self.batch, tokens))


class KeptFree(OwnAmount, Record):
    """What ``free_gpu_memory_fraction`` leaves of what the other parts leave."""

    usable: int
    others: tuple[Amount, ...]
    share: float

    def at(self, tokens: int, sequences: int) -> int:
        left = larger(0, self.usable - sum(part.at(tokens, sequences) for part in self.others))
        kept: int = left - floored(left * self.share)
        return kept


class PoolCurve(Curve):
    """The cache: the smallest budget whose pools hold the sequences. ``layouts`` are those of lengths up to each number of tokens."""

    layouts: tuple[tuple[int | None, Layout], ...]
    dp: int
    tp: int

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """As :meth:`needed_bytes`."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return AllNeeds(self.layouts, tokens, sequences).needed_bytes()

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return self.total_of(AllNeeds(self.layouts, tokens, -(-sequences // self.dp)), sequences)

    def total_of(self, needs: AllNeeds, sequences: int) -> int:
        """Bytes on all GPUs, for so many sequences, of which a replica has these needs."""
        return self.tp * needs.total_bytes(sequences, self.dp)


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


class PoolForm(MemoryForm):
    """The memory equation, where pools of the left bytes must hold the sequences."""

    def at(self, tokens: int, sequences: int) -> Memory:
        assert isinstance(self.curve, PoolCurve)
        return _PoolMemory(self, self.curve, tokens, sequences)


class _PoolMemory(Memory):
    """What the form says of some sequences, whose needs are worked out once."""

    def __init__(self, form: PoolForm, curve: PoolCurve, tokens: int, sequences: int) -> None:
        super().__init__(form, tokens, sequences)
        self._curve, self._needs = curve, AllNeeds(curve.layouts, tokens, self._own)

    @cached_property
    def needed_bytes(self) -> int:
        return self._needs.needed_bytes()

    @cached_property
    def total_bytes(self) -> int:
        return self._curve.total_of(self._needs, self.sequences)

    def _pool_holds(self, end: str) -> bool:
        left = self.left(end)
        return (left >= 0) & self._needs.holds(left)

"""The memory of mistral.rs as a function of length and number of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.amounts import Amount, OwnAmount
from hwcalc.engines.budget import Section
from hwcalc.engines.curves import Curve, StagedCurve
from hwcalc.engines.forms import ENDS, MemoryForm, PartForm
from hwcalc.engines.general_form import form_with, growing_parts
from hwcalc.engines.mistral_rs.memory import KEPT_FREE, kept_free
from hwcalc.engines.mistral_rs.models import STATE_COPIES
from hwcalc.engines.mistral_rs.opened import slots_for
from hwcalc.engines.mistral_rs.pool import blocks_of
from hwcalc.formulas.arithmetic import larger, largest, mapped, smaller
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.opened import MistralOpened

__all__ = ["paged_form", "slots_curve"]

_OPPOSITE: Final = {"low": "high", "expected": "expected", "high": "low"}


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


def slots_curve(opened: MistralOpened, curve: Curve) -> Curve:
    """The cache without pages, from what it takes with the slots of the planned sequences."""
    if not curve.total_once_bytes:
        return curve
    copies = STATE_COPIES.get(opened.model.architecture or "", 0)
    slots = opened.slots + copies
    once = curve.once_on if isinstance(curve, StagedCurve) else (curve.once_bytes,) * len(curve.gpus)
    return SlotsCurve(
        gpus=curve.gpus,
        total=curve.total,
        slot_bytes=tuple(size // slots for size in once),
        all_slot_bytes=curve.total_once_bytes // slots,
        copies=copies,
        dp=opened.request.parallel.dp,
    )


class KeptFree(OwnAmount, Record):
    """What must stay free beside the other parts, at one end of the range of what is needed."""

    parts: tuple[PartForm, ...]
    usable: tuple[int, int, int]
    totals: tuple[int, int, int]
    end: str

    def at(self, tokens: int, sequences: int) -> int:
        more = self._of("expected", tokens, sequences)
        if self.end == "expected":
            return more
        # The low end of what is left is the high end of a part.
        other = self._of(_OPPOSITE[self.end], tokens, sequences)
        size: int = smaller(more, other) if self.end == "low" else larger(more, other)
        return size

    def _of(self, end: str, tokens: int, sequences: int) -> int:
        place = ENDS.index(end)
        used = sum(getattr(part, _OPPOSITE[end]).at(tokens, sequences) for part in self.parts)
        return kept_free(self.usable[place] - used, self.totals[place], self.usable[place])


def paged_form(opened: MistralOpened, chunk: int | None) -> MemoryForm | None:
    """The form of a request with pages; ``None`` if the budget is unknown."""
    return form_with(opened, lambda: _parts(opened, chunk), pools=blocks_of(opened))


def _parts(opened: MistralOpened, chunk: int | None) -> tuple[PartForm, ...]:
    """The parts of the equation, with what must stay free where that can be anything."""
    budget = opened.budget
    assert budget is not None
    totals = (budget.total_low_bytes, budget.total_bytes, budget.total_high_bytes)
    parts = tuple(part for part in growing_parts(opened, chunk) if part.name != KEPT_FREE)
    # Other parts can only leave less: with none of them most must stay free.
    if not any(kept_free(usable, total, usable) for usable, total in zip(budget.usable, totals, strict=True)):
        return parts

    def kept(end: str) -> Amount:
        return KeptFree(parts=parts, usable=budget.usable, totals=totals, end=end)

    free = PartForm(name=KEPT_FREE, section=Section.OVERHEAD.value, low=kept("low"), expected=kept("expected"), high=kept("high"))
    return (*parts, free)

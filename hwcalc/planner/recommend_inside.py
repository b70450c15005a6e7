"""A layout on GPUs that differ in little but their memory: what it takes of any, and what a plan says of it on one."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.costs import memory_of, outside_kind
from hwcalc.engines.forms import MemoryForm, PartForm
from hwcalc.engines.loaded import outside
from hwcalc.planner import forms
from hwcalc.planner.offers import Figures
from hwcalc.planner.planned_weights import weights_of
from hwcalc.planner.speed_work import UNCOUNTED, Work, work_of, workload_of
from hwcalc.planner.verdict import Verdict

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.model import Note
    from hwcalc.planner.verdict import Layout
    from hwcalc.profiles.gpus import Gpu

__all__ = ["Inside", "Need"]


class Need(NamedTuple):
    """What a layout takes of each GPU of a kind: all parts but the cache at their high end and expected, and the cache."""

    layout: Layout
    high_bytes: int
    expected_bytes: int
    cache_bytes: int


class Inside:
    """An accepted layout without what lies outside of the engine: in that alone kinds of GPUs differ."""

    def __init__(self, layout: Layout, opened: Opened, budget: Budget, notes: tuple[Note, ...]) -> None:
        """``notes`` are those of the memory equation that are not about the memory of a GPU."""
        gpu = opened.request.hardware.gpu
        assert gpu is not None
        self.layout, self.opened, self.notes = layout, opened, notes
        self._others: dict[Hashable, tuple[BudgetPart, ...]] = {}
        others = {part.name for part in self._outside(gpu)}
        self.parts = tuple(part for part in budget.parts if part.name not in others)
        self._fits: dict[tuple[Hashable, tuple[int, int, int]], dict[str, Any]] = {}

    @classmethod
    def of(cls, layout: Layout, opened: Opened) -> Inside | None:
        """The layout as it was opened on some GPU; ``None`` if its memory is not known."""
        gpu, told = opened.request.hardware.gpu, len(opened.collected)
        budget = opened.budget
        if gpu is None or budget is None:
            return None
        # What is said of the memory of this GPU comes first.
        notes = opened.collected[told + len(memory_of(gpu).notes) :]
        return cls(layout, opened, budget, tuple(notes))

    def need(self, gpu: Gpu) -> Need:
        """What it takes of each GPU of the kind of this one."""
        parts = (*self.parts, *self._outside(gpu))
        return Need(
            layout=self.layout,
            high_bytes=sum(part.high for part in parts),
            expected_bytes=sum(part.expected for part in parts),
            cache_bytes=self.opened.needed_bytes,
        )

    def _outside(self, gpu: Gpu) -> tuple[BudgetPart, ...]:
        """What lies outside of the engine on GPUs of this kind."""
        kind = outside_kind(gpu)
        if kind not in self._others:
            self._others[kind] = outside(self.opened, gpu)
        return self._others[kind]

    @cached_property
    def _form(self) -> MemoryForm | None:
        form, names = forms.form_of(self.opened), {part.name for part in self.parts}
        return None if form is None else replace(form, parts=tuple(part for part in form.parts if part.name in names))

    def _fit(self, gpu: Gpu, usable: tuple[int, int, int]) -> dict[str, Any] | None:
        """The verdict where so much may be used of each GPU such as this; ``None`` without a form."""
        if self._form is None:
            return None
        key = (outside_kind(gpu), usable)
        if key not in self._fits:
            parts = (*self._form.parts, *map(PartForm.constant, self._outside(gpu)))
            form = replace(self._form, parts=parts, usable=usable)
            self._fits[key] = forms.fit(form, self.opened.tokens, self.opened.batch)
        return self._fits[key]

    @cached_property
    def _work(self) -> Work | None:
        return work_of(self.opened.model, **workload_of(self.opened))

    def figures(self, opened: Opened, gpu: Gpu, usable: tuple[int, int, int]) -> Figures | None:
        """What a plan says of the request as it was opened on this GPU, of which so much may be used; ``None`` without a form."""
        fit = self._fit(gpu, usable)
        if fit is None:
            return None
        rate, work = gpu.memory_bandwidth_gbps, self._work
        bandwidth = None if rate is None else rate * 1e9
        times = None if work is None else work.on(gpu, bandwidth)
        unknown = (UNCOUNTED,) if work is None else work.unknown(gpu, bandwidth)
        notes = (
            *opened.model.notes,
            *opened.notes,
            *memory_of(gpu).notes,
            *self.notes,
            *weights_of(opened).notes,
            *unknown,
        )
        return Figures(
            kv_dtype=opened.dtypes.kv,
            verdict=Verdict(fit["verdict"]),
            usable_bytes=fit["usable_bytes"],
            needed_bytes=fit["needed_bytes"],
            needed_low_bytes=fit["needed_low_bytes"],
            needed_high_bytes=fit["needed_high_bytes"],
            headroom_bytes=fit["headroom_bytes"],
            max_batch=fit["max_batch"],
            max_seq=fit["max_seq"],
            decode_tokens_per_s_bound=None if times is None else times.decode_tokens_per_s,
            prefill_s_bound=None if times is None else times.prefill_s,
            bound_by=None if times is None else times.bound_by,
            notes=tuple(note for note in dict.fromkeys(notes) if note not in opened.model.warnings),
            warnings=(),
        )

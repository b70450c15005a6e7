"""Many GPUs for one request: where an engine looks at nothing of a GPU but its memory and few properties, each layout is opened once.

The answers are those of :func:`hwcalc.planner.solve_gpus.best_layout`, which opens the request for every GPU anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TYPE_CHECKING

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Budget, usable_bytes
from hwcalc.errors import KvplanError
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.named import NamedTuple
from hwcalc.planner import forms, solve, solve_gpus
from hwcalc.planner.fit import Search
from hwcalc.planner.layouts import layouts
from hwcalc.planner.result import Layout, Verdict

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.forms import MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.profiles.gpus import Gpu

__all__ = ["Alike", "AlikeGpu", "OfOffer", "least_weights_bytes"]


@frozen
class AlikeGpu:
    """A GPU by what a layout needs of it: its kind, and the bytes that may be used at the low end and by the expected value."""

    alike: Alike
    gpu: Gpu
    kind: Hashable
    total_bytes: int
    low_bytes: int
    requested_bytes: int

    @property
    def opened(self) -> Opened:
        """The request, which is the same for every GPU."""
        return self.alike.opened

    @property
    def weights_bytes(self) -> int:
        """The least that the weights take of one GPU."""
        return self.alike.weights_bytes(self.kind)

    def best_layout(self, gpus: int, node: int, *, any_layout: bool) -> solve_gpus.Found | None:
        """As :func:`hwcalc.planner.solve_gpus.best_layout`."""
        likely: solve_gpus.Found | None = None
        for layout in self.alike.layouts(gpus, node, any_layout=any_layout):
            need = self.alike.need(self.kind, self.gpu, layout)
            if need is None or need.cache_bytes > self.requested_bytes - need.expected_bytes:
                continue
            if need.cache_bytes <= self.low_bytes - need.high_bytes:
                return solve_gpus.Found(layout=need.layout, certain=True)
            likely = likely or solve_gpus.Found(layout=need.layout, certain=False)
        return likely


class _Need(NamedTuple):
    """What an accepted layout takes of each GPU of a kind: all parts but the cache at their high end and expected, and the cache."""

    layout: Layout
    high_bytes: int
    expected_bytes: int
    cache_bytes: int


class _Inside(NamedTuple):
    """What an accepted layout takes of any GPU, without what lies outside of the engine: in that alone kinds differ."""

    layout: Layout
    opened: Opened
    high_bytes: int
    expected_bytes: int
    cache_bytes: int

    def on(self, gpu: Gpu) -> _Need:
        """What it takes of each GPU of the kind of this one."""
        outside_high, outside_expected = _outside_bytes(self.opened, gpu)
        return _Need(
            layout=self.layout,
            high_bytes=self.high_bytes + outside_high,
            expected_bytes=self.expected_bytes + outside_expected,
            cache_bytes=self.cache_bytes,
        )


class Alike:
    """The layouts of one request on GPUs that differ in little but their memory."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._usable = opened.engine.alike_on_gpus and opened.request.policy is None and opened.request.hardware.kv_memory is None
        self._alone: dict[Hashable, Opened] = {}
        self._single: dict[Hashable, Budget | None] = {}
        self._inside: dict[Layout, _Inside | None] = {}
        self._needs: dict[tuple[Hashable, Layout], _Need | None] = {}
        self._layouts: dict[tuple[int, int, bool], tuple[Layout, ...]] = {}

    def on(self, gpu: Gpu) -> AlikeGpu | None:
        """The request on a GPU; ``None`` if it must be opened for it by itself."""
        from hwcalc.engines.costs import outside_kind
        from hwcalc.profiles.visible import visible_memory

        if not self._usable or gpu.is_host or self._calibrated is None or gpu.id in self._calibrated:
            return None
        memory = visible_memory(gpu)
        if memory is None:
            return None
        kind = (outside_kind(gpu), gpu.node)
        single = self._budget(kind, gpu)
        if single is None:
            return None
        low, expected, _ = usable_bytes(memory, single.utilization, self._margin)
        return AlikeGpu(
            alike=self, gpu=gpu, kind=kind, total_bytes=memory.expected_bytes, low_bytes=low, requested_bytes=expected
        )

    @cached_property
    def _calibrated(self) -> frozenset[str] | None:
        """The accelerators of which something was measured; ``None`` if that is not known."""
        from hwcalc.profiles.calibration import calibrated_gpus, overheads_kind

        return calibrated_gpus(overheads_kind(self.opened.engine.name))

    @cached_property
    def _margin(self) -> Fraction:
        from hwcalc.engines.equation import margin_of

        return margin_of(self.opened.request.hardware).value

    def _on(self, kind: Hashable, gpu: Gpu) -> Opened:
        """The request on one GPU of a kind. Raises the error with which the engine refuses it."""
        if kind not in self._alone:
            self._alone[kind] = self.opened.changed(gpu=gpu)
        return self._alone[kind]

    def _budget(self, kind: Hashable, gpu: Gpu) -> Budget | None:
        if kind not in self._single:
            try:
                self._single[kind] = self._on(kind, gpu).budget
            except KvplanError:
                self._single[kind] = None
        return self._single[kind]

    def weights_bytes(self, kind: Hashable) -> int:
        """The least that the weights take of one GPU of a kind."""
        single = self._single[kind]
        return 0 if single is None else least_weights_bytes(single)

    def layouts(self, gpus: int, node: int, *, any_layout: bool) -> tuple[Layout, ...]:
        """As :func:`hwcalc.planner.layouts.layouts`."""
        key = (gpus, node, any_layout)
        if key not in self._layouts:
            self._layouts[key] = layouts(self.opened, gpus, node, any_layout=any_layout)
        return self._layouts[key]

    def need(self, kind: Hashable, gpu: Gpu, layout: Layout) -> _Need | None:
        """What a layout needs on any GPU of the kind, such as this one; ``None`` if the engine refuses it."""
        key = (kind, layout)
        if key not in self._needs:
            if layout not in self._inside:
                self._inside[layout] = _inside(self._on(kind, gpu), gpu, layout)
            inside = self._inside[layout]
            self._needs[key] = None if inside is None else inside.on(gpu)
        return self._needs[key]


def _inside(opened: Opened, gpu: Gpu, layout: Layout) -> _Inside | None:
    accepted = solve_gpus.accepted(opened, layout)
    budget = None if accepted is None else accepted[1].budget
    if accepted is None or budget is None:
        return None
    outside_high, outside_expected = _outside_bytes(accepted[1], gpu)
    return _Inside(
        layout=accepted[0],
        opened=accepted[1],
        high_bytes=sum(part.high for part in budget.parts) - outside_high,
        expected_bytes=sum(part.expected for part in budget.parts) - outside_expected,
        cache_bytes=accepted[1].needed_bytes,
    )


def _outside_bytes(opened: Opened, gpu: Gpu) -> tuple[int, int]:
    """What lies outside of the engine on a GPU: at the high end and expected."""
    from hwcalc.engines.loaded import outside

    parts = outside(opened, gpu)
    return sum(part.high for part in parts), sum(part.expected for part in parts)


def least_weights_bytes(budget: Budget) -> int:
    """The least that the weights take of a GPU."""
    return sum(part.low for part in budget.parts if part.name == "weights")


class OfOffer(Search):
    """The limits of one offer, which says how long and how many, but not for how few GPUs: from the form where it has one."""

    def __init__(self) -> None:
        self._form: MemoryForm | None = None
        self._asked = False

    def _of(self, opened: Opened) -> MemoryForm | None:
        if not self._asked:
            self._asked = True
            plain = opened.engine.alike_on_gpus and opened.request.policy is None
            self._form = forms.form_of(opened) if plain else None
        return self._form

    def most(self, opened: Opened, size: int, low: int, pool: PoolInfo | None) -> tuple[solve.Most, solve.Most]:
        form = self._of(opened)
        return super().most(opened, size, low, pool) if form is None else _found(forms.most, form, opened)

    def longest(self, opened: Opened, size: int, low: int) -> tuple[solve.Most, solve.Most]:
        form = self._of(opened)
        return super().longest(opened, size, low) if form is None else _found(forms.longest, form, opened)

    def fewest(self, opened: Opened, verdict: Verdict) -> tuple[None, None]:
        """An offer does not say it."""
        return None, None


def _found(solver: Callable[..., int], form: MemoryForm, opened: Opened) -> tuple[solve.Most, solve.Most]:
    """A limit by the expected value and the one that surely holds, by a solver of :mod:`hwcalc.planner.forms`."""
    likely = solver(form, opened.tokens, opened.batch)
    sure = solver(form, opened.tokens, opened.batch, "low", likely)
    return solve.Most(value=likely, limiting="cache"), solve.Most(value=sure, limiting="cache")

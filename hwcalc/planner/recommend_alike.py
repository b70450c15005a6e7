"""Many GPUs for one request: where an engine looks at nothing of a GPU but its memory and few properties, each layout is opened once.

The answers are those of :func:`hwcalc.planner.solve.best_layout`, which opens the request for every GPU anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Budget, usable_bytes
from hwcalc.errors import KvplanError
from hwcalc.formulas.named import NamedTuple
from hwcalc.planner import forms, solve
from hwcalc.planner.fit import Search
from hwcalc.planner.layouts import layouts
from hwcalc.planner.result import Layout, Verdict

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.forms import MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.profiles.gpus import Gpu

__all__ = ["Alike", "OfOffer", "Room"]


class Room(NamedTuple):
    """A GPU by what a layout needs of it: the bytes that may be used at the low end and by the expected value, and its kind."""

    kind: Hashable
    total_bytes: int
    low: int
    expected: int


class _Need(NamedTuple):
    """What an accepted layout takes of each GPU of a kind: all parts but the cache at their high end and expected, and the cache."""

    layout: Layout
    high: int
    expected: int
    cache: int


class _Alone(NamedTuple):
    """The same on any GPU: without what lies outside of the engine, in which kinds differ."""

    layout: Layout
    opened: Opened
    high: int
    expected: int


class Alike:
    """The layouts of one request on GPUs that differ in little but their memory."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._usable = opened.engine.alike_on_gpus and opened.request.policy is None and opened.request.hardware.kv_memory is None
        self._alone: dict[Hashable, Opened] = {}
        self._single: dict[Hashable, Budget | None] = {}
        self._accepted: dict[Layout, _Alone | None] = {}
        self._needs: dict[tuple[Hashable, Layout], _Need | None] = {}
        self._layouts: dict[tuple[int, int, bool], tuple[Layout, ...]] = {}

    def room(self, gpu: Gpu) -> Room | None:
        """The room on a GPU; ``None`` if it must be asked for by itself."""
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
        return Room(kind=kind, total_bytes=memory.expected_bytes, low=low, expected=expected)

    @cached_property
    def _calibrated(self) -> frozenset[str] | None:
        """The accelerators of which something was measured, if that is known."""
        from hwcalc.profiles.calibration import calibrated_gpus, overheads_kind

        return calibrated_gpus(overheads_kind(self._opened.engine.name))

    @cached_property
    def _margin(self) -> Fraction:
        from hwcalc.engines.equation import margin_of

        return margin_of(self._opened.request.hardware).value

    def _on(self, kind: Hashable, gpu: Gpu) -> Opened:
        """The request on one GPU of a kind. Raises the error with which the engine refuses it."""
        if kind not in self._alone:
            self._alone[kind] = self._opened.changed(gpu=gpu)
        return self._alone[kind]

    def _budget(self, kind: Hashable, gpu: Gpu) -> Budget | None:
        if kind not in self._single:
            try:
                self._single[kind] = self._on(kind, gpu).budget
            except KvplanError:
                self._single[kind] = None
        return self._single[kind]

    def weights_bytes(self, room: Room) -> int:
        """The least that the weights take of one GPU."""
        single = self._single[room.kind]
        assert single is not None
        return sum(part.low for part in single.parts if part.name == "weights")

    def best_layout(self, room: Room, gpu: Gpu, gpus: int, node: int, *, any_layout: bool) -> solve.Found | None:
        """As :func:`hwcalc.planner.solve.best_layout`."""
        key = (gpus, node, any_layout)
        if key not in self._layouts:
            self._layouts[key] = layouts(self._opened, gpus, node, any_layout=any_layout)
        likely: solve.Found | None = None
        for layout in self._layouts[key]:
            need = self._need(room, gpu, layout)
            if need is None or need.cache > room.expected - need.expected:
                continue
            if need.cache <= room.low - need.high:
                return solve.Found(layout=need.layout, certain=True)
            likely = likely or solve.Found(layout=need.layout, certain=False)
        return likely

    def _need(self, room: Room, gpu: Gpu, layout: Layout) -> _Need | None:
        """What a layout needs; ``None`` if the engine refuses it. It is the same on every GPU of the kind."""
        key = (room.kind, layout)
        if key not in self._needs:
            self._needs[key] = self._need_on(room, gpu, layout)
        return self._needs[key]

    def _need_on(self, room: Room, gpu: Gpu, layout: Layout) -> _Need | None:
        from hwcalc.engines.loaded import outside

        if layout not in self._accepted:
            self._accepted[layout] = self._alone_on(self._on(room.kind, gpu), gpu, layout)
        alone = self._accepted[layout]
        if alone is None:
            return None
        own = outside(alone.opened, gpu)
        return _Need(
            layout=alone.layout,
            high=alone.high + sum(part.high for part in own),
            expected=alone.expected + sum(part.expected for part in own),
            cache=alone.opened.needed_bytes,
        )

    @staticmethod
    def _alone_on(opened: Opened, gpu: Gpu, layout: Layout) -> _Alone | None:
        from hwcalc.engines.loaded import outside

        accepted = solve.accepted(opened, layout)
        budget = None if accepted is None else accepted[1].budget
        if accepted is None or budget is None:
            return None
        beside = outside(accepted[1], gpu)
        return _Alone(
            layout=accepted[0],
            opened=accepted[1],
            high=sum(part.high for part in budget.parts) - sum(part.high for part in beside),
            expected=sum(part.expected for part in budget.parts) - sum(part.expected for part in beside),
        )


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
        if form is None:
            return super().most(opened, size, low, pool)
        likely = forms.most(form, opened.tokens, opened.batch)
        sure = forms.most(form, opened.tokens, opened.batch, "low", likely)
        return solve.Most(value=likely, limiting="cache"), solve.Most(value=sure, limiting="cache")

    def longest(self, opened: Opened, size: int, low: int) -> tuple[solve.Most, solve.Most]:
        form = self._of(opened)
        if form is None:
            return super().longest(opened, size, low)
        likely = forms.longest(form, opened.tokens, opened.batch)
        sure = forms.longest(form, opened.tokens, opened.batch, "low", likely)
        return solve.Most(value=likely, limiting="cache"), solve.Most(value=sure, limiting="cache")

    def fewest(self, opened: Opened, verdict: Verdict) -> tuple[None, None]:
        """An offer does not say it."""
        return None, None

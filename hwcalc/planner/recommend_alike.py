"""Many GPUs for one request: where an engine looks at nothing of a GPU but its memory and few properties, each layout is opened once.

The answers are those of :func:`hwcalc.planner.solve_gpus.best_layout` and :func:`hwcalc.planner.plan.plan_model`, which open the request for
every GPU anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hwcalc.engines.budget import usable_bytes
from hwcalc.engines.costs import outside_kind
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.equation import margin_of
from hwcalc.errors import KvplanError
from hwcalc.planner import solve_gpus
from hwcalc.planner.layouts import has_experts, layouts
from hwcalc.planner.recommend_inside import Inside, Need
from hwcalc.planner.verdict import Layout
from hwcalc.profiles.calibration import BANDWIDTH, calibrated_gpus, overheads_kind
from hwcalc.profiles.visible import visible_memory

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.budget import Budget
    from hwcalc.planner.offers import Figures
    from hwcalc.profiles.gpus import Gpu

__all__ = ["Alike", "AlikeGpu", "formula_bytes", "least_weights_bytes"]


class AlikeGpu(NamedTuple):
    """A GPU by what a layout needs of it: its kind, and the bytes that may be used, low, expected and high."""

    alike: Alike
    gpu: Gpu
    kind: Hashable
    total_bytes: int
    usable: tuple[int, int, int]

    @property
    def opened(self) -> Occupancy:
        """The request, which is the same for every GPU."""
        return self.alike.opened

    @property
    def requested_bytes(self) -> int:
        """The bytes that may be used by the expected value."""
        return self.usable[1]

    @property
    def weights_bytes(self) -> int:
        """The least that the weights take of one GPU."""
        return self.alike.weights_bytes

    @property
    def cache_bytes(self) -> int:
        """The least that the cache takes of all GPUs."""
        return self.alike.cache_bytes

    def best_layout(self, gpus: int, node: int, *, any_layout: bool) -> solve_gpus.Found | None:
        """As :func:`hwcalc.planner.solve_gpus.best_layout`."""
        likely: solve_gpus.Found | None = None
        low_bytes, requested_bytes, _ = self.usable
        for layout, least_bytes in self.alike.layouts(gpus, node, any_layout=any_layout):
            if least_bytes > requested_bytes:
                continue
            need = self.alike.need(self.kind, self.gpu, layout)
            if need is None or need.cache_bytes > requested_bytes - need.expected_bytes:
                continue
            if need.cache_bytes <= low_bytes - need.high_bytes:
                return solve_gpus.Found(layout=need.layout, certain=True)
            likely = likely or solve_gpus.Found(layout=need.layout, certain=False)
        return likely


class Alike:
    """The layouts of one request on GPUs that differ in little but their memory."""

    def __init__(self, opened: Occupancy) -> None:
        self.opened = opened
        self.usable = opened.engine.alike_on_gpus and opened.request.policy is None and opened.request.hardware.kv_memory is None
        """Whether there is anything to share."""
        self._single: tuple[Occupancy, Budget] | None = None
        self._inside: dict[Layout, Inside | None] = {}
        self._needs: dict[tuple[Hashable, Layout], Need | None] = {}
        self._layouts: dict[tuple[int, int, bool], tuple[tuple[Layout, int], ...]] = {}

    def on(self, gpu: Gpu) -> AlikeGpu | None:
        """The request on a GPU; ``None`` if it must be opened for it by itself."""
        if not self.usable or gpu.is_host or self._calibrated is None or gpu.id in self._calibrated:
            return None
        memory = visible_memory(gpu)
        single = None if memory is None else self._on_one(gpu)
        if memory is None or single is None:
            return None
        usable = usable_bytes(memory, single[1].utilization, self._margin)
        return AlikeGpu(self, gpu, outside_kind(gpu), memory.expected_bytes, usable)

    @cached_property
    def _calibrated(self) -> frozenset[str] | None:
        """The accelerators of which something was measured; ``None`` if that is not known."""
        own, bandwidths = (calibrated_gpus(kind) for kind in (overheads_kind(self.opened.engine.name), BANDWIDTH))
        return None if own is None or bandwidths is None else own | bandwidths

    @cached_property
    def _margin(self) -> Fraction | int:
        return margin_of(self.opened.request.hardware).value

    def _on_one(self, gpu: Gpu) -> tuple[Occupancy, Budget] | None:
        """The request on one GPU such as this, of which all but the memory is that of any other; ``None`` if the engine refuses it."""
        if self._single is None and self.usable:
            try:
                opened = self.opened.changed(gpu=gpu)
                budget = opened.budget
            except KvplanError:
                budget = None
            if budget is None:
                # Each GPU says by itself why.
                self.usable = False
            else:
                self._single = opened, budget
        return self._single

    @cached_property
    def weights_bytes(self) -> int:
        """The least that the weights take of one GPU."""
        return 0 if self._single is None else least_weights_bytes(self._single[1])

    def least_bytes(self, layout: Layout) -> int:
        """A bound that needs no opened request: the fullest GPU of a layout has its share of the weights and of the cache, or more."""
        ranks = layout.gpus if self._has_experts else layout.tp * layout.pp
        return self.weights_bytes // ranks + self.cache_bytes // layout.gpus

    @cached_property
    def _has_experts(self) -> bool:
        return has_experts(self.opened.model)

    @cached_property
    def cache_bytes(self) -> int:
        """The least that the cache takes of all GPUs: by the formulas or the rule for one GPU, as several may round blocks differently."""
        return min(formula_bytes(self.opened), self.opened.needed_bytes)

    def layouts(self, gpus: int, node: int, *, any_layout: bool) -> tuple[tuple[Layout, int], ...]:
        """As :func:`hwcalc.planner.layouts.layouts`, each with its :meth:`least_bytes`."""
        key = (gpus, node, any_layout)
        if key not in self._layouts:
            found = layouts(self.opened, gpus, node, any_layout=any_layout)
            self._layouts[key] = tuple((layout, self.least_bytes(layout)) for layout in found)
        return self._layouts[key]

    def need(self, kind: Hashable, gpu: Gpu, layout: Layout) -> Need | None:
        """What a layout needs on any GPU of the kind, such as this one; ``None`` if the engine refuses it."""
        key = (kind, layout)
        if key not in self._needs:
            inside = self._in(layout)
            self._needs[key] = None if inside is None else inside.need(gpu)
        return self._needs[key]

    def _in(self, layout: Layout) -> Inside | None:
        if layout not in self._inside:
            found = None if self._single is None else solve_gpus.accepted(self._single[0], layout)
            self._inside[layout] = None if found is None else Inside.of(*found)
        return self._inside[layout]

    def figures(self, opened: Occupancy) -> Figures | None:
        """What a plan says of an opened request, without the plan; ``None`` if it must be planned."""
        parallel, gpu = opened.request.parallel, opened.request.hardware.gpu
        on_gpu = None if gpu is None else self.on(gpu)
        inside = None if on_gpu is None else self._in(Layout(tp=parallel.tp, pp=parallel.pp, dp=parallel.dp, ep=parallel.ep))
        if on_gpu is None or inside is None or inside.opened.request.parallel != parallel:
            return None
        return inside.figures(opened, on_gpu.gpu, on_gpu.usable)


def formula_bytes(opened: Occupancy) -> int:
    """Bytes of cache of the planned sequences by the formulas alone."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    groups = opened.model.stack_for("reference").groups
    one = sum(
        group.count * tensor.bytes(roles[tensor.role], tokens, encoder) for group in groups for tensor in group.kind.tensors()
    )
    return opened.batch * one


def least_weights_bytes(budget: Budget) -> int:
    """The least that the weights take of a GPU."""
    return sum(part.low for part in budget.parts if part.name == "weights")

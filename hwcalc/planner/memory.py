"""The memory of a plan: weights, cache, activations and overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.budget import Section
from hwcalc.engines.deployment import Occupancy
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition
from hwcalc.planner.planned_weights import weights_of
from hwcalc.planner.result import (
    BudgetInfo,
    BudgetPartInfo,
    CacheShare,
    DeviceInfo,
    MemoryInfo,
    OverheadInfo,
    PerGpu,
    Share,
    WeightsInfo,
)

if TYPE_CHECKING:
    from hwcalc.engines.devices import DeviceShare, Placement

def plan_memory(
    opened: Occupancy, *, cache_bytes: int, rank_bytes: int, definition: Definition, budget: BudgetInfo | None
) -> MemoryInfo:
    """Add up weights and cache, and with a GPU activations and overhead. Unknown values are ``None``, and a note says why.

    Raises :class:`~hwcalc.errors.UsageError` if ``--weights`` names no weight format.
    """
    request = opened.request
    weights = opened.told(weights_of(opened))
    placement = None if budget is None else opened.placement()
    if placement is not None and budget is not None:
        return _placed(placement, weights, CacheShare(bytes=cache_bytes, definition=definition), budget)
    activations, overhead = (None, None) if budget is None else _beside(budget, request.gpus)
    total = None if weights.bytes is None else weights.bytes + cache_bytes
    if total is not None and activations is not None and overhead is not None:
        total += activations.bytes + overhead.bytes
    return MemoryInfo(
        weights=weights,
        cache=CacheShare(bytes=cache_bytes, definition=definition),
        activations=activations,
        overhead=overhead,
        total_bytes=total,
        per_gpu=_per_gpu(opened, weights, rank_bytes, budget),
    )


def _placed(placement: Placement, weights: WeightsInfo, cache: CacheShare, budget: BudgetInfo) -> MemoryInfo:
    """The memory of each device, and the sums over them."""
    devices = tuple(_device(share, placement) for share in placement.devices)
    fullest = devices[placement.fullest]
    sums = {
        section: [
            sum(getattr(part, end) for share in placement.devices for part in share.parts if part.section is section)
            for end in ("expected", "low", "high")
        ]
        for section in (Section.ACTIVATIONS, Section.OVERHEAD)
    }
    (used, used_low, used_high), (beside, beside_low, beside_high) = sums.values()
    return MemoryInfo(
        weights=weights,
        cache=cache,
        activations=Share(bytes=used, low=used_low, high=used_high, definition=Definition.ESTIMATE),
        overhead=OverheadInfo(
            bytes=beside,
            low=beside_low,
            high=beside_high,
            definition=Definition.ESTIMATE,
            parts=_of(budget, Section.OVERHEAD),
        ),
        total_bytes=sum(device.total for device in devices),
        per_gpu=PerGpu(
            weights=fullest.weights,
            cache=fullest.cache,
            activations=fullest.activations,
            overhead=fullest.overhead,
            total=fullest.total,
        ),
        devices=devices,
    )


def _device(share: DeviceShare, placement: Placement) -> DeviceInfo:
    activations, overhead = (
        sum(part.expected for part in share.parts if part.section is section)
        for section in (Section.ACTIVATIONS, Section.OVERHEAD)
    )
    return DeviceInfo(
        device=share.device,
        layers=share.layers,
        experts=placement.experts_on_host if share is placement.host else LayerNumbers(),
        moved=placement.moved_bytes if share is placement.host else 0,
        output=share.output,
        weights=share.weights_bytes,
        cache=share.cache_bytes,
        activations=activations,
        overhead=overhead,
        total=share.needed(),
        total_low=share.needed("low"),
        total_high=share.needed("high"),
    )


def _of(budget: BudgetInfo, section: Section) -> tuple[BudgetPartInfo, ...]:
    return tuple(part for part in budget.parts if part.section == section)


def _beside(budget: BudgetInfo, gpus: int) -> tuple[Share, OverheadInfo]:
    """Activations and overhead of so many GPUs. They are kept beside the budget, which is that of all plans of a family."""
    known: dict[int, tuple[Share, OverheadInfo]] = vars(budget).setdefault("_beside", {})
    if gpus not in known:
        known[gpus] = _activations(budget, gpus), _overhead(budget, gpus)
    return known[gpus]


def _activations(budget: BudgetInfo, gpus: int) -> Share:
    parts = _of(budget, Section.ACTIVATIONS)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Share(bytes=expected, low=low, high=high, definition=_definition(parts))


def _overhead(budget: BudgetInfo, gpus: int) -> OverheadInfo:
    parts = _of(budget, Section.OVERHEAD)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return OverheadInfo(bytes=expected, low=low, high=high, definition=_definition(parts), parts=parts)


def _definition(parts: tuple[BudgetPartInfo, ...]) -> Definition:
    measured = bool(parts) and all(part.definition is Definition.MEASURED for part in parts)
    return Definition.MEASURED if measured else Definition.ESTIMATE


def _per_gpu(opened: Occupancy, weights: WeightsInfo, rank_bytes: int, budget: BudgetInfo | None) -> PerGpu:
    """The fullest GPU: all parts of the budget if there is one, or else only weights and cache, as the engine divides them."""
    if budget is None:
        parallel, size = opened.request.parallel, weights.bytes
        if size is not None and parallel.gpus * parallel.ep > 1:
            parts = opened.weights.value
            size = None if parts is None else sum(part.expected for part in parts)
        total = None if size is None else size + rank_bytes
        return PerGpu(weights=size, cache=rank_bytes, activations=None, overhead=None, total=total)
    sizes = {section: sum(part.expected for part in _of(budget, section)) for section in Section}
    return PerGpu(
        weights=sizes[Section.WEIGHTS],
        cache=rank_bytes,
        activations=sizes[Section.ACTIVATIONS],
        overhead=sizes[Section.OVERHEAD],
        total=sum(sizes.values()) + rank_bytes,
    )

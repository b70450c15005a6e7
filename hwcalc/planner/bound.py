"""The bound on speed of an opened request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.planner.speed import speed_bound
from hwcalc.planner.speed_work import workload_of

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.speed_result import SpeedInfo

def bound_of(opened: Occupancy) -> SpeedInfo | None:
    """The bound on speed for the planned GPU; ``None`` without a GPU."""
    gpu = opened.request.hardware.gpu
    if gpu is None:
        return None
    shares = opened.told(opened.reads()) or None
    return opened.told(speed_bound(opened.model, gpu=gpu, shares=shares, **workload_of(opened)))

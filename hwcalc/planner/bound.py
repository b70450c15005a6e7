"""The bound on speed of an opened request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.planner.passes import passes_of
from hwcalc.planner.speed import speed_bound
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.base import Opened
    from hwcalc.planner.result import SpeedInfo

__all__ = ["bound_of"]


def bound_of(opened: Opened) -> SpeedInfo | None:
    """The bound on speed for the planned GPU; ``None`` without a GPU."""
    request, gpu = opened.request, opened.request.hardware.gpu
    if gpu is None:
        return None
    reads = opened.told(opened.engine.reads(opened)) or None
    counted = any(place.weights for place in reads or ())
    bound = speed_bound(
        opened.model,
        gpu=gpu,
        seq=opened.tokens,
        batch=opened.batch,
        roles=opened.dtypes.roles,
        engine=opened.engine.name,
        encoder_tokens=opened.encoder_tokens,
        weights=format_name(request.weights),
        # An engine that runs in 16 bits reads weights of 16 bits, whatever the dtype of the checkpoint.
        dtype=None if counted else opened.engine.weight_dtype(opened),
        parallel=opened.parallel,
        passes=passes_of(opened),
        shares=reads,
    )
    return opened.told(bound)

"""What the page has of a model beside the memory equation of its engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwcalc.errors import KvplanError
from hwcalc.explore.policies import policy_rows
from hwcalc.explore.sampled import allocations
from hwcalc.explore.saved import saved_of
from hwcalc.explore.strategies import strategy_rows
from hwcalc.explore.variants import variants_of

if TYPE_CHECKING:
    from hwcalc.explore.axes import PageAxes
    from hwcalc.explore.encode import Pools
    from hwcalc.model import ModelSpec

__all__ = ["sections_of"]


def sections_of(model: ModelSpec, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    """The further fields of ``Model`` in ``page/types.d.ts``. What the planner refuses for this model is left out."""
    saved: dict[str, Any] | None = None
    strategies: dict[str, Any] | None = None
    try:
        found = allocations(model, axes.fixed.get("encoder_seq"))
        saved, strategies = saved_of(found), strategy_rows(found)
    except KvplanError:
        # The page shows no such section.
        pass
    return {
        "variants": variants_of(model, axes, pools),
        "saved": saved,
        "policies": policy_rows(model, axes.engines, pools.text, {"gpu": axes.gpus[0], **axes.fixed}),
        "strategies": strategies,
    }

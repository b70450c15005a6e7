"""An offer that is planned: the figures of its plan, which is searched only for what an offer says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.deployment import Occupancy
from hwcalc.planner.fit import Search
from hwcalc.planner.offers import Figures

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan
    from hwcalc.planner.verdict import Verdict

def figures_of(plan: Plan) -> Figures | None:
    """The figures of a plan; ``None`` if it has no verdict."""
    fit, speed = plan.fit, plan.speed
    if fit is None:
        return None
    return Figures(
        kv_dtype=plan.request.kv_dtype,
        verdict=fit.verdict,
        usable_bytes=fit.usable_bytes,
        needed_bytes=fit.needed_bytes,
        needed_low_bytes=fit.needed_low_bytes,
        needed_high_bytes=fit.needed_high_bytes,
        headroom_bytes=fit.headroom_bytes,
        max_batch=fit.max_batch,
        max_seq=fit.max_seq,
        decode_tokens_per_s_bound=None if speed is None else speed.decode_tokens_per_s_bound,
        prefill_s_bound=None if speed is None else speed.prefill_s_bound,
        bound_by=None if speed is None else speed.bound_by,
        notes=plan.notes,
        warnings=plan.warnings,
    )


class OfOffer(Search):
    """The limits of one offer, which says how long and how many, but not for how few GPUs."""

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[None, None]:
        """An offer does not say it."""
        return None, None

"""What an offer says of the plan on its hardware: the plan's own figures, without all else that a plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.formulas.named import NamedTuple

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.planner.result import Plan
    from hwcalc.planner.verdict import Verdict

__all__ = ["Figures", "figures_of"]


class Figures(NamedTuple):
    """The values of :class:`~hwcalc.planner.offers.Offer` that a plan has, the dtype of its cache, and all its notes and warnings."""

    kv_dtype: str
    verdict: Verdict
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_batch: int | None
    max_seq: int | None
    decode_tokens_per_s_bound: float | None
    prefill_s_bound: float | None
    bound_by: str | None
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]


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

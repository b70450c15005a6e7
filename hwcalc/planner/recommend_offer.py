"""An offer that is planned: the figures of its plan, which is searched only for what an offer says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hwcalc.engines.deployment import Occupancy
from hwcalc.planner import forms, solve
from hwcalc.planner.fit import Search
from hwcalc.planner.offers import Figures

if TYPE_CHECKING:
    from hwcalc.engines.forms import MemoryForm
    from hwcalc.planner.result import Plan
    from hwcalc.planner.verdict import Verdict

__all__ = ["OfOffer", "figures_of"]


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
    """The limits of one offer, which says how long and how many, but not for how few GPUs: from the form where it has one."""

    def __init__(self) -> None:
        self._form: MemoryForm | None = None
        self._asked = False

    def _of(self, opened: Occupancy) -> MemoryForm | None:
        if not self._asked:
            self._asked = True
            plain = opened.engine.alike_on_gpus and opened.request.policy is None
            self._form = forms.form_of(opened) if plain else None
        return self._form

    def most(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        form = self._of(opened)
        return super().most(opened) if form is None else _found(forms.most, form, opened)

    def longest(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        form = self._of(opened)
        return super().longest(opened) if form is None else _found(forms.longest, form, opened)

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[None, None]:
        """An offer does not say it."""
        return None, None


def _found(solver: Callable[..., int], form: MemoryForm, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
    """A limit by the expected value and the one that surely holds, by a solver of :mod:`hwcalc.planner.forms`."""
    likely = solver(form, opened.tokens, opened.batch)
    sure = solver(form, opened.tokens, opened.batch, "low", likely)
    return solve.Most(value=likely, limiting="cache"), solve.Most(value=sure, limiting="cache")

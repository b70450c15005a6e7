"""The verdict and the figures of a plan, as a check reports them."""

from __future__ import annotations

from hwcalc.check.result import Figures, Fit
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.units import human_bytes

__all__ = ["figures_of", "in_words", "verdict_of"]


def verdict_of(plan: Plan) -> Verdict | None:
    """The plan's verdict; ``None`` without hardware."""
    return None if plan.fit is None else plan.fit.verdict


def figures_of(plan: Plan) -> Figures:
    """The figures that a check reports and compares."""
    request, cache, memory = plan.request, plan.cache, plan.memory
    return Figures(
        engine=request.engine,
        engine_version=request.engine_version,
        seq=request.seq,
        batch=request.batch,
        kv_dtype=request.kv_dtype,
        cache_bytes=cache.total_bytes,
        bytes_per_token=cache.bytes_per_token,
        weights_bytes=memory.weights.bytes,
        total_bytes=memory.total_bytes,
        definition=cache.definition,
        decode_tokens_per_s_bound=None if plan.speed is None else plan.speed.decode_tokens_per_s_bound,
        fit=_fit(plan),
        policy=request.policy,
        policy_offered=None if plan.policy is None else plan.policy.offered,
    )


def _fit(plan: Plan) -> Fit | None:
    fit = plan.fit
    if fit is None:
        return None
    return Fit(
        gpu=fit.gpu,
        gpus=fit.gpus,
        usable_bytes=fit.usable_bytes,
        needed_bytes=fit.needed_bytes,
        needed_low_bytes=fit.needed_low_bytes,
        needed_high_bytes=fit.needed_high_bytes,
        headroom_bytes=fit.headroom_bytes,
        max_seq=fit.max_seq,
        expected_max_seq=fit.expected_max_seq,
        max_batch=fit.max_batch,
        expected_max_batch=fit.expected_max_batch,
        min_gpus=fit.min_gpus,
    )


def in_words(verdict: Verdict, fit: Fit) -> str:
    """The verdict with its numbers, such as ``probably fits: 19.50 GiB needed (18.90 to 21.30 GiB) of 20.00 GiB usable``."""
    span = ""
    if fit.needed_low_bytes != fit.needed_high_bytes:
        span = f" ({human_bytes(fit.needed_low_bytes)} to {human_bytes(fit.needed_high_bytes)})"
    each = " on each GPU" if fit.gpus > 1 else ""
    return f"{verdict.text}: {human_bytes(fit.needed_bytes)} needed{span} of {human_bytes(fit.usable_bytes)} usable{each}"

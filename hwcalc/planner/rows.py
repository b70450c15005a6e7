"""A plan as one flat row, and in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan

__all__ = ["plan_headline", "plan_row"]


def plan_headline(plan: Plan) -> str:
    """The model, what was planned, its cache, and the verdict if there is one."""
    request, fit = plan.request, plan.fit
    engine = " ".join(filter(None, (request.engine, request.engine_version)))
    asked = f"{request.seq:,} tokens x {request.batch:,}, {request.kv_dtype}, {engine}"
    verdict = "" if fit is None else f"; {fit.verdict.text}" + (f" on {fit.gpus} x {fit.gpu}" if fit.gpu else "")
    return f"{plan.model.id}, {asked}: cache {human_bytes(plan.cache.total_bytes)}{verdict}"


def plan_row(plan: Plan) -> dict[str, Any]:
    """The headline figures by the names that ``kvplan sweep`` gives them, and the answers of the solvers. ``None`` is unknown."""
    request, cache, memory, fit, speed = plan.request, plan.cache, plan.memory, plan.fit, plan.speed
    return {
        "model": plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version,
        "dtype": request.kv_dtype,
        "gpu": None if fit is None else fit.gpu,
        "gpus": None if fit is None else fit.gpus,
        "tp": request.tp,
        "pp": request.pp,
        "dp": request.dp,
        "seq": request.seq,
        "batch": request.batch,
        "bytes_per_token": cache.bytes_per_token,
        "state_bytes_per_sequence": cache.state_bytes_per_sequence,
        "cache_total_bytes": cache.total_bytes,
        "cache_per_gpu_bytes": cache.per_gpu_bytes,
        "definition": cache.definition.value,
        "weights_bytes": memory.weights.bytes,
        "total_bytes": memory.total_bytes,
        "total_per_gpu_bytes": None if fit is None else memory.per_gpu.total,
        "total_per_gpu_low_bytes": None if fit is None else fit.needed_low_bytes,
        "total_per_gpu_high_bytes": None if fit is None else fit.needed_high_bytes,
        "usable_bytes": None if fit is None else fit.usable_bytes,
        "fits": None if fit is None else fit.verdict.value,
        "max_seq": None if fit is None else fit.max_seq,
        "max_batch": None if fit is None else fit.max_batch,
        "min_gpus": None if fit is None else fit.min_gpus,
        "decode_tokens_per_s_bound": None if speed is None else speed.decode_tokens_per_s_bound,
    }

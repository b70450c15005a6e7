"""A plan and an explanation as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.planner.result import Plan
from hwcalc.report.listing import csv_text
from hwcalc.report.summary import is_room

if TYPE_CHECKING:
    from hwcalc.library.explain import Explanation

_PLAN_COLUMNS = (
    "model", "engine", "engine_version", "seq", "batch", "kv_dtype", "definition",
    "kind", "layers", "count", "tensor", "role", "axes", "shape", "dtype", "span", "positions", "bytes",
    "cache_total_bytes", "weights_bytes", "total_bytes", "gpu", "gpus", "total_per_gpu_bytes", "total_per_gpu_low_bytes",
    "total_per_gpu_high_bytes", "usable_bytes", "fits",
    "prompt", "policy", "policy_offered", "without_policy_bytes", "policy_saved_bytes", "policy_loses", "sequences", "unshared_bytes",
)  # fmt: skip

_EXPLAIN_COLUMNS = (
    "section", "name", "formula", "numbers", "per_layer", "layers", "result", "low", "high", "unit", "definition", "source",
)  # fmt: skip


def plan_csv(plan: Plan, **_style: object) -> str:
    """One row for each cached tensor. The ``bytes`` column adds up to ``cache_total_bytes``.

    Each row names its plan, so files can be joined, and ends with the plan's sums and its verdict. A plan that caches nothing is one row
    without a tensor.
    """
    request, memory, fit = plan.request, plan.memory, plan.fit
    sums = (
        plan.cache.total_bytes, memory.weights.bytes, memory.total_bytes,
        *((None,) * 7 if fit is None else (
            fit.gpu, fit.gpus, memory.per_gpu.total, fit.needed_low_bytes, fit.needed_high_bytes, fit.usable_bytes, fit.verdict.value,
        )),
        *_dropped_and_shared(plan),
    )  # fmt: skip
    common = (
        plan.model.id, request.engine, request.engine_version or "", request.seq, request.batch, request.kv_dtype,
        plan.cache.definition,
    )  # fmt: skip
    rows = (
        (
            *common, tensor.kind, tensor.layers.text, tensor.count, tensor.name, tensor.role, " x ".join(tensor.axes),
            "x".join(map(str, tensor.shape)), "" if is_room(tensor) else tensor.dtype, tensor.span.text, tensor.positions, tensor.bytes, *sums,
        )
        for tensor in plan.cache.tensors
    )  # fmt: skip
    nothing = (*common, *(None,) * (len(_PLAN_COLUMNS) - len(common) - len(sums)), *sums)
    return csv_text(_PLAN_COLUMNS, rows if plan.cache.tensors else [nothing])


def _dropped_and_shared(plan: Plan) -> tuple[object, ...]:
    """What the policy of the cache gives back, and what sharing does; empty without them."""
    policy, sharing, request = plan.policy, plan.sharing, plan.request
    of_policy: tuple[object, ...] = (request.prompt, request.policy, *(None,) * 4)
    if policy is not None:
        of_policy = (policy.prompt, request.policy, policy.offered, policy.full_bytes, policy.saved_bytes, policy.loses)
    return (*of_policy, *((None, None) if sharing is None else (sharing.sequences, sharing.unshared_bytes)))


def explain_csv(explanation: Explanation) -> str:
    """One row for each figure and each limit, as :meth:`Explanation.records`; each names its plan, so that files can be joined."""
    request = explanation.plan.request
    common = {
        "model": explanation.plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version or "",
        "seq": request.seq,
        "batch": request.batch,
    }
    return csv_text(
        (*common, *_EXPLAIN_COLUMNS),
        ([*common.values(), *(_whole(row[name]) for name in _EXPLAIN_COLUMNS)] for row in explanation.records()),
    )


def _whole(cell: object) -> object:
    """Whole numbers without a decimal point."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell

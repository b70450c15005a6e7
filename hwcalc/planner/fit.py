"""Does it start, what binds, and what would help: an engine's pool under a budget, and its own flags tried one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hwcalc.engines.base import Budget, Context, Engine
from hwcalc.errors import KvplanError
from hwcalc.planner.result import BudgetInfo, BudgetPartInfo, FitInfo, PoolInfo, Try

__all__ = ["plan_pool"]

Again = Callable[[Context], Context]


def plan_pool(engine: Engine, context: Context) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool and the verdict, where the user names hardware or a budget and the engine has a pool."""
    request = context.request
    budget = engine.budget(context) if request.gpu is not None and request.kv_memory is None else None
    size = request.kv_memory if request.kv_memory is not None else budget.expected if budget is not None else None
    if size is None:
        return None, None
    pool = engine.pool(context, max(0, size))
    if pool is None:
        return None, None
    return pool, _fit(engine, context, pool, budget)


def _fit(engine: Engine, context: Context, pool: PoolInfo, budget: Budget | None) -> FitInfo:
    request = context.request
    enough = pool.fits and (pool.max_requests is None or pool.max_requests >= request.batch)
    needed = pool.needed_bytes or 0
    return FitInfo(
        gpu=None if request.gpu is None else request.gpu.id,
        gpus=request.tp * request.pp * request.dp,
        usable_bytes=pool.budget_bytes,
        fits=enough,
        certain=budget is None or _same_at_the_ends(engine, context, budget, enough),
        headroom_bytes=pool.budget_bytes - needed,
        max_seq=pool.max_seq,
        max_batch=pool.max_requests,
        min_gpus=None,
        limiting=_limiting(pool, request.batch),
        message=pool.message or ("" if enough else f"{request.batch:,} sequences do not fit at once"),
        suggestions=pool.requires if pool.fits else tuple(_suggestions(engine, context, pool)),
        budget=None if budget is None else _budget_info(budget),
    )


def _limiting(pool: PoolInfo, batch: int) -> str | None:
    if not pool.fits:
        return "cache"
    if pool.requires:
        return "state blocks"
    if pool.max_requests is not None and pool.max_requests < batch:
        return "state slots" if pool.state_slots is not None and pool.state_slots < batch else "cache"
    return None


def _same_at_the_ends(engine: Engine, context: Context, budget: Budget, enough: bool) -> bool:
    for size in (budget.low, budget.high):
        pool = engine.pool(context, max(0, size))
        at_end = pool is not None and pool.fits and (pool.max_requests is None or pool.max_requests >= context.batch)
        if at_end is not enough:
            return False
    return True


def _budget_info(budget: Budget) -> BudgetInfo:
    return BudgetInfo(
        total_bytes=budget.total_bytes,
        requested_bytes=budget.requested_bytes,
        parts=tuple(BudgetPartInfo(**vars(part)) for part in budget.parts),
        low=budget.low,
        expected=budget.expected,
        high=budget.high,
    )


def _suggestions(engine: Engine, context: Context, pool: PoolInfo) -> list[Try]:
    """Flags that make it start, each planned anew with that one change."""
    out: list[Try] = []
    request = context.request
    if pool.max_seq:
        out += _try(engine, context, {"seq": pool.max_seq}, f"--max-model-len {pool.max_seq}", "or lower")
    if request.dtype in (None, "auto", "bf16", "fp16"):
        out += _try(engine, context, {"dtype": "fp8"}, "--kv-cache-dtype fp8", "half the bytes a token")
    if request.gpu is not None:
        for tp in (2, 4, 8, 16):
            if tp > request.tp:
                found = _try(engine, context, {"tp": tp}, f"--tensor-parallel-size {tp}", f"{tp} GPUs")
                if found:
                    out += found
                    break
    return out


def _try(engine: Engine, context: Context, change: dict[str, object], flag: str, effect: str) -> list[Try]:
    """The flag, if the plan with it fits."""
    request = replace(context.request, **change)  # type: ignore[arg-type]
    try:
        changed = replace(context, request=request, dtypes=engine.dtypes(context.model, request, []), notes=[])
        engine.check(changed)
        pool, _ = _pool_only(engine, changed)
    except KvplanError:
        return []
    return [Try(flag=flag, effect=effect)] if pool is not None and pool.fits else []


def _pool_only(engine: Engine, context: Context) -> tuple[PoolInfo | None, None]:
    request = context.request
    if request.kv_memory is not None:
        return engine.pool(context, request.kv_memory), None
    budget = engine.budget(context)
    return (None if budget is None else engine.pool(context, max(0, budget.expected))), None

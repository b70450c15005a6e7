"""The verdict: whether the plan fits, what limits it, how much more would fit, and which changes would help."""

from __future__ import annotations

from math import prod

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.pool import PoolInfo, Try
from hwcalc.errors import KvplanError
from hwcalc.model import Definition
from hwcalc.planner import solve
from hwcalc.planner.result import BudgetInfo, BudgetPartInfo, FitInfo, Verdict
from hwcalc.units import human_bytes

__all__ = ["plan_fit"]

_FP8_IS_SMALLER = ("auto", "bf16", "fp16")
_MEMORY = ("cache", "weights", "activations", "state slots", None)


def plan_fit(opened: Opened, rank_bytes: int) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool, if the engine has one, and the verdict. Both are ``None`` without a GPU or budget, or if the memory is unknown.

    ``rank_bytes`` is the size of the planned cache on the fullest GPU.
    """
    hardware = opened.request.hardware
    budget = opened.budget if hardware.gpu is not None and hardware.kv_memory is None else None
    size = hardware.kv_memory if hardware.kv_memory is not None else budget.expected if budget is not None else None
    if size is None:
        return None, None
    pool = opened.pool(max(0, size))
    return pool, _fit(opened, pool, budget, size, rank_bytes)


def _fit(opened: Opened, pool: PoolInfo | None, budget: Budget | None, size: int, rank_bytes: int) -> FitInfo:
    request = opened.request
    usable = size if budget is None else budget.requested_bytes
    low, high = (size, size) if budget is None else (budget.low, budget.high)
    fits = solve.holds_in(opened, size, pool)
    ends = () if budget is None else (budget.low, budget.high)
    verdict = Verdict.of(fits, *(solve.holds_in(opened, end) for end in ends))
    most = solve.most(opened, size, pool)
    longest = solve.longest(opened, size)
    fewest = _fewest(opened, fits=fits)
    return FitInfo(
        gpu=None if request.hardware.gpu is None else request.hardware.gpu.id,
        gpus=request.gpus,
        usable_bytes=usable,
        needed_bytes=usable - size + rank_bytes,
        needed_low_bytes=max(0, usable - high + rank_bytes),
        needed_high_bytes=usable - low + rank_bytes,
        fits=fits,
        verdict=verdict,
        headroom_bytes=size - rank_bytes,
        max_seq=longest.value,
        max_batch=most.value,
        min_gpus=None if fewest is None else prod(fewest),
        limiting="state blocks" if pool is not None and pool.fits and pool.requires else most.limiting,
        limiting_seq=longest.limiting,
        message=_message(opened, pool, most, fits=fits, short=rank_bytes - size),
        suggestions=_suggestions(opened, pool, longest.value, most.value, fewest, fits=fits),
        budget=None if budget is None else _budget_info(opened, budget),
    )


def _fewest(opened: Opened, *, fits: bool) -> tuple[int, int, int] | None:
    """tp, pp and dp of the fewest GPUs of this kind that fit; ``None`` if none is found.

    Nor is it if the user gives the budget, which holds for one layout only.
    """
    request = opened.request
    if request.hardware.gpu is None or request.hardware.kv_memory is not None:
        return None
    if fits and request.gpus == 1:
        return 1, 1, 1
    most = request.gpus if fits or (request.hardware.gpu.whole_machine and request.gpus == 1) else solve.MOST_GPUS
    fewest = solve.fewest_gpus(opened, most_gpus=min(most, solve.MOST_SEARCHED))
    parallel = request.parallel
    # The search skips numbers beyond a node that are not whole nodes, but the user may have requested one.
    requested = fewest is None and fits and most <= solve.MOST_SEARCHED
    return (parallel.tp, parallel.pp, parallel.dp) if requested else fewest


def _message(opened: Opened, pool: PoolInfo | None, most: solve.Most, *, fits: bool, short: int) -> str:
    """Why the plan does not fit, in the words of the engine if it has a message; empty if it fits."""
    if pool is not None and pool.message:
        return pool.message
    if fits:
        return ""
    if most.limiting not in _MEMORY:
        return f"{most.limiting} lets {most.value:,} sequences run at once, not {opened.batch:,}"
    count = "it does" if opened.batch == 1 else f"{opened.batch:,} sequences do"
    return f"{count} not fit: {human_bytes(short)} too much on the fullest GPU" if short > 0 else f"{count} not fit at once"


def _budget_info(opened: Opened, budget: Budget) -> BudgetInfo:
    model = opened.model

    def definition(part: BudgetPart) -> Definition:
        # Sizes in the headers of files hold whatever config describes them.
        from_config = part.section is Section.WEIGHTS and part.definition is Definition.EXACT and model.weights is None
        return model.definition(part.definition) if from_config else part.definition

    return BudgetInfo(
        total_bytes=budget.total_bytes,
        total_low_bytes=budget.total_low_bytes,
        total_high_bytes=budget.total_high_bytes,
        utilization=budget.utilization,
        requested_bytes=budget.requested_bytes,
        margin_bytes=budget.margin_bytes,
        parts=tuple(
            BudgetPartInfo(**{**vars(part), "section": part.section.value, "definition": definition(part)})
            for part in budget.parts
        ),
        low=budget.low,
        expected=budget.expected,
        high=budget.high,
    )


def _suggestions(
    opened: Opened,
    pool: PoolInfo | None,
    max_seq: int,
    max_batch: int,
    fewest: tuple[int, int, int] | None,
    *,
    fits: bool,
) -> tuple[Try, ...]:
    """Changes that make the plan fit, each verified by planning again; for a plan that fits, further flags that the engine requires."""
    if fits:
        return () if pool is None else pool.requires
    request, out = opened.request, []
    limit = opened.engine.most_sequences(opened)
    if limit is not None and opened.batch > limit[0]:
        options = {**request.options, limit[1]: str(request.replica_batch)}
        out += _try(opened, opened.engine.flag("batch", request.replica_batch), "as many at once", options=options)
    # If even a single request does not fit the pool, the engine's own maximum length is the better suggestion.
    shorter = pool.max_seq if pool is not None and not pool.fits and pool.max_seq and request.replica_batch == 1 else max_seq
    if shorter:
        out += _try(opened, opened.engine.flag("seq", shorter), "or lower", seq=shorter)
    if max_batch and request.batch > 1:
        out += _try(opened, f"--batch {max_batch}", "or fewer at once", batch=max_batch)
    if (request.dtype is None or request.dtype in _FP8_IS_SMALLER) and (
        request.hardware.gpu is None or request.hardware.gpu.fp8_kv != "no"
    ):
        out += _try(opened, opened.engine.flag("dtype", "fp8"), "half the bytes a token", dtype="fp8")
    if fewest is not None:
        sizes = dict(zip(("tp", "pp", "dp"), fewest, strict=True))
        flags = " ".join(
            opened.engine.flag(name, size) for name, size in sizes.items() if size != getattr(request.parallel, name)
        )
        out += _try(opened, flags, f"{prod(fewest):,} GPUs", **sizes, dcp=1, ep=1)
    return tuple(out)


def _try(opened: Opened, flag: str, effect: str, **change: object) -> list[Try]:
    """The suggestion, if the plan with this change fits by the expected value."""
    try:
        changed = opened.changed(**change)
        if not solve.holds(changed):
            return []
        # Suggested numbers are maxima by the expected value, so the low end of the budget may not hold them.
        return [Try(flag=flag, effect=effect if solve.holds(changed, "low") else f"{effect}; tight")]
    except KvplanError:
        return []

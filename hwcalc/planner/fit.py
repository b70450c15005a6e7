"""The verdict: whether the plan fits, what limits it, how much more would fit, and which changes would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Budget, BudgetPart, Section
from hwcalc.engines.pool import PoolInfo, Try
from hwcalc.model import Definition, ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.result import Advice, BudgetInfo, BudgetPartInfo, FitInfo
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.change import CommandLine

_TOLD: Final = "_told"
_MEMORY = ("cache", *Section, "state slots", "host memory", None)


class Search:
    """Finds the limits of a request, which take most of the time of a plan. A subclass finds fewer of them."""

    def most(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        """The most sequences that fit at once, by the expected value and for certain."""
        most = solve.most(opened)
        return most, most if _is_certain(opened) else solve.most(opened, "low", most.value)

    def longest(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        """The most tokens that each planned sequence can have, by the expected value and for certain."""
        longest = solve.longest(opened)
        return longest, longest if _is_certain(opened) else solve.longest(opened, "low", longest.value)

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[Layout | None, Layout | None]:
        """The layouts of the fewest GPUs that hold the request, by the expected value and for certain.

        It is ``None`` if none is found.
        """
        return _fewest(opened, verdict)


class _NoSearch(Search):
    """The search of a plan whose verdict alone is wanted: every limit is 0."""

    def most(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        return _UNKNOWN, _UNKNOWN

    def longest(self, opened: Occupancy) -> tuple[solve.Most, solve.Most]:
        return _UNKNOWN, _UNKNOWN

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[Layout | None, Layout | None]:
        return None, None


_UNKNOWN: Final = solve.Most(value=0, limiting=None)
SEARCH: Final = Search()
NO_SEARCH: Final = _NoSearch()


def plan_fit(
    opened: Occupancy, rank_bytes: int, line: CommandLine | None = None, search: Search = SEARCH
) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool, if the engine has one, and the verdict. Both are ``None`` without a GPU or budget, or if the memory is unknown.

    ``rank_bytes`` is the size of the planned cache on the fullest GPU. Without the command ``line`` there is no advice.
    """
    hardware = opened.setup.hardware
    budget = opened.budget if hardware.gpu is not None and hardware.kv_memory is None else None
    size = hardware.kv_memory if hardware.kv_memory is not None else budget.expected if budget is not None else None
    if size is None:
        return None, None
    pool = opened.pool(max(0, size))
    return pool, _fit(opened, pool, budget, size, rank_bytes, line, search)


def _fit(
    opened: Occupancy,
    pool: PoolInfo | None,
    budget: Budget | None,
    size: int,
    rank_bytes: int,
    line: CommandLine | None,
    search: Search,
) -> FitInfo:
    request = opened.request
    usable = size if budget is None else budget.requested_bytes
    low, high = (size, size) if budget is None else (budget.low, budget.high)
    fits = solve.holds_in(opened, size)
    ends = {} if budget is None else {"low": budget.low, "high": budget.high}
    verdict = Verdict.of(fits, *(solve.holds_in(opened, left, end) for end, left in ends.items()))
    most, sure_most = search.most(opened)
    longest, sure_longest = search.longest(opened)
    placement = None if budget is None else opened.placement()
    # What fits in part can still fit as a whole: more GPUs and advice are for that.
    entire = opened if budget is None else opened.entire()
    wanted = verdict if entire is opened else solve.verdict_of(entire)
    fewest, sure_fewest = search.fewest(entire, wanted)
    return FitInfo(
        gpu=None if request.setup.hardware.gpu is None else request.setup.hardware.gpu.id,
        gpus=request.setup.gpus,
        usable_bytes=usable,
        needed_bytes=usable - size + rank_bytes,
        needed_low_bytes=max(0, usable - high + rank_bytes),
        needed_high_bytes=usable - low + rank_bytes,
        fits=fits,
        verdict=verdict,
        headroom_bytes=size - rank_bytes,
        max_seq=sure_longest.value,
        expected_max_seq=longest.value,
        max_batch=sure_most.value,
        expected_max_batch=most.value,
        min_gpus=None if fewest is None else fewest.gpus,
        min_layout=fewest,
        sure_min_layout=sure_fewest,
        limiting="state blocks" if pool is not None and pool.fits and pool.requires else sure_most.limiting,
        limiting_seq=sure_longest.limiting,
        expected_limiting=most.limiting,
        expected_limiting_seq=longest.limiting,
        gpu_layers=None if placement is None else placement.gpu_layers,
        all_layers=None if placement is None else placement.all_layers,
        message=_message(opened, pool, most, fits=fits, short=rank_bytes - size),
        suggestions=() if line is None else _suggestions(entire, pool, line, fewest, wanted, partly=entire is not opened),
        budget=None if budget is None else _budget_info(opened, budget),
    )


def _is_certain(opened: Occupancy) -> bool:
    """Whether the low end of the budget is the expected one."""
    return solve.budget_bytes(opened, "low") == solve.budget_bytes(opened)


def _fewest(opened: Occupancy, verdict: Verdict) -> tuple[Layout | None, Layout | None]:
    """The layouts of the fewest GPUs of this kind that fit, by the expected value and for certain; ``None`` if none is found.

    It is also ``None`` if the user gives the budget, which holds for one layout only. Machines that cannot be linked are not joined.
    """
    request, gpu = opened.request, opened.setup.hardware.gpu
    if gpu is None or request.setup.hardware.kv_memory is not None:
        return None, None
    certain = verdict is Verdict.FITS
    if certain and request.setup.gpus == 1:
        return Layout(), Layout()
    from hwcalc.planner import solve

    most = request.setup.gpus if certain else solve.most_joined(gpu, request.setup.gpus)
    if verdict is Verdict.PROBABLY:
        most = max(most, request.setup.gpus)
    likely, sure = solve.fewest_gpus(opened, most_gpus=min(most, solve.MOST_SEARCHED))
    parallel = request.setup.parallel
    # The search leaves numbers out that nobody sells, but the user may have requested one.
    if (
        verdict in {Verdict.FITS, Verdict.PROBABLY}
        and (likely is None or likely.gpus > request.setup.gpus)
        and most <= solve.MOST_SEARCHED
    ):
        likely = Layout(tp=parallel.tp, pp=parallel.pp, dp=parallel.dp, ep=parallel.ep)
        sure = likely if certain else sure
    return likely, sure


def _message(opened: Occupancy, pool: PoolInfo | None, most: solve.Most, *, fits: bool, short: int) -> str:
    """Why the plan does not fit, in the words of the engine if it has a message; empty if it fits."""
    if pool is not None and pool.message:
        return pool.message
    if fits:
        return ""
    if most.limiting not in _MEMORY:
        return f"{most.limiting} lets {most.value * opened.load.sharing.branches:,} sequences run at once, not {opened.batch:,}"
    placement = opened.placement()
    if placement is not None and short <= 0 and opened.lacking("expected") is not None:
        return f"{human_bytes(placement.host.needed())} would lie in host memory: more than the host has, or is likely to have"
    where = " on the fullest GPU" if placement is None or placement.gpus else ""
    count = "it does" if opened.batch == 1 else f"{opened.batch:,} sequences do"
    return f"{count} not fit: {human_bytes(short)} too much{where}" if short > 0 else f"{count} not fit at once"


def _budget_info(opened: Occupancy, budget: Budget) -> BudgetInfo:
    # Kept with the budget, which all plans of a deployment share.
    known = vars(budget)
    if _TOLD not in known:
        known[_TOLD] = _told(opened.model, budget)
    info: BudgetInfo = known[_TOLD]
    return info


def _told(model: ModelSpec, budget: Budget) -> BudgetInfo:
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
            BudgetPartInfo(
                name=part.name,
                section=part.section.value,
                low=part.low,
                expected=part.expected,
                high=part.high,
                source=part.source,
                definition=definition(part),
                steps=part.steps,
            )
            for part in budget.parts
        ),
        low=budget.low,
        expected=budget.expected,
        high=budget.high,
    )


def _suggestions(
    opened: Occupancy, pool: PoolInfo | None, line: CommandLine, fewest: Layout | None, verdict: Verdict, *, partly: bool
) -> Sequence[Try]:
    """The flags that the engine needs to start, and the changes that make the plan fit, or fit for certain."""
    flags = () if pool is None or not verdict.fits else pool.requires
    if verdict is Verdict.FITS and not flags:
        return ()
    if opened.setup.hardware.gpu is not None:
        opened.budget  # noqa: B018 - a plan that needs advice tells what is assumed of the GPU, beside a budget of the user too

    def work_out() -> tuple[Try, ...]:
        from hwcalc.planner.advice import advice, required
        from hwcalc.planner.change import sizes_of

        requires = required(opened, line, flags)
        if verdict is Verdict.FITS:
            return requires
        layout = None if fewest is None else sizes_of(fewest)
        return (*requires, *advice(opened, line, fits=verdict.fits, fewest=layout, partly=partly))

    return Advice(work_out)

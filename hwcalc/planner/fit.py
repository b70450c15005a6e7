"""The verdict: whether the plan fits, what limits it, how much more would fit, and which changes would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Budget, Section
from hwcalc.engines.pool import PoolInfo, Try
from hwcalc.model import Definition, ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.options import HOST_MEMORY, WITHIN
from hwcalc.planner.result import Advice, BudgetInfo, BudgetPartInfo, FitInfo
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.command_line import CommandLine

_TOLD: Final = "_told"
_UNKNOWN: Final = solve.Most(value=0, limiting=None)
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

    def moved(self, opened: Occupancy) -> int | None:
        """The most tokens for certain where more layers move to the memory of the host; ``None`` where none can."""
        return solve.longest_moved(opened, "low")

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[Layout | None, Layout | None]:
        """The layouts of the fewest GPUs of this kind that hold the request, by the expected value and for certain.

        Where there are limits of time, they serve the request within them. It is ``None`` if none is found, or if the user gives the
        budget, which holds for one layout only. Machines that cannot be linked are not joined.
        """
        gpu, gpus = opened.setup.hardware.gpu, opened.setup.gpus
        if gpu is None or opened.setup.hardware.kv_memory is not None:
            return None, None
        serves = timed(opened)
        in_time = serves is None or serves(opened)
        certain = verdict is Verdict.FITS and in_time
        if certain and gpus == 1:
            return Layout(), Layout()
        most = gpus if certain else solve.most_joined(gpu, gpus, timed=serves is not None)
        if verdict is Verdict.PROBABLY:
            most = max(most, gpus)
        likely, sure = solve.fewest_gpus(opened, most_gpus=min(most, solve.MOST_SEARCHED), serves=serves)
        # The search leaves numbers out that nobody sells, but the user may have requested one.
        if verdict.fits and in_time and (likely is None or likely.gpus > gpus) and most <= solve.MOST_SEARCHED:
            parallel = opened.setup.parallel
            likely = Layout(tp=parallel.tp, pp=parallel.pp, dp=parallel.dp, ep=parallel.ep)
            sure = likely if certain else sure
        return likely, sure


def timed(opened: Occupancy) -> Callable[[Occupancy], bool] | None:
    """Says of a changed occupancy whether it is known to serve its users within the limits of time; ``None`` without such limits."""
    if opened.setup.hardware.gpu is None or opened.setup.others.keys().isdisjoint(WITHIN):
        return None
    from hwcalc.planner.within import serving

    return serving(opened, known=True)


def plan_fit(opened: Occupancy, line: CommandLine | None, search: Search | None) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool, if the engine has one, and the verdict. Both are ``None`` without a GPU or budget, or if the memory is unknown.

    Without the command ``line`` there is no advice, and without a ``search`` every limit is 0.
    """
    hardware = opened.setup.hardware
    budget = opened.budget if hardware.gpu is not None and hardware.kv_memory is None else None
    size = hardware.kv_memory if budget is None else budget.expected
    if size is None:
        return None, None
    pool, needed, usable = opened.told(opened.pool(max(0, size))), opened.needed_bytes, size
    ends = {}
    if budget is not None:
        usable, ends = budget.requested_bytes, {"low": budget.low, "high": budget.high}
    fits = solve.holds_in(opened, size)
    verdict = Verdict.of(fits, *(solve.holds_in(opened, left, end) for end, left in ends.items()))
    most, sure_most = (_UNKNOWN, _UNKNOWN) if search is None else search.most(opened)
    longest, sure_longest = (_UNKNOWN, _UNKNOWN) if search is None else search.longest(opened)
    placement = None if budget is None else opened.devices.placement()
    # What fits in part can still fit as a whole: more GPUs and advice are for that.
    entire = opened if budget is None else opened.devices.entire()
    wanted = verdict if entire is opened else solve.verdict_of(entire)
    fewest, sure_fewest = (None, None) if search is None else search.fewest(entire, wanted)
    return pool, FitInfo(
        gpu=None if hardware.gpu is None else hardware.gpu.id,
        gpus=opened.setup.gpus,
        usable_bytes=usable,
        needed_bytes=usable - size + needed,
        needed_low_bytes=max(0, usable - ends.get("high", size) + needed),
        needed_high_bytes=usable - ends.get("low", size) + needed,
        fits=fits,
        verdict=verdict,
        headroom_bytes=size - needed,
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
        moved_max_seq=None if search is None or placement is None else search.moved(opened),
        message=_message(opened, pool, budget, most, fits=fits, short=needed - size),
        suggestions=() if line is None else _suggestions(opened, entire, pool, line, fewest, wanted),
        budget=None if budget is None else _budget_info(opened.model, budget),
    )


def _at_home(opened: Occupancy, line: CommandLine) -> tuple[tuple[Try, ...], bool]:
    """What needs no other hardware, another engine of this machine, more memory of its host or larger batches; and whether that comes before
    other changes.

    Weights of few bits, which nobody named, come last.
    """
    from hwcalc.planner.at_home import DECENT, at_home, larger_batches, more_memory
    from hwcalc.quantization.planned import bits_of

    own = at_home(opened, line)
    chosen = own[0].settings.get("weights") if own else None
    return own or more_memory(opened, line) or larger_batches(opened, line), chosen is None or (
        bits_of(chosen) or DECENT
    ) >= DECENT


def _is_certain(opened: Occupancy) -> bool:
    """True if the low end of the budget is the expected one."""
    return solve.budget_bytes(opened, "low") == solve.budget_bytes(opened)


def _message(opened: Occupancy, pool: PoolInfo | None, budget: Budget | None, most: solve.Most, *, fits: bool, short: int) -> str:
    """The reason why the plan does not fit, in the words of the engine if it has a message; empty if it fits."""
    if pool is not None and pool.message:
        return _while_loading(budget) or pool.message
    if fits:
        return ""
    if most.limiting not in _MEMORY:
        return f"{most.limiting} lets {most.value * opened.load.sharing.branches:,} sequences run at once, not {opened.batch:,}: the others wait"
    placement = opened.devices.placement()
    if placement is not None and short <= 0 and opened.devices.lacking("expected") is not None:
        given = opened.setup.options.get(HOST_MEMORY)
        than = "the host has, or is likely to have" if given is None else f"the {given} of the host hold"
        return f"{human_bytes(placement.host.needed())} would lie in host memory: more than {than}"
    where = "" if placement is not None and not placement.gpus else f" on the {'fullest ' if opened.setup.gpus > 1 else ''}GPU"
    each = "" if opened.load.lengths else f" of {opened.load.seq:,} tokens"
    count = "it does" if opened.batch == 1 else f"{opened.batch:,} sequences{each} do"
    return f"{count} not fit: {human_bytes(short)} too much{where}" if short > 0 else f"{count} not fit at once"


def _while_loading(budget: Budget | None) -> str:
    """What comes before any word of a pool: weights that are larger than the memory of the GPU. Empty if they are not."""
    weights = 0 if budget is None else sum(part.low for part in budget.parts if part.section is Section.WEIGHTS)
    if budget is None or weights <= budget.total_high_bytes:
        return ""
    return f"loading the weights runs out of memory: {human_bytes(weights)} for a GPU with {human_bytes(budget.total_bytes)}"


def _budget_info(model: ModelSpec, budget: Budget) -> BudgetInfo:
    # Kept with the budget, which all plans of a deployment share.
    known: dict[str, BudgetInfo] = vars(budget)
    if _TOLD not in known:
        parts = []
        for part in budget.parts:
            fields = {name: getattr(part, name) for name in BudgetPartInfo.__struct_fields__}
            # Sizes in the headers of files hold whatever config describes them.
            if part.section is Section.WEIGHTS and part.definition is Definition.EXACT and model.weights is None:
                fields["definition"] = model.definition(part.definition)
            parts.append(BudgetPartInfo(**{**fields, "section": part.section.value}))
        sizes = {name: getattr(budget, name) for name in BudgetInfo.__struct_fields__ if name != "parts"}
        known[_TOLD] = BudgetInfo(**sizes, parts=tuple(parts))
    return known[_TOLD]


def _suggestions(
    planned: Occupancy, opened: Occupancy, pool: PoolInfo | None, line: CommandLine, fewest: Layout | None, verdict: Verdict
) -> Sequence[Try]:
    """The flags that the engine needs to start, and the changes that make the plan fit, or fit for certain.

    ``opened`` is what is ``planned`` with all on the GPUs, and has this verdict.
    """
    flags = () if pool is None or not verdict.fits else pool.requires
    serves = timed(opened)
    fits = verdict.fits and (serves is None or serves(opened))
    if fits and verdict is Verdict.FITS and not flags:
        return ()
    if opened.setup.hardware.gpu is not None:
        opened.budget  # noqa: B018 - a plan that needs advice tells what is assumed of the GPU, beside a budget of the user too

    def work_out() -> tuple[Try, ...]:
        from hwcalc.planner.advice import MOST_LINES, advice, required

        requires = required(opened, line, flags)
        if fits and verdict is Verdict.FITS:
            return requires
        own, first = ((), True) if serves is not None else _at_home(planned, line)
        partly = None if opened is planned else planned
        others = advice(opened, line, fits=fits, fewest=fewest, partly=partly, serves=serves)[: MOST_LINES - len(own)]
        return (*requires, *own, *others) if first else (*requires, *others, *own)

    return Advice(work_out)

"""Compare one plan with its requirements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from hwcalc.check.baseline import Grown, no_growth
from hwcalc.check.changes import (
    HARDWARE,
    MOST_EDITS,
    NUMBERS,
    PROBABLY,
    as_before,
    edit,
    joined,
    merged,
    number_edit,
    rounded,
    taken_back,
)
from hwcalc.check.fields import FITTING, OF_TIME, REQUIREMENTS, Headroom
from hwcalc.check.file import NoVerdictError, Place, Required
from hwcalc.check.result import GROWTH, Edit, Figures, Fit, Judged, KeyChange, figures_of, verdict_in_words
from hwcalc.engines import find_engine
from hwcalc.engines.devices import computes_fp8
from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.candidates import instances_with
from hwcalc.hardware.prices import money
from hwcalc.planner.asked import read_options
from hwcalc.planner.layouts import counts
from hwcalc.planner.result import NO_VERDICT, Plan
from hwcalc.planner.solve import MOST_GPUS, last_yes
from hwcalc.planner.speed_result import NO_PRICE
from hwcalc.planner.verdict import UNLIMITED, Layout, Verdict, layout_text
from hwcalc.profiles.gpus import find_gpu
from hwcalc.profiles.hardware_file import NODE
from hwcalc.units import human_bytes, human_chance, human_duration

if TYPE_CHECKING:
    from hwcalc.planner.within_result import TimeInfo, WithinInfo

Replan = Callable[..., Plan]
"""Makes the same plan with some options changed, or with ``settings`` as a :class:`~hwcalc.engines.pool.Try` has them."""


NO_CHANGE: Final = "; no single change was found"
FP8: Final = "fp8"
EIGHT_BITS: Final = (FP8, "q8_0", "int8")
"""Formats of a cache with half the bytes, of which an engine has one."""


class Case(Record):
    """A plan that is judged, with its figures, what makes it again with a change, and the requirements of its check.

    ``places`` are those of the check's keys. With ``sure``, what is offered holds at both ends of an estimate. ``grown`` compares figures with
    a baseline, and ``changes`` are the keys that differ from the baseline or the lock.
    """

    plan: Plan
    figures: Figures
    replan: Replan
    required: tuple[Required, ...]
    places: Mapping[str, Place]
    sure: bool
    grown: Grown
    changes: tuple[KeyChange, ...] = ()

    def failed_by(self, judged: Judged) -> bool:
        """True if a requirement fails, or only probably holds where what is sure is wanted."""
        return not (judged.holds and (judged.certain or not self.sure))

    def changed(self, settings: Mapping[str, str | None]) -> Case:
        """The check with these settings. Raises what the engine or a policy refuses."""
        again = partial(self.replan, settings=settings)
        plan = again()
        return replace(self, plan=plan, figures=figures_of(plan), replan=again)

    def failing(self) -> Iterator[str]:
        """The requirements that fail, growth too: each is judged as the next one is asked for."""
        yield from (item.name for item in self.required if self.failed_by(_JUDGES[item.name](item, self)))
        yield from (item.name for item in self.grown(self.figures) if not item.holds)

    @property
    def least_users(self) -> int:
        """The users that must be served within the limits of time; 0 if the check names no number."""
        return max((one.limit for one in self.required if one.name == "min_users"), default=0)


def judge(
    required: tuple[Required, ...],
    plan: Plan,
    replan: Replan,
    places: Mapping[str, Place] | None = None,
    *,
    sure: bool = False,
    beside: tuple[Judged, ...] = (),
    grown: Grown = no_growth,
    changes: tuple[KeyChange, ...] = (),
    search: Callable[[], str] = str,
) -> tuple[Judged, ...]:
    """Judge every requirement, in order, and behind those ``beside`` them what has ``grown``. The first that fails has the edits with which the whole check passes.

    ``replan(batch=4)`` is the plan with that one change, and ``places`` are those of the check's keys. What is offered holds by the expected
    value, as the check does; with ``sure`` at both ends of the estimate. ``changes`` are taken back where that helps. ``search`` makes the
    command that looks for more where no single change is found.

    Raises :class:`~hwcalc.errors.UnsupportedError` if the plan lacks a figure that is required, and
    :class:`~hwcalc.check.file.NoVerdictError` if it lacks the verdict.
    """
    case = Case(
        plan=plan,
        figures=figures_of(plan),
        replan=replan,
        required=required,
        places=places or {},
        sure=sure,
        grown=grown,
        changes=changes,
    )
    judged = (*(_JUDGES[item.name](item, case) for item in required), *beside, *grown(case.figures))
    return _with_edits(judged, case, search)


def verdict_on(plan: Plan) -> str:
    """Whether a plan with hardware fits, in the words of the requirement."""
    fits = Required(name="fits", limit=True, text="true")
    case = Case(plan=plan, figures=figures_of(plan), replan=lambda: plan, required=(fits,), places={}, sure=True, grown=no_growth)
    return _fits(fits, case).message


def with_unit(count: float, unit: str) -> str:
    """A figure with its unit. Bytes are printed exactly and in a binary unit."""
    if unit == "bytes":
        human = human_bytes(int(count))
        return human if human.endswith(" B") else f"{human} ({int(count):,} B)"
    if unit == "s":
        return human_duration(count)
    if isinstance(count, float):
        return f"{count:,.1f} {unit}"
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}" if count < UNLIMITED else f"any number of {unit}"


def _fit_of(item: Required, case: Case) -> Fit:
    if case.figures.fit is None:
        reasons = [note.message for note in case.plan.warnings if note.code == NO_VERDICT]
        reason = f"there is no verdict with --engine {case.figures.engine}: what the model needs beside its cache is not known."
        raise NoVerdictError(
            f"{item.name}: {' '.join(reasons) or reason}",
            hint="In a check the bytes are kv_memory: SIZE; or demand no verdict: fits: null",
        )
    return case.figures.fit


def _known(item: Required, value: Any, case: Case) -> Any:
    if value is None:
        raise UnsupportedError(
            f"{item.name} cannot be checked: a plan of this model with --engine {case.figures.engine} has no such figure.",
            hint=f"Leave {item.name} out, or choose another engine. See: kvplan engines",
        )
    return value


def _fits(item: Required, case: Case) -> Judged:
    fit = _fit_of(item, case)
    told = case.plan.fit
    assert told is not None
    holds, certain = told.fits is item.limit, told.verdict.certain
    message = verdict_in_words(told.verdict, fit)
    reason = "" if told.fits or not told.message else case.plan.reason.removesuffix(".")
    if reason and told.headroom_bytes >= 0 and fit.needed_high_bytes <= fit.usable_bytes:
        # What fits in memory is not said not to fit.
        enough = f"{reason}. There is memory enough: {message.partition(': ')[2]}"
        message = f"{told.verdict.text}: {reason}" if case.plan.is_refused_by_pool else enough
    elif reason:
        # That it does not fit is said by the verdict.
        message += f"; {reason.removeprefix('it does not fit: ')}"
    if not item.limit:
        message += "; required: that it does not fit"
    return Judged(name=item.name, unit="verdict", limit=None, got=None, holds=holds, certain=certain, message=message)


def _headroom(item: Required, case: Case) -> Judged:
    fit = _fit_of(item, case)
    limit: Headroom = item.limit
    least = limit.of(fit.usable_bytes)
    got, worst, best = (fit.usable_bytes - n for n in (fit.needed_bytes, fit.needed_high_bytes, fit.needed_low_bytes))
    asked = f"{item.text} = {with_unit(least, 'bytes')}" if limit.share is not None else with_unit(least, "bytes")
    span = "" if worst == best else f" ({human_bytes(worst)} to {human_bytes(best)})"
    message = f"{human_bytes(got)} free{span}, at least {asked} required"
    certain, holds = (worst >= least) is (best >= least), got >= least
    return Judged(name=item.name, unit="bytes", limit=least, got=max(0, got), holds=holds, certain=certain, message=message)


Read = Callable[[Figures, Plan], tuple[Any, Any, Any]]
"""Reads a figure: its expected value, and the low and high ends of the estimate."""


def _at_most(read: Read, unit: str = "bytes") -> Callable[..., Judged]:
    """A judge of a limit on a figure."""

    def judged(item: Required, case: Case) -> Judged:
        expected, low, high = (_known(item, value, case) for value in read(case.figures, case.plan))
        certain = (low <= item.limit) is (high <= item.limit)
        return _compared(item, unit, expected, low, high, holds=expected <= item.limit, certain=certain)

    return judged


def _compared(item: Required, unit: str, expected: float, low: float, high: float, *, holds: bool, certain: bool) -> Judged:
    span = "" if low == high else f" ({with_unit(low, unit)} to {with_unit(high, unit)})"
    words = "at least" if item.name.startswith("min") else "at most"
    open_end = "; the ends of the estimate disagree" if not certain and not span else ""
    message = f"{with_unit(expected, unit)}{span}, {words} {with_unit(item.limit, unit)} required{open_end}"
    return Judged(name=item.name, unit=unit, limit=item.limit, got=expected, holds=holds, certain=certain, message=message)


def _at_least(figure: str, option: str, unit: str) -> Callable[..., Judged]:
    """A judge of what a solver found: the expected value decides, and the sure one says whether that is certain.

    What fails is planned at the limit, where the high end of the budget may hold it.
    """

    def judged(item: Required, case: Case) -> Judged:
        fit = _fit_of(item, case)
        sure, got = (_known(item, getattr(fit, name), case) for name in (figure, f"expected_{figure}"))
        holds, certain = got >= item.limit, sure >= item.limit
        if not holds:
            exact = fit.needed_low_bytes == fit.needed_high_bytes
            at_limit = None if exact else case.replan(**{option: item.limit}).fit
            certain = at_limit is None or at_limit.verdict.certain
        return _compared(item, unit, got, sure, got, holds=holds, certain=certain)

    return judged


def _max_gpus(item: Required, case: Case) -> Judged:
    fit = _fit_of(item, case)
    if fit.gpu is None:
        _known(item, None, case)
    if fit.min_gpus is not None:
        count = fit.min_gpus
        holds = count <= item.limit
        exact = fit.needed_low_bytes == fit.needed_high_bytes
        certain = not holds or exact or _held_for_certain(fit, count, item.limit, case.plan, case.replan)
        return _compared(item, "GPUs", count, count, count, holds=holds, certain=certain)
    message = f"no number of {fit.gpu} that was tried holds it, at most {item.limit:,} required"
    return Judged(name=item.name, unit="GPUs", limit=item.limit, got=None, holds=False, certain=True, message=message)


def _held_for_certain(fit: Fit, least: int, most: int, plan: Plan, replan: Replan) -> bool:
    """True if some layout of ``least`` to ``most`` GPUs fits at the high end of the estimate too: that of the fewest GPUs comes first.

    Each is tried with experts cut, and dealt out whole.
    """
    assert plan.fit is not None
    if plan.fit.verdict == Verdict.FITS and fit.gpus <= most:
        return True
    layouts = [] if plan.fit.min_layout is None else [plan.fit.min_layout]
    for count in counts(min(most, MOST_GPUS), any_layout=True):
        for tp in range(min(count, NODE), 0, -1) if count >= least else ():
            cut = (Layout(tp=tp, pp=pp, dp=count // tp // pp) for pp in range(1, count // tp + 1) if count % (tp * pp) == 0)
            layouts += [one for layout in cut for one in dict.fromkeys((layout, replace(layout, ep=layout.tp * layout.dp)))]
    for layout in layouts:
        with suppress(KvplanError):  # the model or the engine does not allow this layout
            other = replan(gpu=fit.gpu, gpus=None, instance=None, **asdict(layout), dcp=1).fit
            if other is not None and other.verdict == Verdict.FITS:
                return True
    return False


def _overrun(item: Required, case: Case) -> Judged:
    _fit_of(item, case)
    overrun = _known(item, case.plan.overrun, case)
    chance, holds = overrun.chance, overrun.chance <= item.limit
    certain = (overrun.chance - overrun.chance_error <= item.limit) is (overrun.chance_high <= item.limit)
    span = "" if overrun.chance_high == chance else f" (up to {human_chance(overrun.chance_high)})"
    message = f"{human_chance(chance)}{span} to overrun the pool, at most {human_chance(item.limit)} required"
    return Judged(name=item.name, unit="chance", limit=item.limit, got=chance, holds=holds, certain=certain, message=message)


def _of_speed(item: Required, plan: Plan, unit: str, expected: float, low: float, high: float) -> Judged:
    """A speed or a time by its expected value; the ends of its range say whether that is certain. What does not fit has neither."""
    fit, is_least = plan.fit, item.name.startswith("min")
    kept = [value >= item.limit if is_least else value <= item.limit for value in (expected, low, high)]
    judged = _compared(item, unit, expected, low, high, holds=kept[0] and (fit is None or fit.fits), certain=kept[1] is kept[2])
    if fit is None or fit.verdict is Verdict.FITS:
        return judged
    certain = judged.certain and (fit.verdict.certain or not kept[0])
    return replace(judged, certain=certain, message=f"{judged.message}; {fit.verdict.text}")


def _decode(item: Required, case: Case) -> Judged:
    """The tokens a second of all sequences."""
    found = None if case.plan.speed is None else case.plan.speed.decode_tokens_per_s
    if found is None or found.expected is None or found.low is None or found.high is None:
        # Where nothing like it was measured, what it cannot be faster than.
        bound = _known(item, case.figures.decode_tokens_per_s_bound, case)
        judged = _of_speed(item, case.plan, "tokens/s", bound, bound, bound)
    else:
        judged = _of_speed(item, case.plan, "tokens/s", found.expected, found.low, found.high)
    batch = case.figures.batch
    together = (
        f"; that is of {batch:,} sequences together while no prompt is read; min_rate is of each, with prompts in between"
        if batch > 1
        else ""
    )
    return replace(judged, message=judged.message + together)


def limits_of(required: tuple[Required, ...]) -> dict[str, Any]:
    """The options of a plan that limit the time of a request as these requirements do, or that say what it costs.

    Raises :class:`~hwcalc.errors.UsageError` for a number of users without a limit.
    """
    given: dict[str, Any] = {OF_TIME[item.name]: item.limit for item in required if item.name in OF_TIME}
    costs = {"cost": True} if any(item.name == "max_cost" for item in required) else {}
    if not given and any(item.name == "min_users" for item in required):
        raise UsageError(
            "min_users is about limits of time, and the check has none.",
            hint="Add max_ttft, max_itl, max_e2e or min_rate; of memory alone it is min_concurrency.",
        )
    return given | costs


def _max_cost(item: Required, case: Case) -> Judged:
    """The price an hour."""
    _fit_of(item, case)
    cost, limit = case.plan.cost, item.limit
    if cost is None:
        what = next((note.message for note in case.plan.notes if note.code == NO_PRICE), "no price of the hardware is known.")
        raise UnsupportedError(f"max_cost cannot be checked: {what}", hint="In a check: price: {h100: 2.50/h}")
    message = f"{money(cost.usd_per_hour)} an hour ({cost.price.text}), at most {money(limit)} an hour ({item.text}) required"
    holds = cost.usd_per_hour <= limit
    return Judged(name=item.name, unit="$/h", limit=limit, got=cost.usd_per_hour, holds=holds, certain=True, message=message)


def _within(item: Required, case: Case) -> WithinInfo:
    _fit_of(item, case)
    found: WithinInfo = _known(item, case.plan.within, case)
    return _known(item, None, case) if found.users is None else found


def _served(figure: str) -> Callable[..., Judged]:
    """A judge of a time of each user, where all that the check plans are served at once. What does not fit is not served."""

    def judged(item: Required, case: Case) -> Judged:
        time: TimeInfo = getattr(_within(item, case).at_batch, figure)
        assert time.expected is not None
        assert time.low is not None
        assert time.high is not None
        if item.name.startswith("min"):
            return _of_speed(item, case.plan, "tokens/s", 1 / time.expected, 1 / time.high, 1 / time.low)
        return _of_speed(item, case.plan, "s", time.expected, time.low, time.high)

    return judged


def _min_users(item: Required, case: Case) -> Judged:
    found = _within(item, case)
    users, low = found.users or 0, found.users_low or 0
    holds = users >= item.limit
    return _compared(item, "users", users, low, users, holds=holds, certain=(low >= item.limit) is holds)


def _weights(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    weights = plan.memory.weights
    low, high = (weights.bytes if end is None else end for end in (weights.low, weights.high))
    return weights.bytes, low, high


def _total(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    """The total. Its low and high ends add up those of the parts; the cache is exact."""
    total = figures.total_bytes
    expected, low, high = _weights(figures, plan)
    if total is None or expected is None:
        return total, total, total
    low, high = low - expected, high - expected
    for part in (plan.memory.activations, plan.memory.overhead):
        if part is not None:
            low, high = low + part.low - part.bytes, high + part.high - part.bytes
    return total, total + low, total + high


_JUDGES: Final[Mapping[str, Callable[..., Judged]]] = {
    "fits": _fits,
    "headroom": _headroom,
    "max_cache": _at_most(lambda figures, _: (figures.cache_bytes,) * 3),
    "max_weights": _at_most(_weights),
    "max_total": _at_most(_total),
    "max_bytes_per_token": _at_most(lambda figures, _: (figures.bytes_per_token,) * 3),
    "min_concurrency": _at_least("max_batch", "batch", "sequences"),
    "min_seq": _at_least("max_seq", "seq", "tokens"),
    "max_overrun": _overrun,
    "max_gpus": _max_gpus,
    "max_cost": _max_cost,
    "min_decode_tokens_per_s": _decode,
    "max_ttft": _served("ttft_s"),
    "max_itl": _served("itl_s"),
    "max_e2e": _served("e2e_s"),
    "min_rate": _served("itl_s"),
    "min_users": _min_users,
}


def _with_edits(judged: tuple[Judged, ...], case: Case, search: Callable[[], str]) -> tuple[Judged, ...]:
    """The requirements, where the first that fails has the edits with which the whole check passes.

    Where there is none, that is said, and each that fails has the edits that mend it alone, with what still fails then.
    """
    failed = sorted((one for one in judged if case.failed_by(one)), key=lambda one: one.holds)
    offers = _Offers(case, failed)
    if not offers.named or any(item.name == "fits" and not item.limit for item in case.required):
        return tuple(replace(one, edits=()) for one in judged)
    named = offers.named
    edits, said = {named[0]: offers.of(())}, ""
    if not edits[named[0]]:
        command = search() if {*named} <= {*FITTING} else ""
        said = f"{NO_CHANGE} with which the check passes{f'. Search further: {command}' if command else ''}"
        # What does not fit is mended first, and whatever grew is one finding.
        alone = named[:1] if named[0] == "fits" else [name for name in named if not name.startswith(GROWTH) or name == named[0]]
        edits = {name: offers.of([other for other in named if _rule(other) != _rule(name)]) for name in alone}
    last = [name for name in named if _rule(name) == _rule(named[0])][-1]
    return tuple(
        replace(one, edits=edits.get(one.name, ()), message=one.message + said if one.name == last else one.message)
        for one in judged
    )


def then_fail(one: Edit, still: Collection[str]) -> Edit:
    """The edit, with the names of what still fails then."""
    names = " and ".join(dict.fromkeys(still))
    said = f"then {names} still fail{'' if ' and ' in names else 's'}" if names else ""
    return replace(one, effect=joined(one.effect, said))


def _is_mendable(judged: Judged) -> bool:
    """True if an edit of the check may mend it: none does where the model has changed."""
    return judged.name in REQUIREMENTS or judged.name.startswith(GROWTH)


def _rule(name: str) -> str:
    """What is mended together: bytes that have grown."""
    return GROWTH if name.startswith(GROWTH) else name


def _is_on_this_machine(edit: Edit) -> bool:
    """True if an edit needs neither other hardware nor another checkpoint, and leaves nothing to the memory of the host."""
    keys = edit.settings.keys()
    return keys.isdisjoint(HARDWARE) and ("weights" not in keys or bool(edit.flags)) and not edit.is_slower


class _Offers:
    """The edits of a check that fails. Each is planned again, and all requirements are judged."""

    def __init__(self, case: Case, failed: Sequence[Judged]) -> None:
        self.case, self.failed = case, failed
        self.named = [one.name for one in failed if _is_mendable(one)]
        self._changed: dict[tuple[tuple[str, str | None], ...], Case | None] = {}

    def of(self, but: Collection[str]) -> tuple[Edit, ...]:
        """The edits with which all requirements hold ``but`` these, which may still fail."""
        if {*but} == {*self.named}:
            return ()
        tries = [one for one in self._tries() if self._is_sensible(one)]
        numbers = [each for name in NUMBERS for each in self._number(name, tries, but)]
        back = [] if but else taken_back(self.case.changes, self._taken_back)
        others = [one for one in tries if {*one.settings}.isdisjoint(NUMBERS) or len(one.settings) > 1]
        # What grows may be meant to: an edit says which option accepts that, which alone is enough where nothing else is wrong.
        alone = all(name.startswith(GROWTH) for name in self.named)
        may = but if alone else {*but, *(item.name for item in self.case.grown(self.case.figures))}
        held = islice((one for one in others if self._holds(one.settings, may)), MOST_EDITS)
        cheaper = islice((one for one in self._cheaper() if self._holds(one.settings, may)), 1)
        changes = [self._then(self._edit(one, may), one.settings, but) for one in (*held, *cheaper)]
        grown = [self._then(each, {}, ()) for one in self.failed for each in one.edits] if alone else []
        found = (*merged([*numbers[:1], *back, *numbers[1:], *changes])[: MOST_EDITS - len(grown)], *grown)
        if but or any(map(_is_on_this_machine, found)):
            return found
        return (*islice(self._in_eight_bits(), 1), *found)[:MOST_EDITS]

    def _in_eight_bits(self) -> Iterator[Edit]:
        """The edits of a cache of eight bits, and then of weights too, with which all requirements hold: alone, else with the largest length."""
        fit, engine = self.case.plan.fit, find_engine(self.case.figures.engine)[0]
        gpu = None if fit is None or fit.gpu is None else find_gpu(fit.gpu)
        caches = [{"dtype": dtype} for dtype in EIGHT_BITS if computes_fp8(gpu) and self._is_smaller({"dtype": dtype})]
        # Weights that the engine makes itself as it loads them.
        of_weights = {"weights": FP8} if engine.command.flag("weights", FP8) and self._is_smaller({"weights": FP8}) else {}
        for settings in (*caches, *({**cache, **of_weights} for cache in caches if of_weights)):
            if self._holds(settings):
                yield self._edit(Try(flag="", effect="", settings=settings), ())
            else:
                yield from self._number("seq", (), (), settings)

    def _is_smaller(self, settings: Mapping[str, str]) -> bool:
        """True if a token of the cache, or the weights, have fewer bytes with these settings."""
        changed, now = self._at(settings), self.case
        return changed is not None and (
            changed.figures.bytes_per_token < now.figures.bytes_per_token
            or (changed.plan.memory.weights.bytes or 0) < (now.plan.memory.weights.bytes or 0)
        )

    def _edit(self, one: Try, but: Collection[str]) -> Edit:
        """The change as an edit, which says where all requirements ``but`` these hold only probably.

        It has the layout that the check chooses then, unless the edit says it or it is one of tensor parallelism alone.
        """
        made, changed = replace(edit(one.settings, one.effect, self.case.places), flags=one.flag), self._at(one.settings)
        if PROBABLY not in made.effect and not self._holds(one.settings, but, sure=True):
            made = replace(made, effect=joined(PROBABLY, made.effect))
        if changed is None or changed.figures.fit is None or not {"tp", "pp", "dp", "ep"}.isdisjoint(one.settings):
            return made
        layout, gpus = layout_text(changed.plan.request), changed.figures.fit.gpus
        # llama.cpp deals its layers out over all GPUs.
        alone = "pp" if find_engine(changed.figures.engine)[0].facts.splits_layers else "tp"
        known = (f"{alone} {gpus:,}", layout_text(self.case.plan.request))
        return made if layout in known else replace(made, layout=layout)

    def _then(self, one: Edit, settings: Mapping[str, str | None], but: Collection[str]) -> Edit:
        """The edit, with what still fails then."""
        changed = self._at(settings)
        grown = () if changed is None else changed.grown(changed.figures)
        one = replace(one, accepting=next((each.accepting for item in grown for each in item.edits), ""))
        still = [_rule(name).rstrip(".") for name in (changed.failing() if changed is not None and but else ())]
        still = [name for name in still if not one.accepting or name != _rule(GROWTH).rstrip(".")]
        # A missing baseline is no matter of sizes, and has its own command.
        still += [other.name for other in self.failed if not _is_mendable(other) and other.name != "baseline"]
        return then_fail(one, still)

    def _at(self, settings: Mapping[str, str | None]) -> Case | None:
        """The check with these settings; ``None`` if the engine or a policy refuses them."""
        key = tuple(settings.items())
        if key not in self._changed:
            self._changed[key] = None
            with suppress(KvplanError):
                self._changed[key] = self.case.changed(settings)
        return self._changed[key]

    def _holds(self, settings: Mapping[str, str | None], but: Collection[str] = (), *, sure: bool = False) -> bool:
        """True if all requirements hold with these settings ``but`` some; with ``sure``, at both ends of the estimate."""
        changed = self._at(settings)
        if changed is None:
            return False
        with suppress(KvplanError):  # a figure that is not known with the change
            return all(name in but for name in (replace(changed, sure=True) if sure else changed).failing())
        return False

    def _taken_back(self, settings: Mapping[str, str | None], since: str) -> Edit | None:
        """The edit of these settings, which the baseline or the lock has; ``None`` where a requirement fails with it."""
        if not self._holds(settings):
            return None
        sure = "" if self._holds(settings, sure=True) else PROBABLY
        return replace(edit(settings, "", self.case.places), effect=joined(sure, as_before(since, len(settings))))

    def _number(
        self, name: str, tries: Sequence[Try], but: Collection[str], beside: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Edit, ...]:
        """The edit to the largest length, or the most sequences, with which it holds, with the settings ``beside``."""
        planned: int = getattr(self.case.figures, name)

        def holds(value: int, *, sure: bool = False) -> bool:
            return self._holds({**beside, name: str(value)}, but, sure=sure)

        least = self._least(name)
        if not least < planned or (name == "seq" and "lengths" in self.case.places) or not holds(least):
            return ()
        most = max(least, last_yes(holds, planned - 1, self._guess(name, planned)))
        if name == "seq" and not holds(rounded(most)):
            return ()
        edits = number_edit(name, most, planned, self.case.places, partial(holds, sure=True), beside)
        flags = next((one.flag for one in tries if {**one.settings} == {name: str(most)}), "")
        return tuple(self._then(replace(one, flags=flags), {**beside, name: str(most)}, but) for one in edits)

    def _least(self, name: str) -> int:
        """The least length, or number of sequences, that is offered to who asked for what is planned."""
        from hwcalc.planner.advice import least_sensible

        return least_sensible(getattr(self.case.figures, name))

    def _guess(self, name: str, planned: int) -> int:
        """A number that may be near the largest with which it holds."""
        fit, within = self.case.plan.fit, self.case.plan.within
        most = None if fit is None else getattr(fit, f"max_{name}" if self.case.sure else f"expected_max_{name}")
        served = None if within is None or name != "batch" else within.users_low if self.case.sure else within.users
        shares = [
            planned * int(one.limit) // int(one.got)
            for one in self.failed
            if one.unit == "bytes" and one.limit is not None and one.got is not None and one.got > one.limit
        ]
        return max(self._least(name), min(each for each in (planned - 1, most, served, *shares) if each))

    def _tries(self) -> Sequence[Try]:
        """The changes that a plan offers: of as many users as must be served, where they are served too late."""
        case, fit = self.case, self.case.plan.fit
        late = any(one.name in (*OF_TIME, "min_users") for one in self.failed)
        if fit is None or not late or not fit.fits or case.least_users <= case.figures.batch:
            return () if fit is None else fit.suggestions
        with suppress(KvplanError):  # more users may be refused
            more = case.replan(advise=True, batch=case.least_users).fit
            return [] if more is None else [one for one in more.suggestions if "batch" not in one.settings]
        return ()

    def _is_sensible(self, one: Try) -> bool:
        """True if a change says an option, and leaves enough of the length and of the sequences that are planned."""
        read = read_options({name: value for name, value in one.settings.items() if name in NUMBERS}).values
        return bool(one.settings) and all(read[name] >= self._least(name) for name in NUMBERS if name in read)

    def _cheaper(self) -> Iterator[Try]:
        """Where the price is too high: the other instances of the cloud, the cheapest first, or fewer GPUs."""
        fit, cost = self.case.plan.fit, self.case.plan.cost
        if fit is None or cost is None or all(one.name != "max_cost" for one in self.failed):
            return
        if "instance" in self.case.places:
            others = instances_with(cost.price.provider, str(fit.gpu), fit.gpus)
            yield from (Try(flag="", effect="", settings={"instance": name}) for name in others)
        else:
            yield from (Try(flag="", effect="", settings={"gpus": str(gpus)}) for gpus in range(1, fit.gpus))

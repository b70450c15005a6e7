"""Compare one plan with its requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from hwcalc.check.changes import NUMBERS, edit, edits_of, number_edit
from hwcalc.check.fields import OF_TIME, Headroom
from hwcalc.check.file import NoVerdictError, Place, Required
from hwcalc.check.result import Edit, Figures, Fit, Judged, figures_of, verdict_in_words
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.candidates import instances_with
from hwcalc.hardware.prices import money
from hwcalc.planner.layouts import counts
from hwcalc.planner.result import NO_PRICE, NO_VERDICT, Plan
from hwcalc.planner.solve import MOST_GPUS, last_yes
from hwcalc.planner.verdict import UNLIMITED, Layout, Verdict
from hwcalc.profiles.hardware_file import NODE
from hwcalc.units import human_bytes, human_chance, human_duration

if TYPE_CHECKING:
    from hwcalc.engines.pool import Try
    from hwcalc.planner.within_result import TimeInfo, WithinInfo

Replan = Callable[..., Plan]
"""Makes the same plan with some options changed, or with ``settings`` as a :class:`~hwcalc.engines.pool.Try` has them."""


class Case(Record):
    """A plan that is judged, with its figures, what makes it again with a change, and the requirements of its check.

    ``places`` are those of the check's keys. With ``sure``, what is offered holds at both ends of an estimate.
    """

    plan: Plan
    figures: Figures
    replan: Replan
    required: tuple[Required, ...]
    places: Mapping[str, Place]
    sure: bool

    @property
    def headroom(self) -> Headroom | None:
        """The headroom that is required beside the verdict."""
        return next((one.limit for one in self.required if one.name == "headroom"), None)

    def failed_by(self, judged: Judged) -> bool:
        """True if a requirement fails, or only probably holds where what is sure is wanted."""
        return not (judged.holds and (judged.certain or not self.sure))

    @property
    def least_users(self) -> int:
        """The users that must be served within the limits of time; 0 if the check names no number."""
        return max((one.limit for one in self.required if one.name == "min_users"), default=0)


def judge(
    required: tuple[Required, ...], plan: Plan, replan: Replan, places: Mapping[str, Place] | None = None, *, sure: bool = False
) -> tuple[Judged, ...]:
    """Judge every requirement, in order. ``replan(batch=4)`` is the plan with that one change, ``places`` are those of the check's keys.

    Numbers that are offered hold by the expected value, as the check does; with ``sure`` at both ends of the estimate.

    Raises :class:`~hwcalc.errors.UnsupportedError` if the plan lacks a figure that is required, and
    :class:`~hwcalc.check.file.NoVerdictError` if it lacks the verdict.
    """
    case = Case(plan=plan, figures=figures_of(plan), replan=replan, required=required, places=places or {}, sure=sure)
    return _with_time(tuple(_JUDGES[item.name](item, case) for item in required), case)


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
    if not told.fits and told.message:
        message += f"; {case.plan.reason.removesuffix('.')}"
    if not item.limit:
        message += "; required: that it does not fit"
    judged = Judged(name=item.name, unit="verdict", limit=None, got=None, holds=holds, certain=certain, message=message)
    if not item.limit or (holds and certain):
        return judged
    # The own numbers of a plan surely fit, but not for sure within limits of time.
    own = () if holds or (case.sure and case.headroom is None and case.plan.within is None) else _numbers(case)
    return replace(judged, edits=edits_of(_sure(told.suggestions, case), case.places, own))


def _headroom(item: Required, case: Case) -> Judged:
    fit = _fit_of(item, case)
    limit: Headroom = item.limit
    least = limit.of(fit.usable_bytes)
    got, worst, best = (fit.usable_bytes - n for n in (fit.needed_bytes, fit.needed_high_bytes, fit.needed_low_bytes))
    asked = f"{item.text} = {with_unit(least, 'bytes')}" if limit.share is not None else with_unit(least, "bytes")
    span = "" if worst == best else f" ({human_bytes(worst)} to {human_bytes(best)})"
    message = f"{human_bytes(got)} free{span}, at least {asked} required"
    certain, holds = (worst >= least) is (best >= least), got >= least
    judged = Judged(name=item.name, unit="bytes", limit=least, got=max(0, got), holds=holds, certain=certain, message=message)
    # What does not fit is told as that, with the numbers that leave the headroom.
    refuted = case.plan.fit is not None and not case.plan.fit.fits and any(one.name == "fits" for one in case.required)
    return replace(judged, edits=_numbers(case)) if case.failed_by(judged) and not refuted else judged


def _numbers(case: Case) -> tuple[Edit, ...]:
    """The longest sequences, and the most of them, that fit within limits of time and leave the headroom that is required.

    Each is planned again.
    """
    from hwcalc.planner.advice import least_sensible

    fit, out = case.plan.fit, list[Edit]()
    assert fit is not None
    headroom = case.headroom or Headroom()

    def holds(name: str, value: int, *, sure: bool) -> bool:
        with suppress(KvplanError):  # what the engine or a policy refuses is not offered
            changed = case.replan(**{name: value})
            found, within = changed.fit, changed.within
            if found is None or not found.fits or (sure and found.verdict is not Verdict.FITS):
                return False
            if within is not None and not _in_time(within, case.least_users, sure=sure):
                return False
            needed = found.needed_high_bytes if sure else found.needed_bytes
            return found.usable_bytes - needed >= headroom.of(found.usable_bytes)
        return False

    for name in NUMBERS:
        planned, most = getattr(case.figures, name), getattr(fit, f"max_{name}" if case.sure else f"expected_max_{name}")
        bound = min(most or 0, planned - 1)
        served = None if case.plan.within is None else case.plan.within.users_low if case.sure else case.plan.within.users
        guess = bound if served is None or name != "batch" else min(bound, served)
        most = last_yes(partial(holds, name, sure=case.sure), bound, guess)
        if name == "batch" or most >= least_sensible(planned) or not fit.suggestions:
            out += number_edit(name, most, planned, case.places, partial(holds, name, sure=True))
    return tuple(out)


Read = Callable[[Figures, Plan], tuple[Any, Any, Any]]
"""Reads a figure: its expected value, and the low and high ends of the estimate."""


def _at_most(read: Read, unit: str = "bytes", *, grows: bool = False) -> Callable[..., Judged]:
    """A judge of a limit on a figure. With ``grows``, what fails is planned shorter, for the longest that holds."""

    def judged(item: Required, case: Case) -> Judged:
        def told(figures: Figures, plan: Plan) -> Judged:
            expected, low, high = (_known(item, value, case) for value in read(figures, plan))
            certain = (low <= item.limit) is (high <= item.limit)
            return _compared(item, unit, expected, low, high, holds=expected <= item.limit, certain=certain)

        found = told(case.figures, case.plan)
        if not grows or not case.failed_by(found) or not found.got:
            return found
        return _shorter(found, case, item.limit / found.got, lambda plan: told(figures_of(plan), plan))

    return judged


def _shorter(found: Judged, case: Case, share: float, judged: Callable[[Plan], Judged]) -> Judged:
    """What fails, with the longest sequences for which it is ``judged`` to hold: about this share of the planned length."""
    seq = case.figures.seq

    def holds(tokens: int, *, sure: bool) -> bool:
        other = judged(case.replan(seq=tokens))
        return other.holds and (other.certain or not sure)

    with suppress(KvplanError):  # a length that the engine or a policy refuses: no edit is offered
        guess = min(seq - 1, max(1, int(seq * share)))
        most = last_yes(partial(holds, sure=case.sure), seq - 1, guess)
        return replace(found, edits=number_edit("seq", most, seq, case.places, partial(holds, sure=True)))
    return found


def _compared(item: Required, unit: str, expected: float, low: float, high: float, *, holds: bool, certain: bool) -> Judged:
    span = "" if low == high else f" ({with_unit(low, unit)} to {with_unit(high, unit)})"
    words = "at least" if item.name.startswith("min") else "at most"
    open_end = "; the ends of the estimate disagree" if not certain and not span else ""
    message = f"{with_unit(expected, unit)}{span}, {words} {with_unit(item.limit, unit)} required{open_end}"
    return Judged(name=item.name, unit=unit, limit=item.limit, got=expected, holds=holds, certain=certain, message=message)


def _at_least(figure: str, option: str, other: str, unit: str) -> Callable[..., Judged]:
    """A judge of what a solver found: the expected value decides, and the sure one says whether that is certain.

    What fails is planned at the limit, where the high end of the budget may hold it, and less of the ``other`` number is offered.
    """

    def judged(item: Required, case: Case) -> Judged:
        fit = _fit_of(item, case)
        sure, got = (_known(item, getattr(fit, name), case) for name in (figure, f"expected_{figure}"))
        holds = got >= item.limit
        certain = sure >= item.limit
        edits: tuple[Edit, ...] = ()
        if not (holds and (certain or not case.sure)):
            exact, at_limit = fit.needed_low_bytes == fit.needed_high_bytes, None
            with suppress(*([KvplanError] if exact else [])):  # the limit is needed for the verdict of an estimate alone
                at_limit = case.replan(**{option: item.limit}).fit
            certain = certain if holds else exact or at_limit is None or at_limit.verdict.certain
            if at_limit is not None:
                most = getattr(at_limit, f"max_{other}" if case.sure else f"expected_max_{other}")
                surely = getattr(at_limit, f"max_{other}") or 0
                edits = number_edit(other, most, getattr(case.figures, other), case.places, lambda value: value <= surely)
        return replace(_compared(item, unit, got, sure, got, holds=holds, certain=certain), edits=edits)

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
    judged = Judged(name=item.name, unit="chance", limit=item.limit, got=chance, holds=holds, certain=certain, message=message)
    if not case.failed_by(judged):
        return judged
    most = overrun.max_users if case.sure else overrun.expected_max_users
    return replace(judged, edits=number_edit("batch", most, overrun.users, case.places))


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
    """The tokens a second of all sequences. Where they are too few, shorter sequences are offered, which are read faster."""

    def told(plan: Plan) -> Judged:
        found = None if plan.speed is None else plan.speed.decode_tokens_per_s
        if found is None or found.expected is None or found.low is None or found.high is None:
            # Where nothing like it was measured, what it cannot be faster than.
            bound = _known(item, figures_of(plan).decode_tokens_per_s_bound, case)
            return _of_speed(item, plan, "tokens/s", bound, bound, bound)
        return _of_speed(item, plan, "tokens/s", found.expected, found.low, found.high)

    found = told(case.plan)
    # What does not fit is told as that.
    if not case.failed_by(found) or case.plan.fit is None or not case.plan.fit.fits:
        return found
    return _shorter(found, case, (found.got or 0) / item.limit, told)


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
    """The price an hour. Where it is too high, fewer GPUs or a cheaper instance of the cloud that holds it is offered."""
    fit = _fit_of(item, case)
    cost, limit = case.plan.cost, item.limit
    if cost is None:
        what = next((note.message for note in case.plan.notes if note.code == NO_PRICE), "no price of the hardware is known.")
        raise UnsupportedError(f"max_cost cannot be checked: {what}", hint="In a check: price: {h100: 2.50/h}")
    message = f"{money(cost.usd_per_hour)} an hour ({cost.price.text}), at most {money(limit)} an hour ({item.text}) required"
    holds = cost.usd_per_hour <= limit
    judged = Judged(name=item.name, unit="$/h", limit=limit, got=cost.usd_per_hour, holds=holds, certain=True, message=message)
    if holds:
        return judged

    def suits(**change: Any) -> bool:
        with suppress(KvplanError):  # what the engine refuses is not offered
            other = case.replan(**change)
            return other.fit is not None and other.fit.fits and other.cost is not None and other.cost.usd_per_hour <= limit
        return False

    if "instance" in case.places:
        others = instances_with(cost.price.provider, str(fit.gpu), fit.gpus)
        name = next((name for name in others if suits(instance=name)), None)
        return judged if name is None else replace(judged, edits=(edit({"instance": name}, "", case.places),))
    fewest = next((gpus for gpus in range(1, fit.gpus) if suits(gpus=gpus)), None)
    return replace(judged, edits=number_edit("gpus", fewest, fit.gpus, case.places))


def _with_time(judged: tuple[Judged, ...], case: Case) -> tuple[Judged, ...]:
    """The requirements; the first limit of time by which the check fails has the edits with which all of them hold. What does not fit is told as that."""
    fit, late = case.plan.fit, [one for one in judged if one.name in (*OF_TIME, "min_users") and case.failed_by(one)]
    if not late or fit is None or not fit.fits:
        return judged
    edits: tuple[Edit, ...] = ()
    with suppress(KvplanError):  # more users may be refused
        least = case.least_users
        more = fit if least <= case.figures.batch else case.replan(advise=True, batch=least).fit
        tries = [one for one in _sure(() if more is None else more.suggestions, case) if not least or "batch" not in one.settings]
        edits = edits_of(tries, case.places, _numbers(case))
    return tuple(replace(one, edits=edits) if one is late[0] else one for one in judged)


def _in_time(within: WithinInfo, least: int, *, sure: bool) -> bool:
    """True if the planned users are served within the limits, and ``least`` would be; with ``sure`` at the slow end of the times."""
    held, users = (within.holds_low, within.users_low) if sure else (within.holds, within.users)
    return bool(held) and (users or 0) >= least


def _sure(tries: Sequence[Try], case: Case) -> Sequence[Try]:
    """The changes that a plan offers; where only what is sure is offered, those that hold at both ends of an estimate, planned again."""

    def is_sure(one: Try) -> bool:
        with suppress(KvplanError):  # what the engine refuses is not offered
            changed = case.replan(settings=one.settings)
            in_time = changed.within is None or _in_time(changed.within, case.least_users, sure=True)
            return changed.fit is not None and changed.fit.verdict is Verdict.FITS and in_time
        return False

    return [one for one in tries if is_sure(one)] if case.sure else tries


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
    "max_cache": _at_most(lambda figures, _: (figures.cache_bytes,) * 3, grows=True),
    "max_weights": _at_most(_weights),
    "max_total": _at_most(_total, grows=True),
    "max_bytes_per_token": _at_most(lambda figures, _: (figures.bytes_per_token,) * 3),
    "min_concurrency": _at_least("max_batch", "batch", "seq", "sequences"),
    "min_seq": _at_least("max_seq", "seq", "batch", "tokens"),
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

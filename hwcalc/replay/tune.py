"""The settings with which each GPU serves most within limits of time: :func:`tune`.

Every combination of hardware, layout and values of the engine's trade-offs (:attr:`~hwcalc.engines.facts.Facts.trade_offs`) is a setting.
Before anything is replayed, settings are dropped that do not start, that schedule as another does, or with which too few requests would be
within the limits if each were served alone, by the expected times of its prompt and of its tokens.

The others are replayed, the fewest GPUs first, until more GPUs cannot pay: no setting serves more requests a second than there are. If a
number of GPUs has more settings than the budget has replays, they are halved round by round, while the number of requests is doubled up to
all of them: successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943). If the first round would have too few requests to judge by,
only the settings with the best forecast (:func:`~hwcalc.planner.within.most_users`) are replayed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from itertools import groupby
from math import ceil, inf, prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError, NoRoomError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.compare import Node, nodes_of
from hwcalc.library.lists import numbers, words
from hwcalc.library.load import load
from hwcalc.library.plan import open_loaded
from hwcalc.model import ModelLike, ModelSpec, Note
from hwcalc.planner import within
from hwcalc.planner.asked import by_name, take_options
from hwcalc.planner.command_input import command_text
from hwcalc.planner.layouts import counts, layouts, node_of
from hwcalc.planner.plan import plan_opened
from hwcalc.planner.solve import verdict_of
from hwcalc.replay.compare import Opened, checked_settings, combinations, opened, refuse_wrong_values, replay_each, replays_in
from hwcalc.replay.durations import Modelled
from hwcalc.replay.simulate import DEFAULT_ENGINE, limits_of
from hwcalc.replay.traffic import Limits, Traffic
from hwcalc.units import parse_share, parse_tokens
from hwcalc.workload.opening import OF_TRACE, workload

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.step_time import StepTimes
    from hwcalc.workload.request import Workload

DEFAULT_SHARE: Final = "95%"
DEFAULT_BUDGET: Final = 64
DEFAULT_TOP: Final = 10
_OF_PLACE: Final = ("gpu", "tp", "dp", "ep")
"""The options that are hardware and its layout."""
NOT_IN_COMMAND: Final = "not-in-command"
ENGINES_OWN: Final = "default"
"""The word for the engine's own value of an option."""
_MOST: Final = 5_000
_LEAST: Final = 32
"""Requests of a round; fewer say little."""
_SURE: Final = 0.95
"""The steps of a replay are rounded: they may take so much of the expected time."""


class Trial(Record):
    """A setting, and what the replay of all requests told.

    ``changed`` are the hardware, its layout, and the options that are not the engine's own. ``holds`` says whether enough of the requests
    were within the limits. ``goodput_per_gpu`` are those that were, per second and GPU. ``excess`` is the time that is longest in times of
    its limit, of the 95th percentiles; null if nothing was answered. ``alike`` further settings did exactly as well.
    """

    changed: dict[str, str]
    gpus: int
    holds: bool
    goodput_per_gpu: float
    excess: float | None
    alike: int = 0
    traffic: Traffic

    @property
    def rank(self) -> tuple[bool, float, float]:
        """A key that is smaller for the better of two: of those that hold, more goodput; of others, more requests within the limits.

        Of equals it is the one that is farther within the limits.
        """
        assert self.traffic.goodput is not None
        better = _digits(self.goodput_per_gpu) if self.holds else self.traffic.goodput.share
        return not self.holds, -better, inf if self.excess is None else self.excess

    @classmethod
    def of(cls, one: _Ready, traffic: Traffic, least: float) -> Trial:
        """The trial of a setting, of which ``least`` is the share of requests that have to be within the limits."""
        goodput = traffic.goodput
        assert goodput is not None
        spreads = {"ttft": traffic.ttft, "itl": traffic.tpot, "e2e": traffic.e2e}
        limited = {name: limit for name in spreads if (limit := getattr(goodput.limits, name)) is not None}
        times = [spread.p95 / limit for name, limit in limited.items() if (spread := spreads[name]) is not None]
        return cls(
            changed=one.opened.changed,
            gpus=one.gpus,
            holds=goodput.share >= least,
            goodput_per_gpu=(goodput.requests_per_s or 0.0) / one.gpus,
            excess=None if traffic.ttft is None else max(times, default=None),
            traffic=traffic,
        )


class Tuning(Answer, Record):
    """The settings that were replayed on all requests, the best first, and what else was tried.

    ``share`` of the requests have to be within the ``limits``. ``holds`` says whether so many are with the best setting, which is the nearest
    miss otherwise. ``searched`` are the values of each option. Of ``settings``, ``dropped`` do not start, each for its reason; ``same``
    schedule as another; ``too_slow`` miss the limits with one request; ``too_large`` have so many GPUs that each cannot serve more; and ``left_out`` have a worse
    forecast than those for which the budget is enough. The others, ``replayed``, cost as much as ``work`` replays of all requests.
    ``default`` is the engine's own setting on the hardware of the best. ``command`` starts the best.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    workload: str
    requests: int
    limits: Limits
    share: float
    budget: int
    searched: dict[str, list[str]]
    settings: int
    dropped: dict[str, int]
    same: int
    too_slow: int
    too_large: int
    left_out: int
    replayed: int
    work: float
    holds: bool
    best: tuple[Trial, ...]
    default: Trial | None
    command: str | None
    notes: tuple[Note, ...]

    def headline(self) -> str:
        """The answer in one line."""
        best = self.best[0]
        found = f"{best.goodput_per_gpu:.3g} requests a second of each GPU" if self.holds else "nothing holds; the nearest"
        return f"{self.model}: {found} with {', '.join(f'{name}={value}' for name, value in best.changed.items())}"

    def records(self) -> list[dict[str, Any]]:
        """A row for each of the best."""
        return [
            {name: trial.changed.get(name, ENGINES_OWN) for name in self.searched}
            | {name: getattr(trial, name) for name in ("gpus", "holds", "goodput_per_gpu", "excess", "alike")}
            | {name: value for name, value in trial.traffic.records()[0].items() if name not in self.searched}
            for trial in self.best
        ]

    __repr__ = Answer.__repr__


def tune(
    model: ModelLike,
    requests: Any = None,
    /,
    *,
    gpu: str | Sequence[str] | None = None,
    engine: str = DEFAULT_ENGINE,
    ttft: float | str | None = None,
    itl: float | str | None = None,
    e2e: float | str | None = None,
    share: float | str = DEFAULT_SHARE,
    settings: Mapping[str, Sequence[Any]] | None = None,
    budget: int | str = DEFAULT_BUDGET,
    top: int | str = DEFAULT_TOP,
    executor: Executor | None = None,
    out: str | os.PathLike[str] | None = None,
    begin: Callable[[int, int, str], None] | None = None,
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> Tuning:
    """Search the setting with which each GPU serves the most ``requests`` a second within the limits ``ttft``, ``itl`` and ``e2e``.

    ``gpu`` is a list of hardware, such as ``"4xh100,8xl40s"``: of each, layouts of up to so many are tried. A setting holds if ``share`` of
    the requests are within the limits. The engine says which of its options are searched. One that ``options`` name stays as it is, ``tp``
    and ``dtype`` may be lists, and ``settings`` has other values: ``{"max_num_seqs": ["default", 64]}``. ``budget`` is the most work for each
    number of GPUs, in replays of all requests, and ``top`` is how many settings are told, 0 for all. ``executor`` is any that
    :mod:`concurrent.futures` knows, whose workers replay several settings at once, and the folder ``out`` keeps the replays that are finished
    (:func:`~hwcalc.replay.compare.replays_in`). ``requests``, ``watch`` and ``options`` are those of
    :func:`~hwcalc.replay.simulate.simulate`; ``begin`` is called as by :func:`~hwcalc.library.parts.results`.

    Raises a :class:`~hwcalc.errors.KvplanError` subclass, also where no setting starts.
    """
    limits = limits_of(ttft=ttft, itl=itl, e2e=e2e)
    if not limits.any:
        raise UsageError("no limit of time is given.", hint="Add: --ttft 2s, --itl 50ms or --e2e 30s")
    least = float(parse_share(share, "share"))
    if not 0 < least <= 1:
        raise UsageError(f"share is {least:g}.", hint="Allowed: more than 0, up to 100%.")
    most, rows = parse_tokens(budget, "budget"), parse_tokens(top, "top", minimum=0)
    requested = workload(requests, **{name: options.pop(name) for name in OF_TRACE if name in options}).held()
    given = by_name({"engine": engine, **options})
    named = {name: value for name in ("tp", "dtype") if (value := given.pop(name, None)) is not None}
    named |= checked_settings({} if settings is None else settings)
    _, asked = take_options("tune", given)
    nodes = nodes_of({"gpu": named.pop("gpu", gpu)}, asked.gpus if "gpus" in asked.given else None, [])
    if not nodes:
        raise UsageError("no hardware is named.", hint="Add: --gpu h100, or a list: --gpu 4xh100,8xl40s")
    spec = load(model, asked.access, revision=asked.revision, assume=asked.assume)
    replay = partial(replay_each, spec, executor=executor, dataset=replays_in(out), begin=begin, watch=watch)
    search = _Search(requested, limits, least, most, replay)
    sizes = {name: numbers(named.pop(name, given.pop(name, None)), name) for name in ("tp", "dp")}
    dtypes = words(named.pop("dtype", None), "dtype")
    named |= {"dtype": dtypes} if len(dtypes) > 1 else {}
    # An engine option of this name is the dtype of the model.
    fixed = {*asked.engine_options} - {"dtype"} | ({"dtype"} if dtypes else set())
    axes: dict[str, Sequence[Any]] = {
        name: (None, *option.values)
        for name, option in find_engine(engine)[0].facts.trade_offs.items()
        if name not in fixed and (search.about.prefixes.known or not option.of_prefixes)
    }
    axes |= {name: [None if value == ENGINES_OWN else value for value in values] for name, values in named.items()}
    given = {name: value for name, value in given.items() if name != "gpus"} | {"dtype": dtypes[0] if len(dtypes) == 1 else None}
    given |= {"ttft": limits.ttft, "itl": limits.itl, "e2e": limits.e2e}
    places = [*_places(spec, nodes, sizes, given)]
    number = len(places) * prod(map(len, axes.values()))
    if number > _MOST:
        raise UsageError(f"{number:,} settings are too many to search.", hint=f"At most {_MOST:,}: give fewer values.")
    if begin is not None:
        begin(0, number, "planning")
    each = [opened(spec, {**place, **changed}, given) for place in places for changed in combinations(axes)]
    refuse_wrong_values(each, named)
    ready = search.ready(each)
    trials = search.replayed(ready)
    best, chosen = trials[0]
    own = search.default(best, ready, trials)
    of_places = {name: dict.fromkeys(place[name] for place in places if name in place) for name in _OF_PLACE}
    command, unsaid = _command(chosen)
    return Tuning(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=best.traffic.engine,
        engine_version=best.traffic.engine_version,
        workload=requested.name,
        requests=search.about.requests,
        limits=limits,
        share=least,
        budget=most,
        searched={
            name: [ENGINES_OWN if value is None else str(value) for value in values]
            for name, values in (of_places | axes).items()
            if values
        },
        settings=number,
        default=own,
        **search.counted,
        holds=best.holds,
        best=tuple(_folded(trials)[: rows or None]),
        command=command,
        notes=(*best.traffic.notes, *_not_laid_out(sizes, of_places), *unsaid),
    )


def _places(
    model: ModelSpec, nodes: Sequence[Node], sizes: Mapping[str, Sequence[int]], given: Mapping[str, Any]
) -> Iterator[dict[str, str]]:
    """The hardware with its layouts, as options: those that people run, or all that have the ``sizes`` that are named."""
    named = {name: values for name, values in sizes.items() if values}
    for node in nodes:
        try:
            alone, _ = open_loaded(model, {"engine": given["engine"], "gpu": node.gpu})
        except KvplanError:
            # Why it is refused is told of the settings.
            yield {"gpu": str(node.gpu)}
            continue
        every = [
            layout
            for number in counts(node.gpus or 1, node_of(alone.setup.hardware.gpu), any_layout=bool(named))
            for layout in layouts(alone, number, any_layout=bool(named))
            if layout.pp == 1 and all(getattr(layout, name) in values for name, values in named.items())
        ]
        if not every:
            wanted = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in named.items())
            raise UsageError(
                f"there is no layout of up to {node.gpus or 1} x {node.gpu} with {wanted}.",
                hint=f"Name more GPUs, such as --gpu 8x{node.gpu}, or other sizes.",
            )
        for layout in every:
            shared = {"ep": str(layout.ep)} if layout.ep > 1 and "ep" not in given else {}
            yield {"gpu": str(node.gpu), "tp": str(layout.tp), "dp": str(layout.dp), **shared}


def rounds_for(settings: int, budget: int, requests: int) -> tuple[int, int]:
    """The settings that can be replayed within the budget, and how often they are halved until all requests are replayed.

    Each round has half of the settings and twice the requests of the one before it, so that all rounds cost the same.

    >>> rounds_for(64, 64, 1000), rounds_for(200, 64, 1000), rounds_for(200, 64, 100)
    ((64, 0), (200, 4), (64, 1))
    """
    most = max(0, (requests // _LEAST).bit_length() - 1)
    for halvings in range(most + 1):
        if (halvings + 1) * settings <= budget << halvings:
            return settings, halvings
    return (budget << most) // (most + 1), most


class _Ready(Record):
    """A setting that starts, with the times of its steps and the settings of its scheduler.

    Each replica runs ``most_at_once`` requests at once. ``schedule`` is equal for those that differ in that alone.
    """

    opened: Opened
    occupancy: Occupancy
    gpus: int
    times: StepTimes
    settings: dict[str, Any]
    most_at_once: int
    most_per_step: int
    longest_request: int
    schedule: object


class _Search:
    """The settings that are left, step by step, and what became of the others (``counted``)."""

    def __init__(
        self, requested: Workload, limits: Limits, least: float, budget: int, replay: Callable[..., Iterator[Traffic]]
    ) -> None:
        self.requested, self.limits, self.least, self.budget, self.replay = requested, limits, least, budget, replay
        self.about = requested.summary()
        self.counted: dict[str, Any] = dict.fromkeys(("same", "too_slow", "too_large", "left_out", "replayed", "work"), 0)

    def ready(self, each: Sequence[Opened]) -> list[_Ready]:
        """The settings that start, differ, and are fast enough for requests alone; if none is, the nearest.

        Raises the most usual error if none starts.
        """
        errors, seen, ready = list[KvplanError](), set[object](), list[tuple[tuple[float, float], _Ready]]()
        for one in each:
            try:
                setting = self._ready(one)
            except KvplanError as error:
                errors.append(error)
                continue
            if (key := (setting.schedule, setting.most_at_once)) in seen:
                self.counted["same"] += 1
                continue
            seen.add(key)
            ready.append((self._alone(setting), setting))
        reasons = Counter(str(error) for error in errors).most_common()
        self.counted["dropped"] = dict(reasons)
        if not ready:
            raise next(error for error in errors if str(error) == reasons[0][0])
        fast = [one for (share, _), one in ready if share >= self.least] or [max(ready, key=lambda pair: pair[0])[1]]
        self.counted["too_slow"] = len(ready) - len(fast)
        return fast

    def replayed(self, ready: Sequence[_Ready]) -> list[tuple[Trial, _Ready]]:
        """The settings that were replayed on all requests, with what that told, the best first."""
        done: list[tuple[Trial, _Ready]] = []
        for gpus, group in groupby(sorted(ready, key=attrgetter("gpus")), attrgetter("gpus")):
            settings, best = list(group), min((trial for trial, _ in done), key=attrgetter("rank"), default=None)
            if best is not None and best.holds and _digits(best.goodput_per_gpu) > _digits(self._most_per_s() / gpus):
                self.counted["too_large"] += len(settings)
                continue
            number, halvings = rounds_for(len(settings), self.budget, self.about.requests)
            if number < len(settings):
                self.counted["left_out"] += len(settings) - number
                settings = sorted(settings, key=self._forecast, reverse=True)[:number]
            self.counted["replayed"] += len(settings)
            for halving in range(halvings, -1, -1):
                told = self._tried(settings, self.about.requests >> halving)
                settings = [one for _, one in told[: max(1, len(told) // 2)]]
            done += told
        return sorted(done, key=_order)

    def default(self, best: Trial, ready: Sequence[_Ready], trials: Sequence[tuple[Trial, _Ready]]) -> Trial | None:
        """The trial of the engine's own setting on the hardware of the best; ``None`` if that is not among the settings."""
        plain = {name: value for name, value in best.changed.items() if name in _OF_PLACE}
        known = next((trial for trial, _ in trials if trial.changed == plain), None)
        own = [one for one in ready if one.opened.changed == plain]
        return known if known is not None or not own else self._tried(own, self.about.requests)[0][0]

    def _tried(self, settings: Sequence[_Ready], requests: int) -> list[tuple[Trial, _Ready]]:
        """The settings with what their replays of the first ``requests`` told, the best first.

        Of settings that differ in the most requests at once, the widest is replayed first. Those with more than it ever ran at once are
        replayed by it.
        """
        first, told = self.requested.first(requests), dict[int, Traffic]()

        def replay(some: Sequence[_Ready]) -> None:
            self.counted["work"] += len(some) * requests / self.about.requests
            told.update(zip(map(id, some), self.replay(first, [one.opened for one in some]), strict=True))

        alike: dict[object, list[_Ready]] = {}
        for one in sorted(settings, key=attrgetter("most_at_once"), reverse=True):
            alike.setdefault(one.schedule, []).append(one)
        replay([widest for widest, *_ in alike.values()])
        peaks = [(widest, told[id(widest)].totals["peak_running"], others) for widest, *others in alike.values()]
        replay([one for _, peak, others in peaks for one in others if one.most_at_once <= peak])
        for widest, _, others in peaks:
            for one in others:
                told.setdefault(id(one), replace(told[id(widest)], settings=one.settings))
        return sorted(((Trial.of(setting, told[id(setting)], self.least), setting) for setting in settings), key=_order)

    def _ready(self, one: Opened) -> _Ready:
        """The setting, if it starts. Raises its error if it does not, or if nothing like it was measured."""
        if one.deployed is None:
            assert one.error is not None
            raise one.error
        occupancy, seconds, scheduler = one.deployed.occupancy, one.deployed.seconds(None, []), one.deployed.scheduler()
        if not verdict_of(occupancy).fits:
            raise NoRoomError(
                f"{occupancy.model.id} does not fit with a sequence of {occupancy.load.seq:,} tokens.",
                hint=f"Use more GPUs, or allow shorter ones: --seq {self.about.total.longest} is the longest request.",
            )
        assert isinstance(seconds, Modelled)
        setup, settings, users = occupancy.setup, scheduler.settings(), occupancy.engine.facts.users_option
        others = str({name: value for name, value in settings.items() if name != users})
        return _Ready(
            opened=one,
            occupancy=occupancy,
            gpus=setup.gpus,
            times=seconds.times,
            settings=settings,
            most_at_once=settings.get(users, 0),
            most_per_step=scheduler.most_per_step,
            longest_request=scheduler.longest_request,
            schedule=(seconds.times.gpu.id, setup.parallel, setup.dtype, scheduler.capacity, others),
        )

    @cached_property
    def _kinds(self) -> tuple[Any, Any]:
        """Tokens of a prompt that no other has, all of its tokens, and those of the output; and how many requests have them."""
        from numpy import array

        kinds = Counter[tuple[int, int, int]]()
        for request in self.requested:
            new = max(1, request.prompt_tokens - request.prefix_tokens)
            kinds[new, request.prompt_tokens, request.output_tokens] += request.samples
        return array(list(kinds)).T, array(list(kinds.values()))

    def _alone(self, one: _Ready) -> tuple[float, float]:
        """The share of the requests that are within the limits if each is served alone, and less the longer they take of the limits.

        Among others, no more of them are within.
        """
        from numpy import maximum, minimum, where

        (new, prompts, wanted), counted = self._kinds
        outputs = maximum(1, minimum(wanted, one.longest_request - prompts))
        # A prompt at once takes no longer than in chunks.
        first = _SURE * one.times.step(prompt_tokens=new, prompts=0).expected
        each = _SURE * one.times.step(decoding=1, context=prompts + 1).expected / one.most_per_step
        times = {"ttft": first, "itl": where(outputs > 1, each, 0.0), "e2e": first + (outputs - 1) * each}
        worst = maximum.reduce(
            [time / limit for name, time in times.items() if (limit := getattr(self.limits, name)) is not None]
        )
        return float(counted[worst <= 1].sum() / counted.sum()), -float((worst * counted).sum())

    def _most_per_s(self) -> float:
        """The most requests a second that a setting which holds can serve: those that have come until it has served them."""
        from numpy import arange, array

        about = self.about
        if about.concurrency is not None or about.sessions or about.samples > about.requests:
            return inf
        arrivals = array([request.arrival_s for request in self.requested])
        counted = arange(ceil(self.least * about.requests), about.requests + 1)
        spans = arrivals[counted - 1] - arrivals[0]
        return float((counted / spans).max()) if spans.min() > 0 else inf

    def _forecast(self, one: _Ready) -> float:
        """The requests a second that each GPU serves within the limits, all of them being as long as the mean, by the formula."""
        about, limits = self.about, within.Limits(ttft=self.limits.ttft, itl=self.limits.itl, e2e=self.limits.e2e)
        occupancy = one.occupancy.changed(seq=min(one.occupancy.load.seq, ceil(about.total.mean)))
        lengths = ceil(about.prompt.mean), int(about.prefixes.share * about.prompt.mean), ceil(about.output.mean)
        served = within.most_users(occupancy, one.times, limits, lengths)
        return 0.0 if served is None else served[1] / one.gpus


def _digits(rate: float) -> float:
    """A rate with three digits: what differs by less is when the last answer ends."""
    return float(f"{rate:.3g}")


def _order(told: tuple[Trial, _Ready]) -> tuple[Any, ...]:
    """The better setting first; of equal ones that with fewer changes."""
    return told[0].rank, len(told[0].changed)


def _folded(told: Iterable[tuple[Trial, _Ready]]) -> list[Trial]:
    """The trials, of which those that did exactly as well are counted in the first of them."""
    groups = ([trial for trial, _ in group] for _, group in groupby(told, lambda pair: pair[0].rank))
    return [replace(first, alike=len(others)) for first, *others in groups]


def _command(one: _Ready) -> tuple[str | None, tuple[Note, ...]]:
    """The command that starts a setting, ``None`` where the engine has no flag for it, and a note on what it does not say of the scheduler."""
    engine = one.occupancy.engine
    of_scheduler = {name: value for name, value in one.opened.options["engine_options"].items() if name not in engine.options}
    try:
        flags = {name: engine.command.flag(name, value) for name, value in of_scheduler.items()}
        command = " ".join([command_text(plan_opened(one.occupancy)), *filter(None, flags.values())])
    except KvplanError:
        return None, ()
    left = ", ".join(f"{name}={of_scheduler[name]}" for name, flag in flags.items() if not flag)
    message = f"The command does not have what bears on the scheduler alone: {left}."
    return command, (Note(code=NOT_IN_COMMAND, message=message),) if left else ()


def _not_laid_out(sizes: Mapping[str, Sequence[int]], laid_out: Mapping[str, Iterable[str]]) -> Iterator[Note]:
    """A note on sizes that were named and that no layout has."""
    for name, values in sizes.items():
        left = ", ".join(str(value) for value in values if str(value) not in laid_out[name])
        if left:
            message = f"{name} {left} was not searched: the model cannot be split so, or it takes more GPUs than are named."
            yield Note(code="no-layout", message=message)

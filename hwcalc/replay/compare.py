"""Replays of the same requests with other settings, side by side: :func:`compare_settings`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.replay.traffic import Traffic
from hwcalc.text import quoted
from hwcalc.workload.request import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from hwcalc.model import ModelLike
    from hwcalc.replay.simulate import Deployed

_MOST: Final = 256


class Setting(Record):
    """One of the settings, and what its replay told; ``error`` is why there was none."""

    changed: dict[str, str]
    traffic: Traffic | None
    error: str | None


class Comparison(Answer, Record):
    """The settings in the order of the values."""

    schema_version: str
    settings: tuple[Setting, ...]

    def headline(self) -> str:
        """The answer in one line."""
        return f"{len(self.settings):,} settings"

    def records(self) -> list[dict[str, Any]]:
        """A row for each setting."""
        told = [setting.traffic.records()[0] for setting in self.settings if setting.traffic is not None]
        names = dict.fromkeys(told[0]) if told else {}
        rows = []
        for setting in self.settings:
            row = names if setting.traffic is None else setting.traffic.records()[0]
            rows.append({**setting.changed, **row, "error": setting.error})
        return rows

    __repr__ = Answer.__repr__


def parse_settings(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Values to compare, by the name of their setting: ``["tp=1,2"]`` is ``{"tp": ["1", "2"]}``.

    >>> parse_settings(["max_num_seqs=64,256", "tp=1,2"])
    {'max_num_seqs': ['64', '256'], 'tp': ['1', '2']}
    """
    settings = dict[str, list[str]]()
    for pair in pairs:
        name, sign, values = pair.partition("=")
        listed = [value for value in values.split(",") if value]
        name = name.strip().removeprefix("--").replace("-", "_")
        if not (name and sign and listed) or name in settings:
            raise UsageError(f"--compare {pair[:60]} is no setting with its values.", hint="Write: --compare max_num_seqs=64,256")
        settings[name] = listed
    return settings


def checked_settings(settings: Any) -> dict[str, Sequence[Any]]:
    """The values by setting. Raises :class:`~hwcalc.errors.UsageError` for what is no list of values of a name."""
    lists = settings.items() if isinstance(settings, Mapping) else [(settings, settings)]
    for name, values in lists:
        if not isinstance(name, str) or not isinstance(values, (list, tuple)) or not values:
            hint = 'Write a dict of lists: {"max_num_seqs": [64, 256]}.'
            raise UsageError(f"settings={quoted(settings, 60)} has no values of a setting.", hint=hint)
    return dict(lists)


def compare_settings(
    model: ModelLike,
    requests: Any,
    settings: Mapping[str, Sequence[Any]],
    *,
    executor: Executor | None = None,
    begin: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Replay ``requests`` with each combination of the values of ``settings``: options of a plan, of the engine, or of the replay.

    ``begin`` is called with the words of each replay before it begins, and ``executor`` is any that :mod:`concurrent.futures` knows, whose
    workers replay several at once. A setting that the engine cannot run, or that leaves no memory, has its error in its row. Raises
    :class:`~hwcalc.errors.UsageError` for a value that is wrong with all other settings.
    """
    settings = checked_settings(settings)
    number = prod(map(len, settings.values()))
    if number > _MOST:
        raise UsageError(f"{number:,} settings are too many to replay.", hint=f"At most {_MOST}: give fewer values.")
    each = [opened(model, changed, options) for changed in combinations(settings)]
    refuse_wrong_values(each, settings)
    told = iter(
        replay_each(
            model, requests, [one for one in each if one.deployed is not None], executor, begin=begin, watch=options.get("watch")
        )
    )
    rows = (
        Setting(
            changed=one.changed, traffic=None if one.error else next(told), error=None if one.error is None else str(one.error)
        )
        for one in each
    )
    return Comparison(schema_version=SCHEMA_VERSION, settings=tuple(rows))


class Opened(Record):
    """A setting before its replay: the options of :func:`~hwcalc.replay.simulate.simulate`, and the deployment that they describe, or the
    error with which they are refused.
    """

    changed: dict[str, str]
    options: dict[str, Any]
    deployed: Deployed | None = None
    error: KvplanError | None = None

    @property
    def words(self) -> str:
        """What is changed, in a line."""
        return ", ".join(f"{name}={value}" for name, value in self.changed.items())


def combinations(settings: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, str]]:
    """Every combination of the values, by the names of the settings. A value of ``None`` leaves its setting as it is.

    >>> list(combinations({"tp": [1, 2], "max_num_seqs": [None, 64]}))
    [{'tp': '1'}, {'tp': '1', 'max_num_seqs': '64'}, {'tp': '2'}, {'tp': '2', 'max_num_seqs': '64'}]
    """
    for values in product(*settings.values()):
        yield {name: str(value) for name, value in zip(settings, values, strict=True) if value is not None}


def opened(model: ModelLike, changed: dict[str, str], options: Mapping[str, Any]) -> Opened:
    """The setting with its deployment, where the engine takes it."""
    from hwcalc.replay.simulate import OF_REPLAY, deploy
    from hwcalc.workload.opening import OF_TRACE

    given = dict(options)
    engine_options = dict(given.get("engine_options") or {})
    for name, value in changed.items():
        (given if _is_ours(name) else engine_options)[name] = value
    given["engine_options"] = engine_options
    try:
        deployed = deploy(
            model, **{name: value for name, value in given.items() if name not in OF_REPLAY and name not in OF_TRACE}
        )
        # Some rules are looked at when a scheduler is made.
        deployed.scheduler()
    except KvplanError as error:
        return Opened(changed=changed, options=given, error=error)
    return Opened(changed=changed, options=given, deployed=deployed)


def refuse_wrong_values(each: Sequence[Opened], settings: Mapping[str, Sequence[Any]]) -> None:
    """Raise the error of a value that is wrong whatever the other settings are."""
    for name, values in settings.items():
        for value in map(str, values):
            errors = [one.error for one in each if one.changed.get(name) == value]
            if errors and all(isinstance(error, UsageError) for error in errors):
                raise errors[0]  # type: ignore[misc]


def replay_each(
    model: ModelLike,
    requests: Any,
    each: Sequence[Opened],
    executor: Executor | None = None,
    *,
    begin: Callable[[str], None] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Iterator[Traffic]:
    """What the replay of each setting tells, in their order: one after another, or by the workers of an executor."""
    jobs = []
    if executor is not None:
        held = requests.held() if isinstance(requests, Workload) else requests
        jobs = [executor.submit(_traffic, model, held, {**one.options, "watch": None}) for one in each]
    try:
        for number, one in enumerate(each):
            if begin is not None:
                begin(f"{number + 1:,} of {len(each):,}: {one.words}")
            yield jobs[number].result() if jobs else _traffic(model, requests, {**one.options, "watch": watch})
    finally:
        for job in jobs:
            job.cancel()


def _traffic(model: ModelLike, requests: Any, options: Mapping[str, Any]) -> Traffic:
    """What one replay tells; a function that another process can import."""
    from hwcalc.replay.simulate import simulate

    return simulate(model, requests, **options).traffic


def _is_ours(name: str) -> bool:
    """Whether a setting is an option of a plan or of the replay, and not of the engine."""
    from hwcalc.planner.options import options_of
    from hwcalc.replay.simulate import OF_POOL, OF_REPLAY
    from hwcalc.workload.opening import OF_TRACE

    return name in {*OF_REPLAY, *OF_POOL, *OF_TRACE} or any(row.name == name for row in options_of("simulate"))

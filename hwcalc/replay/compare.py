"""Replays of the same requests with other settings, side by side: :func:`compare_settings`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.replay.traffic import Traffic, read_traffic, write_traffic
from hwcalc.text import quoted
from hwcalc.workload.request import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from hwcalc.library.parts import Dataset
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
    out: str | os.PathLike[str] | None = None,
    begin: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Replay ``requests`` with each combination of the values of ``settings``: options of a plan, of the engine, or of the replay.

    ``executor`` is any that :mod:`concurrent.futures` knows, whose workers replay several at once, and the folder ``out`` keeps the replays
    that are finished (:func:`replays_in`). ``begin`` is called as by :func:`~hwcalc.library.parts.results`. A setting that the engine cannot
    run, or that leaves no memory, has its error in its row. Raises :class:`~hwcalc.errors.UsageError` for a value that is wrong with all other settings.
    """
    settings = checked_settings(settings)
    number = prod(map(len, settings.values()))
    if number > _MOST:
        raise UsageError(f"{number:,} settings are too many to replay.", hint=f"At most {_MOST}: give fewer values.")
    each = [opened(model, changed, options) for changed in combinations(settings)]
    refuse_wrong_values(each, settings)
    ready, watch = [one for one in each if one.deployed is not None], options.get("watch")
    told = replay_each(model, requests, ready, executor, replays_in(out), begin=begin, watch=watch)
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
        """The changes in a line."""
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
    dataset: Dataset[Traffic] | None = None,
    *,
    begin: Callable[[int, int, str], None] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Iterator[Traffic]:
    """The traffic of each setting, in their order. Replays are done as :func:`~hwcalc.library.parts.results` does parts."""
    from hwcalc.library.parts import Part, results

    if executor is not None or dataset is not None:
        requests = requests.held() if isinstance(requests, Workload) else requests
    content = () if dataset is None else _content(requests)
    parts = []
    for one in each:
        assert one.deployed is not None
        occupancy = one.deployed.occupancy
        part = Part(
            model=occupancy.model.id,
            engine=occupancy.engine.name,
            setting=one.words or "default",
            others=(occupancy.setup.hardware.gpu and occupancy.setup.hardware.gpu.id, *content[:2]),
            content=(*content, occupancy.model, occupancy.setup, {**one.options, "watch": None, "token": None}),
            call=_traffic,
            # A worker elsewhere may not have the file, nor the network.
            arguments=(
                occupancy.model if isinstance(model, (str, os.PathLike)) else model,
                requests,
                {**one.options, "watch": watch if executor is None else None},
            ),
        )
        parts.append(part)
    return results(parts, executor, dataset, begin)


def _content(requests: Any) -> tuple[Any, ...]:
    """The name of the requests, their number if it is known, and all else that a replay of them follows from."""
    if isinstance(requests, Workload):
        # Their text is made in a tenth of the time that their fields take.
        return requests.name, requests.count, requests.concurrency, repr(tuple(requests))
    if isinstance(requests, (str, os.PathLike)) and (path := Path(requests)).is_file():
        return str(path), None, path.read_bytes()
    return "rows", None, requests


def replays_in(out: str | os.PathLike[str] | None) -> Dataset[Traffic] | None:
    """The folder ``out`` as a Parquet dataset, of which each part has a row with what a replay tells."""
    from hwcalc.library.parts import Dataset

    return None if out is None else Dataset(out, write_traffic, read_traffic)


def _traffic(model: ModelLike, requests: Any, options: Mapping[str, Any]) -> Traffic:
    """The figures of a replay, by a function that another process can import."""
    from hwcalc.replay.simulate import simulate

    return simulate(model, requests, **options).traffic


def _is_ours(name: str) -> bool:
    """True if a setting is an option of a plan or of the replay, and not of the engine."""
    from hwcalc.planner.options import options_of
    from hwcalc.replay.simulate import OF_POOL, OF_REPLAY
    from hwcalc.workload.opening import OF_TRACE

    return name in {*OF_REPLAY, *OF_POOL, *OF_TRACE} or any(row.name == name for row in options_of("simulate"))

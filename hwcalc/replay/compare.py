"""Replays of the same requests with other settings, side by side: :func:`compare_settings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.replay.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwcalc.model import ModelLike

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


def compare_settings(
    model: ModelLike,
    requests: Any,
    settings: Mapping[str, Sequence[Any]],
    *,
    begin: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Replay ``requests`` with each combination of the values of ``settings``: options of a plan, of the engine, or of the replay.

    ``begin`` is called with the words of each replay before it begins. A setting that the engine cannot run, or that leaves no
    memory, has its error in its row. Raises :class:`~hwcalc.errors.UsageError` for a value that is wrong with all other settings.
    """
    from hwcalc.replay.simulate import OF_REPLAY, deploy, simulate

    each = [(changed, _options_with(changed, options)) for changed in _combinations(settings)]
    refused = dict[int, KvplanError]()
    for number, (_, given) in enumerate(each):
        try:
            deploy(model, **{name: value for name, value in given.items() if name not in OF_REPLAY})
        except KvplanError as error:
            refused[number] = error
    for name, values in settings.items():
        for value in map(str, values):
            errors = [refused.get(number) for number, (changed, _) in enumerate(each) if changed[name] == value]
            # What is wrong whatever the other settings are is a wrong value, and is said before anything is replayed.
            if errors and all(isinstance(error, UsageError) for error in errors):
                raise errors[0]  # type: ignore[misc]
    rows = []
    for number, (changed, given) in enumerate(each):
        if number in refused:
            rows.append(Setting(changed=changed, traffic=None, error=str(refused[number])))
            continue
        if begin is not None:
            begin(", ".join(f"{name}={value}" for name, value in changed.items()))
        rows.append(Setting(changed=changed, traffic=simulate(model, requests, **given).traffic, error=None))
    return Comparison(schema_version=SCHEMA_VERSION, settings=tuple(rows))


def _options_with(changed: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a replay with the changed ones: options of a plan, of the engine, or of the replay."""
    given = dict(options)
    engine_options = dict(given.get("engine_options") or {})
    for name, value in changed.items():
        (given if _is_ours(name) else engine_options)[name] = value
    return {**given, "engine_options": engine_options}


def _combinations(settings: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, str]]:
    number = 1
    for values in settings.values():
        number *= len(values)
    if number > _MOST:
        raise UsageError(f"{number:,} settings are too many to replay.", hint=f"At most {_MOST}: give fewer values.")
    for values in product(*settings.values()):
        yield dict(zip(settings, map(str, values), strict=True))


def _is_ours(name: str) -> bool:
    """Whether a setting is an option of a plan or of the replay, and not of the engine."""
    from hwcalc.planner.options import options_of
    from hwcalc.replay.simulate import OF_POOL, OF_REPLAY

    return name in OF_REPLAY or name in OF_POOL or any(row.name == name for row in options_of("simulate"))

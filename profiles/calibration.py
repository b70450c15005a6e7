"""Measurements of the user's own machine: one JSON file per accelerator and kind of measurement.

The files are ``$XDG_CONFIG_HOME/kvplan/profiles/calibration/<gpu>.<kind>.json`` (``~/.config`` if the variable is not set). The
kind is ``bandwidth``, ``overheads-<engine>`` for what an engine takes beside weights and cache, or ``speed-<engine>`` for how much longer
than expected its steps take. A file holds readings. Each
reading has values, conditions and the origin of the measurement. ``KVPLAN_NO_CALIBRATION=1`` makes plans ignore all readings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from msgspec import Meta, convert, to_builtins

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, changed, own, read_text
from hwcalc.profiles.form import Date, Facts, Version, first_fault, one_of
from hwcalc.profiles.hardware_file import is_file_name

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION: Final = 1
SWITCH: Final = "KVPLAN_NO_CALIBRATION"
BANDWIDTH: Final = "bandwidth"
OVERHEADS: Final = "overheads"
SPEED: Final = "speed"
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    OVERHEADS: ("non_torch_bytes", "activation_bytes", "graphs_bytes", "context_bytes"),
    BANDWIDTH: ("read_gbps", "attention_gbps", "copy_gbps"),
    SPEED: ("decode_times", "prompt_times"),
}
"""The values that a reading of each kind may hold: whole bytes, 10^9 bytes per second, or times of what is expected."""
CONDITIONS: Final = ("model", "tp", "pp", "ep", "tokens", "rows", "bytes", "dtype", "layers")
"""``tokens`` is the size of one forward pass, ``rows`` the number of sequences with logits, ``bytes`` what was read; ``layers`` says whether
the model's are ``dense`` or have ``experts``."""
_WORDS: Final = frozenset({"model", "dtype", "layers"})

_LARGEST_FILE: Final = 1024**2
_MOST_READINGS: Final = 1000
_LARGEST: Final = 2**50
_LONGEST_TEXT: Final = 500
_KIND: Final = r"^(?:bandwidth|(?:overheads|speed)-[a-z0-9][a-z0-9-]{0,30})$"
Text: TypeAlias = Annotated[str, Meta(pattern=r"\S", max_length=_LONGEST_TEXT, description="words")]


class Measured(Facts):
    """The origin of a measurement: the device and its software by their own names, the date, and where the numbers were read."""

    device: Text
    driver: Text | None = None
    torch: Text | None = None
    date: Date
    source: Text


class Measurement(Facts):
    """Values and their conditions. A newer measurement under the same conditions replaces an older one."""

    values: Annotated[Mapping[str, int | float], Meta(min_length=1, description="values by their names")]
    conditions: Mapping[Annotated[str, one_of(*CONDITIONS)], int | str] = MappingProxyType({})
    measured: Measured

    def contradiction(self) -> tuple[str, str] | None:
        for name, value in self.values.items():
            whole = name.endswith("_bytes")
            if not (_is_whole(value) if whole else 0 < value <= _LARGEST):
                return f"values.{name}", f"must be {'a whole number of bytes' if whole else 'a number above 0'}"
        for name, condition in self.conditions.items():
            if not (_is_text(condition) if name in _WORDS else _is_whole(condition)):
                return f"conditions.{name}", "must be words for model, dtype and layers, else a whole number"
        return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _LARGEST


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= _LONGEST_TEXT


class CalibrationFile(Facts):
    """The content of a file."""

    schema_version: Version
    gpu: Text
    kind: Annotated[str, Meta(pattern=_KIND, description="bandwidth, or overheads-vllm, speed-vllm and the like")]
    readings: Annotated[
        tuple[Measurement, ...], Meta(max_length=_MOST_READINGS, description=f"a list of up to {_MOST_READINGS:,} readings")
    ]

    def contradiction(self) -> tuple[str, str] | None:
        names = VALUES[self.kind.partition("-")[0]]
        for number, reading in enumerate(self.readings):
            if not set(reading.values) <= set(names):
                return f"readings.{number}.values", f"must hold some of {', '.join(names)}"
        return None


class Calibration(Record):
    """One file: all readings of one kind on one accelerator, oldest first."""

    gpu: str
    kind: str
    readings: tuple[Measurement, ...]
    path: Path

    def latest(self, value: str, conditions: Mapping[str, int | str] | None = None) -> Measurement | None:
        """The newest reading of this value under ``conditions`` (and perhaps others); ``None`` if there is none."""
        required = conditions or {}
        fitting = [
            reading
            for reading in self.readings
            if value in reading.values and all(reading.conditions.get(name) == required[name] for name in required)
        ]
        # Of several readings on one day, the last one counts.
        return max(enumerate(fitting), key=lambda item: (item[1].measured.date, item[0]))[1] if fitting else None


def overheads_kind(engine: str) -> str:
    """The kind of an engine's overheads, such as ``overheads-vllm``."""
    return f"{OVERHEADS}-{engine}"


def speed_kind(engine: str) -> str:
    """The kind of an engine's speed, such as ``speed-vllm``."""
    return f"{SPEED}-{engine}"


def enabled() -> bool:
    """True if measurements replace estimates. The user can turn this off in the environment."""
    return os.environ.get(SWITCH, "") in {"", "0"}


def calibration_path(gpu: str, kind: str) -> Path | None:
    """The path of this file, whether or not it exists; ``None`` without a home folder. Raises ``ValueError`` for a bad name."""
    if not is_file_name(gpu) or re.fullmatch(_KIND, kind) is None:
        raise ValueError(f"no calibration is kept of {gpu[:64]!r}, {kind[:64]!r}")
    from pathlib import Path

    place = own("calibration", f"{gpu}.{kind}.json")
    return None if place is None else Path(place)


def calibration_exists(gpu: str, kind: str) -> bool:
    """True if there is a file of this kind about this accelerator, broken or not."""
    place = own("calibration", f"{gpu}.{kind}.json")
    return place is not None and os.path.lexists(place) and is_file_name(gpu)


def calibrated_gpus(kind: str) -> frozenset[str] | None:
    """The accelerators that have a file of this kind, broken or not; ``None`` if the folder cannot be listed. All are found by one look."""
    folder = own("calibration")
    if folder is None or not os.path.isdir(folder):
        return frozenset()
    try:
        files = os.listdir(folder)
    except OSError:
        return None
    end = f".{kind}.json"
    return frozenset(name.removesuffix(end) for name in files if name.endswith(end))


def load_calibration(gpu: str, kind: str) -> Calibration | None:
    """The readings of this kind on this accelerator, or ``None``. The function does not ask :func:`enabled`.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.
    """
    # Every plan on a GPU asks, and few users have measured anything.
    path = calibration_path(gpu, kind) if calibration_exists(gpu, kind) else None
    return None if path is None else _read(path, changed(path))


def save_reading(gpu: str, kind: str, reading: Measurement) -> Path:
    """Add a reading to its file. The file is replaced in one step, so a killed program leaves the old or the new file.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` if the old file is broken, :class:`~hwcalc.errors.UnwritableFileError` if the new one
    cannot be written, and :class:`ValueError` if the name or the reading is not allowed in such a file.
    """
    path = calibration_path(gpu, kind)
    if path is None:
        raise ProfileError("~/.config", "cannot be found: set XDG_CONFIG_HOME")
    before = load_calibration(gpu, kind)
    kept = () if before is None else tuple(old for old in before.readings if dict(old.conditions) != dict(reading.conditions))
    file = CalibrationFile(schema_version=SCHEMA_VERSION, gpu=gpu, kind=kind, readings=(*kept[1 - _MOST_READINGS :], reading))
    text = json.dumps(to_builtins(file, enc_hook=dict), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        parse_calibration(json.loads(text), path)
    except ProfileError as error:
        raise ValueError(str(error)) from error
    from hwcalc.files import write_file

    with suppress(OSError):  # the file itself cannot be written then
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(str(path), text.encode(), "the calibration")
    return path


def parse_calibration(document: Any, path: Path) -> Calibration:
    """Check the content of a file against its form and its path. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    fault = first_fault(document, CalibrationFile)
    if fault is not None:
        raise ProfileError(path, fault[1], key=".".join(map(str, fault[0])) or None)
    file = convert(document, CalibrationFile)
    if path.name != f"{file.gpu}.{file.kind}.json":
        raise ProfileError(path, "gpu and kind must be those of the file's name", key="gpu")
    return Calibration(gpu=file.gpu, kind=file.kind, readings=file.readings, path=path)


@lru_cache(maxsize=32)
def _read(path: Path, state: tuple[int, int]) -> Calibration:
    """Read a file. ``state`` is a key of the cache, so a changed file is read again."""
    text = read_text(path, _LARGEST_FILE)
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ProfileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(path, f"is not JSON that can be read: {str(error)[:60]}") from error
    return parse_calibration(document, path)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands twice")
    return content


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")

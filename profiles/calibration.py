"""Measurements of the user's own machine: one JSON file per accelerator and kind of measurement.

The files are ``$XDG_CONFIG_HOME/kvplan/profiles/calibration/<gpu>.<kind>.json`` (``~/.config`` if the variable is not set). The
kind is ``bandwidth``, ``overheads-<engine>`` for what an engine takes beside weights and cache, or ``speed-<engine>`` for how much longer
than expected its steps take. A file holds readings. Each
reading has values, conditions and the origin of the measurement. ``KVPLAN_NO_CALIBRATION=1`` makes plans ignore all readings.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import field
from msgspec.structs import asdict

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, changed, is_date, own, read_text
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
_KIND: Final = r"bandwidth|(?:overheads|speed)-[a-z0-9][a-z0-9-]{0,30}"


class Measured(Record):
    """The origin of a measurement: the device and its software by their own names, the date, and where the numbers were read."""

    device: str
    driver: str | None = None
    torch: str | None = None
    date: str
    source: str


class Measurement(Record):
    """Values and their conditions. A newer measurement under the same conditions replaces an older one."""

    values: Mapping[str, int | float]
    measured: Measured
    conditions: Mapping[str, int | str] = field(default_factory=lambda: MappingProxyType({}))


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
    readings = [
        {"values": dict(one.values), "conditions": dict(one.conditions), "measured": asdict(one.measured)}
        for one in (*kept[1 - _MOST_READINGS :], reading)
    ]
    document = {"schema_version": SCHEMA_VERSION, "gpu": gpu, "kind": kind, "readings": readings}
    try:
        parse_calibration(document, path)
    except ProfileError as error:
        raise ValueError(str(error)) from error
    from hwcalc.files import write_file

    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with suppress(OSError):  # the file itself cannot be written then
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(str(path), text.encode(), "the calibration")
    return path


def parse_calibration(document: Any, path: Path) -> Calibration:
    """Check the content of a file against its form and its path. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    _keys(document, path, "", ("schema_version", "gpu", "kind", "readings"))
    gpu, kind, readings = document["gpu"], document["kind"], document["readings"]
    if document["schema_version"] != SCHEMA_VERSION or isinstance(document["schema_version"], bool):
        raise ProfileError(path, f"must be {SCHEMA_VERSION}", key="schema_version")
    if not isinstance(kind, str) or re.fullmatch(_KIND, kind) is None:
        raise ProfileError(path, "must be bandwidth, or overheads-vllm, speed-vllm and the like", key="kind")
    if not isinstance(gpu, str) or path.name != f"{gpu}.{kind}.json":
        raise ProfileError(path, "gpu and kind must be those of the file's name", key="gpu")
    if not isinstance(readings, list) or len(readings) > _MOST_READINGS:
        raise ProfileError(path, f"must be a list of up to {_MOST_READINGS:,} readings", key="readings")
    names = VALUES[kind.partition("-")[0]]
    measurements = tuple(_reading(content, path, f"readings.{number}", names) for number, content in enumerate(readings))
    return Calibration(gpu=gpu, kind=kind, readings=measurements, path=path)


def _reading(content: Any, path: Path, key: str, names: tuple[str, ...]) -> Measurement:
    _keys(content, path, key, ("values", "conditions", "measured"))
    values, conditions, measured = content["values"], content["conditions"], content["measured"]
    if not isinstance(values, dict) or not values or not set(values) <= set(names):
        raise ProfileError(path, f"must hold some of {', '.join(names)}", key=f"{key}.values")
    for name, value in values.items():
        if not _number(value, whole=name.endswith("_bytes")):
            allowed = "a whole number of bytes" if name.endswith("_bytes") else "a number above 0"
            raise ProfileError(path, f"must be {allowed}", key=f"{key}.values.{name}")
    if not isinstance(conditions, dict) or not set(conditions) <= set(CONDITIONS):
        raise ProfileError(path, f"must hold some of {', '.join(CONDITIONS)}, or nothing", key=f"{key}.conditions")
    for name, value in conditions.items():
        if not (_text(value) if name in _WORDS else _number(value, whole=True)):
            raise ProfileError(
                path, "must be words for model, dtype and layers, else a whole number", key=f"{key}.conditions.{name}"
            )
    _keys(measured, path, f"{key}.measured", ("device", "date", "source", "driver", "torch"))
    for name, value in measured.items():
        if not (is_date(value) if name == "date" else _text(value) or (value is None and name in ("driver", "torch"))):
            raise ProfileError(path, "must be 2026-11-20 for a date, else words", key=f"{key}.measured.{name}")
    return Measurement(
        values=MappingProxyType(dict(values)), conditions=MappingProxyType(dict(conditions)), measured=Measured(**measured)
    )


def _keys(content: Any, path: Path, key: str, names: tuple[str, ...]) -> None:
    if not isinstance(content, dict) or set(content) != set(names):
        raise ProfileError(path, f"must have exactly {', '.join(names)}", key=key or None)


def _number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if whole:
        return isinstance(value, int) and 0 <= value <= _LARGEST
    return math.isfinite(value) and 0 < value <= _LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= _LONGEST_TEXT


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

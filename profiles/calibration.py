"""What the user's own machine measured: one JSON file for each accelerator and kind of measurement.

They lie in ``$XDG_CONFIG_HOME/kvplan/profiles/calibration`` (``~/.config`` where the variable is not set) as ``<gpu>.<kind>.json``.
The kind is ``bandwidth``, or ``overheads-<engine>`` for what an engine takes beside weights and cache. A file holds readings; each
has values, the conditions it was taken under, and who measured what when. ``KVPLAN_NO_CALIBRATION=1`` leaves all of them out.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hwcalc.formulas.frozen import field, frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.fields import date
from hwcalc.profiles.gpu_file import is_id

__all__ = [
    "BANDWIDTH",
    "OVERHEADS",
    "SCHEMA_VERSION",
    "SWITCH",
    "VALUES",
    "Calibration",
    "Measured",
    "Measurement",
    "calibration_path",
    "enabled",
    "load_calibration",
    "overheads_kind",
    "parse_calibration",
    "save_reading",
]

SCHEMA_VERSION: Final = 1
SWITCH: Final = "KVPLAN_NO_CALIBRATION"
BANDWIDTH: Final = "bandwidth"
OVERHEADS: Final = "overheads"
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    OVERHEADS: ("non_torch_bytes", "activation_bytes", "graphs_bytes", "context_bytes"),
    BANDWIDTH: ("read_gbps", "attention_gbps", "copy_gbps"),
}
"""Kind -> the values that a reading may hold: whole bytes, or 10^9 bytes a second."""
CONDITIONS: Final = ("model", "tp", "pp", "ep", "tokens", "rows", "bytes", "dtype")
"""``tokens`` are those of one forward pass and ``rows`` the sequences whose logits it makes; ``bytes`` is what was read."""

_LARGEST_FILE: Final = 1024**2
_MOST_READINGS: Final = 1000
_LARGEST: Final = 2**50
_LONGEST_TEXT: Final = 500
_KIND = re.compile(r"bandwidth|overheads-[a-z0-9][a-z0-9-]{0,30}")


@frozen
class Measured:
    """Who measured when: the device and its software as they call themselves, and what the numbers were read from."""

    device: str
    date: str
    source: str
    driver: str | None = None
    torch: str | None = None


@frozen
class Measurement:
    """Values, and what they hold for. One that is taken under the same conditions replaces an earlier one."""

    values: Mapping[str, int | float]
    measured: Measured
    conditions: Mapping[str, int | str] = field(default_factory=lambda: MappingProxyType({}))


@frozen
class Calibration:
    """A file: all readings of one kind on one accelerator, in the order in which they were taken."""

    gpu: str
    kind: str
    readings: tuple[Measurement, ...]
    path: Path

    def latest(self, value: str, conditions: Mapping[str, int | str] | None = None) -> Measurement | None:
        """The newest reading of this value whose conditions have these; ``None`` if there is none."""
        wanted = conditions or {}
        fitting = [
            reading
            for reading in self.readings
            if value in reading.values and all(reading.conditions.get(name) == wanted[name] for name in wanted)
        ]
        # The last of those of one day.
        return max(enumerate(fitting), key=lambda item: (item[1].measured.date, item[0]))[1] if fitting else None


def overheads_kind(engine: str) -> str:
    """``overheads-vllm``."""
    return f"{OVERHEADS}-{engine}"


def enabled() -> bool:
    """Whether measurements stand in for estimates: unless the user's environment says otherwise."""
    return os.environ.get(SWITCH, "") in {"", "0"}


def calibration_path(gpu: str, kind: str) -> Path | None:
    """Where this file is or would be; ``None`` where the system names no home. Raises :class:`ValueError` for a bad name."""
    if not is_id(gpu) or _KIND.fullmatch(kind) is None:
        raise ValueError(f"no calibration is kept of {gpu[:64]!r}, {kind[:64]!r}")
    place = _place(gpu, kind)
    return None if place is None else Path(place)


def _place(gpu: str, kind: str) -> str | None:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return None if base.startswith("~") else os.path.join(base, "kvplan", "profiles", "calibration", f"{gpu}.{kind}.json")


def load_calibration(gpu: str, kind: str) -> Calibration | None:
    """What was measured of this kind on this accelerator, whether or not it is :func:`enabled`; ``None`` if nothing was.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.
    """
    if not is_id(gpu):
        return None
    place = _place(gpu, kind)
    # Every plan on a GPU asks, and few users have measured anything.
    if place is None or not os.path.lexists(place):
        return None
    path = Path(place)
    try:
        changed = os.stat(path)
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    return _read(path, changed.st_mtime_ns, changed.st_size)


def save_reading(gpu: str, kind: str, reading: Measurement) -> Path:
    """Add a reading to its file, which is replaced in one step: a program that is killed leaves the old one or the new one.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` if the file that is there is broken, or if it cannot be written, and
    :class:`ValueError` if the name or the reading is not of the file's form.
    """
    path = calibration_path(gpu, kind)
    if path is None:
        raise ProfileError(Path("~/.config"), "cannot be found: set XDG_CONFIG_HOME")
    before = load_calibration(gpu, kind)
    kept = () if before is None else tuple(old for old in before.readings if dict(old.conditions) != dict(reading.conditions))
    document = {
        "schema_version": SCHEMA_VERSION,
        "gpu": gpu,
        "kind": kind,
        "readings": [_plain(one) for one in (*kept[1 - _MOST_READINGS :], reading)],
    }
    try:
        parse_calibration(document, path)
    except ProfileError as error:
        raise ValueError(str(error)) from error
    _replace(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def parse_calibration(document: Any, path: Path) -> Calibration:
    """Check a file's content, which must lie where it says. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    _keys(document, path, "", ("schema_version", "gpu", "kind", "readings"))
    gpu, kind, readings = document["gpu"], document["kind"], document["readings"]
    if document["schema_version"] != SCHEMA_VERSION or isinstance(document["schema_version"], bool):
        raise ProfileError(path, f"must be {SCHEMA_VERSION}", key="schema_version")
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        raise ProfileError(path, "must be bandwidth, or overheads-vllm and the like", key="kind")
    if not isinstance(gpu, str) or path.name != f"{gpu}.{kind}.json":
        raise ProfileError(path, "gpu and kind must be those of the file's name", key="gpu")
    if not isinstance(readings, list) or len(readings) > _MOST_READINGS:
        raise ProfileError(path, f"must be a list of up to {_MOST_READINGS:,} readings", key="readings")
    names = VALUES[kind.partition("-")[0]]
    made = tuple(_reading(content, path, f"readings.{number}", names) for number, content in enumerate(readings))
    return Calibration(gpu=gpu, kind=kind, readings=made, path=path)


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
        if not (_text(value) if name in ("model", "dtype") else _number(value, whole=True)):
            raise ProfileError(path, "must be words for model and dtype, else a whole number", key=f"{key}.conditions.{name}")
    _keys(measured, path, f"{key}.measured", ("device", "date", "source", "driver", "torch"))
    for name, value in measured.items():
        if not (date(value) if name == "date" else _text(value) or (value is None and name in ("driver", "torch"))):
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
    return isinstance(value, int) and 0 <= value <= _LARGEST if whole else math.isfinite(value) and 0 < value <= _LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= _LONGEST_TEXT


@lru_cache(maxsize=32)
def _read(path: Path, changed: int, size: int) -> Calibration:
    """A file is read again when it has changed."""
    try:
        if not path.is_file():
            raise ProfileError(path, "is not a regular file")
        if size > _LARGEST_FILE:
            raise ProfileError(path, f"is larger than {_LARGEST_FILE // 1024**2} MiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ProfileError(path, "is not UTF-8 text") from error
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise ProfileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(path, f"is not JSON that can be read: {str(error)[:60]}") from error
    return parse_calibration(document, path)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _plain(reading: Measurement) -> dict[str, Any]:
    return {
        "values": dict(reading.values),
        "conditions": dict(reading.conditions),
        "measured": {name: getattr(reading.measured, name) for name in ("device", "driver", "torch", "date", "source")},
    }


def _replace(path: Path, text: str) -> None:
    """Write beside the file and put it in its place."""
    import tempfile

    waiting: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, waiting = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(waiting, path)
        waiting = None
    except OSError as error:
        raise ProfileError(path, f"cannot be written ({error.strerror})") from error
    finally:
        if waiting is not None:
            with suppress(OSError):
                os.unlink(waiting)

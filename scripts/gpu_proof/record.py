"""What a step says of one case, and the file that keeps what all cases of a step said."""

from __future__ import annotations

import getpass
import ipaddress
import json
import re
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record

AGREES: Final = "agrees"
DIFFERS: Final = "differs"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
MEASURED: Final = "measured"
"""Nothing was predicted: the numbers answer an open question."""
STATUSES: Final = (AGREES, DIFFERS, FAILED, SKIPPED, MEASURED)

_PATHS: Final = (
    re.compile(r"""(?<!\w)(?:[A-Za-z]:[\\/]|\\\\)(?:[^\\/'"<>|:*?\n]+[\\/]+)*[^\s\\/'"<>|:*?,;)]*"""),
    re.compile(r"(?<![\w./-])(?:~|[A-Za-z]:)?/[\w.+@~-]+(?:/[\w.+@~-]*)*"),
)
"""Absolute paths of Windows, whose folders may have blanks in their names, and of others. The slash inside a model's name is not at the
start of a word."""
_UUID: Final = re.compile(
    r"(?<!\w)(?:(?:(?:GPU|MIG)-)*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-[0-9a-f]{8})(?!\w)", re.IGNORECASE
)
_ADDRESSES: Final = (
    re.compile(r"(?<![\w.])(?:[0-9a-f]{0,4}:){0,7}\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)", re.IGNORECASE),
    re.compile(r"(?<![\w.:])(?=[0-9a-f:]*[0-9a-f]{3})(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE),
)
"""What may be an address of a network: 10.0.0.7, fe80::1. A time of day is not."""
_OWN_WORDS: Final = frozenset(
    {
        "allocator",
        "status",
        "step",
        "what",
        "case",
        "name",
        "model",
        "model_id",
        "engine",
        "dtype",
        "kv_dtype",
        "device",
        "outcome",
        "gpu",
    }
    | {"cache", "model_type", "definition", "role", "kind", "arguments", "model_config"}
)
"""Fields that have kvplan's own words: a user whose name is one of them is not told by it."""
_LONGEST_WHY: Final = 300


class Figure(Record):
    """One number. It agrees if it lies from ``least`` to ``most``; both are ``None`` if it is for information."""

    name: str
    predicted: float | None
    measured: float | None
    least: float | None = None
    most: float | None = None

    @property
    def is_judged(self) -> bool:
        """True if anything is concluded from it."""
        return self.least is not None or self.most is not None

    @property
    def agrees(self) -> bool:
        """True if it lies between its bounds. A number that is missing does not."""
        if not self.is_judged:
            return True
        if self.measured is None:
            return False
        return (self.least is None or self.measured >= self.least) and (self.most is None or self.measured <= self.most)


def exact(name: str, predicted: int, measured: int | None, *, tolerance: int = 0) -> Figure:
    """A figure that may differ by ``tolerance``."""
    return Figure(name=name, predicted=predicted, measured=measured, least=predicted - tolerance, most=predicted + tolerance)


def within(name: str, measured: float | None, least: float | None, most: float | None, predicted: float | None = None) -> Figure:
    """A figure with a range."""
    return Figure(name=name, predicted=predicted, measured=measured, least=least, most=most)


def known(name: str, measured: float | None) -> Figure:
    """A figure for information."""
    return Figure(name=name, predicted=None, measured=measured)


class CaseRecord(Record):
    """One case: what was done, what came of it, and why it is not more."""

    case: str
    status: str
    why: str
    figures: tuple[Figure, ...]
    details: dict[str, Any]


def judged(case: str, *figures: Figure, why: str = "", **details: Any) -> CaseRecord:
    """The record of a case that was measured. It agrees if all its figures do."""
    wrong = [figure.name for figure in figures if not figure.agrees]
    status = DIFFERS if wrong else AGREES if any(figure.is_judged for figure in figures) else MEASURED
    reason = "; ".join(word for word in (why, ", ".join(wrong)) if word)
    return CaseRecord(case=case, status=status, why=reason, figures=figures, details=details)


def skipped(case: str, why: str) -> CaseRecord:
    """The record of a case that was not run."""
    return CaseRecord(case=case, status=SKIPPED, why=why, figures=(), details={})


def failed(case: str, error: BaseException | str) -> CaseRecord:
    """The record of a case that broke: the class of the error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    why = lines[0] if isinstance(error, str) else f"{type(error).__name__}: {lines[0]}"
    return CaseRecord(case=case, status=FAILED, why=why[:_LONGEST_WHY], figures=(), details={})


def scrubbed(value: Any) -> Any:
    """A document without paths, addresses and ids of hardware, and without the names of this machine and its user in free text."""
    return _scrubbed(value, _own_names())


def _scrubbed(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return _text(value, names)
    if isinstance(value, Mapping):
        return {key: _scrubbed(item, () if key in _OWN_WORDS else names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item, names) for item in value]
    return value


def _text(text: str, names: tuple[str, ...]) -> str:
    for path in _PATHS:
        text = path.sub("<path>", text)
    text = _UUID.sub("<id>", text)
    for address in _ADDRESSES:
        text = address.sub(_address, text)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<removed>", text)
    return text


def _address(found: re.Match[str]) -> str:
    with suppress(ValueError):
        ipaddress.ip_address(found[0])
        return "<address>"
    return found[0]


def _own_names() -> tuple[str, ...]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], user}
    # These say nothing of a machine, and may be words of a message.
    return tuple(sorted(names - {"", "localhost", "root"}, key=len, reverse=True))


class UnwritableError(Exception):
    """A file cannot be written: the folder is not there, is not ours, or is full."""


class Receipt:
    """The file of one step. Until the step has come to its end it is ``NAME.json.part``, written anew after each record.

    So a run that is cut off keeps what it has, and an earlier run's whole file.
    """

    def __init__(self, path: Path, step: str, what: str, environment: Mapping[str, Any]) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.records: list[dict[str, Any]] = []
        self._head = {
            "schema_version": SCHEMA_VERSION,
            "kvplan_version": __version__,
            "step": step,
            "what": what,
            "environment": scrubbed(environment),
        }

    @property
    def counts(self) -> dict[str, int]:
        """The number of records of each status."""
        counter = Counter(record["status"] for record in self.records)
        return {status: counter[status] for status in STATUSES}

    @property
    def compared(self) -> bool:
        """True if anything was: a file in which all was skipped, or only measured, proves nothing."""
        counts = self.counts
        return bool(counts[AGREES] or counts[DIFFERS] or counts[FAILED])

    def add(self, record: CaseRecord | Mapping[str, Any]) -> None:
        """Keep a record and write what there is so far. Raises :class:`UnwritableError`."""
        self.records.append(scrubbed(document_of(record) if isinstance(record, CaseRecord) else record))
        self._write(self.part, complete=False)

    def finish(self) -> None:
        """Write the whole file: the step came to its end. It is left out if nothing was compared. Raises :class:`UnwritableError`."""
        if self.compared:
            self._write(self.path, complete=True)
        with suppress(OSError):
            self.part.unlink()

    def _write(self, path: Path, *, complete: bool) -> None:
        """One record a line."""
        head = json.dumps({**self._head, "complete": complete, "counts": self.counts}, indent=1, ensure_ascii=False)
        lines = ",\n".join(f"  {json.dumps(record, ensure_ascii=False, allow_nan=False)}" for record in self.records)
        body = f"[\n{lines}\n ]" if lines else "[]"
        try:
            write_atomically(path, f'{head[:-2]},\n "records": {body}\n}}\n'.encode())
        except OSError as error:
            raise UnwritableError(error.strerror or type(error).__name__) from error

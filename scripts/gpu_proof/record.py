"""What a step says of one case, and the file that keeps what all cases of a step said."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.formulas.frozen import frozen
from hwcalc.sources.facts_cache import write_atomically

__all__ = [
    "AGREES",
    "DIFFERS",
    "FAILED",
    "MEASURED",
    "SKIPPED",
    "STATUSES",
    "Figure",
    "Receipt",
    "Record",
    "exact",
    "failed",
    "judged",
    "known",
    "scrubbed",
    "skipped",
    "within",
]

AGREES: Final = "agrees"
DIFFERS: Final = "differs"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
MEASURED: Final = "measured"
"""Nothing was predicted: the numbers answer an open question."""
STATUSES: Final = (AGREES, DIFFERS, FAILED, SKIPPED, MEASURED)

_PATH: Final = re.compile(r"(?<![\w./-])(?:~|[A-Za-z]:)?/[\w.+@~-]+(?:/[\w.+@~-]*)*")
"""An absolute path. The slash inside a model's name is not at the start of a word."""
_LONGEST_WHY: Final = 300


@frozen
class Figure:
    """One number. It agrees if it lies from ``least`` to ``most``; both are ``None`` if it is for information."""

    name: str
    predicted: float | None
    measured: float | None
    least: float | None = None
    most: float | None = None

    @property
    def is_judged(self) -> bool:
        """Whether anything is concluded from it."""
        return self.least is not None or self.most is not None

    @property
    def agrees(self) -> bool:
        """Whether it lies between its bounds. A number that is missing does not."""
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


@frozen
class Record:
    """One case: what was done, what came of it, and why it is not more."""

    case: str
    status: str
    why: str
    figures: tuple[Figure, ...]
    details: dict[str, Any]


def judged(case: str, *figures: Figure, why: str = "", **details: Any) -> Record:
    """The record of a case that was measured. It agrees if all its figures do."""
    wrong = [figure.name for figure in figures if not figure.agrees]
    status = DIFFERS if wrong else AGREES if any(figure.is_judged for figure in figures) else MEASURED
    reason = "; ".join(word for word in (why, ", ".join(wrong)) if word)
    return Record(case=case, status=status, why=reason, figures=figures, details=details)


def skipped(case: str, why: str) -> Record:
    """The record of a case that was not run."""
    return Record(case=case, status=SKIPPED, why=why, figures=(), details={})


def failed(case: str, error: BaseException | str) -> Record:
    """The record of a case that broke: the class of the error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    why = lines[0] if isinstance(error, str) else f"{type(error).__name__}: {lines[0]}"
    return Record(case=case, status=FAILED, why=why[:_LONGEST_WHY], figures=(), details={})


def scrubbed(value: Any) -> Any:
    """A document without paths, and without the names of this machine and its user."""
    if isinstance(value, str):
        return _scrubbed(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    return value


def _scrubbed(text: str) -> str:
    text = _PATH.sub("<path>", text)
    for name in _own_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<removed>", text)
    return text


def _own_names() -> tuple[str, ...]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], user}
    # These say nothing of a machine, and may be words of a message.
    return tuple(sorted(names - {"", "localhost", "root"}, key=len, reverse=True))


class Receipt:
    """The file of one step. It is written anew after each record, so that a run that is cut off keeps what it has."""

    def __init__(self, path: Path, step: str, what: str, environment: Mapping[str, Any]) -> None:
        self.path = path
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
        """How many records there are of each status."""
        counter = Counter(record["status"] for record in self.records)
        return {status: counter[status] for status in STATUSES}

    def add(self, record: Record | Mapping[str, Any]) -> None:
        """Keep a record and write the file."""
        self.records.append(scrubbed(document_of(record) if isinstance(record, Record) else record))
        self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        """Write the file atomically, one record a line. ``complete`` says that the step came to its end."""
        head = json.dumps({**self._head, "complete": complete, "counts": self.counts}, indent=1, ensure_ascii=False)
        lines = ",\n".join(f"  {json.dumps(record, ensure_ascii=False, allow_nan=False)}" for record in self.records)
        body = f"[\n{lines}\n ]" if lines else "[]"
        write_atomically(self.path, f'{head[:-2]},\n "records": {body}\n}}\n'.encode())

"""A log as numbered lines. Their length and number are bounded, whatever the log holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from hwcalc.errors import LogError

__all__ = ["LONGEST_LINE", "MOST_BYTES", "MOST_KNOWN_BYTES", "MOST_LINES", "LogLike", "Reader", "log_name"]

LONGEST_LINE: Final = 256 * 1024
"""Bytes of a line that are read. An engine prints its whole configuration in one line."""
MOST_LINES: Final = 2_000_000
MOST_BYTES: Final = 64 * 1024**2
"""A log may be a device that never ends. An engine states its memory when it starts, near the beginning of its log."""
MOST_KNOWN_BYTES: Final = 16 * 1024**2
"""Bytes of lines about memory, which take most of the time; each counts as :data:`_KNOWN_LINE` more than it has."""
_KNOWN_LINE: Final = 256
_SHORTEST: Final = 8
"""Shorter lines state nothing: the shortest statement is ``blocks:1``."""

LogLike = str | os.PathLike[str] | IO[str] | IO[bytes] | Iterable[str]

# Each part has a bounded length and none overlaps the next, so that no text causes catastrophic backtracking.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")


class Reader:
    """The lines of a log with their numbers, counted from 1. Afterwards ``remarks`` says what was left out."""

    def __init__(self, log: LogLike) -> None:
        self._log = log
        self._known = 0
        self.count = 0
        self.long = 0
        self.stopped = False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        taken = 0
        for line, size in _raw(self._log):
            taken += size
            if taken > MOST_BYTES or self.count == MOST_LINES or self._known > MOST_KNOWN_BYTES:
                self.stopped = True
                return
            if line is None:
                continue
            self.count += 1
            if size < _SHORTEST:
                continue
            if size >= LONGEST_LINE:
                self.long += 1
            yield self.count, clean(line)

    def note_known(self, line: str) -> None:
        """Count a line about memory. After :data:`MOST_KNOWN_BYTES` of them, reading stops."""
        self._known += len(line) + _KNOWN_LINE

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not read of the log."""
        out = []
        if self.stopped:
            out.append(f"The log is long: only its first {self.count:,} lines were read.")
        if self.long:
            out.append(f"Of {self.long:,} long lines only the first {LONGEST_LINE:,} characters were read.")
        return tuple(out)


def clean(line: str) -> str:
    r"""The line without colours, zero bytes (of a log in UTF-16) and line ends. Carriage returns of progress bars become blanks.

    >>> clean("\x1b[1;36m(Worker pid=1)\x1b[0;0m INFO\x00 x\r\n")
    '(Worker pid=1) INFO x'
    """
    if "\x00" in line:
        line = line.replace("\x00", "")
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    return line.rstrip("\r\n").replace("\r", " ").replace("\t", " ")


def log_name(log: LogLike) -> str:
    """The path or name of the log, or ``text``."""
    if isinstance(log, os.PathLike):
        return os.fspath(log)
    name = getattr(log, "name", None)
    return name if isinstance(name, str) else "text"


Piece = tuple[str | None, int]
"""The beginning of a line, ``None`` for more of a long line, and how much was read for it."""


def _raw(log: LogLike) -> Iterator[Piece]:
    if isinstance(log, str):
        for line in log.split("\n"):
            yield line[:LONGEST_LINE], len(line) + 1
    elif isinstance(log, os.PathLike):
        yield from _file(Path(log))
    elif hasattr(log, "readline"):
        yield from _stream(log)
    elif isinstance(log, Iterable):
        for item in log:
            if not isinstance(item, str):
                raise LogError(f"a log's lines must be text (got {type(item).__name__}).")
            yield item[:LONGEST_LINE], len(item) + 1
    else:
        raise LogError(f"a log must be text, lines, a path or an open file (got {type(log).__name__}).")


def _file(path: Path) -> Iterator[Piece]:
    from hwcalc.text import printable

    shown = printable(str(path))
    hint = "Name a file, or - for standard input."
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have that name"
        raise LogError(f"the log {shown} cannot be read ({reason}).", hint=hint) from error
    with stream:
        try:
            yield from _stream(stream)
        except OSError as error:
            raise LogError(f"the log {shown} cannot be read ({error.strerror}).", hint=hint) from error


def _stream(stream: Any) -> Iterator[Piece]:
    """The lines of a file; only the beginning of a very long line."""
    inside = False
    while True:
        piece = stream.readline(LONGEST_LINE)
        if not piece:
            return
        whole = piece.endswith(b"\n" if isinstance(piece, (bytes, bytearray)) else "\n")
        if inside:
            yield None, len(piece)
        else:
            yield (piece.decode("utf-8", "replace") if isinstance(piece, (bytes, bytearray)) else piece), len(piece)
        inside = not whole

"""A log as numbered lines. Their length and number are bounded, whatever the log holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from hwcalc.errors import LogError

__all__ = ["LONGEST_LINE", "MOST_BYTES", "MOST_LINES", "LogLike", "Reader", "log_name"]

LONGEST_LINE: Final = 256 * 1024
"""Bytes of a line that are read. An engine prints its whole configuration in one line."""
MOST_LINES: Final = 5_000_000
MOST_BYTES: Final = 2 * 1024**3

LogLike = str | os.PathLike[str] | IO[str] | IO[bytes] | Iterable[str]

# Each part has a bounded length and none overlaps the next, so that no text causes catastrophic backtracking.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")


class Reader:
    """The lines of a log with their numbers, counted from 1. Afterwards ``remarks`` says what was left out."""

    def __init__(self, log: LogLike) -> None:
        self._log = log
        self.count = 0
        self.long = 0
        self.stopped = False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        taken = 0
        for line in _raw(self._log):
            taken += len(line)
            if self.count == MOST_LINES or taken > MOST_BYTES:
                self.stopped = True
                return
            self.count += 1
            if len(line) >= LONGEST_LINE:
                self.long += 1
            yield self.count, clean(line)

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


def _raw(log: LogLike) -> Iterator[str]:
    if isinstance(log, str):
        for line in log.split("\n"):
            yield line[:LONGEST_LINE]
    elif isinstance(log, os.PathLike):
        yield from _file(Path(log))
    elif hasattr(log, "readline"):
        yield from _stream(log)
    elif isinstance(log, Iterable):
        for item in log:
            if not isinstance(item, str):
                raise LogError(f"a log's lines must be text (got {type(item).__name__}).")
            yield item[:LONGEST_LINE]
    else:
        raise LogError(f"a log must be text, lines, a path or an open file (got {type(log).__name__}).")


def _file(path: Path) -> Iterator[str]:
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


def _stream(stream: Any) -> Iterator[str]:
    """The lines of a file; only the beginning of a very long line."""
    inside = False
    while True:
        piece = stream.readline(LONGEST_LINE)
        if not piece:
            return
        text = piece.decode("utf-8", "replace") if isinstance(piece, (bytes, bytearray)) else piece
        whole = text.endswith("\n")
        if not inside:
            yield text
        inside = not whole

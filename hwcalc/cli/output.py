"""Write output: data to standard output in one piece, everything else to standard error."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from hwcalc.documents import dumps, escaped
from hwcalc.errors import OutputError, UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.text import json_for, lines_for, shown
from hwcalc.unfinished import Uncut

__all__ = ["FORMATS", "WIDTH", "Answer", "View", "answer", "discard", "wants_json", "write"]

FORMATS = ("table", "json", "markdown", "csv")
WIDTH = 100
"""Columns of piped output; on a terminal, the most columns that are used."""
_NARROWEST = 60
"""The fewest columns in which all digits fit. A narrower terminal wraps the lines by itself."""

# The nearest ASCII, for an output that cannot show these characters.
_ASCII = str.maketrans({"█": "#", "░": ".", "·": "|", "…": "...", chr(0xD7): "x"})


@frozen
class Answer:
    """The result of a command: text for standard output, remarks for standard error, and the exit status.

    ``pieces`` are more of the text, where it is too long to hold. ``commands`` says that lines of the text are meant as commands for a
    runner of CI jobs.
    """

    text: str
    pieces: Iterable[str] = ()
    json: bool = False
    commands: bool = False
    remarks: tuple[str, ...] = ()
    status: int = 0


def answer(document: Mapping[str, Any]) -> Answer:
    """A JSON document as an answer."""
    return Answer(text=dumps(document), json=True)


@frozen
class View:
    """How the user wants the answer to look."""

    format: str = "table"
    quiet: bool = False
    color: bool = False
    width: int = WIDTH

    @classmethod
    def choose(
        cls,
        *,
        json: bool = False,
        format_: str | None = None,
        quiet: bool = False,
        no_color: bool = False,
        formats: Collection[str] = FORMATS,
    ) -> View:
        """The view for these options. Colour and the terminal's width are used only if standard output is a terminal."""
        chosen = (format_ or ("json" if json else "table")).strip().lower()
        if chosen not in formats:
            raise UsageError(f"--format {shown(chosen, 40)} is not known.", hint=f"Allowed: {', '.join(formats)}.")
        if json and chosen != "json":
            raise UsageError(f"--json and --format {chosen} contradict each other.", hint="Give one of them.")
        terminal = sys.stdout is not None and sys.stdout.isatty()
        color = terminal and not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(format=chosen, quiet=quiet, color=color, width=_terminal_width() if terminal else WIDTH)


def _terminal_width() -> int:
    import shutil

    return max(_NARROWEST, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH))


def wants_json(arguments: list[str]) -> bool:
    """Whether these arguments ask for JSON. They may be wrong otherwise, because errors are printed as JSON then too."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = zip(before, [*before, ""][1:], strict=True)
    return any(
        word == "--json"
        or (word.startswith("--format=") and word.removeprefix("--format=").strip().lower() == "json")
        or (word == "--format" and following.strip().lower() == "json")
        for word, following in pairs
    )


def write(stream: TextIO | None, text: str, *, json: bool = False, commands: bool = False) -> None:
    """Write and flush. A stream that the program's caller closed is ignored.

    No line controls the terminal or, but for ``commands``, a runner of CI jobs, whatever the input was. Characters that the stream's
    encoding lacks are written in ASCII: with escapes in JSON, with similar characters in text.
    Raises :class:`BrokenPipeError` if the reader is gone, and :class:`OutputError` if writing fails.
    """
    if stream is None:
        return
    text = json_for(text) if json else lines_for(text, color=stream.isatty(), commands=commands)
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = escaped(text) if json else text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    try:
        with Uncut():
            _put(stream, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(stream)
        raise OutputError(f"the output could not be written: {error.strerror}.") from error


def _put(stream: TextIO, text: str) -> None:
    """Write and flush, to the last byte. Under ``PYTHONUNBUFFERED`` Python loses the rest of a write that a signal cuts short."""
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase) or os.linesep != "\n":
        stream.write(text)
        stream.flush()
        return
    rest = memoryview(text.encode(stream.encoding, stream.errors or "strict"))
    while rest:
        written = raw.write(rest)
        if written is None:
            # The caller gave a pipe that does not wait. Buffered streams raise the same.
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]


def discard(stream: TextIO) -> None:
    """Redirect a broken stream to nowhere, because Python would report the error again when it closes the stream."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

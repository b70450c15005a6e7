"""Write output: data to standard output in one piece, everything else, progress too, to standard error."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

from hwcalc.documents import SCHEMA_VERSION, document_of, dumps, escaped
from hwcalc.errors import OutputError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.report.text import PIPED_WIDTH, broken, continued, records_csv, with_commands
from hwcalc.report.view import Detail, View
from hwcalc.text import clean, cut, json_for, lines_for, shown
from hwcalc.unfinished import Uncut, Unfinished

if TYPE_CHECKING:
    from rich.status import Status

    from hwcalc.planner.result import Plan

FORMATS = ("table", "json", "markdown", "csv")
COLORS: Final = ("auto", "always", "never")
WIDTH: Final = 100
"""Columns where nobody says how many there are."""
_NARROWEST: Final = 20

# The nearest ASCII, for an output that cannot show these characters.
_ASCII = str.maketrans({"█": "#", "▓": "=", "▒": "-", "░": ".", "│": "|", "·": "|", "…": "...", chr(0xD7): "x"})


class Answer(Record):
    """The result of a command: text for standard output, remarks for standard error, and the exit status.

    ``pieces`` are more of the text, where it is too long to hold, and ``readings`` lines that come one after the other, until a signal ends
    them. ``commands`` says that lines of the text are meant as commands for a
    runner of CI jobs, ``color`` that codes of colours are meant, whatever standard output is.
    """

    text: str
    pieces: Iterable[str] = ()
    readings: Iterable[str] = ()
    json: bool = False
    commands: bool = False
    color: bool = False
    remarks: tuple[str, ...] = ()
    status: int = 0


def answer(document: Record | Mapping[str, Any], *, status: int = 0, remarks: tuple[str, ...] = ()) -> Answer:
    """The answer whose text is this JSON document."""
    return Answer(text=dumps(document_of(document)), json=True, status=status, remarks=remarks)


def formatted(
    result: Any,
    view: View,
    text: Callable[[Any, View], str],
    csv: Callable[[Any], str] | None = None,
    *,
    status: int = 0,
    remarks: tuple[str, ...] = (),
) -> Answer:
    """The answer in the chosen format: the document of a result, its rows, or its ``text``. ``csv`` writes others than its ``records()``."""
    if view.format == "json":
        return answer(result.to_dict() if hasattr(result, "to_dict") else result, status=status, remarks=remarks)
    if view.format != "csv":
        return Answer(text=text(result, view), status=status, remarks=remarks)
    return Answer(text=records_csv(result.records()) if csv is None else csv(result), status=status, remarks=remarks)


def answer_lists(remarks: tuple[str, ...] = (), **lists: object) -> Answer:
    """The answer whose JSON document has these lists, of records too."""
    return answer({"schema_version": SCHEMA_VERSION, **lists}, remarks=remarks)


def view_of(
    *,
    json: bool = False,
    format_: str | None = None,
    quiet: bool = False,
    color: str | None = None,
    no_color: bool = False,
    brief: bool = False,
    verbose: bool = False,
    formats: Collection[str] = FORMATS,
    **_others: object,
) -> View:
    """The view for the output options of a command, standard output and the environment; the command's other options are ignored."""
    chosen = (format_ or ("json" if json else "table")).strip().lower()
    if chosen not in formats:
        raise UsageError(f"--format {shown(chosen, 40)} is not known.", hint=f"Allowed: {', '.join(formats)}.")
    if json and chosen != "json":
        raise UsageError(f"--json and --format {chosen} contradict each other.", hint="Give one of them.")
    if brief and verbose:
        raise UsageError("--brief and --verbose contradict each other.", hint="Give one of them.")
    detail: Detail = "brief" if brief else "full" if verbose else "usual"
    return View(format=chosen, quiet=quiet, color=colored(color, no_color=no_color), width=output_width(), detail=detail)


def colored(color: str | None = None, *, no_color: bool = False) -> bool:
    """True if text is coloured: by the option, else by ``NO_COLOR``, else by ``FORCE_COLOR``, else if standard output is a terminal.

    A variable that is set but empty counts as not set, ``FORCE_COLOR=0`` as no. A terminal whose ``TERM`` is ``dumb`` has no colours.
    """
    when = "auto" if color is None else color.strip().lower()
    if when not in COLORS:
        raise UsageError(f"--color {shown(when, 40)} is not known.", hint=f"Allowed: {', '.join(COLORS)}.")
    if no_color and when == "always":
        raise UsageError("--no-color and --color always contradict each other.", hint="Give one of them.")
    if no_color or when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if forced := os.environ.get("FORCE_COLOR"):
        return forced != "0"
    return on_terminal() and os.environ.get("TERM") != "dumb"


def detail_of(view: View, *, verdict: bool) -> Detail:
    """How much of a plan is shown: with a verdict, a terminal gets the answer, and a pipe all of it."""
    return "screen" if verdict and view.detail == "usual" and on_terminal() else view.detail


def on_terminal() -> bool:
    """True if standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def output_width() -> int:
    """Columns of standard output: ``COLUMNS`` if it is set, else those of the terminal; a pipe has no limit."""
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdigit() and 0 < len(text) <= len(str(PIPED_WIDTH)) and int(text):
        return max(_NARROWEST, min(int(text), PIPED_WIDTH))
    return _columns(sys.stdout) if on_terminal() else PIPED_WIDTH


def output_lines() -> int:
    """Lines of the terminal that standard output is; 0 where it is none."""
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(sys.stdout.fileno()).lines
    return 0


def _columns(stream: TextIO) -> int:
    """Columns of the terminal that a stream is."""
    try:
        return max(_NARROWEST, os.get_terminal_size(stream.fileno()).columns or WIDTH)
    except (OSError, ValueError, AttributeError):
        return WIDTH


def wants_json(arguments: list[str]) -> bool:
    """True if these arguments ask for JSON. They may be wrong otherwise, because errors are printed as JSON then too."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = zip(before, [*before, ""][1:], strict=True)
    return any(
        word == "--json"
        or (word.startswith("--format=") and word.removeprefix("--format=").strip().lower() == "json")
        or (word == "--format" and following.strip().lower() == "json")
        for word, following in pairs
    )


def write(stream: TextIO | None, text: str, *, json: bool = False, commands: bool = False, color: bool = False) -> None:
    """Write and flush. A stream that the program's caller closed is ignored.

    No line controls the terminal or, but for ``commands``, a runner of CI jobs, whatever the input was; codes of colours are kept on a
    terminal, and with ``color`` elsewhere. Characters that the stream's
    encoding lacks are written in ASCII: with escapes in JSON, with similar characters in text.
    Raises :class:`BrokenPipeError` if the reader is gone, and :class:`OutputError` if writing fails.
    """
    if stream is None:
        return
    text = json_for(text) if json else lines_for(text, color=color or stream.isatty(), commands=commands)
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


def on_screen(text: str) -> str:
    """Lines for standard error, each broken at blanks where that is a terminal. A command can be copied: it stays whole, or goes on behind a backslash."""
    if sys.stderr is None or not sys.stderr.isatty() or "First: " in text:
        return text
    return in_lines(text, _columns(sys.stderr))


def in_lines(text: str, width: int) -> str:
    """Lines for standard error as a terminal of this width shows them."""
    lines = []
    for line in text.split("\n"):
        hang = len(line) - len(line.lstrip(" ")) + 2
        lines += continued(line, width) if _ALONE.match(line) else broken(with_commands(line), width, hang)
    return "\n".join(lines)


_ALONE: Final = re.compile(r"kvplan (?:\S+ )?--")
"""Begins a line that is a command."""


def discard(stream: TextIO) -> None:
    """Redirect a broken stream to nowhere, because Python would report the error again when it closes the stream."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


PATIENCE = 0.5
"""Seconds before anything is shown. Most commands finish earlier."""
_LONGEST = 80
_WIPED = b"\r\x1b[2K\x1b[?25h"
"""Clears the line and shows the cursor again."""


@contextmanager
def live_line(stream: TextIO) -> Iterator[Callable[[str], None]]:
    """A function that writes a line of a terminal anew during the block."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, force_terminal=True, markup=False, emoji=False, highlight=False)
    with Live(console=console, auto_refresh=False) as live, Unfinished(lambda _status: os.write(stream.fileno(), _LEFT)):
        yield lambda text: live.update(Text(clean(text), overflow="ellipsis", no_wrap=True), refresh=True)


_LEFT = b"\r\n\x1b[?25h"
"""Goes below the line and shows the cursor again."""


class _Status:
    """The line of rich's status, which appears after a while and says the last message."""

    def __init__(self, stream: TextIO) -> None:
        from threading import Lock, Timer

        self._stream = stream
        self._lock = Lock()
        self._last = ""
        self._status: Status | None = None
        """The line that is shown. A command that ends before has not imported rich's console."""
        self._closed = False
        # A timer shows the first message, so that it appears even if no other message follows.
        self._timer = Timer(PATIENCE, self._appear)
        self._timer.daemon = True

    def __call__(self, what: str) -> None:
        with self._lock:
            first, self._last = not self._last, clean(cut(what, _LONGEST))
            if self._status is not None:
                self._status.update(f"kvplan: {self._last} ...")
        if first:
            self._timer.start()

    def close(self) -> None:
        """Clear the line."""
        self._timer.cancel()
        with self._lock:
            # The timer may have run already, and be importing rich's console.
            self._closed = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    def wipe(self) -> None:
        """Clear the line when the process has to end, whoever is writing to it."""
        if self._status is not None:
            os.write(self._stream.fileno(), _WIPED)

    def _appear(self) -> None:
        from rich.console import Console

        console = Console(file=self._stream, force_terminal=True, markup=False, emoji=False, highlight=False)
        with self._lock:
            if self._closed:
                return
            self._status = console.status(f"kvplan: {self._last} ...")
            self._status.start()


@contextmanager
def shown_progress(stream: TextIO) -> Iterator[None]:
    """Show progress messages on a terminal during the block, from :data:`PATIENCE` seconds on."""
    from hwcalc.sources.request import listening

    status = _Status(stream)
    try:
        with listening(status), Unfinished(lambda _status: status.wipe()):
            yield
    finally:
        status.close()


def why_not(plan: Plan) -> tuple[str, ...]:
    """Lines for standard error: why a plan is not known to fit, and what would help. Empty if it fits or has no verdict."""
    if not plan.refutes:
        return ()
    from hwcalc.planner.result import NO_VERDICT
    from hwcalc.report.verdict import verdict

    if plan.fit is None:
        return tuple(note.message for note in plan.warnings if note.code == NO_VERDICT)
    lines = (verdict(plan), plan.reason, *(f"try {one.command or one.flag}" for one in plan.fit.suggestions))
    return tuple(line for line in lines if line)

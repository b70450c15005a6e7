"""Signals to the command: Ctrl-C, SIGTERM and SIGHUP end the process at once, without a word and with no temporary file left.

The handler raises nothing. An exception at any place whatever may come up in a destructor, where Python prints it and goes on; libraries
swallow it; and at the end of Python it waits for threads. The handler deletes what is half done (:mod:`hwcalc.unfinished`) and ends the
process.

Only the command installs it (:func:`hwcalc.cli.main` without arguments), never the library.
"""

from __future__ import annotations

import os
import signal
from contextvars import ContextVar

from hwcalc.unfinished import undo_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["GRACE_SECONDS", "Uncut", "end_quietly"]

GRACE_SECONDS = 2.0
"""Most seconds that a signal waits for output that has begun: the reader of a pipe may have stopped reading."""

_HELD: ContextVar[list[int] | None] = ContextVar("held", default=None)
"""The signals that wait for the end of the output; ``None`` while nothing is written."""


def end_quietly() -> None:
    """From here on, a signal ends the process with 128 + its number (Ctrl-C: 130). Does nothing outside of the main thread.

    A signal that the caller ignores stays ignored, as SIGHUP under ``nohup`` and Ctrl-C in the background job of a script.
    """
    try:
        for number in _signals():
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                signal.signal(number, _end)
    except ValueError:
        return
    import atexit

    # First in, last out: the threads have ended by then, and Python takes its modules apart, which takes milliseconds.
    atexit.register(_ignore)


class Uncut:
    """A block that writes output: a signal waits for its end, though no longer than :data:`GRACE_SECONDS`; a second one does not wait.

    On a terminal no signal waits, because nobody reads the rest.
    """

    def __enter__(self) -> None:
        self._held: list[int] = []
        # An inner block leaves the signal to the outer one.
        self._token = _HELD.set(self._held) if _HELD.get() is None else None

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            _HELD.reset(self._token)
            if self._held:
                _leave(self._held[0])


def _signals() -> list[signal.Signals]:
    """The signals, Ctrl-C first. Windows has no SIGHUP."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _end(number: int, frame: FrameType | None) -> None:
    held = _HELD.get()
    if held is None or held or not hasattr(signal, "setitimer") or _on_terminal():
        _delete_bytecode(frame)
        _leave(number)
    else:
        held.append(number)
        signal.signal(signal.SIGALRM, lambda *_: _leave(number))
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)


def _leave(number: int) -> None:
    _ignore()
    undo_all()
    os._exit(128 + number)


def _ignore() -> None:
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)


def _on_terminal() -> bool:
    try:
        return os.isatty(1)
    except OSError:
        return False


def _delete_bytecode(frame: FrameType | None) -> None:
    """Delete the temporary file if Python was writing a module's bytecode. It does so itself only after an :class:`OSError`."""
    while frame is not None:
        if frame.f_code.co_name == "_write_atomic" and "path_tmp" in frame.f_locals:
            try:
                os.unlink(frame.f_locals["path_tmp"])
            except OSError:
                return
        frame = frame.f_back

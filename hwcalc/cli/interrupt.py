"""Signals to the command: Ctrl-C, SIGTERM and SIGHUP end the process at once, without a word and with no temporary file left.

The handler raises nothing. An exception at any place whatever may come up in a destructor, where Python prints it and goes on; libraries
swallow it; and at the end of Python it waits for threads. The handler deletes what is half done (:mod:`hwcalc.unfinished`) and ends the
process.

Only the command installs it (:func:`hwcalc.cli.main` without arguments), never the library. Until it is installed, Ctrl-C is a traceback
of Python: so this module imports little.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

GRACE_SECONDS = 2.0
"""Most seconds that a signal waits for output that has begun: the reader of a pipe may have stopped reading."""


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

    # First in, last out: whatever else is called at the end has been.
    atexit.register(_ignore)


def leave(status: int) -> int:
    """The exit status, with garbage collection prepared for the end of the process: what is left is not searched again."""
    gc.freeze()
    return status


def _signals() -> list[int]:
    """The signals, Ctrl-C first. Windows has no SIGHUP."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _end(number: int, frame: FrameType | None) -> None:
    hold = _from_unfinished("hold")
    # Nobody reads the rest on a terminal.
    if hold is not None and hasattr(signal, "setitimer") and not _on_terminal() and hold(number):
        signal.signal(signal.SIGALRM, lambda *_: _leave(number))
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        return
    _delete_bytecode(frame)
    _leave(number)


def _leave(number: int) -> None:
    _ignore()
    undo_all = _from_unfinished("undo_all")
    if undo_all is not None:
        undo_all(128 + number)
    os._exit(128 + number)


def _from_unfinished(name: str) -> Callable[..., object] | None:
    """A function of :mod:`hwcalc.unfinished`; ``None`` as long as that is not imported, and nothing can be unfinished."""
    return getattr(sys.modules.get("hwcalc.unfinished"), name, None)


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

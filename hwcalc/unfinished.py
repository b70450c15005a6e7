"""What is half done when a signal comes: what has to be undone before the process ends, and output that is better finished.

:mod:`hwcalc.cli.interrupt` asks here. A program that uses the library and handles no signals is not concerned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_UNDO: ContextVar[tuple[Callable[[int], object], ...]] = ContextVar("undo", default=())
_HELD: ContextVar[list[int] | None] = ContextVar("held", default=None)
"""The signal that waits for the end of the output; ``None`` while nothing is written."""


class Unfinished:
    """A block during which :func:`undo_all` calls ``undo``. The block itself does not call it, at its end or for an exception.

    ``undo`` gets the exit status with which the process ends.

    Signals are handled in the main thread, so only that thread's blocks count.
    """

    def __init__(self, undo: Callable[[int], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        self._token = _UNDO.set((*_UNDO.get(), self._undo))

    def __exit__(self, *error: object) -> None:
        _UNDO.reset(self._token)


class Uncut:
    """A block that writes output. The first signal waits for its end, a second one does not."""

    def __enter__(self) -> None:
        self._held: list[int] = []
        # An inner block leaves the signal to the outer one.
        self._token = _HELD.set(self._held) if _HELD.get() is None else None

    def __exit__(self, *error: object) -> None:
        if self._token is None:
            return
        _HELD.reset(self._token)
        if self._held:
            from signal import raise_signal

            raise_signal(self._held[0])


def hold(number: int) -> bool:
    """Keep a signal until the end of the block that writes. ``False`` if there is no such block, or one signal waits already."""
    held = _HELD.get()
    if held is None or held:
        return False
    held.append(number)
    return True


def undo_all(status: int) -> None:
    """Undo what is half done, the last first. What cannot be undone is left."""
    for undo in reversed(_UNDO.get()):
        try:
            undo(status)
        except Exception:  # noqa: BLE001, S112 - the process ends, and nobody is left to tell
            continue

"""What is half done, and how to undo it if the process has to end at once."""

from __future__ import annotations

from contextvars import ContextVar

# As in typing. This is imported before the command is prepared for Ctrl-C, and so imports next to nothing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Unfinished", "undo_all"]

_UNDO: ContextVar[tuple[Callable[[], object], ...]] = ContextVar("undo", default=())


class Unfinished:
    """A block during which :func:`undo_all` calls ``undo``. The block itself does not call it, at its end or for an exception.

    Signals are handled in the main thread, so only that thread's blocks count.
    """

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        self._token = _UNDO.set((*_UNDO.get(), self._undo))

    def __exit__(self, *error: object) -> None:
        _UNDO.reset(self._token)


def undo_all() -> None:
    """Undo what is half done, the last first. What cannot be undone is left."""
    for undo in reversed(_UNDO.get()):
        try:
            undo()
        except Exception:  # noqa: BLE001, S112 - the process ends, and nobody is left to tell
            continue

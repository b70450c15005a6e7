"""Show progress on the terminal while a command waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING, TextIO

from hwcalc.sources.request import listening
from hwcalc.text import clean, cut
from hwcalc.unfinished import Unfinished

if TYPE_CHECKING:
    from rich.status import Status

PATIENCE = 0.5
"""Seconds before anything is shown. Most commands finish earlier."""
_LONGEST = 80
_WIPED = b"\r\x1b[2K\x1b[?25h"
"""Clears the line and shows the cursor again."""


class _Status:
    """The line of rich's status, which appears after a while and says the last message."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = Lock()
        self._last = ""
        self._status: Status | None = None
        """What is shown. A command that ends before has not imported rich's console."""
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
            self._status = console.status(f"kvplan: {self._last} ...")
            self._status.start()


@contextmanager
def shown(stream: TextIO) -> Iterator[None]:
    """Show progress messages on a terminal during the block, from :data:`PATIENCE` seconds on."""
    status = _Status(stream)
    try:
        with listening(status), Unfinished(lambda _status: status.wipe()):
            yield
    finally:
        status.close()

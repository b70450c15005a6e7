"""Show progress in one line of the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from hwcalc.sources.progress import listening
from hwcalc.text import clean, cut
from hwcalc.unfinished import Unfinished

__all__ = ["PATIENCE", "shown"]

PATIENCE = 0.5
"""Seconds before the line appears. Most commands finish earlier."""
_LONGEST = 80


class _Line:
    """One line that is overwritten. A timer shows the first message, so that it appears even if no other message follows."""

    def __init__(self, stream: TextIO) -> None:
        from threading import Lock, Timer

        self._stream = stream
        self._lock = Lock()
        self._visible = False
        self._width = 0
        self._last = ""
        self._timer = Timer(PATIENCE, self._appear)
        self._timer.daemon = True

    def __call__(self, what: str) -> None:
        with self._lock:
            first, self._last = not self._last, clean(cut(what, _LONGEST))
            if self._visible:
                self._draw()
        if first:
            self._timer.start()

    def close(self) -> None:
        """Clear the line."""
        self._timer.cancel()
        with self._lock:
            if self._visible:
                self._visible = False
                self._write(f"\r{' ' * self._width}\r")

    def wipe(self) -> None:
        """Clear the line when the process has to end, whoever is writing to it."""
        if self._visible:
            os.write(self._stream.fileno(), f"\r{' ' * self._width}\r".encode("ascii"))

    def _appear(self) -> None:
        with self._lock:
            self._visible = True
            self._draw()

    def _draw(self) -> None:
        text = f"kvplan: {self._last} ..."
        self._write(f"\r{text:<{self._width}}")
        self._width = max(self._width, len(text))

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._visible = False


@contextmanager
def shown(stream: TextIO) -> Iterator[None]:
    """Show progress messages on a terminal during the block, from :data:`PATIENCE` seconds on."""
    line = _Line(stream)
    try:
        with listening(line), Unfinished(lambda _status: line.wipe()):
            yield
    finally:
        line.close()

"""Write files so that nobody ever sees a part of one: a temporary file in the same folder takes the place of the old one.

This is the only place that does so. Ctrl-C, SIGTERM and errors delete the temporary file; after ``kill -9`` it stays, and is deleted
when a file is written into that folder a day later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from hwcalc.unfinished import Unfinished

__all__ = ["SUFFIX", "whole_file", "write_atomically"]

SUFFIX: Final = ".kvplan.tmp"
"""The end of a temporary file's name."""
_STALE: Final = 24 * 3600
"""Seconds after which nobody writes to a temporary file any more."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, and its folder if that is missing. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """An open temporary file that replaces ``path`` at the end of the block, and is deleted if the block fails.

    Two writers at once do not meet: the last one wins. Raises :class:`OSError`, or :class:`ValueError` if ``path`` is no file's name.
    """
    temporary = path.parent / f".{path.name[:40]}.{os.urandom(8).hex()}{SUFFIX}"

    def delete() -> None:
        with suppress(OSError):
            temporary.unlink()

    # Before the file is there: a signal may come between its creation and the next line.
    with Unfinished(delete):
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            temporary.replace(path)
        except BaseException:
            delete()
            raise
    _delete_stale(path.parent)


def _delete_stale(folder: Path) -> None:
    """Delete what killed processes have left in a folder."""
    oldest = time.time() - _STALE
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)  # noqa: PTH108 - a path of the scan

"""Write a file atomically."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hwcalc.errors import UsageError
from hwcalc.text import brief, shown

__all__ = ["whole_file"]


@contextmanager
def whole_file(name: str) -> Iterator[IO[bytes]]:
    """An open temporary file that replaces ``name`` at the end of the block, and is deleted if the block fails.

    Raises :class:`~hwcalc.errors.UsageError` if no file can be written at ``name``, and :class:`OSError` if writing fails.
    """
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--output {brief(name, 80)} is not a regular file.", hint="Name a file, or leave --output out.")
        temporary = path.parent / f".{path.name[:80]}.{os.urandom(6).hex()}.tmp"
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise UsageError(
            f"--output {shown(name, 80)} cannot be written: {reason}.", hint="Name a file in a folder that is there."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise

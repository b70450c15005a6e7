"""The file of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from hwcalc import files
from hwcalc.errors import UsageError

__all__ = ["whole_file"]


@contextmanager
def whole_file(name: str) -> Iterator[IO[bytes]]:
    """An open temporary file that replaces ``name`` at the end of the block, and is deleted if the block fails.

    Raises :class:`~hwcalc.errors.UsageError` if no file can be written at ``name``, and :class:`OSError` if writing fails.
    """
    path = Path(name)
    with ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                raise UsageError(f"--output {name[:80]} is not a regular file.", hint="Name a file, or leave --output out.")
            file = stack.enter_context(files.whole_file(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a file name"
            raise UsageError(
                f"--output {name[:80]!r} cannot be written: {reason}.", hint="Name a file in a folder that is there."
            ) from error
        yield file

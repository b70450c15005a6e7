"""Write a file whole or not at all, with one error for all that can go wrong."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from hwcalc.errors import KvplanError, UnwritableFileError, UsageError
from hwcalc.text import shown

__all__ = ["whole_file", "write_file"]

_SPECIAL = ("/dev/", "/proc/")


def write_file(name: str, data: bytes, option: str) -> None:
    """Write a file as :func:`whole_file` does."""
    with whole_file(name, option) as file:
        file.write(data)


@contextmanager
def whole_file(name: str, option: str) -> Iterator[IO[bytes]]:
    """An open file for the bytes of ``name``. ``option`` is the option that named it.

    A regular file is a temporary file until the end of the block, which replaces ``name``; if the block fails it is deleted. A device or
    a pipe is written directly. Raises :class:`~hwcalc.errors.UnwritableFileError` if anything cannot be written.
    """
    if not name or "\0" in name:
        raise UsageError(f"{option} {shown(name)} names no file.", hint=f"Write: {option} FILE")
    try:
        with _direct(name) if _is_special(name) else _replaced(os.path.realpath(name)) as file:
            yield file
    except KvplanError:
        raise
    except OSError as error:
        raise UnwritableFileError(
            f"{option} {shown(name)} cannot be written: {error.strerror or error}.",
            hint="Check the folder, the free space, and who may write there.",
        ) from error


def _is_special(name: str) -> bool:
    """Whether a file cannot be replaced by another: a device, a pipe, or a descriptor such as /dev/stdout, whatever is behind it."""
    if os.path.abspath(name).startswith(_SPECIAL):
        return True
    with suppress(OSError):
        mode = os.stat(name).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


@contextmanager
def _direct(name: str) -> Iterator[IO[bytes]]:
    with open(name, "wb") as file:
        yield file


@contextmanager
def _replaced(path: str) -> Iterator[IO[bytes]]:
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    folder, base = os.path.split(path)
    temporary = os.path.join(folder, f".{base[:40]}.{os.urandom(6).hex()}.tmp")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise

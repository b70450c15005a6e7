"""Open files to read, pipes too, and write files so that nobody ever sees a part of one.

To write, a temporary file in the same folder takes the place of the old one; this is the only place that does so. Ctrl-C, SIGTERM and errors delete the temporary file; after ``kill -9`` it stays, and is deleted
when a file is written into that folder a day later.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from hwcalc.errors import KvplanError, UnwritableFileError, UsageError
from hwcalc.text import shell_word, shown
from hwcalc.unfinished import Unfinished

if TYPE_CHECKING:
    from pathlib import Path


SUFFIX: Final = ".kvplan.tmp"
"""The end of a temporary file's name."""
_STALE: Final = 24 * 3600
"""Seconds after which nobody writes to a temporary file any more."""
_DESCRIPTORS: Final = ("/dev/fd/", "/dev/std", "/proc/")

_MARKS: Final = {BOM_UTF8: "utf-8", BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}

_PIPE_SECONDS: Final = 5.0
"""How long a pipe may be without anybody at its other end."""
_LOOK_SECONDS: Final = 0.02
"""Time between two looks for somebody who reads a pipe: no call waits for one and also ends."""


def mark_of(data: bytes) -> tuple[bytes, str]:
    """The mark of an encoding that a text begins with, and that encoding: UTF-8 where there is none."""
    return next(((mark, encoding) for mark, encoding in _MARKS.items() if data.startswith(mark)), (b"", "utf-8"))


def decoded(data: bytes, errors: str = "strict") -> str:
    """The text of these bytes, by the mark that they begin with and without it. Raises :class:`UnicodeDecodeError` unless ``errors`` says otherwise."""
    mark, encoding = mark_of(data)
    return data[len(mark) :].decode(encoding, errors)


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file to read, which may be a pipe, as ``<(command)`` is. Raises :class:`OSError`, also for a pipe that nobody writes to."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            _await_writer(handle)
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def standard_input(hint: str) -> Any:
    """Standard input as a stream of bytes, or of text where a program has put another in its place.

    Raises :class:`~hwcalc.errors.UsageError` with the hint if nothing is piped in.
    """
    stream: Any = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        what = "closed" if stream is None or stream.closed else "a terminal"
        raise UsageError(f"standard input is {what}.", hint=hint)
    return getattr(stream, "buffer", stream)


def _await_writer(handle: int) -> None:
    """Wait until somebody writes to a pipe, or has written."""
    import select

    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    if not waiting.poll(_PIPE_SECONDS * 1000):
        with suppress(BlockingIOError):  # somebody has it open, and writes later
            if not os.read(handle, 1):
                raise BrokenPipeError(32, "nobody writes to this pipe")


def _open_special(name: str) -> IO[bytes]:
    """A device or a pipe to write. Raises :class:`OSError`, also for a pipe that nobody reads."""
    if not stat.S_ISFIFO(os.stat(name).st_mode):
        return open(name, "wb")
    end = time.monotonic() + _PIPE_SECONDS
    while True:
        try:
            handle = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() > end:
            raise OSError(errno.ENXIO, "nobody reads this pipe")
        time.sleep(_LOOK_SECONDS)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, and its folder if that is missing. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replaced(str(path)) as file:
        file.write(data)


def write_file(
    name: str, data: bytes, option: str, *, read: Iterable[str] = (), below: bool = False, keeps_mode: bool = False
) -> None:
    """Write a file as :func:`whole_file` does."""
    with whole_file(name, option, read=read, below=below, keeps_mode=keeps_mode) as file:
        file.write(data)


@contextmanager
def whole_file(
    name: str, option: str, *, read: Iterable[str] = (), below: bool = False, keeps_mode: bool = False
) -> Iterator[IO[bytes]]:
    """An open file for the bytes of ``name``. ``option`` is the option that named it.

    A regular file is a temporary file until the end of the block, which replaces ``name``; if the block fails it is deleted. Two writers
    at once do not meet: the last one wins. A link stays one, and :func:`place_of` says where one may lead to. A device or a pipe is
    written directly. None of the files ``read`` is replaced. A new file can be run if the old one could and ``keeps_mode`` is set. Raises :class:`~hwcalc.errors.UnwritableFileError` if anything cannot be
    written.
    """
    place = place_of(name, option, below=below)
    if any(_is_same_file(name, other) for other in read):
        raise UsageError(f"{option} {shown(name)} is a file that is read.", hint=f"Name another file: {option} FILE")
    try:
        # A device, a pipe, or a descriptor such as /dev/stdout, whatever is behind it, cannot be replaced by another file.
        special = os.path.abspath(name).startswith(_DESCRIPTORS)
        with suppress(OSError):
            mode = os.stat(name).st_mode
            special = special or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        with _open_special(name) if special else _replaced(place, keeps_mode=keeps_mode) as file:
            yield file
    except KvplanError:
        raise
    except OSError as error:
        raise UnwritableFileError(
            f"{option} {shown(name)} cannot be written: {error.strerror or error}.",
            hint="Check the folder, the free space, and who may write there.",
        ) from error


def _is_same_file(name: str, other: str) -> bool:
    with suppress(OSError, ValueError):  # one of them is not there, or no name of a file
        return os.path.isfile(name) and os.path.samefile(name, other)
    return False


def place_of(name: str, option: str, *, below: bool = False) -> str:
    """The path that is written for ``name``: where its links end.

    Somebody else's folder, such as a checkout, may have a link to any file of the user under a name that is written. So a link that
    leads out of its own folder is refused, with ``below`` also folders of a relative name that are links out of the working folder.
    """
    if not name or "\0" in name:
        raise UsageError(f"{option} {shown(name)} names no file.", hint=f"Write: {option} FILE")
    given = os.path.abspath(name)
    if given.startswith(_DESCRIPTORS):
        return given
    place = os.path.realpath(name)
    home = os.path.realpath(os.path.dirname(given))
    if below and not os.path.isabs(name):
        here = os.path.realpath(os.curdir)
        home = os.path.commonpath([here, os.path.normpath(os.path.join(here, name))])
    if os.path.islink(place):
        message = f"{option} {shown(name)} cannot be written: its links lead in a circle."
        raise UnwritableFileError(message, hint="Delete the link, or name another file.")
    if os.path.commonpath([home, place]) != home:
        message = f"{option} {shown(name)} cannot be written: a link leads out of {'the working' if below else 'its'} folder, to {shown(place)}."
        raise UnwritableFileError(message, hint=f"If that is meant: {option} {shell_word(place)}")
    return place


@contextmanager
def _replaced(path: str, *, keeps_mode: bool = False) -> Iterator[IO[bytes]]:
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        # A new file could take its place all the same.
        raise PermissionError(13, "it is write-protected")
    folder, base = os.path.split(path)
    temporary = os.path.join(folder, f".{base[:40]}.{os.urandom(8).hex()}{SUFFIX}")

    def delete(_status: int = 0) -> None:
        with suppress(OSError):
            os.unlink(temporary)

    # Before the file is there: a signal may come between its creation and the next line.
    with Unfinished(delete):
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                # Who may read the old file may read the new one, and nobody else. Nobody may run it, unless it is the same program.
                with suppress(OSError):
                    os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode) & ~(0 if keeps_mode else 0o111))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            delete()
            raise
    # What killed processes have left in the folder.
    oldest = time.time() - _STALE
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)

"""Read files of other people within bounds: line by line, or whole if they are small enough."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from hwcalc.errors import TraceError
from hwcalc.files import opened
from hwcalc.text import quoted

MOST_LINE_BYTES: Final = 4 * 2**20
"""The longest line. A prompt of a million tokens has 2,000 ids of blocks, which are 20 KB."""
MOST_DOCUMENT_BYTES: Final = 2 * 2**30
"""The largest file that is read whole: a JSON document is one value. ShareGPT has 0.7 GB."""
START_BYTES: Final = 64 * 2**10
"""As much of a file as decides what it is."""
_GZIP: Final = b"\x1f\x8b"


@contextmanager
def open_data(path: str | os.PathLike[str], what: str = "") -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is a gzip file. Raises :class:`~hwcalc.errors.TraceError` for one that cannot be read."""
    import zlib

    name = quoted(os.fspath(path), 60)
    if os.fspath(path) == "-":
        raise TraceError(f"{what}standard input can be read once only.", hint="Write it to a file, and name the file.")
    try:
        with opened(path) as raw:
            mode = os.fstat(raw.fileno()).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "no file"
                raise TraceError(
                    f"{what}{name} is {kind}.", hint="Name a file that can be read again: requests are read as they are used."
                )
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            if packed:
                import gzip

                with gzip.open(raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except IsADirectoryError as error:
        raise TraceError(f"{what}{name} is a folder.", hint="Name a file.") from error
    except FileNotFoundError as error:
        raise TraceError(f"{what}{name} is not there.", hint="Name a trace, or words: kvplan help workload") from error
    except UnicodeEncodeError as error:
        raise TraceError(f"{what}{name} is no path.", hint="Name a trace, or words: kvplan help workload") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TraceError(f"{what}{name} cannot be read: {reason}.") from error


def read_lines(path: str | os.PathLike[str], what: str = "") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, from 1. Raises :class:`~hwcalc.errors.TraceError` for a line that is too long or no text."""
    with open_data(path, what) as data:
        number = 0
        while line := data.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                message = f"{what}{quoted(os.fspath(path), 60)}, line {number:,} has more than {MOST_LINE_BYTES // 2**20} MiB."
                raise TraceError(message, hint="A trace has a line for each request.")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TraceError(f"{what}{quoted(os.fspath(path), 60)}, line {number:,} is no text in UTF-8.") from error
            yield number, text.rstrip("\r\n")


def read_start(path: str | os.PathLike[str]) -> bytes:
    """The first bytes of a file, unpacked."""
    with open_data(path) as data:
        return data.read(START_BYTES)


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file, unpacked. Raises :class:`~hwcalc.errors.TraceError` if they are too many."""
    with open_data(path) as data:
        document = data.read(MOST_DOCUMENT_BYTES + 1)
    if len(document) > MOST_DOCUMENT_BYTES:
        raise TraceError(
            f"{quoted(os.fspath(path), 60)} has more than {MOST_DOCUMENT_BYTES // 2**30} GiB.",
            hint="Write its lengths as CSV or JSONL, which is read line by line.",
        )
    return document

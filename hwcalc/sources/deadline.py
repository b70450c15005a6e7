"""A time limit for work whose own time-outs bound single reads only, and a limit for the memory of compressed answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, TypeVar

__all__ = ["LateError", "before", "timely", "unzipped"]

T = TypeVar("T")

_PIECE: Final = 64 * 1024


class LateError(Exception):
    """The time is over. ``received`` is the number of bytes that came in time."""

    def __init__(self, received: int = 0) -> None:
        super().__init__("late")
        self.received = received


def before(end: float, work: Callable[[], T]) -> T:
    """The result of ``work``, or :class:`LateError` when the monotonic clock reaches ``end``.

    The work runs in a thread of its own, because an HTTP client waits for each piece of the headers anew: a server that sends a line of
    them every few seconds meets every time-out. Late work is left behind. It ends when its server does, and never keeps the program
    from ending.
    """
    results: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            results.put((work(),))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            results.put(error)

    Thread(target=run, name="kvplan-request", daemon=True).start()
    try:
        result = results.get(timeout=max(0.0, end - time.monotonic()))
    except Empty:
        raise LateError from None
    if isinstance(result, BaseException):
        raise result
    return result[0]


def timely(pieces: Iterator[bytes], end: float) -> Iterator[bytes]:
    """The pieces that arrive before ``end``. Raises :class:`LateError` at the first one that does not."""
    received = 0
    for piece in pieces:
        yield piece
        received += len(piece)
        if time.monotonic() > end:
            raise LateError(received)


def unzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip pieces, never more than 64 KiB at once: a short answer can unpack to gigabytes."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    for piece in pieces:
        rest, more = piece, True
        while more and not decoder.eof:
            content = decoder.decompress(rest, _PIECE)
            rest = decoder.unconsumed_tail
            more = bool(rest) or len(content) == _PIECE
            if content:
                yield content

"""The bytes of a file from front to back, a piece at a time. What is skipped is not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["FIRST", "LARGEST_HEADER", "EndsError", "Window"]

FIRST: Final = 256 * 1024
"""Bytes of the first piece. Each piece is twice as long as the one before, up to :data:`_LONGEST`."""

LARGEST_HEADER: Final = 128 * 1024**2
"""Most bytes of a header. Those of models with 260,000 tokens have up to 16 MiB."""

_LONGEST: Final = 8 * 1024**2


class EndsError(Exception):
    """The file has too few bytes for what stands in it, or its header takes more than :data:`LARGEST_HEADER`."""

    def __init__(self, wanted: int, left: int) -> None:
        super().__init__("ends")
        self.wanted = wanted
        self.left = left


class Window:
    """A position in a file. ``data[position]`` is the next byte.

    ``read(first, end)`` gives the bytes from ``first`` up to ``end``, fewer where the file ends. ``size`` is that of the whole file, if
    it is known; ``start`` is what was read of it before.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int | None, first: int = FIRST, start: bytes = b"") -> None:
        self.data = start
        self.position = 0
        self.size = size
        self._read = read
        self._start = 0
        self._piece = first
        self._ended = False

    @property
    def offset(self) -> int:
        """The position in the file."""
        return self._start + self.position

    def ahead(self, count: int) -> int:
        """Read so many bytes ahead, as far as the file has them. Returns how many there are, which may be more."""
        while (there := len(self.data) - self.position) < count and not self._ended:
            end = self._start + len(self.data)
            if end + count > LARGEST_HEADER:
                raise EndsError(count, LARGEST_HEADER - self.offset)
            more = self._read(end, end + max(count - there, self._piece))
            self._piece = min(2 * self._piece, _LONGEST)
            self._start = self.offset
            self.data = self.data[self.position :] + more
            self.position = 0
            self._ended = not more
        return there

    def need(self, count: int) -> None:
        """Read so many bytes ahead. Raises :class:`EndsError` if the file ends before."""
        there = len(self.data) - self.position
        if there < count and (there := self.ahead(count)) < count:
            raise EndsError(count, there)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.need(count)
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def skip(self, count: int) -> None:
        """Step over bytes. Where the size of the file is not known, they are only missed at the next one that is read."""
        self.must_have(count)
        self.position += count
        beyond = self.position - len(self.data)
        if beyond > 0:
            self._start += self.position
            self.data = b""
            self.position = 0

    def must_have(self, count: int) -> None:
        """Raise :class:`EndsError` unless the file can hold so many more bytes."""
        most = LARGEST_HEADER if self.size is None else min(self.size, LARGEST_HEADER)
        if count > most - self.offset:
            raise EndsError(count, most - self.offset)

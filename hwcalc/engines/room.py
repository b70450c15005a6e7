"""What decides whether requests fit, of one family: the blocks that a request takes at each length, and those that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from hwcalc.formulas.record import Record

__all__ = ["Counts", "Room"]


class Counts(Protocol):
    """The blocks of one request as a function of its length."""

    def at(self, length: int, /) -> int:
        """Blocks of a request of so many tokens; a longer one takes no fewer."""
        ...

    def longest(self, blocks: int, bound: int, /) -> int:
        """The longest request, up to ``bound`` tokens, that takes no more than so many blocks; 0 if none does."""
        ...


class Room(Record):
    """The room for requests of ``least_tokens`` or more, in blocks of ``block_bytes``; without ``block_bytes`` the model has no cache.

    A data-parallel replica has so many ``schedulers``. At most ``most_requests`` run at once.
    """

    counts: Counts
    block_bytes: int
    given: Callable[[], Mapping[str, int]]
    """Works out :attr:`bytes`."""
    blocks_in: Callable[[int], int]
    """The blocks of each scheduler in so many bytes of each GPU."""
    most_bytes: Mapping[str, int] | None
    """:attr:`bytes` are no more than these, and a cache that holds takes no more of them; ``None`` if only the budget itself tells."""
    least_tokens: int
    most_requests: int
    dp: int = 1
    schedulers: int = 1

    @cached_property
    def bytes(self) -> Mapping[str, int]:
        """Bytes of each GPU for the cache, by the end of the budget: low, expected and high."""
        return self.given()

    @cached_property
    def blocks(self) -> Mapping[str, int]:
        """Blocks of each scheduler for the cache, by the end of the budget."""
        return {end: self.blocks_in(size) if self.block_bytes else 0 for end, size in self.bytes.items()}

    def needed_bytes(self, tokens: int, requests: int) -> int:
        """Bytes of the cache on the fullest GPU."""
        return -(-requests // self.dp) * self.counts.at(tokens) * self.block_bytes

    def holds(self, tokens: int, requests: int, end: str) -> bool:
        """Whether so many requests of so many tokens fit at this end of the budget."""
        if requests > self.most_requests:
            return False
        # Most changes that are tried lack far too much: weights and cache alone say so, without the rest of the budget.
        if self.most_bytes is not None and self.needed_bytes(tokens, requests) > self.most_bytes[end]:
            return False
        if self.bytes[end] < 0:
            return False
        if not self.block_bytes:
            return True
        return -(-requests // (self.dp * self.schedulers)) * self.counts.at(tokens) <= self.blocks[end]

    def most(self, tokens: int, end: str, bound: int) -> int:
        """The most requests of so many tokens, up to ``bound``, that fit at this end of the budget."""
        bound = min(bound, self.most_requests)
        if self.bytes[end] < 0:
            return 0
        if not self.block_bytes:
            return bound
        return min(bound, self.blocks[end] // self.counts.at(tokens) * self.schedulers * self.dp)

    def longest(self, requests: int, end: str, bound: int) -> int | None:
        """The longest of so many requests, up to ``bound`` tokens; 0 if none fits, and ``None`` if it is shorter than ``least_tokens``."""
        if requests > self.most_requests:
            return 0
        each = self.blocks[end] // -(-requests // (self.dp * self.schedulers)) if self.bytes[end] >= 0 else -1
        found = bound if not self.block_bytes and each >= 0 else self.counts.longest(each, bound)
        return found if found >= self.least_tokens or self.least_tokens == 1 else None

"""What decides whether requests fit, of one family: the blocks that a request takes at each length, and those that there are."""

from __future__ import annotations

from collections.abc import Mapping

from hwcalc.formulas.hints import Protocol
from hwcalc.formulas.named import NamedTuple

__all__ = ["Counts", "Room"]


class Counts(Protocol):
    """The blocks of one request as a function of its length."""

    def at(self, length: int, /) -> int:
        """Blocks of a request of so many tokens; a longer one takes no fewer."""
        ...

    def longest(self, blocks: int, bound: int, /) -> int:
        """The longest request, up to ``bound`` tokens, that takes no more than so many blocks; 0 if none does."""
        ...


class Room(NamedTuple):
    """The room for requests of ``least_tokens`` or more, in blocks of ``block_bytes``; without ``block_bytes`` the model has no cache.

    ``bytes`` of each GPU and ``blocks`` of each scheduler are there for the cache, by the end of the budget: low, expected and high.
    A data-parallel replica has so many ``schedulers``. At most ``most_requests`` run at once.
    """

    counts: Counts
    block_bytes: int
    bytes: Mapping[str, int]
    blocks: Mapping[str, int]
    least_tokens: int
    most_requests: int
    dp: int = 1
    schedulers: int = 1

    def needed_bytes(self, tokens: int, requests: int) -> int:
        """Bytes of the cache on the fullest GPU."""
        return -(-requests // self.dp) * self.counts.at(tokens) * self.block_bytes

    def holds(self, tokens: int, requests: int, end: str) -> bool:
        """Whether so many requests of so many tokens fit at this end of the budget."""
        if requests > self.most_requests or self.bytes[end] < 0:
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

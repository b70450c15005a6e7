"""Changes of a request that are tried: whether a request fits with them is mostly known of its family, before it is opened at its size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwcalc.engines.base import Opened
from hwcalc.engines.families import tried_at
from hwcalc.planner import solve

if TYPE_CHECKING:
    from hwcalc.engines.room import Room

__all__ = ["Tried"]


class Tried:
    """A request with a change that the engine accepts. Its answers are those of the solvers, and raise the same errors.

    ``alike`` is the request, perhaps at another length and batch.
    """

    def __init__(self, alike: Opened, tokens: int, batch: int) -> None:
        self.alike = alike
        self.tokens = tokens
        self.batch = batch

    @classmethod
    def of(cls, opened: Opened, change: Mapping[str, Any]) -> Tried | None:
        """``None`` if the engine refuses the change."""
        alike, sizes = tried_at(opened, change)
        if alike is None:
            return None
        return cls(alike, *(sizes or (alike.request.seq, alike.request.batch)))

    @cached_property
    def opened(self) -> Opened:
        """The request at its size."""
        return self.alike.sized(seq=self.tokens, batch=self.batch)

    @cached_property
    def _room(self) -> Room | None:
        room = self.alike.engine.room(self.alike)
        return None if room is None or self.tokens < room.least_tokens else room

    def holds(self, end: str = "expected") -> bool:
        """As :func:`~hwcalc.planner.solve.holds`."""
        return solve.holds(self.opened, end) if self._room is None else self._room.holds(self.tokens, self.batch, end)

    def beyond(self, more: tuple[int, int]) -> bool:
        """Whether it does not hold even with so many more bytes for the cache, at the low end of the budget and by the expected value."""
        if self._room is None:
            return False
        low, expected = (self._room.bytes[end] + size for end, size in zip(("low", "expected"), more, strict=True))
        return self._needed_bytes > max(low, expected)

    def saves(self, than: Tried, end: str) -> bool:
        """Whether the cache takes less than with another change, or has more memory at this end of the budget."""
        if self._room is not None and than._room is not None and self._needed_bytes < than._needed_bytes:
            return True
        given, needed = self.given_and_needed(end)
        before, needed_before = than.given_and_needed(end)
        return given > before or needed < needed_before

    @cached_property
    def _needed_bytes(self) -> int:
        """What the planned sequences take, where there is a room for them."""
        assert self._room is not None
        return self._room.needed_bytes(self.tokens, self.batch)

    def given_and_needed(self, end: str) -> tuple[int, int]:
        """As :func:`~hwcalc.planner.solve.given_and_needed`."""
        if self._room is None:
            return solve.given_and_needed(self.opened, end)
        return self._room.bytes[end], self._needed_bytes

"""Requests that decode, counted: all take a token in every step, so that nobody looks at each of them in each step."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar


class State(IntEnum):
    """The state of a request."""

    WAITING = 0
    PREFILL = 1
    """It has tokens that are known and not computed, or they have just been."""
    DECODE = 2
    ENDING = 3
    """Its last token is under way, where a step is planned before the one before it has ended."""
    FINISHED = 4
    LOADING = 5
    """The cache of its prompt comes from another server, or has just come."""


class Numbered(Protocol):
    """A request in a scheduler."""

    number: int


Live = TypeVar("Live", bound=Numbered)


class Decoding(Generic[Live]):
    """The sums of requests that decode, and who of them is looked at in which step.

    ``steps`` counts the steps that were planned, in each of which all take a token. What one has stored is its ``offset`` and that count. A
    page of ``page`` tokens is taken by those whose stored tokens fill their pages: as many as have an offset with the same rest.
    """

    def __init__(self, page: int) -> None:
        self.page = page
        self.steps = 0
        self.count = 0
        """Requests that decode."""
        self._offsets = 0
        """The sum of their offsets."""
        self._rests = Counter[int]()
        """The number of those whose pages are counted, by the rest of their offset."""
        self._due: dict[int, dict[int, Live]] = {}
        """A step -> those who are looked at with it, by their numbers. Some may have left since, or have come back for the same step."""
        self._due_steps: list[int] = []

    @property
    def tokens(self) -> int:
        """Tokens that all have stored."""
        return self._offsets + self.count * self.steps

    def enter(self, offset: int, *, pages: bool = True) -> None:
        """A request begins to decode. ``pages`` says whether those that it takes are counted here."""
        self.count += 1
        self._offsets += offset
        if pages:
            self._rests[offset % self.page] += 1

    def leave(self, offset: int, *, pages: bool = True) -> None:
        """A request decodes no longer."""
        self.count -= 1
        self._offsets -= offset
        if pages:
            self._rests[offset % self.page] -= 1

    def takes_page(self, offset: int) -> bool:
        """True if a request takes a page with the next step."""
        return (offset + self.steps) % self.page == 0

    def pages_next(self) -> int:
        """Pages that the next step takes, of those that are counted."""
        return self._rests[-self.steps % self.page]

    def look_at(self, live: Live, step: int) -> None:
        """Look at a request with a step."""
        due = self._due.get(step)
        if due is None:
            due = self._due[step] = {}
            heappush(self._due_steps, step)
        due[live.number] = live

    def due(self, step: int) -> list[Live]:
        """Those who are looked at with a step."""
        due = self._due.get(step)
        return [] if due is None else list(due.values())

    def pass_by(self, step: int) -> None:
        """Nobody is looked at with this step any more."""
        self._due.pop(step, None)

    def next_due(self) -> int:
        """The first step from now on with which somebody may be looked at; the next one if nobody is."""
        steps = self._due_steps
        while steps and steps[0] < self.steps:
            heappop(steps)
        return steps[0] if steps else self.steps

"""The running batch: those that decode.

All of them take a token in every decode, so they are counted: ``steps`` counts the decodes, and what a request has stored is its offset and
that count. A request is looked at only with the step that computes its last token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from hwcalc.replay.sglang.live import Live, State


class Running:
    """Requests that decode, in their order."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.steps = 0
        """Decode steps that were planned."""
        self._requests: dict[int, Live] = {}
        self._offsets = 0
        """The sum of the offsets of all that decode."""
        self._residues: Counter[int] = Counter()
        """How many have an offset with this rest of a page."""
        self._finishing: dict[int, dict[int, Live]] = {}
        """A step -> those that have their last token with it, by number. One that was retracted may have come back for the same."""
        self._finish_steps: list[int] = []
        self._places = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._requests.values())

    def __contains__(self, live: Live) -> bool:
        return live.number in self._requests

    @property
    def tokens(self) -> int:
        """Tokens that all have stored."""
        return self._offsets + len(self) * self.steps

    def stored(self, live: Live) -> int:
        """Tokens that one of them has stored."""
        return live.offset + self.steps

    def line_up(self, requests: Iterable[Live]) -> None:
        """Put requests at the end of the order."""
        for live in requests:
            self._requests[live.number] = live
            live.place = self._places
            self._places += 1

    def step_aside(self) -> None:
        """Take all out of the order, until they line up again."""
        self._requests = {}

    def begin(self, live: Live) -> None:
        """A request whose prompt is computed decodes from now on."""
        live.state = State.RUNNING
        live.since = self.steps
        live.offset = live.stored - self.steps
        self._offsets += live.offset
        self._residues[live.offset % self.page] += 1
        step = live.output + live.prompt - 1 - live.offset
        live.finish_step = step if step > self.steps else -1
        if live.finish_step < 0:
            # The result of its prompt is its last token.
            return
        bucket = self._finishing.get(step)
        if bucket is None:
            bucket = self._finishing[step] = {}
            heappush(self._finish_steps, step)
        bucket[live.number] = live

    def stop(self, live: Live, state: State) -> None:
        """A request decodes no longer."""
        live.stored = self.stored(live)
        self._requests.pop(live.number, None)
        self._offsets -= live.offset
        self._residues[live.offset % self.page] -= 1
        live.state = state

    def pages_next(self) -> int:
        """Tokens in the pages that the next decode takes."""
        return len(self) if self.page == 1 else self.page * self._residues[-self.steps % self.page]

    def foreseen(self, step: int) -> list[Live]:
        """Those that have their last token with a step, unless they were retracted since, in their order."""
        bucket = self._finishing.get(step)
        if bucket is None:
            return []
        alive = (State.RUNNING, State.ENDING)
        return sorted([live for live in bucket.values() if live.finish_step == step and live.state in alive], key=_place)

    def due(self, step: int) -> list[Live]:
        """The same, when the results of the step are there."""
        requests = self.foreseen(step)
        self._finishing.pop(step, None)
        return requests

    def next_finish(self) -> int:
        """The first step from now on with which somebody may have his last token; the last one that was planned if nobody is foreseen."""
        steps = self._finish_steps
        while steps and steps[0] < self.steps:
            heappop(steps)
        return steps[0] if steps else self.steps


def _place(live: Live) -> int:
    return live.place

"""A request in vLLM's scheduler, a batch, and the queues of those who wait."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwcalc.replay.decoding import State
from hwcalc.replay.vllm.cache import Held

if TYPE_CHECKING:
    from hwcalc.replay.content import Content
    from hwcalc.workload.request import Request


class Live(Held):
    """A request that has arrived and not finished."""

    __slots__ = (
        "chunk",
        "chunk_at",
        "counted",
        "event_at",
        "forced",
        "hit",
        "idle_at",
        "last",
        "number",
        "offset",
        "order",
        "preemptions",
        "priority",
        "remote",
        "seq",
        "state",
        "unforeseen",
    )

    def __init__(self, content: Content, request: Request, order: int, last: int, *, unforeseen: bool) -> None:
        super().__init__(content, request.prompt_tokens)
        self.number = request.number
        self.priority = request.priority or 0
        self.order = order
        """Its place in the order of arrival."""
        self.seq = -1
        """Its place in the order of admission."""
        self.state = State.WAITING
        self.last = last
        """The tokens that are computed when its last token is sampled."""
        self.unforeseen = unforeseen
        """Whether it stops before the most tokens that it may have, so that the scheduler learns of its end from its last token."""
        self.remote = False
        """Whether another server has computed its prompt, whose cache is still there."""
        self.preemptions = 0
        self.hit = 0
        """Tokens that it found when it was first admitted."""
        self.offset = 0
        """While it decodes: its computed tokens less the scheduler's count of steps."""
        self.counted = False
        """Whether the blocks that it takes while it decodes are counted, so that its table is behind."""
        self.event_at = -1
        """The step, by that count, in which it is looked at next."""
        self.forced = 0
        """In how many steps from then on it is looked at whatever happens."""
        self.chunk = 0
        self.chunk_at = -2
        """The tokens of its last chunk of a prompt, and the iteration in which it was scheduled."""
        self.idle_at = -2
        """The last iteration in which it decoded and got no token."""


class Batch:
    """What was scheduled in a step, as far as its results matter."""

    __slots__ = ("ending", "firsts", "sampled")

    def __init__(self) -> None:
        self.firsts: list[Live] = []
        """Requests that have got their first token."""
        self.ending: list[Live] = []
        """Requests that have got their last token."""
        self.sampled = False


class Queue:
    """Those who wait, first come first served; who is preempted comes first."""

    def __init__(self) -> None:
        self._waiting: deque[Live] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._waiting)

    @property
    def first(self) -> Live:
        """Who is next."""
        return self._waiting[0]

    def add(self, live: Live) -> None:
        """A request arrives."""
        self._waiting.append(live)

    def put_back(self, live: Live) -> None:
        """A request is preempted."""
        self._waiting.appendleft(live)

    def take(self) -> Live:
        """The next one is admitted."""
        return self._waiting.popleft()

    def remove(self, live: Live) -> None:
        """A request waits no longer."""
        self._waiting.remove(live)


class PriorityQueue(Queue):
    """Those who wait, the most urgent first, and of equals the one that arrived first. Kept in reverse, so that the first is at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[Live] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._sorted)

    @property
    def first(self) -> Live:
        return self._sorted[-1]

    def add(self, live: Live) -> None:
        insort(self._sorted, live, key=_least_urgent_first)

    def put_back(self, live: Live) -> None:
        self.add(live)

    def take(self) -> Live:
        return self._sorted.pop()

    def remove(self, live: Live) -> None:
        self._sorted.remove(live)


def _least_urgent_first(live: Live) -> tuple[int, int]:
    return -live.priority, -live.order

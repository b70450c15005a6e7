"""A replay: a clock that brings requests to an engine's scheduler, lets it take its steps, and keeps what it did.

To add an engine, write a subclass of :class:`Scheduler` in a package of this room (``vllm`` is one) with the engine's own rules:

1. ``add`` takes a request at the moment it arrives; its ``content`` names what is in its blocks (:mod:`hwcalc.replay.content`);
2. ``step`` is one turn of the engine's loop: it plans a batch, notes it with ``self.log.step(...)``, and gives out what came back with
   ``self.log.first(...)``, ``self.log.finish(...)``. It may take several turns at once in which nothing but decoding happens;
3. ``idle`` says whether nothing is left to do, so that the clock may go on to the next arrival;
4. :mod:`hwcalc.replay.simulate` makes it from the engine's deployment.

Everything else (arrivals, turns of a conversation, the clock in steps or seconds, rows, totals, quantiles) is the same for all engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from hwcalc.workload.request import Request

STALLS_AFTER: Final = 50
"""Turns without any progress after which nothing will ever happen again."""
UNBOUNDED: Final = 2**62
StepRow = tuple[int, ...]
RequestRow = tuple[int | None, int | None, int | None, int | None, int]


class Log:
    """What happened: a row for each step, and one for each request.

    A step is ``columns`` of numbers, the first of which is the turn of the loop, from 0. A request is the turn in which it was first
    scheduled, in which its first token came back, in which it finished, the tokens found in the prefix cache, and how often it was preempted.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.numbers = array("q")
        self.scheduled: list[int | None] = []
        self.firsts: list[int | None] = []
        self.finishes: list[int | None] = []
        self.hits: list[int | None] = []
        self.preempted: list[int] = []
        self.preemptions: list[tuple[int, int, int]] = []
        """The turn, the request, and its computed tokens."""
        self.refused: list[int] = []
        """Requests that the engine does not take: they are too long for it."""
        self.finished_now: list[int] = []
        """Requests that finished since the clock looked last."""

    def open(self, number: int) -> None:
        """Make room for requests up to this one."""
        more = number + 1 - len(self.scheduled)
        if more > 0:
            for rows in (self.scheduled, self.firsts, self.finishes, self.hits):
                rows.extend([None] * more)
            self.preempted.extend([0] * more)

    def finish(self, number: int, turn: int) -> None:
        """A request has all its output."""
        self.finishes[number] = turn
        self.finished_now.append(number)

    def refuse(self, number: int) -> None:
        """A request is not taken."""
        self.refused.append(number)
        self.finished_now.append(number)

    @property
    def steps(self) -> Iterator[StepRow]:
        """The rows of the steps."""
        width = len(self.columns)
        return zip(*[iter(self.numbers)] * width, strict=True)

    @property
    def step_count(self) -> int:
        """How many steps there were."""
        return len(self.numbers) // len(self.columns)

    @property
    def requests(self) -> list[RequestRow]:
        """The rows of the requests."""
        return list(zip(self.scheduled, self.firsts, self.finishes, self.hits, self.preempted, strict=True))


class StepLoad(Struct):
    """What a step computes, for whoever says how long it takes."""

    decode_requests: int = 0
    decode_tokens: int = 0
    """Tokens that its decoding requests have stored, all together."""
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """Pairs of a token of a prompt that is computed and a token that it attends to, the model's windows left aside."""
    prefill_requests: int = 0


class Scheduler(ABC):
    """An engine's scheduler with its memory."""

    lag: int = 0
    """How many turns after a batch was scheduled its results are looked at."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.log = Log(columns)
        self.load = StepLoad()
        """Of the last step."""
        self.progressed = False
        """Whether the last turn scheduled anything or gave anything out."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether no request is left and no batch is under way."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Take a request that arrives now."""

    @abstractmethod
    def step(self, turn: int, most: int) -> int:
        """Take turn ``turn``, and perhaps more like it, but at most ``most``; returns how many."""

    def cancel(self, number: int) -> None:
        """Forget a request whose user has given up."""
        raise NotImplementedError

    @abstractmethod
    def totals(self) -> dict[str, Any]:
        """What the engine counts, by the engine's words."""


class Clock:
    """When everything happened."""

    def __init__(self, *, timed: bool) -> None:
        self.turns = 0
        """Turns of the loop that were taken."""
        self.stalled = False
        """Whether requests are left that the engine will never serve."""
        self.ends: array[float] | None = array("d") if timed else None
        """The second at which the step of each turn ended, where steps take time."""
        self.arrivals: array[float] = array("d")
        """When each request was sent, by its number."""


def replay(
    scheduler: Scheduler,
    requests: Iterable[Request],
    *,
    seconds: Callable[[StepLoad], float] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Clock:
    """Bring the requests to a scheduler until all have finished, or it stalls.

    Without ``seconds`` the clock counts turns, and a request arrives before the turn ``arrival_s``. With it, every step takes as long as
    it says. A turn in which nothing is left to do takes no time: the clock goes on to the next arrival. ``watch`` is called with the
    number of finished requests now and then.
    """
    timed = seconds is not None
    clock = Clock(timed=timed)
    turn, now, before, quiet, done = 0, 0.0, 0.0, 0, 0
    log = scheduler.log

    def finished_at(number: int) -> float | None:
        finish = log.finishes[number] if number < len(log.finishes) else None
        return finish if finish is None or clock.ends is None else clock.ends[finish]

    queue = _Arrivals(requests, clock, finished_at)
    while True:
        due = queue.next_time
        if scheduler.idle:
            if due is None:
                break
            if not timed:
                turn = max(turn, ceil(due))
            else:
                now = before = max(now, due)
        # A batch is planned while the one before it runs, where results are looked at a turn late.
        at = (before if scheduler.lag else now) if timed else turn
        for request in queue.until(at):
            log.open(request.number)
            scheduler.add(request)
        most = 1
        if not timed:
            due = queue.next_time
            most = UNBOUNDED if due is None else max(1, ceil(due) - turn)
        taken = scheduler.step(turn, most)
        clock.turns += taken
        if seconds is not None and clock.ends is not None:
            before, now = (
                now,
                now + (seconds(scheduler.load) if scheduler.load.decode_requests or scheduler.load.prefill_tokens else 0.0),
            )
            clock.ends.append(now)
        if log.finished_now:
            done += len(log.finished_now)
            for number in log.finished_now:
                queue.finished(number, now if timed else turn + taken)
            log.finished_now.clear()
            if watch is not None:
                watch(done)
        quiet = 0 if scheduler.progressed else quiet + taken
        if quiet > STALLS_AFTER:
            clock.stalled = True
            break
        turn += taken
    return clock


class _Arrivals:
    """The requests in the order in which they arrive; turns of a conversation when the turn before has finished."""

    def __init__(self, requests: Iterable[Request], clock: Clock, finished_at: Callable[[int], float | None]) -> None:
        self._requests = iter(requests)
        self._clock = clock
        self._finished_at = finished_at
        self._next: Request | None = None
        self._waiting: dict[int, list[Request]] = {}
        """A request -> those that are sent when it has finished."""
        self._later: list[tuple[float, int, Request]] = []
        self._advance()

    @property
    def next_time(self) -> float | None:
        """When the next request arrives, as far as that is known."""
        times = [self._later[0][0]] if self._later else []
        if self._next is not None:
            times.append(self._next.arrival_s)
        return min(times, default=None)

    def until(self, now: float) -> Iterator[Request]:
        """The requests that have arrived by now."""
        while True:
            first = self._next
            if self._later and self._later[0][0] <= now and (first is None or self._later[0][0] < first.arrival_s):
                time, _, request = heappop(self._later)
            elif first is not None and first.arrival_s <= now:
                time, request = first.arrival_s, first
                self._advance()
            else:
                return
            self._note(request.number, time)
            yield request

    def finished(self, number: int, now: float) -> None:
        """Send the turns that wait for a request."""
        for request in self._waiting.pop(number, ()):
            self._send_after(request, now)

    def _note(self, number: int, time: float) -> None:
        arrivals = self._clock.arrivals
        if number >= len(arrivals):
            arrivals.extend([0.0] * (number + 1 - len(arrivals)))
        arrivals[number] = time

    def _advance(self) -> None:
        """Go on to the next request that does not wait for another, and set those aside that do."""
        for request in self._requests:
            if request.after is None:
                self._next = request
                return
            finished = self._finished_at(request.after)
            if finished is None:
                self._waiting.setdefault(request.after, []).append(request)
            else:
                self._send_after(request, finished)
        self._next = None

    def _send_after(self, request: Request, finished: float) -> None:
        heappush(self._later, (max(request.arrival_s, finished + request.wait_s), request.number, request))

"""A replay: a clock that brings requests to the schedulers of servers, lets them take their steps, and keeps what they did.

To add an engine, write a subclass of :class:`Scheduler` in a package of this room (``vllm`` is one) with the engine's own rules:

1. ``add`` takes a request at the moment it arrives; :mod:`hwcalc.replay.content` names what is in its blocks;
2. ``step`` is one turn of the engine's loop: it plans a batch, notes it as a row of ``self.steps``, and gives out what came back with
   ``self.requests.firsts[number] = turn`` and ``self.requests.finish(number, turn, tokens)``. It may take several turns at once in which
   nothing but decoding happens, where ``steps_alike`` says so (:mod:`hwcalc.replay.decoding` counts them);
3. ``idle`` says whether nothing is left to do, so that the clock may go on to the next arrival;
4. ``load`` is what the last step computed, for whoever says how long it takes;
5. a module ``settings`` makes it from the engine's deployment (``maker``), with the ``OPTIONS`` that bear on it alone and ``remarks`` on what
   is assumed. The engine's class names that module: ``scheduler``.

Everything else (arrivals, turns of a conversation, several servers, the clock in steps or seconds, rows, quantiles) is the same for all
engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from math import ceil, inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.workload.request import Segment

if TYPE_CHECKING:
    from hwcalc.replay.apart import Handover
    from hwcalc.workload.request import Request

STALLS_AFTER: Final = 50
"""Turns without any progress after which nothing will ever happen again."""
UNBOUNDED: Final = 2**62
StepRow = tuple[int | str, ...]
RequestRow = tuple[int | str | None, ...]


class StepLog:
    """A row of numbers for each step that gave out tokens, the first of which is the turn of the loop, from 0."""

    def __init__(self, columns: tuple[str, ...], words: Mapping[str, Sequence[str]] | None = None) -> None:
        self.columns = columns
        self.numbers = array("q")
        self.words = {columns.index(name): values for name, values in (words or {}).items()}
        """The place of a column -> the words that its numbers stand for."""

    def __len__(self) -> int:
        return len(self.numbers) // len(self.columns)

    def __iter__(self) -> Iterator[StepRow]:
        rows: Iterator[StepRow] = zip(*[iter(self.numbers)] * len(self.columns), strict=True)
        if not self.words:
            return rows
        words = self.words
        return (
            tuple([words[place][int(number)] if place in words else number for place, number in enumerate(row)]) for row in rows
        )

    def column(self, name: str) -> array[int]:
        """The numbers of one column."""
        return self.numbers[self.columns.index(name) :: len(self.columns)]


class RequestLog:
    """The course of each request, by its number."""

    def __init__(self) -> None:
        self.scheduled: list[int | None] = []
        """The turn in which it was first scheduled."""
        self.firsts: list[int | None] = []
        """The turn in which its first token came back."""
        self.finishes: list[int | None] = []
        self.hits: list[int | None] = []
        """Tokens that it found in the prefix cache when it was first admitted."""
        self.preempted: list[int] = []
        """The times that it was preempted."""
        self.produced: list[int] = []
        """Output tokens that it had when it ended."""
        self.reasons: list[str | None] = []
        """Why it ended, by the engine's word, where it has one."""
        self.arrivals = array("d")
        self.prompts = array("q")
        self.servers = array("l")
        self.preemptions: list[tuple[int, int, int]] = []
        """The turn of each preemption, the request, and its computed tokens."""
        self.resumed: list[tuple[int, int, int]] = []
        """The requests that went on after a preemption, and the turns that computed their last token before it and their next one."""
        self.refused: list[int] = []
        """Requests that are too long for the engine, and those that failed."""
        self.failed: list[int] = []
        """Requests that the server gave up while it served them."""
        self.cut: list[int] = []
        """Requests of which the allowed length ends the answer early."""
        self.cancelled: list[int] = []
        self.prefixes_known = False
        """True if a request said what its prompt has in common with others."""
        self.gone: list[int] = []
        """Requests that ended since the clock looked last."""

    def __len__(self) -> int:
        return len(self.scheduled)

    def open(self, request: Request, arrival: float, server: int) -> None:
        """Note that a request was sent."""
        more = request.number + 1 - len(self.scheduled)
        if more > 0:
            for rows in (self.scheduled, self.firsts, self.finishes, self.hits):
                rows.extend([None] * more)
            self.preempted.extend([0] * more)
            self.produced.extend([0] * more)
            self.reasons.extend([None] * more)
            self.arrivals.extend([0.0] * more)
            for numbers in (self.prompts, self.servers):
                numbers.extend([0] * more)
        number = request.number
        self.prefixes_known = self.prefixes_known or bool(request.prefix)
        self.arrivals[number], self.servers[number] = arrival, server
        self.prompts[number] = request.prompt_tokens

    def finish(self, number: int, turn: int, produced: int) -> None:
        """A request has all its output, so many tokens."""
        self.finishes[number], self.produced[number] = turn, produced
        self.gone.append(number)

    def refuse(self, number: int) -> None:
        """A request is not taken."""
        self.refused.append(number)
        self.gone.append(number)

    def fail(self, number: int, produced: int) -> None:
        """The server gives up a request after so many tokens. It counts as refused."""
        self.failed.append(number)
        self.produced[number] = produced
        self.refuse(number)

    def cancel(self, number: int, produced: int) -> None:
        """The user of a request has given up after so many tokens."""
        self.cancelled.append(number)
        self.produced[number] = produced
        self.gone.append(number)

    def rows(self, columns: Iterable[str]) -> list[RequestRow]:
        """A row for each request, of these of its lists."""
        return list(zip(*(getattr(self, name) for name in columns), strict=True))


class StepLoad(Struct):
    """The work of a step."""

    decode_requests: int = 0
    decode_tokens: int = 0
    """Tokens that its decoding requests have stored before it, all together."""
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """Pairs of a prompt's token that is computed and a token before it or itself, windows left aside."""
    prefill_ends: int = 0
    """Prompts that are complete after it."""
    paused_requests: int = 0
    """Requests between two tokens that get none in it."""
    passes: int = 1
    """Passes over the model in which all that is computed."""

    def clear(self) -> None:
        """Nothing is computed yet."""
        self.decode_requests = self.decode_tokens = self.paused_requests = 0
        self.prefill_tokens = self.prefill_pairs = self.prefill_ends = 0
        self.passes = 1

    def add_chunk(self, tokens: int, before: int) -> None:
        """So many tokens of a prompt are computed, behind those that are stored."""
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * before + tokens * (tokens + 1) // 2


class Measures(Struct, frozen=True):
    """The names of columns."""

    running: str
    waiting: str
    used: str
    unit: str = "blocks"
    """The unit of the pool."""


class Role(StrEnum):
    """The part of a request that a server does."""

    BOTH = "both"
    PREFILL = "prefill"
    """Prompts alone: the cache of one that is computed is kept until it has moved to another server."""
    DECODE = "decode"
    """Tokens alone: the cache of a prompt comes from another server."""


class Scheduler(ABC):
    """An engine's scheduler with its memory."""

    measures: ClassVar[Measures]
    """The columns of a step for what all engines have."""
    stalls_when: ClassVar[str]
    """Why requests may be left that it will never serve, and what to do, in sentences."""
    fails_when: ClassVar[str] = ""
    """Why it gives up requests that it serves, in a clause, where it does."""
    most_per_step: int = 1
    """The most tokens that a request can gain in a step."""
    lag: int = 0
    """The turns after which the results of a batch are looked at: 0 or 1."""

    request_columns: ClassVar[tuple[str, ...]] = ("scheduled", "firsts", "finishes", "hits", "preempted")
    """The lists of :class:`RequestLog` that are a request's row in the engine's own log."""

    def __init__(
        self, columns: tuple[str, ...], requests: RequestLog | None = None, words: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.steps = StepLog(columns, words)
        self.requests = RequestLog() if requests is None else requests
        self.load = StepLoad()
        """The work of the last step."""
        self.role = Role.BOTH
        self.pulls: list[tuple[int, int]] = []
        """Requests with room for the cache of their prompts, which moves here from now on, and how many tokens of it."""
        self.progressed = False
        """True if the last turn scheduled anything or gave anything out."""
        self.retraction_log: list[tuple[int, list[int], list[int], float]] = []
        """Where an engine takes back requests to make room (SGLang): the turn, those retracted, those aborted, and the share of the tokens
        to come that is reserved from then on."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if no request is left and no batch is under way."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Take a request that arrives now."""

    def steps_alike(self) -> int:
        """The most steps that follow in which all that run decode and nothing else happens, of the first of which ``load`` is then; 0 if it
        is not known.
        """
        return 0

    @abstractmethod
    def step(self, turn: int, most: int) -> int:
        """Take turn ``turn``, and perhaps more that :meth:`steps_alike` has foreseen, but at most ``most``; returns how many."""

    def rest(self) -> None:
        """Nothing was left to do for a while, and a request arrives now."""

    def play(self, role: Role) -> None:
        """Do this part of requests alone. Raises :class:`~hwcalc.errors.UnsupportedError` if its rules for that are not known."""
        raise UnsupportedError(
            "The replay has no rules of this scheduler for prompts and tokens on servers of their own.", hint="Use: --engine vllm"
        )

    def cache_moved(self, number: int) -> None:
        """The cache of a request's prompt has moved here, or from here."""

    @abstractmethod
    def cancel(self, number: int) -> None:
        """Forget a request whose user has given up; nothing happens if it has ended."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The size of its pool, in the unit of the column ``used``."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Its settings by the engine's names, with defaults filled in."""

    @property
    @abstractmethod
    def longest_request(self) -> int:
        """The most tokens that a prompt and its answer may have together."""

    @property
    @abstractmethod
    def refuses_when(self) -> str:
        """The requests that it refuses, as a clause: those that ..."""

    @abstractmethod
    def totals(self, turns: int) -> dict[str, Any]:
        """Sums and peaks after so many turns, by the engine's words; those of several servers are added up, peaks apart."""

    @abstractmethod
    def waiting_tokens(self) -> int:
        """Tokens that are still to be computed of the requests that wait or run, as a measure of its load."""

    @abstractmethod
    def pressure(self) -> tuple[int, int, float]:
        """The requests that run, those that wait, and the share of the pool that is held."""

    @abstractmethod
    def cached_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that its prefix cache holds now."""


Seconds = Callable[[StepLoad], float]
"""The time of a step."""
Router = Callable[["Request", Sequence[Scheduler]], int]
"""The place of the server that a request is sent to."""


class Server:
    """A scheduler and its own time."""

    def __init__(self, scheduler: Scheduler, seconds: Seconds | None) -> None:
        self.scheduler = scheduler
        self.seconds = seconds
        self.turn = 0
        """The next turn of its loop."""
        self.turns = 0
        """Turns that were taken."""
        self.now = self.before = 0.0
        """The ends of its last step, and of the one before it."""
        self.ends = array("d")
        """The end of the step of each turn, where steps take time."""
        self.lengths = array("d")
        """The length of the step of each turn, where steps take time."""
        self.decoded = array("l")
        """The requests that decoded in the step of each turn, where steps take time."""
        self.gaps = array("d")
        """Of each turn in which requests decoded: how long it was since the token before, where steps take time."""
        self._paused = 0.0
        self.quiet = 0
        self.stalled = False
        """True if requests are left that it will never serve."""

    @property
    def plans_at(self) -> float:
        """The time at which it plans its next step: while the one before runs, where results are looked at a turn late."""
        if self.seconds is None:
            return self.turn
        return self.before if self.scheduler.lag else self.now

    @property
    def busy(self) -> bool:
        """True if it has a next step."""
        return not self.scheduler.idle and not self.stalled

    def take(self, request: Request, arrival: float) -> None:
        """Bring it a request."""
        self.wake(arrival)
        self.scheduler.add(request)

    def wake(self, time: float) -> None:
        """Something happens now: if it has had nothing to do, it goes on from here."""
        if not self.scheduler.idle:
            return
        if time > (self.turn if self.seconds is None else self.now):
            self.scheduler.rest()
        if self.seconds is None:
            self.turn = max(self.turn, ceil(time))
        else:
            self.now = self.before = max(self.now, time)

    def step(self, until: float) -> None:
        """Take its next step, and further ones that are alike and planned before ``until``."""
        scheduler, seconds = self.scheduler, self.seconds
        if until <= self.plans_at:
            most = 1
        elif seconds is None:
            most = UNBOUNDED if until == inf else ceil(until) - self.turn
        else:
            most = self._steps_before(until, seconds)
        taken = scheduler.step(self.turn, most)
        self.turn += taken
        self.turns += taken
        if seconds is not None:
            load = scheduler.load
            # It is that of the last step.
            load.decode_tokens -= (taken - 1) * load.decode_requests
            for _ in range(taken):
                self.before = self.now
                length = seconds(load) if load.decode_requests or load.prefill_tokens else 0.0
                self.now += length
                self.ends.append(self.now)
                self.lengths.append(length)
                self.decoded.append(load.decode_requests)
                self.gaps.append(length + self._paused if load.decode_requests else 0.0)
                self._paused = self._paused + length if load.paused_requests and not load.decode_requests else 0.0
                load.decode_tokens += load.decode_requests
        self.quiet = 0 if scheduler.progressed else self.quiet + taken
        if self.quiet > STALLS_AFTER:
            self.stalled = True

    def _steps_before(self, until: float, seconds: Seconds) -> int:
        """The steps that are alike and planned before a time, at least 1."""
        most = self.scheduler.steps_alike()
        if most <= 1:
            return 1
        load, lag, steps, before, now = self.scheduler.load, self.scheduler.lag, 0, self.before, self.now
        while steps < most and (before if lag else now) < until:
            before = now
            now += seconds(load)
            load.decode_tokens += load.decode_requests
            steps += 1
        return steps

    def second_of(self, turn: int) -> float:
        """The second at which what came back in a turn was there."""
        return self.ends[max(0, turn - self.scheduler.lag)]


def replay(
    servers: Sequence[Server],
    requests: Iterable[Request],
    *,
    route: Router | None = None,
    concurrency: int | None = None,
    watch: Callable[[int], None] | None = None,
    handover: Handover | None = None,
) -> RequestLog:
    """Bring the requests to the servers until all have ended, or no server goes on.

    Where steps take no time the clock counts turns, and a request arrives before the turn ``arrival_s``. A server with nothing left to do
    takes no time: it goes on with its next request. ``route`` says which server gets a request. No more than ``concurrency`` requests are with the servers. ``watch`` is called with the number of
    requests that have ended. With ``handover`` the servers are those for tokens, and ``route`` chooses among those for prompts.
    """
    log = servers[0].scheduler.requests
    queue = _Arrivals(requests, log, lambda number: _ended_at(log, servers, number), concurrency)
    first = servers if handover is None else handover.prefill
    every = servers if handover is None else [*handover.prefill, *servers]
    schedulers = [server.scheduler for server in first]
    alone = every[0] if len(every) == 1 else None
    done = 0
    while True:
        if alone is not None:
            server = alone if alone.busy else None
        else:
            server = min([each for each in every if each.busy], key=lambda server: server.plans_at, default=None)
        due = queue.next_time
        if handover is not None:
            due = min([time for time in (due, handover.next_time) if time is not None], default=None)
        if due is not None and (server is None or due <= server.plans_at):
            if server is None and any(each.stalled for each in every):
                break
            if handover is not None:
                handover.until(due)
            for request, arrival, cancelled in queue.until(due):
                if cancelled:
                    (handover or servers[log.servers[request.number]].scheduler).cancel(request.number)
                    continue
                place = 0 if route is None else route(request, schedulers)
                log.open(request, arrival, place if handover is None else 0)
                if handover is None:
                    servers[place].take(request, arrival)
                else:
                    handover.take(request, arrival, place)
        elif server is None:
            break
        else:
            until = inf if due is None else due
            if alone is None and (queue.follows or handover is not None):
                # What ends on another server may send a request here.
                until = min([until, *(each.plans_at for each in every if each.busy and each is not server)])
            server.step(until)
        if handover is not None:
            handover.look(server)
        if log.gone:
            done += len(log.gone)
            for number in log.gone:
                queue.ended(number)
            log.gone.clear()
            if watch is not None:
                watch(done)
    return log


def _ended_at(log: RequestLog, servers: Sequence[Server], number: int) -> float | None:
    """The second at which a request ended, or the turn after it."""
    finish = log.finishes[number] if number < len(log) else None
    if finish is None:
        return None
    server = servers[log.servers[number]]
    return finish + 1 if server.seconds is None else server.second_of(finish)


class _Arrivals:
    """The requests in the order in which they arrive; turns of a conversation when the turn before has ended; and those who give up.

    With ``concurrency``, so many are with the servers at most: the next one is sent when one of them ends.
    """

    def __init__(
        self, requests: Iterable[Request], log: RequestLog, ended_at: Callable[[int], float | None], concurrency: int | None
    ) -> None:
        self._requests = _outputs_apart(requests)
        self._log = log
        self._ended_at = ended_at
        self._next: Request | None = None
        self._waiting: dict[int, list[Request]] = {}
        """A request -> those that are sent when it has ended."""
        self._later: list[tuple[float, int, bool, Request]] = []
        """Times, numbers, whether the user gives up then, and requests."""
        self.follows = concurrency is not None
        """True if a request was seen that waits for another."""
        self._room = UNBOUNDED if concurrency is None else concurrency
        """The number of further ones that may be with the servers."""
        self._room_since = 0.0
        self._full: deque[Request] = deque()
        """Turns that are due while there is no room."""
        self._wanted: dict[int, tuple[Hashable, int]] = {}
        """A request whose answer later prompts have -> the answer's id, and how long it was wanted."""
        self._cut: dict[Hashable, int] = {}
        """An answer that is shorter than it was wanted -> the tokens that came."""
        self._now = 0.0
        self._advance()

    @property
    def next_time(self) -> float | None:
        """The time at which the next thing happens, as far as it is known."""
        later = self._later[0][0] if self._later else None
        if self._next is None or not self._room:
            return later
        first = max(self._next.arrival_s, self._room_since)
        return first if later is None else min(later, first)

    def until(self, now: float) -> Iterator[tuple[Request, float, bool]]:
        """The events by now: a request, when it arrived, and whether it is one that is given up."""
        self._now = now
        while True:
            first = None if self._next is None or not self._room else max(self._next.arrival_s, self._room_since)
            if self._later and self._later[0][0] <= now and (first is None or self._later[0][0] < first):
                time, _, cancelled, request = heappop(self._later)
                if not cancelled and not self._room:
                    self._full.append(request)
                    continue
            elif self._next is not None and first is not None and first <= now:
                time, cancelled, request = first, False, self._next
                self._advance()
            else:
                return
            if not cancelled:
                self._room -= 1
                if request.cancel_after_s is not None:
                    heappush(self._later, (time + request.cancel_after_s, request.number, True, request))
                if request.output_id is not None:
                    self._wanted[request.number] = (request.output_id, request.output_tokens)
                if self._cut:
                    request = self._as_answered(request)
            yield request, time, cancelled

    def ended(self, number: int) -> None:
        """Send the turns that wait for a request; those of a request that was not finished are never sent."""
        ended = self._ended_at(number)
        answer, wanted = self._wanted.pop(number, (None, 0))
        if self._log.produced[number] < wanted:
            self._cut[answer] = self._log.produced[number]
        if not self._room:
            self._room_since = self._now if ended is None else ended
        self._room += 1
        if self._full:
            request = self._full.popleft()
            heappush(self._later, (self._room_since, request.number, False, request))
        for request in self._waiting.pop(number, ()):
            if ended is not None:
                self._send_after(request, ended)

    def _as_answered(self, request: Request) -> Request:
        """The request with the earlier answers in its prompt as long as they came."""
        prefix = [replace(each, tokens=min(each.tokens, self._cut.get(each.id, each.tokens))) for each in request.prefix]
        less = request.prefix_tokens - sum([segment.tokens for segment in prefix])
        return request.changed(
            prefix=tuple([segment for segment in prefix if segment.tokens > 0]), prompt_tokens=request.prompt_tokens - less
        )

    def _advance(self) -> None:
        """Go on to the next request that does not wait for another, and set those aside that do."""
        for request in self._requests:
            if request.after is None:
                self._next = request
                return
            self.follows = True
            ended = self._ended_at(request.after)
            if ended is None:
                self._waiting.setdefault(request.after, []).append(request)
            else:
                self._send_after(request, ended)
        self._next = None

    def _send_after(self, request: Request, ended: float) -> None:
        heappush(self._later, (max(request.arrival_s, ended + request.wait_s), request.number, False, request))


def _outputs_apart(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests with one output each: of several samples each is a request with the same prompt."""
    number, last = 0, dict[int, int]()
    for request in requests:
        if request.samples == 1 and not last and number == request.number:
            number += 1
            yield request
            continue
        last[request.number] = number + request.samples - 1
        own = request.prompt_tokens - request.prefix_tokens
        shared = () if request.samples == 1 or not own else (Segment(("prompt", request.number), own),)
        after = request.after if request.after is None else last.get(request.after, request.after)
        for sample in range(request.samples):
            output_id = request.output_id if sample == request.samples - 1 else None
            yield replace(request, number=number, prefix=(*request.prefix, *shared), after=after, samples=1, output_id=output_id)
            number += 1

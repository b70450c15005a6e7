"""Requests in the order in which they arrive, and what a workload is in numbers: its lengths and rate, and what prompts have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush, heappushpop
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer, Part
from hwcalc.errors import TraceError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown

if TYPE_CHECKING:
    from typing import Self

BLOCK_SIZE: Final = 16
"""Tokens of a block, as vLLM has them by default."""


class Segment(Struct, frozen=True, gc=False):
    """Tokens that several requests may have: token k of a segment is the same token wherever the segment's ``id`` stands."""

    id: Hashable
    tokens: int


class Request(Record):
    """One request: when it arrives, how long it is, and what it has in common with others.

    A prompt is its ``prefix``, segment by segment, and then tokens that no other request has. Two prompts are the same as far as their
    segments are: these two have their first 512 + 100 tokens in common, of the second segment as many as the shorter one takes.

    >>> first = Request(number=0, prompt_tokens=900, output_tokens=50, prefix=(Segment("system", 512), Segment("file", 300)))
    >>> second = Request(number=1, prompt_tokens=700, output_tokens=50, prefix=(Segment("system", 512), Segment("file", 100)))
    >>> first.shared_tokens(second)
    612

    ``output_id`` names the output in the same way, so that the next turn of a session can have it in its prefix.
    """

    number: int
    """Its place in the workload, from 0, in the order of arrival."""
    arrival_s: float = 0.0
    """Seconds since the workload began. Where a replay counts in steps, the number of a step."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that it generates, the first of which comes with the prompt's last chunk."""
    prefix: tuple[Segment, ...] = ()
    """The beginning of the prompt, at most all of it."""
    output_id: Hashable | None = None
    """The id of the segment that its output is; ``None`` if no later prompt has it."""
    priority: int | None = None
    """As the engine counts it: for vLLM smaller is more urgent, for SGLang larger. Without one it is 0 for vLLM, the least for SGLang."""
    session: Hashable | None = None
    """The conversation of which it is a turn."""
    after: int | None = None
    """The number of the request before it in its session. It is sent ``wait_s`` after that one has finished, and not before ``arrival_s``."""
    wait_s: float = 0.0
    cancel_after_s: float | None = None
    """Seconds after it was sent at which the user gives up; ``None`` is never."""
    samples: int = 1
    """Outputs that are generated for the one prompt."""
    max_tokens: int | None = None
    """The most tokens that it may generate, which is all that a server knows of its output; ``None`` is ``output_tokens``."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and of one output."""
        return self.prompt_tokens + self.output_tokens

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prompt that other requests may have too."""
        return sum(segment.tokens for segment in self.prefix)

    def changed(self, **values: Any) -> Request:
        """The request with other values."""
        return replace(self, **values)

    def shared_tokens(self, other: Request) -> int:
        """The number of tokens at the beginning that are the same in both prompts."""
        shared = 0
        for mine, theirs in zip(self.prefix, other.prefix, strict=False):
            if mine.id != theirs.id:
                return shared
            shared += min(mine.tokens, theirs.tokens)
            if mine.tokens != theirs.tokens:
                return shared
        return shared


QUANTILES: Final = (50, 90, 95, 99)
"""The quantiles of lengths that are shown, in percent."""


class Spread(Part, Record):
    """Lengths in tokens, of which ``quantiles`` are by percent."""

    mean: float
    shortest: int
    longest: int
    total: int
    quantiles: dict[str, int]

    @classmethod
    def of(cls, counted: Counter[int]) -> Spread:
        """The spread of lengths with how often each is there. A quantile is the least length that so many do not exceed."""
        number, total = counted.total(), sum(length * count for length, count in counted.items())
        quantiles, upto = dict[str, int](), 0
        wanted = iter(QUANTILES)
        percent = next(wanted, None)
        for length in sorted(counted):
            upto += counted[length]
            while percent is not None and 100 * upto >= percent * number:
                quantiles[f"p{percent}"] = length
                percent = next(wanted, None)
        return cls(mean=total / number, shortest=min(counted), longest=max(counted), total=total, quantiles=quantiles)


class Prefixes(Part, Record):
    """The beginnings of prompts that an earlier prompt had, in whole blocks of ``block_size``: what a prefix cache that forgets nothing hits.

    ``share`` is of all prompt tokens. Of each prompt the last token is computed in any case.
    """

    block_size: int
    shared_tokens: int
    share: float
    requests: int
    """Requests that share anything."""
    known: bool
    """True if the workload says what prompts have in common at all."""


class Summary(Answer, Record):
    """A workload in numbers. ``duration_s`` is from the first to the last arrival, and ``rate_per_s`` the requests after the first over it.

    ``trace`` is the format of the file, with the ``source`` and the ``licence`` of what is published in it; ``None`` if it is made.
    """

    schema_version: str
    kvplan_version: str
    name: str
    trace: str | None
    source: str | None
    licence: str | None
    requests: int
    left_out: dict[str, int]
    duration_s: float
    rate_per_s: float | None
    concurrency: int | None
    """The most requests that are with the servers at once; ``None`` is any number."""
    peak_rate_per_s: float | None
    """The most requests of a minute, as a rate; ``None`` for a workload of less than two minutes."""
    prompt: Spread
    output: Spread
    total: Spread
    prefixes: Prefixes
    sessions: int
    most_turns: int
    samples: int
    """Outputs of all requests."""
    cancelled: int
    priorities: int
    """The number of different priorities."""
    notes: tuple[str, ...]

    def headline(self) -> str:
        return f"{self.name}: {self.requests:,} requests, {self.prompt.mean:,.0f} + {self.output.mean:,.0f} tokens on average"

    def records(self) -> list[dict[str, object]]:
        lengths = {"prompt": self.prompt, "output": self.output, "total": self.total}
        return [
            {
                "tokens": name,
                "mean": one.mean,
                "shortest": one.shortest,
                **one.quantiles,
                "longest": one.longest,
                "sum": one.total,
            }
            for name, one in lengths.items()
        ]


class Workload(Record):
    """Requests in the order in which they arrive. They are made anew whenever it is iterated, and are the same each time.

    So it may have millions of requests, of which only those exist that are looked at.

    >>> two = Workload.of([Request(number=0, prompt_tokens=5, output_tokens=1), Request(number=1, prompt_tokens=7, output_tokens=1)])
    >>> [request.prompt_tokens for request in two], [request.prompt_tokens for request in two.first(1)]
    ([5, 7], [5])
    """

    name: str
    """A line that names it: the name of its file, or its words."""
    make: Callable[[], Iterator[Request]]
    """Begins to make the requests."""
    count: int | None = None
    """The number of its requests, if that is known before they are made."""
    concurrency: int | None = None
    """The most requests that are with the servers at once: the next one is sent when one of them ends. ``None`` is any number."""
    notes: tuple[str, ...] = ()
    """The assumptions, in sentences."""
    trace: str | None = None
    """The format of the trace that it is read from; ``None`` if it is made."""
    source: str | None = None
    """Where traces of this format are published, if they are."""
    licence: str | None = None
    counting: Callable[[Counter[str]], Iterator[Request]] | None = None
    """As ``make``, and counts the rows of the trace that are no requests, by the reason."""

    def __iter__(self) -> Iterator[Request]:
        return self.make()

    def __repr__(self) -> str:
        number = "" if self.count is None else f", {self.count:,} requests"
        return f"<Workload: {shown(self.name, 200)}{number}>"

    @classmethod
    def of(cls, requests: list[Request] | tuple[Request, ...], name: str = "requests") -> Self:
        """A workload of requests that are at hand."""
        return cls(name=name, make=lambda: iter(requests), count=len(requests))

    def held(self) -> Workload:
        """The same, with its requests at hand: to be replayed again and again, and to be sent to other processes."""
        requests = tuple(self)
        return replace(self, make=partial(iter, requests), count=len(requests), counting=None)

    def summary(self, block_size: int = BLOCK_SIZE) -> Summary:
        """The workload in numbers. It is read once. Raises :class:`~hwcalc.errors.UsageError` if it has no requests."""
        return _summary(self, block_size)

    def first(self, count: int) -> Workload:
        """The first ``count`` requests."""
        most = count if self.count is None else min(count, self.count)
        known = None if self.count is None else most
        counting = self.counting
        counted = None if counting is None else lambda left_out: islice(counting(left_out), most)
        return replace(self, make=lambda: islice(self.make(), most), count=known, counting=counted)


def _summary(workload: Workload, block_size: int) -> Summary:
    """The summary of a workload, which is read once. Counts of lengths are held, and the beginnings of prompts.

    Raises :class:`~hwcalc.errors.UsageError` if it has no requests.
    """
    prompts, outputs, totals = Counter[int](), Counter[int](), Counter[int]()
    sessions, priorities = Counter[Hashable](), set[int]()
    minutes = Counter[int]()
    left_out = Counter[str]()
    first = last = 0.0
    number = samples = cancelled = shared = sharing = prefixed = 0
    seen = _Seen()
    for request in _requests(workload, left_out):
        prompts[request.prompt_tokens] += 1
        outputs[request.output_tokens] += 1
        totals[request.total_tokens] += 1
        samples += request.samples
        cancelled += request.cancel_after_s is not None
        priorities.add(request.priority or 0)
        if request.session is not None:
            sessions[request.session] += 1
        first = request.arrival_s if number == 0 else first
        last = max(last, request.arrival_s)
        minutes[int((request.arrival_s - first) // 60)] += 1
        number += 1
        if request.prefix:
            prefixed += 1
            hit = min(seen.add(request), request.prompt_tokens - 1) // block_size * block_size
            shared, sharing = shared + hit, sharing + (hit > 0)
    if not number:
        raise UsageError(f"{shown(workload.name, 60)} has no requests.", hint="A trace has a line for each request.")
    duration = last - first
    prompt = Spread.of(prompts)
    return Summary(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        name=workload.name,
        trace=workload.trace,
        source=workload.source,
        licence=workload.licence,
        requests=number,
        left_out=dict(left_out),
        duration_s=duration,
        rate_per_s=(number - 1) / duration if duration > 0 else None,
        concurrency=workload.concurrency,
        peak_rate_per_s=max(minutes.values()) / 60 if duration >= 120 else None,
        prompt=prompt,
        output=Spread.of(outputs),
        total=Spread.of(totals),
        prefixes=Prefixes(
            block_size=block_size,
            shared_tokens=shared,
            share=shared / prompt.total,
            requests=sharing,
            known=prefixed > 0,
        ),
        sessions=len(sessions),
        most_turns=max(sessions.values(), default=0),
        samples=samples,
        cancelled=cancelled,
        priorities=len(priorities),
        notes=workload.notes,
    )


def _requests(workload: Workload, left_out: Counter[str]) -> Iterator[Request]:
    return iter(workload) if workload.counting is None else workload.counting(left_out)


class _Seen:
    """The beginnings of all prompts so far, with their outputs, as a tree of segments."""

    def __init__(self) -> None:
        self.longest: dict[tuple[int, Hashable], int] = {}
        """A place in the tree and the id of the segment behind it -> the most tokens of it that were there."""
        self.places: dict[tuple[int, Hashable, int], int] = {}
        """The same with all its tokens -> the place behind it."""

    def add(self, request: Request) -> int:
        """Add a request, and return how many tokens of its prompt an earlier one began with."""
        place, shared = 0, 0
        for segment in request.prefix:
            # Behind a segment that no earlier prompt had as it is, the place is new, and nothing is shared from there on.
            most = self.longest.get((place, segment.id), 0)
            shared += min(most, segment.tokens)
            self.longest[place, segment.id] = max(most, segment.tokens)
            place = self.places.setdefault((place, segment.id, segment.tokens), len(self.places) + 1)
        if request.output_id is not None and request.prefix_tokens == request.prompt_tokens:
            # The last token of an output is never stored.
            self.longest[place, request.output_id] = request.output_tokens - 1
            self.places.setdefault((place, request.output_id, request.output_tokens), len(self.places) + 1)
        return shared


MOST_LATE: Final = 65_536
"""A row of a trace may stand at most so many rows behind its place in the order of time."""


def in_turns(sessions: Iterable[list[Request]]) -> Iterator[Request]:
    """The requests of sessions in the order of ``arrival_s``, numbered; each turn knows the one before it.

    Sessions are given in the order in which they begin, with all their turns. Only those exist that have begun and have not ended.
    """
    waiting: list[tuple[float, int, int, list[Request], int | None]] = []
    coming = iter(enumerate(sessions))
    following = next(coming, None)
    number = 0
    while waiting or following is not None:
        if following is not None and (not waiting or following[1][0].arrival_s < waiting[0][0]):
            session, turns = following
            turn, before = 0, None
            following = next(coming, None)
        else:
            _, session, turn, turns, before = heappop(waiting)
        yield turns[turn].changed(number=number, after=before)
        if turn + 1 < len(turns):
            heappush(waiting, (turns[turn + 1].arrival_s, session, turn + 1, turns, number))
        number += 1


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests sorted by arrival, numbered, with times from the first one on.

    Raises :class:`~hwcalc.errors.TraceError` for one that stands too far behind its place: no more than a part of a trace is ever held.
    """
    first: float | None = None
    last = 0.0
    for number, (arrival, place, request) in enumerate(_earliest(requests)):
        if first is None:
            first = last = arrival
        if arrival < last:
            raise TraceError(
                f"request {place + 1:,} of the trace arrives before one that is {MOST_LATE:,} rows earlier.",
                hint="Sort the trace by its times.",
            )
        yield request.changed(number=number, arrival_s=arrival - first)
        last = arrival


def _earliest(requests: Iterable[Request]) -> Iterator[tuple[float, int, Request]]:
    """Each time the earliest of the next :data:`MOST_LATE` requests, with its arrival and its place."""
    held: list[tuple[float, int, Request]] = []
    for place, request in enumerate(requests):
        entry = (request.arrival_s, place, request)
        if len(held) < MOST_LATE:
            heappush(held, entry)
        else:
            yield heappushpop(held, entry)
    while held:
        yield heappop(held)

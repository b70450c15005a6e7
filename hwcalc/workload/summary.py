"""What a workload is, in numbers: its requests, their lengths and rate, and what prompts have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer, Part
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown
from hwcalc.workload.formats import format_named
from hwcalc.workload.request import BLOCK_SIZE

if TYPE_CHECKING:
    from hwcalc.workload.request import Request, Workload

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
    """What prompts begin with that an earlier prompt had, in whole blocks of ``block_size``: what a prefix cache that forgets nothing hits.

    ``share`` is of all prompt tokens. Of each prompt the last token is computed in any case.
    """

    block_size: int
    shared_tokens: int
    share: float
    requests: int
    """Requests that share anything."""
    known: bool
    """Whether the workload says what prompts have in common at all."""


class Summary(Answer, Record):
    """What a workload is. ``duration_s`` is from the first to the last arrival, and ``rate_per_s`` the requests over it.

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
    """How many different priorities there are."""
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


def summarize(workload: Workload, block_size: int = BLOCK_SIZE) -> Summary:
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
        priorities.add(request.priority)
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
    known = None if workload.trace is None else format_named(workload.trace)
    prompt = Spread.of(prompts)
    return Summary(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        name=workload.name,
        trace=workload.trace,
        source=(known and known.source) or None,
        licence=(known and known.licence) or None,
        requests=number,
        left_out=dict(left_out),
        duration_s=duration,
        rate_per_s=number / duration if duration > 0 else None,
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

"""A request of a user (:class:`Request`), and many of them in the order in which they arrive (:class:`Workload`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from collections import Counter
    from typing import Self

    from hwcalc.workload.summary import Summary

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
    priority: int = 0
    """As vLLM counts it: smaller is more urgent."""
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


class Workload(Record):
    """Requests in the order in which they arrive. They are made anew whenever it is iterated, and are the same each time.

    So it may have millions of requests, of which only those exist that are looked at.

    >>> two = Workload.of([Request(number=0, prompt_tokens=5, output_tokens=1), Request(number=1, prompt_tokens=7, output_tokens=1)])
    >>> [request.prompt_tokens for request in two], [request.prompt_tokens for request in two.first(1)]
    ([5, 7], [5])
    """

    name: str
    """What it is, in a line: the name of its file, or its words."""
    make: Callable[[], Iterator[Request]]
    """Begins to make the requests."""
    count: int | None = None
    """How many requests it has, if that is known before they are made."""
    notes: tuple[str, ...] = ()
    """What was assumed, in sentences."""
    trace: str | None = None
    """The format of the trace that it is read from; ``None`` if it is made."""
    counting: Callable[[Counter[str]], Iterator[Request]] | None = None
    """As ``make``, and counts the rows of the trace that are no requests, by the reason."""

    def __iter__(self) -> Iterator[Request]:
        return self.make()

    @classmethod
    def of(cls, requests: list[Request] | tuple[Request, ...], name: str = "requests") -> Self:
        """A workload of requests that are at hand."""
        return cls(name=name, make=lambda: iter(requests), count=len(requests))

    def summary(self, block_size: int = BLOCK_SIZE) -> Summary:
        """What it is, in numbers. It is read once. Raises :class:`~hwcalc.errors.UsageError` if it has no requests."""
        from hwcalc.workload.summary import summarize

        return summarize(self, block_size)

    def first(self, count: int) -> Workload:
        """The first ``count`` requests."""
        most = count if self.count is None else min(count, self.count)
        known = None if self.count is None else most
        counting = self.counting
        counted = None if counting is None else lambda left_out: islice(counting(left_out), most)
        return replace(self, make=lambda: islice(self.make(), most), count=known, counting=counted)

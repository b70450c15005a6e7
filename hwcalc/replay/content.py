"""Names for what is in the blocks of requests: two blocks have the same name if they hold the same tokens after the same tokens.

A prompt is a chain of segments (:class:`~hwcalc.workload.request.Segment`) and then tokens of its own. Each chain has a number, and the
name of a block is the chain in which it ends and its place. So the blocks of a prompt of 100,000 tokens are named without a look at its
tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.workload.request import Request

_PLACES: Final = 24
"""Bits of a name for the place of a block: 16 million blocks."""
_GROUP: Final = 56
"""Bits of a name, above which is the number of a group of layers."""
_ROOT: Final = 0
_FORGETS_FROM: Final = 65_536

Run = tuple[int, int]
"""A chain, and where its tokens end."""


class Content:
    """The tokens of one request: ``runs`` of chains that others may have, and then its own, of chain ``own``."""

    __slots__ = ("_known", "own", "runs")

    def __init__(self, runs: Sequence[Run], own: int) -> None:
        self.runs = runs
        self.own = own
        self._known: dict[tuple[int, int], list[int]] = {}

    def shared(self, size: int, ahead: int = 0) -> list[int]:
        """The names of the blocks of ``size`` tokens that end in what others may have, where a name covers ``ahead`` tokens more."""
        names = self._known.get((size, ahead))
        if names is None:
            names, start = [], 0
            for chain, end in self.runs:
                stop = max(0, end - ahead) // size
                names.extend(range((chain << _PLACES) + start, (chain << _PLACES) + stop))
                start = stop
            self._known[size, ahead] = names
        return names

    def names(self, size: int, start: int, stop: int, *, ahead: int = 0) -> Sequence[int]:
        """The names of the blocks ``start`` to ``stop`` of ``size`` tokens."""
        shared, own = self.shared(size, ahead), self.own << _PLACES
        if start >= len(shared):
            return range(own + start, own + stop)
        if stop <= len(shared):
            return shared[start:stop]
        return [*shared[start:], *range(own + len(shared), own + stop)]

    @property
    def chains(self) -> list[int]:
        """The chains that others may have."""
        return [chain for chain, _ in self.runs]

    def chain_at(self, place: int) -> int:
        """The chain of the token at a place. Whoever has the same there has the same tokens up to there."""
        runs = self.runs
        if not runs or place >= runs[-1][1]:
            return self.own
        return runs[bisect_right(runs, place, key=_end)][0]

    def shared_tokens(self, other: Content, most: int) -> int:
        """The tokens at the beginning that are the same, at most ``most``."""
        if self.own == other.own:
            return most
        mine, theirs = self.runs, other.runs
        count = min(len(mine), len(theirs))
        same = bisect_left(range(count), x=True, key=lambda place: mine[place][0] != theirs[place][0])
        return min(mine[same - 1][1], theirs[same - 1][1], most) if same else 0


def chain_of(name: int) -> int:
    """The chain of a block's name, whatever group of layers it is of."""
    return (name % (1 << _GROUP)) >> _PLACES


def _end(run: Run) -> int:
    return run[1]


class Contents:
    """The contents of many requests, with one number for each chain.

    >>> from hwcalc.workload.request import Request, Segment
    >>> contents = Contents()
    >>> system, file = Segment("system", 32), Segment("file", 16)
    >>> first = contents.of(Request(number=0, prompt_tokens=70, output_tokens=9, prefix=(system, file)))
    >>> second = contents.of(Request(number=1, prompt_tokens=70, output_tokens=9, prefix=(system,)))
    >>> [one == other for one, other in zip(first.names(16, 0, 4), second.names(16, 0, 4))]
    [True, True, False, False]
    """

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int, Hashable], int] = {}
        self._last = _ROOT
        self._forgets_at = _FORGETS_FROM

    def of(self, request: Request) -> Content:
        """The content of a request. Only its last segment, or tokens of its own, may go on beyond its prompt."""
        segments = [(segment.id, segment.tokens) for segment in request.prefix]
        whole = sum(tokens for _, tokens in segments) == request.prompt_tokens
        if whole and request.output_id is not None:
            segments.append((request.output_id, request.output_tokens))
        runs, chain, end, before = list[Run](), _ROOT, 0, 0
        for name, tokens in segments:
            chain = self._chain(chain, before, name)
            before, end = tokens, end + tokens
            runs.append((chain, end))
        self._last += 1
        return Content(runs, self._last)

    def forget(self, alive: Callable[[], Iterable[int]]) -> None:
        """Forget the chains that do not lead to one that is alive, once there are many."""
        if len(self._chains) < self._forgets_at:
            return
        needed = set(alive())
        # A number is larger than those of the chains before it.
        for (before, _, _), chain in reversed(self._chains.items()):
            if chain in needed:
                needed.add(before)
        self._chains = {key: chain for key, chain in self._chains.items() if chain in needed}
        self._forgets_at = max(_FORGETS_FROM, 2 * len(self._chains))

    def _chain(self, before: int, tokens: int, name: Hashable) -> int:
        key = (before, tokens, name)
        chain = self._chains.get(key)
        if chain is None:
            self._last += 1
            chain = self._chains[key] = self._last
        return chain

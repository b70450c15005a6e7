"""What a context of one sequence takes at every length, as a few points between which it grows evenly.

Cells come in multiples of 256, and all sizes are sums and maxima of terms that grow with the cells. So a few lengths say everything about
a model with the default settings, and the index of the catalog keeps them: to look at hundreds of models takes no plan of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.equation import host_room, process, room_of
from hwcalc.engines.llamacpp.place_options import place_options
from hwcalc.engines.llamacpp.settings import CELLS, rounded_up

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.layers import Weighed
    from hwcalc.engines.setup import Request

LEAST_TOKENS: Final = 2048
"""A shorter context has smaller batches."""
_ENDS: Final = ("low", "expected", "high")


class Point(NamedTuple):
    """Bytes at one length: the cache; the buffers of the GPU for a pass, expected and at most; those of the host at most; the largest
    cache of a block.
    """

    cache: int
    compute: int
    compute_high: int
    host_high: int
    step: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers alone, but for the last, which is a bound."""
        return self[:-1]


class Curves(NamedTuple):
    """Points in ascending order, between which the sizes grow evenly, to a byte: each in multiples of 256 cells, and the numbers of its
    :class:`Point`.
    """

    points: Sequence[Sequence[int]]

    @property
    def longest(self) -> int:
        """The tokens of the last point."""
        return self.points[-1][0] * CELLS

    @property
    def flat(self) -> bool:
        """Whether a longer context takes no more: the states of a model that has no other cache."""
        return self.at(self.longest // 2) == Point(*self.points[-1][1:])

    def at(self, tokens: int) -> Point:
        """The sizes for so many tokens, at most as many as the last point has."""
        return self.at_place(rounded_up(tokens) // CELLS)

    def at_place(self, place: int) -> Point:
        """The same in multiples of 256 cells."""
        start, end = self._around(place)
        if start[0] == place:
            return Point(*start[1:])
        part, whole = place - start[0], end[0] - start[0]
        _, *sizes = [a - (a - b) * part // whole for a, b in zip(start, end, strict=True)]
        return Point(*sizes)

    def exact(self, tokens: int) -> bool:
        """Whether the expected buffers for so many tokens are known to the byte."""
        place = rounded_up(tokens) // CELLS
        (start, *first), (end, *last) = self._around(place)
        grown = Point(*last).compute - Point(*first).compute
        return start == place or grown * (place - start) % (end - start) == 0

    def _around(self, place: int) -> tuple[Sequence[int], Sequence[int]]:
        """The point at a place or before it, and the next."""
        number = bisect_right(self.points, place, key=itemgetter(0)) - 1
        return self.points[number], self.points[min(number + 1, len(self.points) - 1)]


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, and those that stay on the host."""

    gpu: int
    host: int

    @classmethod
    def of(cls, weights: Weighed) -> Sizes:
        """The sums."""
        gpu = weights.output + weights.tied + weights.copied + sum(experts + rest for experts, rest in weights.blocks)
        return cls(gpu=gpu, host=weights.input)


def step_of(weights: Weighed) -> int:
    """At most the bytes of one layer."""
    largest = max((experts + rest for experts, rest in weights.blocks), default=0)
    return max(weights.output + weights.tied, weights.copied + largest)


class Room:
    """One GPU and its host, and whether models fit there as a whole: with the rules of the engine, by the curves of each model."""

    def __init__(self, request: Request) -> None:
        """``request`` is any with this hardware and without options of the engine."""
        gpu, options = request.hardware.gpu, place_options(request.options)
        assert gpu is not None
        self._process = process(gpu)
        self._shared = gpu.shares_host_memory
        self._least_host, self.likely_host = (host_room(request.setup, options, end) for end in ("low", "expected"))
        self.rooms: Mapping[str, int | None] = {end: room_of(request.hardware, options, end) for end in _ENDS}

    likely_host: int
    """Bytes of the host's memory that a model may well have beside a GPU that it leaves alone."""

    def needed(self, weights: Sizes, point: Point) -> int:
        """Bytes on the GPU with everything there, by the expected value."""
        return weights.gpu + point.cache + point.compute + self._process.expected

    def largest(self, gpu: Sequence[int], host: Sequence[int], point: Point) -> int | None:
        """Which of these formats, the largest first, is the first that :meth:`surely_holds`; ``None`` if none does."""
        room, beside = self.rooms["low"], point.cache + point.compute_high + self._process.high
        if room is None or gpu[-1] + beside > room:
            return None
        for place, size in enumerate(gpu):
            if size + beside <= room and self.surely_holds(Sizes(size, host[place]), point):
                return place
        return None

    def surely_holds(self, weights: Sizes, point: Point) -> bool:
        """Whether a context of these sizes fits at the high end of the estimates, and its host has room for the rest."""
        room = self.rooms["low"]
        needed = weights.gpu + point.cache + point.compute_high + self._process.high
        if room is None or needed > room:
            return False
        return weights.host + point.host_high <= self._least_host - (needed if self._shared else 0)

    def held_apart(self, step: int, point: Point) -> int:
        """Bytes of weights and cache that the GPU holds at least, where not all of them have room there: one more layer would be too many.

        ``step`` is :func:`step_of` the weights.

        Beside them it has the buffers of a pass, and in these what it copies of a layer that lies on the host: taken twice, for the high end.
        """
        layer = step + point.step
        beside = self._process.high + point.host_high + 2 * (point.compute_high + layer)
        return max(0, (self.rooms["low"] or 0) - beside - layer)

    def longest(self, weights: Sizes, curves: Curves, fitting: int, bound: int) -> int:
        """The most tokens, up to ``bound``, that surely fit, as ``fitting`` of them do."""
        low, high = fitting // CELLS, -(-bound // CELLS)
        if self.surely_holds(weights, curves.at_place(high)):
            return bound
        while high - low > 1:
            middle = (low + high) // 2
            if self.surely_holds(weights, curves.at_place(middle)):
                low = middle
            else:
                high = middle
        return min(low * CELLS, bound)

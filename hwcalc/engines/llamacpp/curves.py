"""What a context of one sequence takes at every length, as a few points between which it grows evenly.

Cells come in multiples of 256, and all sizes are sums and maxima of terms that grow with the cells. So a few lengths say everything about
a model with the default settings, and the index of the catalog keeps them: to look at hundreds of models takes no plan of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hwcalc.engines.llamacpp.assignment import ON_HOST, assign
from hwcalc.engines.llamacpp.compute import device_buffers
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.equation import host_room, process, room_of
from hwcalc.engines.llamacpp.opened import LlamacppOpened, of_llamacpp
from hwcalc.engines.llamacpp.placement import cache_on
from hwcalc.engines.llamacpp.settings import CELLS, rounded_up
from hwcalc.engines.request import Request
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.named import NamedTuple

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.assignment import Weighed
    from hwcalc.formulas import DType, Role
    from hwcalc.model import ModelSpec

__all__ = ["LEAST_TOKENS", "Curves", "Point", "Room", "Sizes", "curves_of"]

LEAST_TOKENS: Final = 2048
"""A shorter context has smaller batches."""
_FARTHEST: Final = 4096
"""Cells, in multiples of 256, up to which the points reach at least: a million tokens."""
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


@frozen
class Curves:
    """Points by multiples of 256 cells, in ascending order, between which the sizes grow evenly, to a byte."""

    points: tuple[tuple[int, Point], ...]

    @cached_property
    def _places(self) -> tuple[int, ...]:
        return tuple(place for place, _ in self.points)

    @property
    def longest(self) -> int:
        """The tokens of the last point."""
        return self._places[-1] * CELLS

    @property
    def flat(self) -> bool:
        """Whether a longer context takes no more: the states of a model that has no other cache."""
        return self.at(self.longest // 2) == self.points[-1][1]

    def at(self, tokens: int) -> Point:
        """The sizes for so many tokens, at most as many as the last point has."""
        place, (start, first), (end, last) = self._around(tokens)
        if start == place:
            return first
        return Point._make(a + -((a - b) * (place - start) // (end - start)) for a, b in zip(first, last, strict=True))

    def exact(self, tokens: int) -> bool:
        """Whether the expected buffers for so many tokens are known to the byte."""
        place, (start, first), (end, last) = self._around(tokens)
        return start == place or (last.compute - first.compute) * (place - start) % (end - start) == 0

    def _around(self, tokens: int) -> tuple[int, tuple[int, Point], tuple[int, Point]]:
        """The place of so many tokens, the point there or before it, and the next."""
        place = rounded_up(tokens) // CELLS
        number = bisect_right(self._places, place) - 1
        return place, self.points[number], self.points[min(number + 1, len(self.points) - 1)]


def curves_of(model: ModelSpec) -> Curves:
    """The curves of a model. Raises the error of llama.cpp for a model that it refuses."""
    opened = of_llamacpp(Llamacpp().open(model, Request(seq=LEAST_TOKENS)))
    known: dict[int, Point] = {}

    def point(place: int) -> Point:
        if place not in known:
            known[place] = _point(of_llamacpp(opened.sized(seq=place * CELLS)))
        return known[place]

    first, last = LEAST_TOKENS // CELLS, max(_FARTHEST, rounded_up(model.max_position_embeddings or 0) // CELLS)
    kept = sorted({first, *_bends(point, first, last), last})
    return Curves(points=tuple((place, point(place)) for place in kept))


def _point(opened: LlamacppOpened) -> Point:
    blocks = opened.hparams.n_layer_all
    whole = assign(blocks, blocks + 1, (1.0,))
    gpu, host = (device_buffers(opened, whole, device) for device in (0, ON_HOST))
    return Point(
        cache=cache_on(0, whole, opened),
        step=max(sum(opened.kind_bytes[kind] for kind in layer) for layer in {*opened.stack.layers}) + bytes_of(opened.extras),
        compute=sum(part.expected for part in gpu),
        compute_high=sum(part.high for part in gpu),
        host_high=sum(part.high for part in host),
    )


def _bends(point: Callable[[int], Point], first: int, last: int) -> list[int]:
    """The places between which the sizes grow evenly."""
    if last - first < 2:
        return [first, last]
    between = sorted({first + (last - first) * part // 8 for part in range(1, 8)} - {first, last})
    if all(_even(point, first, place, last) for place in between):
        return [first, last]
    middle = (first + last) // 2
    return [*_bends(point, first, middle), *_bends(point, middle, last)]


def _even(point: Callable[[int], Point], first: int, place: int, last: int) -> bool:
    """Whether a place lies on the line between two others, but for a byte by which an estimate is rounded up."""
    sizes = zip(point(first).sizes, point(place).sizes, point(last).sizes, strict=True)
    return all(abs((b - a) * (last - first) - (c - a) * (place - first)) <= last - first for a, b, c in sizes)


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, those that stay on the host, and at most those of one layer."""

    gpu: int
    host: int
    step: int

    @classmethod
    def of(cls, weights: Weighed) -> Sizes:
        """The sums."""
        gpu = weights.output + weights.tied + weights.copied + sum(experts + rest for experts, rest in weights.blocks)
        largest = max((experts + rest for experts, rest in weights.blocks), default=0)
        return cls(gpu=gpu, host=weights.input, step=max(weights.output + weights.tied, weights.copied + largest))


class Room:
    """One GPU and its host, and whether models fit there as a whole: with the rules of the engine, by the curves of each model."""

    def __init__(self, opened: LlamacppOpened) -> None:
        """``opened`` is any request with this hardware."""
        gpu = opened.request.hardware.gpu
        assert gpu is not None
        self._opened = opened
        self._process = process(gpu)
        self.rooms: Mapping[str, int | None] = {end: room_of(opened, opened.place_options, end) for end in _ENDS}

    @property
    def kv_dtype(self) -> str:
        """The format of the cache."""
        return self._opened.dtypes.kv

    @property
    def roles(self) -> Mapping[Role, DType]:
        """The formats of what a cache holds."""
        return self._opened.dtypes.roles

    def needed(self, weights: Sizes, point: Point) -> int:
        """Bytes on the GPU with everything there, by the expected value."""
        return weights.gpu + point.cache + point.compute + self._process.expected

    def surely(self, weights: Sizes, curves: Curves, tokens: int) -> bool:
        """Whether a context of so many tokens fits at the high end of the estimates, and its host has room for the rest."""
        return self.surely_holds(weights, curves.at(tokens))

    def surely_holds(self, weights: Sizes, point: Point) -> bool:
        """The same of the sizes at one length."""
        room = self.rooms["low"]
        needed = weights.gpu + point.cache + point.compute_high + self._process.high
        return room is not None and needed <= room and weights.host + point.host_high <= self._host_room(needed)

    def held_apart(self, weights: Sizes, point: Point) -> int:
        """Bytes of weights and cache that the GPU holds at least, where not all of them have room there: one more layer would be too many.

        Beside them it has the buffers of a pass, and in these what it copies of a layer that lies on the host: taken twice, for the high end.
        """
        layer = weights.step + point.step
        beside = self._process.high + point.host_high + 2 * (point.compute_high + layer)
        return max(0, (self.rooms["low"] or 0) - beside - layer)

    @property
    def likely_host(self) -> int:
        """Bytes of the host's memory that a model may well have beside a GPU that it leaves alone."""
        return host_room(self._opened, lambda _: 0, "expected")

    def _host_room(self, needed: int) -> int:
        return host_room(self._opened, lambda _: needed, "low")

    def longest(self, weights: Sizes, curves: Curves, bound: int) -> int:
        """The most tokens, up to ``bound``, that surely fit."""
        low, high = 0, -(-bound // CELLS) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.surely(weights, curves, middle * CELLS):
                low = middle
            else:
                high = middle
        return min(low * CELLS, bound)

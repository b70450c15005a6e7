"""What a context of one sequence takes at every length, as a few points between which it grows evenly.

Cells come in multiples of 256, and all sizes are sums and maxima of terms that grow with the cells. So a few lengths say everything about
a model with the default settings, and the index of the catalog keeps them: to look at hundreds of models takes no plan of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from math import ceil, floor
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.compute import output_buffer
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.equation import host_room, process, room_of
from hwcalc.engines.llamacpp.graph import Part, fullest, host_bytes
from hwcalc.engines.llamacpp.opened import LlamacppOpened, of_llamacpp
from hwcalc.engines.llamacpp.settings import CELLS, rounded_up
from hwcalc.engines.request import Request
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.llamacpp import compute_errors

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.assignment import Weighed
    from hwcalc.model import ModelSpec

__all__ = ["LEAST_TOKENS", "Curves", "Point", "Room", "Sizes", "curves_of"]

LEAST_TOKENS: Final = 2048
"""A shorter context has smaller batches."""
_FARTHEST: Final = 4096
"""Cells, in multiples of 256, up to which the points reach at least: a million tokens."""
_ENDS: Final = ("low", "expected", "high")


@frozen
class Point:
    """Bytes at one length: the cache, the compute buffer of the GPU with the name of its fullest moment, and that of the host."""

    cache: int
    compute: int
    host: int
    moment: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers alone."""
        return self.cache, self.compute, self.host


@frozen
class Curves:
    """Points by multiples of 256 cells, in ascending order. ``output`` are the bytes of logits on the host: low, expected, high."""

    points: tuple[tuple[int, Point], ...]
    output: tuple[int, int, int]

    @cached_property
    def _places(self) -> tuple[int, ...]:
        return tuple(place for place, _ in self.points)

    def at(self, tokens: int) -> Point:
        """The sizes for so many tokens, at most as many as the last point has."""
        place = rounded_up(tokens) // CELLS
        number = bisect_right(self._places, place) - 1
        start, first = self.points[number]
        if start == place:
            return first
        end, last = self.points[number + 1]
        sizes = (a + (b - a) * (place - start) // (end - start) for a, b in zip(first.sizes, last.sizes, strict=True))
        cache, compute, host = sizes
        return Point(cache=cache, compute=compute, host=host, moment=first.moment)


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
    output = output_buffer(opened.hparams, opened.settings)
    return Curves(points=tuple((place, point(place)) for place in kept), output=(output.low, output.expected, output.high))


def _point(opened: LlamacppOpened) -> Point:
    read, one = opened.hparams, opened.settings
    moment, size = fullest(read, one, Part())
    cache = sum(opened.block_cache_bytes) + bytes_of(opened.extras)
    return Point(cache=cache, compute=size, host=host_bytes(read, one, 1), moment=moment.name)


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
    start, here, end = point(first), point(place), point(last)
    if not start.moment == here.moment == end.moment:
        return False
    return all(
        (b - a) * (last - first) == (c - a) * (place - first) for a, b, c in zip(start.sizes, here.sizes, end.sizes, strict=True)
    )


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, and those that stay on the host."""

    gpu: int
    host: int

    @classmethod
    def of(cls, weights: Weighed) -> Sizes:
        """The sums."""
        gpu = weights.output + weights.tied + weights.copied + sum(experts + rest for experts, rest in weights.blocks)
        return cls(gpu=gpu, host=weights.input)


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

    def needed(self, weights: int, point: Point, end: str) -> int:
        """Bytes on the GPU with everything there, ``weights`` among them, at this end of the estimates."""
        error = compute_errors()[point.moment]
        size = point.compute * getattr(error, end)
        buffer = floor(size) if end == "low" else ceil(size)
        return weights + point.cache + buffer + int(getattr(self._process, end))

    def surely(self, weights: Sizes, curves: Curves, tokens: int) -> bool:
        """Whether a context of so many tokens fits at the high end of the estimates, and its host has room for the rest."""
        point, room = curves.at(tokens), self.rooms["low"]
        needed = self.needed(weights.gpu, point, "high")
        return room is not None and needed <= room and self._host_needed(weights, curves, point) <= self._host_room(needed)

    def _host_needed(self, weights: Sizes, curves: Curves, point: Point) -> int:
        error = compute_errors()["host"]
        return weights.host + ceil(point.host * error.high) + curves.output[2]

    def _host_room(self, needed: int) -> int:
        return host_room(self._opened, self._opened.place_options, _OneGpu(needed), "low")  # type: ignore[arg-type]

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


class _OneGpu:
    """What :func:`~hwcalc.engines.llamacpp.equation.host_room` asks of a placement: what the GPUs need."""

    def __init__(self, needed: int) -> None:
        self.gpus = (self,)
        self._needed = needed

    def needed(self, end: str = "expected") -> int:
        return self._needed

"""The curves of a model (:class:`~hwcalc.engines.llamacpp.curves.Curves`), for the index of the catalog: they are found by planning many lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.curves import LEAST_TOKENS, Curves, Point
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.fitting import ON_HOST
from hwcalc.engines.llamacpp.layers import cache_bytes
from hwcalc.engines.llamacpp.settings import CELLS, rounded_up
from hwcalc.engines.setup import Request
from hwcalc.engines.stored import bytes_of

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppOccupancy
    from hwcalc.model import ModelSpec

_FARTHEST: Final = 4096
"""Cells, in multiples of 256, up to which the points reach at least: a million tokens."""


def curves_of(model: ModelSpec) -> Curves:
    """The curves of a model. Raises the error of llama.cpp for a model that it refuses."""
    opened: Any = Llamacpp().open(model, Request.of(seq=LEAST_TOKENS))
    known: dict[int, Point] = {}

    def point(place: int) -> Point:
        if place not in known:
            known[place] = _point(opened.sized(seq=place * CELLS))
        return known[place]

    first, last = LEAST_TOKENS // CELLS, max(_FARTHEST, rounded_up(model.max_position_embeddings or 0) // CELLS)
    kept = sorted({first, *_bends(point, first, last), last})
    return Curves(points=tuple([place, *point(place)] for place in kept))


def _point(opened: LlamacppOccupancy) -> Point:
    layout, layers = opened.layout, opened.layout.layers
    gpu, host = (layout.buffer_parts(device) for device in (0, ON_HOST))
    each = {layer: sum(bytes_of(opened.kind_tensors[kind]) for kind in layer) for layer in {*opened.stack.layers}}
    return Point(
        cache=layout.cache_on(0),
        step=max(each.values()) + cache_bytes(layers.extras, opened.settings, opened.settings),
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

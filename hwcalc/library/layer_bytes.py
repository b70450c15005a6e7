"""What each layer of a model caches, layer by layer: the profile of a plot, and the strip of a plan."""

from __future__ import annotations

from hwcalc.formulas.record import Record
from hwcalc.library.indexing import kind_title, stored
from hwcalc.planner.result import Plan


class LayerBytes(Record):
    """One layer: the title of its kind and its bytes, for all planned sequences. A layer of several kinds has that of the largest."""

    number: int
    title: str
    bytes: int


def layer_bytes(plan: Plan) -> tuple[LayerBytes, ...]:
    """Each layer with its part of ``cache.total_bytes``; what an engine stores beside the layers is in none of them."""
    parts: dict[int, list[tuple[int, str]]] = {}
    for layer in plan.model.layers:
        for number in layer.layers:
            parts.setdefault(number, [(0, kind_title(layer.kind))])
    for group, tensors in stored(plan):
        if group is None:
            continue
        each = sum(tensor.bytes for tensor in tensors) // max(1, group.count)
        for number in group.layers:
            parts.setdefault(number, []).append((each, kind_title(group.kind)))
    return tuple(
        LayerBytes(number=number, title=max(own, key=lambda one: one[0])[1], bytes=sum(size for size, _ in own))
        for number, own in sorted(parts.items())
    )

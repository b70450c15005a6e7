"""Bytes that each layer of a model caches: the profile of a plot, and the strip of a plan. And the titles of layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc import formulas
from hwcalc.formulas import kind as families
from hwcalc.formulas.record import Record
from hwcalc.planner.result import LayerInfo, Plan, TensorInfo


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


_MODEL: Final = "model"
"""The kind of tensors that an engine keeps once, beside the layers."""


def kind_title(kind: str) -> str:
    """The title of a kind; ``model`` stands for tensors that an engine keeps once, beside the layers."""
    # Those of a plan's layers are imported by then. To import all families takes longer than to print the plan.
    known = families.KINDS if kind == _MODEL or kind in families.KINDS else formulas.KINDS
    return known[kind].title if kind in known else "kept once for the model"


def beside_title(tensors: Iterable[TensorInfo]) -> str:
    """The title of tensors that belong to no layer."""
    titles = dict.fromkeys(_BESIDE.get(tensor.name, kind_title(_MODEL)) for tensor in tensors)
    return ", ".join(titles)


_BESIDE: Final = {"prompt_blocks": "blocks of a prompt before it is cut"}


def stored(plan: Plan) -> list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]:
    """Each layer group with its tensors, in the plan's order; ``None`` stands for tensors that belong to no layer.

    Two groups may have the same kind and layers with different dimensions. A tensor name that occurs again starts the next group.
    """
    waiting = list(plan.cache.tensors)
    out: list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]] = []
    for layer in plan.model.layers:
        own: dict[str, TensorInfo] = {}
        while waiting and (waiting[0].kind, waiting[0].layers) == (layer.kind, layer.layers) and waiting[0].name not in own:
            tensor = waiting.pop(0)
            own[tensor.name] = tensor
        out.append((layer, tuple(own.values())))
    if waiting:
        out.append((None, tuple(waiting)))
    return out

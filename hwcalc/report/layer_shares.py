"""The share of the cache of each kind of layer, and how many positions it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hwcalc.formulas import Full, Kept, LayerNumbers, Role, Span
from hwcalc.formulas.record import Record
from hwcalc.library.stored import beside_title, kind_title, stored
from hwcalc.planner.result import LayerInfo, Plan, TensorInfo

__all__ = ["LayerShare", "is_room", "shares"]

_ALIKE: Final = 3
"""Lengths that a policy leaves in layers are told apart up to so many."""


class LayerShare(Record):
    """The bytes of all layers of one kind with one length rule, for the whole batch."""

    title: str
    count: int
    layers: LayerNumbers
    rule: str
    dtypes: str
    bytes: int


def shares(plan: Plan) -> list[LayerShare]:
    """Layers grouped by kind and by how many positions they keep."""
    groups: dict[tuple[str, str], list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]] = {}
    found = stored(plan)
    cut = _kept_numbers(found)
    for layer, tensors in found:
        kind = layer.kind if layer is not None else "model"
        groups.setdefault((kind, _rule(tensors, cut)), []).append((layer, tensors))
    return [
        LayerShare(
            title=kind_title(kind) if kind != "model" else beside_title(tensor for _, tensors in members for tensor in tensors),
            count=sum(layer.count for layer, _ in members if layer is not None),
            layers=LayerNumbers(sorted({number for layer, _ in members if layer is not None for number in layer.layers})),
            rule=rule,
            dtypes=", ".join(dict.fromkeys(tensor.dtype for _, tensors in members for tensor in tensors if not is_room(tensor))),
            bytes=sum(tensor.bytes for _, tensors in members for tensor in tensors),
        )
        for (kind, rule), members in groups.items()
    ]


def _kept_numbers(found: Iterable[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]) -> tuple[int, ...]:
    """The numbers of tokens that a policy leaves in layers, from the least to the most."""
    spans = {tensor.span for _, tensors in found for tensor in tensors if isinstance(tensor.span, Kept)}
    return tuple(sorted(span.numbers[0] for span in spans))


def _rule(tensors: tuple[TensorInfo, ...], cut: Sequence[int] = ()) -> str:
    """How many positions the tensors keep: growing tensors first, then fixed state. ``cut`` are the numbers that a policy leaves."""
    if not tensors:
        return "nothing kept"
    growing = dict.fromkeys(
        tensor.span for tensor in tensors if tensor.role not in {Role.STATE, Role.CONV} and not is_room(tensor)
    )
    words = list(dict.fromkeys(_words_of(span, cut) for span in growing))
    if any(tensor.role in {Role.STATE, Role.CONV} for tensor in tensors):
        words.append("fixed state")
    return " + ".join(words)


def is_room(tensor: TensorInfo) -> bool:
    """Whether it is bytes of blocks and of nothing in particular: neither a number of positions nor a dtype says anything of them."""
    return tensor.axes == ("bytes",)


def _words_of(span: Span, cut: Sequence[int]) -> str:
    if isinstance(span, Kept) and len(cut) > _ALIKE:
        return f"{cut[0]:,} to {cut[-1]:,} kept of n"
    return "every token" if isinstance(span, Full) or span.text == "n" else span.text

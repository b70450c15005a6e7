"""The stack: layers in order, equal ones counted once and multiplied.

A layer may keep several things at once: attention and state (Falcon-H1, Zamba), latent and indexer (DeepSeek-V3.2), two
attentions (LongCat), self and cross attention (encoder-decoder models).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.kind import LayerKind
from hwcalc.formulas.shown import Shown

__all__ = ["Group", "Layer", "LayerNumbers", "Stack", "pipeline_stages", "ranges"]

Layer = tuple[LayerKind, ...]
"""What one layer keeps: its kinds, in the order the layer applies them."""


def ranges(indices: Iterable[int]) -> str:
    """Layer numbers the short way: ``ranges([0, 1, 2, 5])`` is ``"0-2,5"``."""
    parts: list[str] = []
    start = last = None
    for index in (*sorted(indices), None):
        if start is not None and index == (last or 0) + 1:
            last = index
            continue
        if start is not None and last is not None:
            parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = index
    return ",".join(parts)


class LayerNumbers(tuple[int, ...], Shown):
    """Numbers of layers, counted from 0, in ascending order.

    >>> LayerNumbers([0, 1, 2, 5]).text, len(LayerNumbers([0, 1, 2, 5]))
    ('0-2,5', 4)
    """

    __slots__ = ()

    @property
    def text(self) -> str:
        """The numbers the short way."""
        return ranges(self)


def pipeline_stages(layers: int, stages: int) -> tuple[range, ...]:
    """The layers of each pipeline stage. What does not divide goes one each to the stages before the last, from the back.

    >>> [len(stage) for stage in pipeline_stages(80, 3)]
    [27, 27, 26]

    80 = 3 x 26 + 2: the last stage has the head besides, so the two that are left over go to those before it.
    """
    sizes = [layers // stages] * stages
    for extra in range(layers % stages):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


@frozen
class Group:
    """One kind, the layers that have it, and how many times they have it in all."""

    kind: LayerKind
    count: int
    layers: LayerNumbers


@frozen
class Stack:
    """All layers of a model, in order.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> a = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> [(g.count, g.layers.text) for g in Stack(((a,), (a,), (a,))).groups]
    [(3, '0-2')]
    """

    layers: tuple[Layer, ...]

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.__dict__["layers"] = layers

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Equal kinds merged, in order of first appearance. A layer that has a kind twice counts twice."""
        found: dict[LayerKind, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for kind in layer:
                found.setdefault(kind, []).append(index)
        return tuple(
            Group(kind=kind, count=len(indices), layers=LayerNumbers(dict.fromkeys(indices))) for kind, indices in found.items()
        )

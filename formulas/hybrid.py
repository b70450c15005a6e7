"""The stack: the layers of a model in order, and groups of equal layers.

A layer may have several kinds at once: attention and state (Falcon-H1, Zamba), latent and indexer (DeepSeek-V3.2), two
attentions (LongCat), self and cross attention (encoder-decoder models).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from hwcalc.formulas.kind import LayerKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Shown

Layer = tuple[LayerKind, ...]
"""The kinds of one layer, in the order in which the layer applies them."""


def ranges(indices: Iterable[int]) -> str:
    """Layer numbers in short form: ``ranges([0, 1, 2, 5])`` is ``"0-2,5"``."""
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
        """The numbers in short form."""
        return ranges(self)


def pipeline_stages(layers: int, stages: int) -> tuple[range, ...]:
    """The layers of each pipeline stage. Left-over layers go to the stages before the last, one each, from back to front.

    >>> [len(stage) for stage in pipeline_stages(80, 3)]
    [27, 27, 26]

    80 = 3 x 26 + 2. The last stage also has the output head, so the two left-over layers go to the stages before it.
    """
    sizes = [layers // stages] * stages
    for extra in range(layers % stages):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


class Group(Record):
    """One kind, the layers that have it, and how often it occurs in all of them together."""

    kind: LayerKind
    count: int
    layers: LayerNumbers


class Stack(Record, kw_only=False):
    """All layers of a model, in order.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> a = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> [(g.count, g.layers.text) for g in Stack(((a,), (a,), (a,))).groups]
    [(3, '0-2')]
    """

    layers: tuple[Layer, ...]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The kinds with their layers, in order of first appearance. A layer that has a kind twice counts twice."""
        return self.groups_of(range(len(self.layers)))

    def groups_of(self, numbers: Iterable[int]) -> tuple[Group, ...]:
        """The groups of the layers with these numbers alone, such as those of a pipeline stage."""
        layers_of: dict[LayerKind, list[int]] = {}
        # Of layers that are one object the kinds are looked up once.
        known: dict[int, list[list[int]]] = {}
        for index in numbers:
            layer = self.layers[index]
            if id(layer) not in known:
                known[id(layer)] = [layers_of.setdefault(kind, []) for kind in layer]
            for indices in known[id(layer)]:
                indices.append(index)
        return tuple(
            Group(kind=kind, count=len(indices), layers=LayerNumbers(dict.fromkeys(indices)))
            for kind, indices in layers_of.items()
        )

"""The layer caches of a model in their order, told apart by sort, and the pipeline stages on which they are.

Layers of one kind have caches of one sort, and a model of very many layers has few sorts. What follows from a sort is worked out once, and
where the caches lie does not depend on formats or ranks, so that the model keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.formulas import Stack
    from hwcalc.model import ModelSpec

_BOUNDARY: Final = 2
_ATTENTION_FIRST: Final = frozenset({"zamba2"})
"""Model types whose attention is shared by layers, and built before them."""


class LayerCache(NamedTuple):
    """One cache of one layer.

    ``kind`` is the index of the layer's group in the stack. ``layer`` and ``kind`` are -1 for a draft layer. ``outer`` marks a layer
    that turboquant does not pack.
    """

    name: str
    layer: int
    kind: int
    outer: bool


LayerSort = tuple[int, bool]
"""The index of a kind's group in the stack, and whether the layer is one that turboquant does not pack."""


class Sorted(NamedTuple):
    """The sort of each cache of a sequence, and the caches of each sort by number. Sorts are numbered in order of first appearance."""

    sorts: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sorts: Sequence[int], count: int) -> Sorted:
        """Of caches with these sorts, of which there are so many."""
        if count == 1:
            return cls(tuple(sorts), (tuple(range(len(sorts))),))
        members: list[list[int]] = [[] for _ in range(count)]
        for number, sort in enumerate(sorts):
            members[sort].append(number)
        return cls(tuple(sorts), tuple(map(tuple, members)))

    def with_more(self, count: int) -> Sorted:
        """With so many more caches at the end, each of a sort of its own."""
        sorts, members = len(self.members), len(self.sorts)
        own = tuple((members + number,) for number in range(count))
        return Sorted((*self.sorts, *range(sorts, sorts + count)), (*self.members, *own)) if count else self

    def part(self, members: Sequence[int]) -> tuple[tuple[int, ...], Sorted]:
        """Some of the caches alone, and their sorts as they are numbered here."""
        own = [self.sorts[member] for member in members]
        numbers = {sort: number for number, sort in enumerate(dict.fromkeys(own))}
        return tuple(numbers), Sorted.of([numbers[sort] for sort in own], len(numbers))


class Placed(NamedTuple):
    """The caches of all layers, and what each of their sorts is: the sort of a layer, and which of its caches."""

    caches: tuple[LayerCache, ...]
    sorted: Sorted
    sorts: tuple[tuple[LayerSort, int], ...]

    def stages(self, layers: Sequence[int]) -> tuple[int, ...]:
        """The pipeline stage of each cache, where stages have so many layers."""
        if len(layers) == 1:
            return (0,) * len(self.caches)
        of_layer = list(chain.from_iterable(map(repeat, range(len(layers)), layers)))
        return tuple([of_layer[cache.layer] for cache in self.caches])


class LayerSorts(NamedTuple):
    """The sorts of each layer, and each sort once, in order of first appearance."""

    layers: tuple[tuple[LayerSort, ...], ...]
    distinct: tuple[LayerSort, ...]


def sorts_of_layers(model: ModelSpec, *, outer: bool) -> LayerSorts:
    """The sorts of the model's layers. With ``outer``, turboquant does not pack the first and last ones."""
    return model.once(("vllm sorts", outer), lambda: _sorts_of_layers(model.stack_for("vllm"), outer=outer))


def _sorts_of_layers(stack: Stack, *, outer: bool) -> LayerSorts:
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    # Looked up by identity first: layers share their kinds, and comparing kinds is slow.
    known: dict[tuple[int, ...], tuple[LayerSort, ...]] = {}
    found = []
    for kinds in stack.layers:
        identity = tuple(map(id, kinds))
        if identity not in known:
            known[identity] = tuple([(numbers[kind], False) for kind in kinds])
        found.append(known[identity])
    if outer:
        last = len(found) - _BOUNDARY
        found = [
            tuple((kind, True) for kind, _ in sorts) if layer < _BOUNDARY or layer >= last else sorts
            for layer, sorts in enumerate(found)
        ]
    return LayerSorts(tuple(found), tuple(dict.fromkeys(chain.from_iterable(found))))


def stage_layers(layers: int, pp: int, rules: Rules) -> list[int]:
    """How many layers each pipeline stage has. The remainder goes to the stages before the last, one layer each, the later stages first.

    V0 gives all of it to the last stage.
    """
    if pp > layers:
        raise UsageError(f"pp {pp} is more than the model's {layers} layers.", hint="Use a smaller pp.")
    counts = [layers // pp] * pp
    if rules.stage_remainder == "last":
        counts[-1] += layers % pp
    else:
        for back in range(2, layers % pp + 2):
            counts[-back] += 1
    return counts


def place_caches(model: ModelSpec, layers: LayerSorts, names: Sequence[tuple[str, ...]]) -> Placed:
    """The caches of all layers. ``names`` are those of the caches of each distinct sort."""
    key = ("vllm caches", layers.distinct, tuple(names))
    return model.once(key, lambda: _place(layers, names, attention_first=model.model_type in _ATTENTION_FIRST))


def _place(layers: LayerSorts, names: Sequence[tuple[str, ...]], *, attention_first: bool) -> Placed:
    of_sort = {
        sort: tuple(((sort, place), (name, *sort)) for place, name in enumerate(own))
        for sort, own in zip(layers.distinct, names, strict=True)
    }
    found = [(layer, each) for layer, sorts in enumerate(layers.layers) for sort in sorts for each in of_sort[sort]]
    if attention_first:
        found.sort(key=lambda one: one[1][1][0] == "state")
    numbers = {sort: number for number, sort in enumerate(dict.fromkeys(sort for _, (sort, _) in found))}
    return Placed(
        tuple([LayerCache(name, layer, kind, outer) for layer, (_, (name, kind, outer)) in found]),
        Sorted.of([numbers[sort] for _, (sort, _) in found], len(numbers)),
        tuple(numbers),
    )

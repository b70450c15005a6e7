"""Bytes of the layers that a policy has cut, where each takes as much for every token: without their tensors one by one.

A search tries hundreds of lengths, and PyramidKV leaves another number of tokens in each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hwcalc.formulas import Layer, LayerKind, Role
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.stored import StoredTensor


class CutLayers(Record):
    """Bytes of each layer on a tensor-parallel rank, as the policy leaves it at its longest, and the largest tensor that grows."""

    sizes: tuple[int, ...]
    largest: int


def cut_layers(opened: Any) -> CutLayers | None:
    """The layers of a replica, counted from what one token more takes; ``None`` where they are not that simple, or nothing is cut."""
    local = opened.replica
    evicted, parallel = local.evicted, opened.request.parallel
    if evicted is None or parallel.dcp > 1 or local.together.unlike or not opened.sizes_by_token():
        return None
    rules = opened.weight_rules()

    def tensors(kind: LayerKind) -> tuple[StoredTensor, ...]:
        counted: tuple[StoredTensor, ...] = local.tensors(rules.shard(opened.model, kind, parallel.tp))
        return counted

    known: dict[int, _Layer | None] = {}
    sizes: list[int] = []
    largest = 0
    layers = local.plain_stack.layers
    for number, first in enumerate(first_alike(local)):
        if first not in known:
            known[first] = _counted(layers[first], tensors)
        counted = known[first]
        if counted is None:
            return None
        tokens = evicted.most.get(number, 0)
        sizes.append(counted.fixed + tokens * counted.token)
        largest = max(largest, counted.largest_fixed, tokens * counted.largest_token)
    return CutLayers(sizes=tuple(sizes), largest=largest)


def first_alike(opened: Any) -> tuple[int, ...]:
    """For each layer without the policy, the first one that is like it."""

    def numbers() -> tuple[int, ...]:
        found: dict[Layer, int] = {}
        return tuple(found.setdefault(layer, number) for number, layer in enumerate(opened.plain_stack.layers))

    alike: tuple[int, ...] = opened.model.once((opened.engine.name, "layers alike"), numbers)
    return alike


class _Layer(Record):
    """Bytes of a layer whatever is left of it, and for each token that is; of the largest tensor of each sort too."""

    fixed: int
    token: int
    largest_fixed: int
    largest_token: int


def _counted(layer: Layer, tensors: Callable[[LayerKind], tuple[StoredTensor, ...]]) -> _Layer | None:
    """One layer, from what it takes with one token and with two; ``None`` if a tensor has bytes of both sorts."""
    fixed: list[tuple[int, bool]] = []
    token: list[tuple[int, bool]] = []
    for kind in layer:
        if not kind.acts_by_token:
            fixed += [(tensor.bytes, _grows(tensor)) for tensor in tensors(kind)]
            continue
        for one, two in zip(tensors(replace(kind, kept=1)), tensors(replace(kind, kept=2)), strict=True):
            more = two.bytes - one.bytes
            if more not in (0, one.bytes):
                return None
            (token if more else fixed).append((one.bytes, _grows(one)))
    return _Layer(
        fixed=sum(size for size, _ in fixed),
        token=sum(size for size, _ in token),
        largest_fixed=max((size for size, grows in fixed if grows), default=0),
        largest_token=max((size for size, grows in token if grows), default=0),
    )


def _grows(tensor: StoredTensor) -> bool:
    return tensor.role not in (Role.STATE, Role.CONV)

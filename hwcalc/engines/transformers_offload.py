"""The part on the GPU of a cache that transformers keeps in host memory (``cache=offloaded``).

The keys and values of a layer are on the GPU only while they are used. The GPU holds the layer in use and the next one, which is fetched
at the same time; the first layer follows the last. Windowed layers are offloaded too by default. States of linear layers stay on the
GPU, since only what goes through ``update`` is offloaded. Source: transformers 5.23, ``cache_utils.py`` Cache.update, prefetch and
offload; ``generation/utils.py`` makes DynamicCache(offloading=True).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hwcalc.formulas import CompressedAttention, ExpandedLatentAttention, LatentAttention, Layer, LayerKind, Stack
from hwcalc.formulas.attention import AttentionKind

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Group

_OFFLOADED = (AttentionKind, LatentAttention, ExpandedLatentAttention, CompressedAttention)


def is_offloaded(layer: Layer) -> bool:
    """Whether a layer moves between host and device; a state alone stays where it is."""
    return any(isinstance(kind, _OFFLOADED) for kind in layer)


def offloaded_gpu_bytes(stack: Stack, layer_bytes: Callable[[LayerKind], int]) -> int:
    """Bytes of cache on the GPU: everything that is never offloaded, and the two neighbouring layers that hold most.

    ``layer_bytes`` returns the bytes of one layer of a kind, for the whole batch. Of 32 equal layers, two are on the GPU:

    >>> from hwcalc import load_model
    >>> offloaded_gpu_bytes(load_model("meta-llama/Llama-3.1-8B").stack, lambda kind: 1000)
    2000

    This is approximate for a moment: the fetched layer still lacks its newest token, and the layer in use keeps its old tensors while it
    grows.
    """
    return max(sum(group.count * layer_bytes(group.kind) for group in groups) for groups in groups_on_gpu(stack))


def groups_on_gpu(stack: Stack) -> tuple[tuple[Group, ...], ...]:
    """The layers that are on the GPU together: those that are never offloaded, and two neighbours; each choice that differs once."""
    layers = stack.layers
    offloaded = [number for number, layer in enumerate(layers) if is_offloaded(layer)]
    resident = set(range(len(layers))) - set(offloaded)
    neighbours = zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True)
    pairs = {frozenset((layers[used], layers[fetched])): {used, fetched} for used, fetched in neighbours}
    return tuple(stack.groups_of(sorted(resident | pair)) for pair in pairs.values() or (set(),))

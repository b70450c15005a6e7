"""What stays on the GPU of a cache that transformers keeps in host memory (``cache=offloaded``).

A layer's keys and values come back before they are used and leave after: the GPU holds the layer in use and the next one, which is
fetched meanwhile, the first one again after the last. Windowed layers leave too unless they are asked to stay; states of linear layers
never leave, since only what goes through ``update`` does. Source: transformers 5.23, ``cache_utils.py`` Cache.update, prefetch and offload;
``generation/utils.py`` makes DynamicCache(offloading=True).
"""

from __future__ import annotations

from collections.abc import Callable

from hwcalc.formulas import CompressedAttention, ExpandedLatentAttention, LatentAttention, LayerKind
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import ModelSpec

__all__ = ["offloaded_gpu_bytes"]

_MOVING = (AttentionKind, LatentAttention, ExpandedLatentAttention, CompressedAttention)


def offloaded_gpu_bytes(model: ModelSpec, layer_bytes: Callable[[LayerKind], int]) -> int:
    """Bytes of cache on the GPU: all that never leaves, and the two neighbours that hold most.

    ``layer_bytes`` says what one layer keeps of a kind, for the whole batch. Of 32 equal layers two are there:

    >>> from hwcalc import load_model
    >>> offloaded_gpu_bytes(load_model("meta-llama/Llama-3.1-8B"), lambda kind: 1000)
    2000

    The layer that is fetched gets its newest token a moment later, and while the one in use grows, its old tensors are there besides.
    """
    stays, moving = 0, []
    for layer in model.stack_for("transformers"):
        size = sum(layer_bytes(kind) for kind in layer)
        if any(isinstance(kind, _MOVING) for kind in layer):
            moving.append(size)
        else:
            stays += size
    if len(moving) < 2:
        return stays + sum(moving)
    return stays + max(used + fetched for used, fetched in zip(moving, (*moving[1:], moving[0]), strict=True))

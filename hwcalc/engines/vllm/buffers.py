"""The pool as vLLM allocates it: raw int8 buffers of ``num_blocks`` pages, each for one layer of every group.

Two groups of three layers lie in three buffers: the first layers of both groups in the first, and so on. A block of the one
group is never a block of the other, so that they do not meet. Where pages of different size lie side by side in a block
(DeepSeek-V4), the blocks are one buffer.

Source: vLLM 0.33, v1/core/kv_cache_planning.py (KVCacheTensor.shared_by) and v1/worker/gpu/attn_utils.py.
"""

from __future__ import annotations

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.vllm.layout import PoolLayout

__all__ = ["pool_buffers"]


def pool_buffers(layout: PoolLayout, blocks: int, stage: int) -> tuple[Allocation, ...]:
    """The buffers of a rank of pipeline stage ``stage``. Their pages add up to the bytes of a block there."""
    width = layout.stage_bytes[stage] if stage < len(layout.stage_bytes) else 0
    if not width or not blocks:
        return ()
    pages: list[int] = []
    layers: list[list[int]] = []
    for group in layout.groups:
        own = [
            (spec.page, layout.caches[member].layer)
            for member, spec in zip(group.members, group.specs, strict=True)
            if layout.caches[member].stage == stage
        ]
        for place, (page, layer) in enumerate(own):
            if place == len(pages):
                pages.append(0)
                layers.append([])
            pages[place] = max(pages[place], page)
            layers[place].append(layer)
    if sum(pages) != width:
        # Groups whose pages do not lie over each other one by one share the block as a whole.
        return (_buffer("pool", -1, blocks, width),)
    return tuple(
        _buffer(f"pool.{place}", layers[place][0] if len(layers[place]) == 1 else -1, blocks, page)
        for place, page in enumerate(pages)
    )


def _buffer(name: str, layer: int, blocks: int, page: int) -> Allocation:
    return Allocation(name=name, layer=layer, dtype="int8", shape=(blocks, page), bytes=blocks * page, blocks=blocks)

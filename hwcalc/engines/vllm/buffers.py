"""The pool as vLLM allocates it: int8 buffers of ``num_blocks`` pages, each shared by one layer of every group.

Two groups of three layers share three buffers: the first layers of both groups are in the first buffer, and so on. A block belongs to
only one group at a time, so the layers do not conflict. If a block has pages of different sizes side by side (DeepSeek-V4), the pool
is a single buffer.

Source: vLLM 0.33, v1/core/kv_cache_planning.py (KVCacheTensor.shared_by) and v1/worker/gpu/attn_utils.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.allocation import Allocation

if TYPE_CHECKING:
    from hwcalc.engines.vllm.layout import PoolLayout


def pool_buffers(layout: PoolLayout, blocks: int, stage: int) -> tuple[Allocation, ...]:
    """The buffers of a rank of pipeline stage ``stage`` (from 0). Their pages add up to the bytes of a block on that stage."""
    width = layout.stage_bytes[stage] if stage < len(layout.stage_bytes) else 0
    if not width or not blocks:
        return ()
    pages: list[int] = []
    layers: list[list[int]] = []
    for group in layout.groups:
        local = [
            (spec.page, layout.caches[member].layer)
            for member, spec in zip(group.members, group.specs, strict=True)
            if layout.stages[member] == stage
        ]
        for place, (page, layer) in enumerate(local):
            if place == len(pages):
                pages.append(0)
                layers.append([])
            pages[place] = max(pages[place], page)
            layers[place].append(layer)
    if sum(pages) != width:
        # The pages of the groups do not match one by one, so the groups share whole blocks.
        return (_buffer("pool", -1, blocks, width),)
    return tuple(
        _buffer(f"pool.{place}", layers[place][0] if len(layers[place]) == 1 else -1, blocks, page)
        for place, page in enumerate(pages)
    )


def _buffer(name: str, layer: int, blocks: int, page: int) -> Allocation:
    return Allocation(name=name, layer=layer, dtype="int8", shape=(blocks, page), bytes=blocks * page, blocks=blocks)

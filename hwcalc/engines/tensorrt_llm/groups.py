"""The layers of TensorRT-LLM that share a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.pool import PoolGroup
from hwcalc.formulas import LayerNumbers

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy


def group_infos(opened: TensorrtOccupancy) -> tuple[PoolGroup, ...]:
    """The pools as a plan reports them, each with the layers that have it, and the states."""
    layout, size, infos = opened.layout, opened.settings.block, []
    windows: dict[int | None, list[int]] = {}
    states: list[int] = []
    for group in opened.stack.groups:
        for piece in opened.kind_pieces[group.kind]:
            (states if piece.state else windows.setdefault(piece.window, [])).extend(group.layers)
    for window, layers in windows.items():
        block = size * max(layout.rows(stage, window) for stage in layout.stages)
        infos.append(_info("full" if window is None else "window", layers, size, block, layout.blocks(window, opened.tokens)))
    if states:
        infos.append(_info("state", states, size, max(stage.state for stage in layout.stages), 1))
    return tuple(infos)


def _info(kind: str, layers: list[int], size: int, block: int, blocks: int) -> PoolGroup:
    numbers = LayerNumbers(sorted(dict.fromkeys(layers)))
    return PoolGroup(
        kind=kind,
        count=len(numbers),
        layers=numbers,
        block_size=size,
        page_bytes=None,
        block_bytes=block,
        blocks_per_request=blocks,
    )

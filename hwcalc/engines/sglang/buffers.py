"""The buffers that a rank allocates: one for each row of each layer, in pages, of which it has one more than the pool's
tokens take, and one slot more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.allocation import ITEM_BYTES, Allocation
from hwcalc.engines.sglang.deepseek_v4 import state_rows_bytes
from hwcalc.engines.sglang.layout import SWA, stage_spans

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy
    from hwcalc.engines.sglang.sizes import Sizes


def planned_sizes(opened: SglangOccupancy) -> Sizes:
    """The pools of the planned budget; without one, the smallest that hold the planned sequences."""
    size = opened.request.hardware.kv_memory
    if size is None and opened.request.hardware.gpu is not None and opened.budget is not None:
        size = max(0, opened.budget.expected)
    return opened.sizes(opened.least_bytes if size is None else size)


def pool_buffers(opened: SglangOccupancy, stage: int) -> tuple[Allocation, ...]:
    """The buffers of a rank of pipeline stage ``stage``; none is empty."""
    sizes, page = planned_sizes(opened), opened.settings.page_size
    span = stage_spans(len(opened.plain_stack), opened.settings.pp)[stage]
    if opened.compressed is not None:
        return _compressed(opened, sizes, stage)
    layout = opened.layout
    out: list[Allocation] = []
    for number in span:
        for kind in opened.plain_stack.layers[number]:
            places = (sizes.swa_tokens or 0) if layout.pools[kind] == SWA else sizes.tokens
            name = f"layers.{number}."
            out += [
                _buffer(name + row.name, number, row.dtype, places // page + 1, page * row.bytes) for row in layout.rows[kind]
            ]
            conv, state = layout.state_bytes.get(kind, (0, 0))
            slots = (sizes.slots or 0) + 1
            out.append(_buffer(name + "conv_state", number, "bf16", slots, conv))
            out.append(_buffer(name + "recurrent_state", number, opened.dtypes.state, slots, state))
    return tuple(one for one in out if one.bytes)


def _buffer(name: str, layer: int, dtype: str, rows: int, size: int) -> Allocation:
    item = ITEM_BYTES.get(dtype)
    if item is None or size % item:
        dtype, item = "uint8", 1
    return Allocation(name=name, layer=layer, dtype=dtype, shape=(rows, size // item), bytes=rows * size, blocks=rows)


def _compressed(opened: SglangOccupancy, sizes: Sizes, stage: int) -> tuple[Allocation, ...]:
    """The pools of DeepSeek-V4, each of all layers of the stage together."""
    layout = opened.compressed
    assert layout is not None
    one, page = layout.stages[stage], layout.page_size
    pages, swa = sizes.tokens // page + 1, (sizes.swa_tokens or 0) // page + 1
    states = state_rows_bytes(layout, one, sizes.running)
    return tuple(
        buffer
        for buffer in (
            _buffer("windows", -1, "uint8", swa, round(page * layout.swa_bytes(one))),
            _buffer("compressed", -1, "uint8", pages, round(page * layout.compressed_bytes(one))),
            Allocation(name="compressor_states", layer=-1, dtype="uint8", shape=(states,), bytes=states),
        )
        if buffer.bytes
    )

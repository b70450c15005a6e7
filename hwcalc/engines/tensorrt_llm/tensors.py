"""The tensors of a plan: the blocks of all sequences, and what the manager keeps besides; the pools by layers; and what a rank allocates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwcalc.engines.pool import Allocation, PoolGroup
from hwcalc.engines.stored import OwnRule, StoredTensor, beside_layers
from hwcalc.engines.tensorrt_llm.pools import in_pages, page_bytes
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import ceil_div

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy
    from hwcalc.engines.tensorrt_llm.layout import Piece, Stage

_WORDS = {
    "idle_states": "states of max_batch_size requests, and of dummy requests",
    "prompt_read": "one prompt lies whole in the pools of windows while it is read",
    "other_pools": "pools have fixed shares, in whole pages: what the others get while the fullest has enough",
    "whole_pages": "the pool has whole pages of the driver",
    "unequal_windows": "each window has an equal share of the memory",
}
_WHY = {
    "idle_states": "states for max_batch_size requests",
    "prompt_read": "a prompt whole in the windows while it is read",
    "other_pools": "several pools with fixed shares",
    "whole_pages": "whole pages of memory",
    "unequal_windows": "an equal share for each window",
}
"""The same in fewer words, for a comparison with other engines."""


def stored_piece(occupancy: TensorrtOccupancy, piece: Piece) -> StoredTensor:
    """One buffer of one layer, of all sequences on all tensor-parallel ranks together."""
    size, tp, batch = occupancy.settings.block, occupancy.request.parallel.tp, occupancy.batch
    if piece.state:
        positions, total, span = 1, batch * piece.state * tp, OwnRule("1 slot", 1)
        width, counted = piece.state, f"{batch:,} x {piece.state:,} B"
    else:
        blocks = occupancy.layout.blocks(piece.window, occupancy.tokens)
        held, width = occupancy.needs.blocks[piece.window], piece.row
        positions, total = blocks * size, held * size * piece.row * tp
        span = OwnRule(f"{blocks:,} blocks of {size:,} tokens", positions)
        counted = f"{held:,} blocks x {size:,} x {piece.row:,} B"
    return StoredTensor(
        name=piece.name,
        role=piece.role,
        axes=("bytes of a slot" if piece.state else "bytes of a token",),
        shape=(width,),
        dtype=piece.dtype,
        positions=positions,
        span=span,
        bytes=total,
        rule=f"{counted}{f' x {tp} ranks' if tp > 1 else ''}",
    )


def extra_tensors(occupancy: TensorrtOccupancy) -> tuple[StoredTensor, ...]:
    """The tensors that the manager keeps besides the blocks of the planned sequences, on all GPUs."""
    replica, parallel, sizes = occupancy.replica, occupancy.setup.parallel, dict.fromkeys(_WORDS, 0)
    for stage in occupancy.layout.stages:
        for name, size in _beside(occupancy, replica, stage):
            sizes[name] += max(0, size) * parallel.tp
    return tuple(beside_layers(name, size, f"{size:,} B: {_WORDS[name]}", _WHY[name]) for name, size in sizes.items() if size)


def _beside(occupancy: TensorrtOccupancy, replica: TensorrtOccupancy, stage: Stage) -> Iterator[tuple[str, int]]:
    """The names and bytes of these further tensors on one rank of a stage, of all replicas together."""
    settings, layout, dp = occupancy.settings, occupancy.layout, occupancy.request.parallel.dp
    if not settings.v2:
        used = sum(occupancy.needs.blocks[window] * settings.block * layout.rows(stage, window) for window in layout.windows)
        yield "unequal_windows", layout.needed(stage, occupancy.needs.blocks) - used
        return
    idle = layout.slots * stage.state
    yield "idle_states", dp * idle - occupancy.batch * stage.state
    used = sum(replica.needs.blocks[window] * settings.block * layout.rows(stage, window) for window in layout.windows)
    one_pool = all(sum(len(sizes) for sizes, _ in storage.pools) == 1 for storage in occupancy.needs.storages)
    more = replica.needs.on_stages[layout.stages.index(stage)] - used - max(idle, replica.batch * stage.state)
    read = max(0, min(more, _read_bytes(replica, layout.stages.index(stage))))
    yield "prompt_read", dp * read
    yield "whole_pages" if one_pool else "other_pools", dp * (more - read)


def _read_bytes(replica: TensorrtOccupancy, stage: int) -> int:
    """The slots that the pools have for a prompt while it is read, besides those that it keeps."""
    storage = replica.needs.storages[stage]
    demands = zip(storage.pools, replica.needs.demand(storage), replica.needs.demand(storage, reading=False), strict=True)
    return sum((most - kept) * sum(sizes) for (sizes, _), most, kept in demands)


def buffers(occupancy: TensorrtOccupancy, stage_number: int) -> tuple[Allocation, ...]:
    """The pools of a rank, with the blocks of the byte budget where one is given, else of the planned sequences."""
    replica, size = occupancy.replica, occupancy.settings.block
    layout, settings = replica.layout, occupancy.settings
    stage, given = layout.stages[stage_number], occupancy.request.hardware.kv_memory
    if settings.v2:
        return tuple(_v2_buffers(replica, stage_number, replica.needs.least_budget if given is None else given))
    pools = layout.pool_blocks(given) if given is not None else replica.needs.blocks
    tensors = []
    for window in layout.windows:
        row, blocks = layout.rows(stage, window), pools[window]
        if layout.several and given is None:
            # Every window has as much memory as the one that needs most.
            share = layout.needed(stage, replica.needs.blocks) // len(layout.windows)
            tensors.append(Allocation(name=f"pool.{window or 'full'}", layer=-1, dtype="uint8", shape=(share,), bytes=share))
        elif row and blocks:
            shape = (blocks, row * size)
            tensors.append(
                Allocation(name=f"pool.{window or 'full'}", layer=-1, dtype="uint8", shape=shape, bytes=blocks * row * size)
            )
    return tuple(settings for settings in tensors if settings.bytes)


def _v2_buffers(occupancy: TensorrtOccupancy, stage: int, budget: int) -> Iterator[Allocation]:
    """V2's pools in whole pages, each size of a slot in a pool of its own; and the pages of the quota that no pool can use."""
    storage, quota = occupancy.needs.storages[stage], occupancy.layout.quotas(budget)[stage]
    slots, page, left = storage.slots(quota), page_bytes(quota), in_pages(quota)
    for place, ((sizes, _), count) in enumerate(zip(storage.pools, slots or [], strict=slots is not None)):
        for number, size in enumerate(sizes):
            bytes_ = ceil_div(count * size, page) * page
            left -= bytes_
            yield Allocation(name=f"pool.{place}.{number}", layer=-1, dtype="uint8", shape=(bytes_,), bytes=bytes_)
    if left:
        yield Allocation(name="pool.rest", layer=-1, dtype="uint8", shape=(left,), bytes=left)


def group_infos(occupancy: TensorrtOccupancy) -> tuple[PoolGroup, ...]:
    """The pools as a plan reports them, each with the layers that have it, and the states."""
    layout, size, infos = occupancy.layout, occupancy.settings.block, []
    windows: dict[int | None, list[int]] = {}
    states: list[int] = []
    for group in occupancy.stack.groups:
        for piece in occupancy.pieces[group.kind]:
            (states if piece.state else windows.setdefault(piece.window, [])).extend(group.layers)
    for window, layers in windows.items():
        block = size * max(layout.rows(stage, window) for stage in layout.stages)
        infos.append(_info("full" if window is None else "window", layers, size, block, layout.blocks(window, occupancy.tokens)))
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

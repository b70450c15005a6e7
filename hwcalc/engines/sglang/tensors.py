"""What the planned sequences have in SGLang's pools, layer by layer, and the buffers that a rank allocates.

A buffer is one row of one layer, in pages, of which it has one more than the pool's tokens take, and one slot more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.sglang.layout import SWA, stage_spans
from hwcalc.engines.stored import OwnRule, StoredTensor, beside_layers, bytes_of
from hwcalc.formulas import CompressedAttention, LayerKind, Role

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout
    from hwcalc.engines.sglang.deployment import SglangDeployment, SglangOccupancy
    from hwcalc.engines.sglang.layout import Row
    from hwcalc.engines.sglang.pools import Sizes

_FLOAT8: Final = "fp8_e4m3"
_RATIOS: Final = (4, 128)


def layer_tensors(kind: LayerKind, occupancy: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rows of all sequences in one layer of this kind, and their slots for states, on all tensor-parallel ranks."""
    deployment = occupancy.deployment
    if deployment.compressed is not None:
        assert isinstance(kind, CompressedAttention)
        return tuple(_paged(row, occupancy) for row in page_rows(kind, deployment.compressed))
    layout = deployment.layout
    rows = tuple(_stored_row(occupancy, row, windows=layout.pools[kind] == SWA) for row in layout.rows[kind])
    return rows if kind not in layout.state_bytes else (*rows, *_states(kind, occupancy))


def _stored_row(occupancy: SglangOccupancy, row: Row, *, windows: bool) -> StoredTensor:
    demand, held, ranks = occupancy.deployment.demand(occupancy.tokens, 1), occupancy.held, occupancy.settings.tp
    places, total = (demand.window_places, held.window_places) if windows else (demand.places, held.places)
    each = (
        f"{total:,} tokens in pages of {occupancy.settings.page_size:,}"
        if occupancy.together.unlike
        else _of_all(occupancy, f"{places:,} tokens")
    )
    return StoredTensor(
        name=row.name,
        role=row.role,
        axes=("numbers of a token on a rank",),
        shape=(row.elements,),
        dtype=row.dtype,
        positions=places,
        span=OwnRule(f"{places:,} tokens", places),
        bytes=total * row.bytes * ranks,
        rule=f"{each} x {row.bytes:,} B{_on_ranks(ranks)}",
    )


def _states(kind: LayerKind, occupancy: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """Both states of a layer in every slot of a request."""
    slots, ranks = occupancy.deployment.slots, occupancy.settings.tp
    names = (("conv_state", Role.CONV, "bf16"), ("recurrent_state", Role.STATE, occupancy.dtypes.state))
    return tuple(
        StoredTensor(
            name=name,
            role=role,
            axes=("bytes of a slot on a rank",),
            shape=(size,),
            dtype=dtype,
            positions=slots,
            span=OwnRule(f"{slots:,} slots", slots),
            bytes=occupancy.batch * slots * size * ranks,
            rule=f"{_of_all(occupancy, f'{slots:,} slots')} x {size:,} B{_on_ranks(ranks)}",
            why=f"state x {slots:,} slots" if slots > 1 else None,
        )
        for (name, role, dtype), size in zip(names, occupancy.deployment.layout.state_bytes[kind], strict=True)
        if size
    )


class PageRow(NamedTuple):
    """What a layer of DeepSeek-V4 takes of a page of one of its pools, with its share of the padding."""

    name: str
    role: Role
    bytes: int
    windows: bool


def page_rows(kind: CompressedAttention, layout: CompressedLayout) -> Iterator[PageRow]:
    """The rows of a layer of DeepSeek-V4; its states belong to no layer."""

    def row(name: str, role: Role, size: float, ratio: int = 1) -> PageRow:
        return PageRow(name, role, round(layout.page_size // ratio * size), windows=ratio == 1)

    yield row("window_latent", Role.LATENT, layout.row_bytes())
    ratio = kind.compress_ratio
    if ratio in _RATIOS:
        yield row("compressed_latent", Role.LATENT, layout.row_bytes(ratio), ratio)
    if kind.index_head_dim is not None and ratio is not None:
        yield row("indexer_keys", Role.INDEX, layout.index_bytes, ratio)


def _paged(row: PageRow, occupancy: SglangOccupancy) -> StoredTensor:
    page, ranks, held = occupancy.settings.page_size, occupancy.settings.tp, occupancy.held
    pages = (held.window_places if row.windows else held.places) // page
    return StoredTensor(
        name=row.name,
        role=row.role,
        axes=("bytes of a page",),
        shape=(row.bytes,),
        dtype=_FLOAT8,
        positions=pages,
        span=OwnRule(f"{pages:,} pages of {page:,} tokens", pages),
        bytes=pages * row.bytes * ranks,
        rule=f"{pages:,} pages of {page:,} tokens x {row.bytes:,} B{_on_ranks(ranks)}",
    )


def extras(occupancy: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rest of the smallest pools that hold the sequences: one pool is full before the other ones are, and each has a share."""
    ranks = occupancy.settings.tp * occupancy.setup.parallel.dp
    stored = sum(group.count * bytes_of(occupancy.kind_tensors[group.kind]) for group in occupancy.stack.groups)
    rest = occupancy.needed_bytes * occupancy.settings.pp * ranks - stored
    states, requests = _compressor_states(occupancy)
    # Where no pools hold the sequences there are none.
    states = min(states * ranks, max(0, rest))
    extras = (
        ("compressor_states", states, f"compressors of {requests:,} requests", f"compressors for {requests:,} requests"),
        (
            "unfilled_pools",
            rest - states,
            "pools have fixed shares of the memory, and one is full before the others",
            _why_unfilled(occupancy.deployment),
        ),
    )
    return tuple(beside_layers(name, size, f"{size:,} B: {rule}", why) for name, size, rule, why in extras if size > 0)


def _compressor_states(occupancy: SglangOccupancy) -> tuple[int, int]:
    """Bytes of the compressors of 128 tokens of DeepSeek-V4 on one rank of each stage, and the requests that they are for."""
    if occupancy.deployment.compressed is None:
        return 0, 0
    from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

    rules, stages = occupancy.deployment.pool_rules, occupancy.deployment.compressed.stages
    assert isinstance(rules, CompressedPools)
    counts = [rules.requests_with_states(place, occupancy.needed_bytes) for place in range(len(stages))]
    return sum(map(rules.states_bytes, stages, counts)), max(counts)


def _why_unfilled(deployment: SglangDeployment) -> str:
    """The pool that is larger than it need be, because its share is fixed."""
    if deployment.window is None:
        return "states have a fixed share of the memory"
    ratio = deployment.settings.swa_ratio
    return "window pool for all running requests" if ratio is None else f"window pool for {ratio:g} of the tokens"


def _of_all(occupancy: SglangOccupancy, each: str) -> str:
    return f"{occupancy.batch:,} sequences x {each}" if occupancy.batch > 1 else each


def _on_ranks(ranks: int) -> str:
    return f" x {ranks} ranks" if ranks > 1 else ""


def allocations(occupancy: SglangOccupancy, stage: int) -> tuple[Allocation, ...]:
    """The buffers of a rank of pipeline stage ``stage``; none is empty."""
    sizes, deployment, page = _planned_sizes(occupancy), occupancy.deployment, occupancy.settings.page_size
    if deployment.compressed is not None:
        return _compressed_buffers(occupancy, sizes, stage)
    layout, layers = deployment.layout, occupancy.plain_stack.layers
    out: list[Allocation] = []
    for number in stage_spans(len(layers), occupancy.settings.pp)[stage]:
        for kind in layers[number]:
            places = (sizes.swa_tokens or 0) if layout.pools[kind] == SWA else sizes.tokens
            name = f"layers.{number}."
            out += [
                _buffer(name + row.name, number, row.dtype, places // page + 1, page * row.bytes) for row in layout.rows[kind]
            ]
            conv, state = layout.state_bytes.get(kind, (0, 0))
            slots = (sizes.slots or 0) + 1
            out.append(_buffer(name + "conv_state", number, "bf16", slots, conv))
            out.append(_buffer(name + "recurrent_state", number, occupancy.dtypes.state, slots, state))
    return tuple(buffer for buffer in out if buffer.bytes)


def _planned_sizes(occupancy: SglangOccupancy) -> Sizes:
    """The pools of the planned budget; without one, the smallest that hold the planned sequences."""
    hardware = occupancy.setup.hardware
    size = hardware.kv_memory
    if size is None and hardware.gpu is not None and occupancy.budget is not None:
        size = max(0, occupancy.budget.expected)
    return occupancy.sizes(occupancy.needed_bytes if size is None else size)


def _buffer(name: str, layer: int, dtype: str, rows: int, size: int) -> Allocation:
    item = ITEM_BYTES.get(dtype)
    if item is None or size % item:
        dtype, item = "uint8", 1
    return Allocation(name=name, layer=layer, dtype=dtype, shape=(rows, size // item), bytes=rows * size, blocks=rows)


def _compressed_buffers(occupancy: SglangOccupancy, sizes: Sizes, stage: int) -> tuple[Allocation, ...]:
    """The pools of DeepSeek-V4, each of all layers of the stage together."""
    from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

    rules = occupancy.deployment.pool_rules
    assert isinstance(rules, CompressedPools)
    layers, page = rules.layout.stages[stage], rules.layout.page_size
    pages, swa = sizes.tokens // page + 1, (sizes.swa_tokens or 0) // page + 1
    states = rules.states_bytes(layers, sizes.running)
    buffers = (
        _buffer("windows", -1, "uint8", swa, round(page * rules.layout.swa_bytes(layers))),
        _buffer("compressed", -1, "uint8", pages, round(page * rules.layout.compressed_bytes(layers))),
        Allocation(name="compressor_states", layer=-1, dtype="uint8", shape=(states,), bytes=states),
    )
    return tuple(buffer for buffer in buffers if buffer.bytes)

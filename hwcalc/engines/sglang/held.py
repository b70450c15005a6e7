"""What the planned sequences have in SGLang's pools, layer by layer, and what a rank allocates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.sglang.layout import SWA
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import StoredTensor, beside_layers, bytes_of
from hwcalc.formulas import CompressedAttention, LayerKind, Role

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout
    from hwcalc.engines.sglang.deployment import SglangOccupancy

_FLOAT8: Final = "fp8_e4m3"
_RATIOS: Final = (4, 128)


def layer_tensors(kind: LayerKind, opened: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rows of all sequences in one layer of this kind, and their slots for states, on all tensor-parallel ranks."""
    if opened.compressed is not None:
        assert isinstance(kind, CompressedAttention)
        return tuple(_paged(row, opened) for row in page_rows(kind, opened.compressed))
    layout = opened.layout
    windows = layout.pools[kind] == SWA
    rows = tuple(
        _rows(opened, row.name, row.role, row.elements, row.bytes, row.dtype, windows=windows) for row in layout.rows[kind]
    )
    return rows if kind not in layout.state_bytes else (*rows, *_states(kind, opened))


def _rows(opened: SglangOccupancy, name: str, role: Role, elements: int, size: int, dtype: str, *, windows: bool) -> StoredTensor:
    places = opened.window_tokens(opened.tokens) if windows else opened.paged(opened.tokens)
    total, ranks = opened.held_tokens(windows=windows), opened.settings.tp
    each = (
        f"{total:,} tokens in pages of {opened.settings.page_size:,}"
        if opened.together.unlike
        else _of_all(opened, f"{places:,} tokens")
    )
    return StoredTensor(
        name=name,
        role=role,
        axes=("numbers of a token on a rank",),
        shape=(elements,),
        dtype=dtype,
        positions=places,
        span=OwnRule(f"{places:,} tokens", places),
        bytes=total * size * ranks,
        rule=f"{each} x {size:,} B{_on_ranks(ranks)}",
    )


def _states(kind: LayerKind, opened: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """Both states of a layer in every slot of a request."""
    slots, ranks, sizes = opened.slots, opened.settings.tp, opened.layout.state_bytes[kind]
    names = (("conv_state", Role.CONV, "bf16"), ("recurrent_state", Role.STATE, opened.dtypes.state))
    return tuple(
        StoredTensor(
            name=name,
            role=role,
            axes=("bytes of a slot on a rank",),
            shape=(size,),
            dtype=dtype,
            positions=slots,
            span=OwnRule(f"{slots:,} slots", slots),
            bytes=opened.batch * slots * size * ranks,
            rule=f"{_of_all(opened, f'{slots:,} slots')} x {size:,} B{_on_ranks(ranks)}",
            why=f"state x {slots:,} slots" if slots > 1 else None,
        )
        for (name, role, dtype), size in zip(names, sizes, strict=True)
        if size
    )


class PageRow(NamedTuple):
    """What a layer of DeepSeek-V4 takes of a page of one of its pools, with its share of the padding."""

    name: str
    role: Role
    bytes: int
    windows: bool


def page_rows(kind: CompressedAttention, layout: CompressedLayout) -> Iterator[PageRow]:
    """The rows of a layer of DeepSeek-V4; its states are beside the layers."""

    def row(name: str, role: Role, size: float, ratio: int = 1) -> PageRow:
        return PageRow(name, role, round(layout.page_size // ratio * size), windows=ratio == 1)

    yield row("window_latent", Role.LATENT, layout.row_bytes())
    ratio = kind.compress_ratio
    if ratio in _RATIOS:
        yield row("compressed_latent", Role.LATENT, layout.row_bytes(ratio), ratio)
    if kind.index_head_dim is not None and ratio is not None:
        yield row("indexer_keys", Role.INDEX, layout.index_bytes, ratio)


def _paged(row: PageRow, opened: SglangOccupancy) -> StoredTensor:
    page, ranks = opened.settings.page_size, opened.settings.tp
    pages = opened.held_tokens(windows=row.windows) // page
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


def extras(opened: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rest of the smallest pools that hold the sequences: one pool is full before the other ones are, and each has a share."""
    ranks = opened.settings.tp * opened.request.parallel.dp
    stored = sum(group.count * bytes_of(opened.kind_tensors[group.kind]) for group in opened.stack.groups)
    rest = opened.least_bytes * opened.settings.pp * ranks - stored
    states, requests = _compressor_states(opened)
    # Where no pools hold the sequences there are none.
    states = min(states * ranks, max(0, rest))
    found = (
        ("compressor_states", states, f"compressors of {requests:,} requests", f"compressors for {requests:,} requests"),
        (
            "unfilled_pools",
            rest - states,
            "pools have fixed shares of the memory, and one is full before the others",
            _why_unfilled(opened),
        ),
    )
    return tuple(beside_layers(name, size, f"{size:,} B: {rule}", why) for name, size, rule, why in found if size > 0)


def _compressor_states(opened: SglangOccupancy) -> tuple[int, int]:
    """Bytes of the compressors of 128 tokens of DeepSeek-V4 on one rank of each stage, and the requests that they are for."""
    layout = opened.compressed
    if layout is None:
        return 0, 0
    from hwcalc.engines.sglang.deepseek_v4 import state_requests, state_rows_bytes

    counts = [state_requests(layout, stage, opened.settings, opened.least_bytes) for stage in layout.stages]
    return sum(map(state_rows_bytes, repeat(layout), layout.stages, counts)), max(counts)


def _why_unfilled(opened: SglangOccupancy) -> str:
    """The pool that is larger than it need be, because its share is fixed."""
    if opened.window is None:
        return "states have a fixed share of the memory"
    ratio = opened.settings.swa_ratio
    return "window pool for all running requests" if ratio is None else f"window pool for {ratio:g} of the tokens"


def allocations(opened: SglangOccupancy, stage: int) -> tuple[Allocation, ...]:
    """The buffers of the pools of the planned budget; without one, of the smallest pools that hold the sequences."""
    from hwcalc.engines.sglang.buffers import pool_buffers

    return pool_buffers(opened, stage)


def _of_all(opened: SglangOccupancy, each: str) -> str:
    return f"{opened.batch:,} sequences x {each}" if opened.batch > 1 else each


def _on_ranks(ranks: int) -> str:
    return f" x {ranks} ranks" if ranks > 1 else ""

"""What transformers stores for one layer: a rule for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.options import integer_option
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UsageError
from hwcalc.formulas import (
    CacheTensor,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    ExpandedLatentAttention,
    Fixed,
    Full,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    Latest,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    MatrixLSTM,
    NoCache,
    RealGatedLRU,
    Remainder,
    Role,
    Rwkv4,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    Span,
    SparseIndexer,
    Window,
)
from hwcalc.formulas.attention import key_value_tensors
from hwcalc.formulas.tensor import Once

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.transformers import TransformersOccupancy

LATENT_SINCE: Final = (5, 15)
# Model types whose short convolutions keep only the columns that they need.
_OWN_CONV_SIZES: Final = frozenset({"qwen4_exp", "qwen4_exp_text", "zaya"})
# Model types whose static indexer layers keep their length in a tensor.
_COUNTED_INDEXERS: Final = frozenset({"minimax_m3_vl", "minimax_m3_vl_text"})


def version_numbers(version: str) -> tuple[int, ...] | None:
    """(5, 14, 1) for ``5.14.1``; ``None`` if the text is not a version."""
    parts = version.split(".")
    return tuple(int(part) for part in parts[:3]) if all(part.isdecimal() and len(part) < 6 for part in parts[:3]) else None


def cache_class(deployed: Deployment | Occupancy) -> str:
    """The requested cache class: dynamic, static, quantized or offloaded."""
    return deployed.setup.options.get("cache", "dynamic")


def room_tokens(deployed: Deployment | Occupancy) -> int | None:
    """The positions of a StaticCache, as the user sets them; ``None`` if the user does not."""
    value = deployed.setup.options.get("max_cache_len")
    return None if value is None else integer_option(1)("max_cache_len", value)


def static_tokens(opened: Occupancy) -> int | None:
    """The positions that StaticCache preallocates; ``None`` are as many as the planned tokens."""
    length = room_tokens(opened)
    if length is not None and opened.tokens > length:
        raise UsageError(f"max_cache_len={length:,} does not hold {opened.tokens:,} tokens.", hint="Raise it, or lower --seq.")
    return length


def counter(name: str) -> StoredTensor:
    """A tensor of one int64, which exists once for the whole batch."""
    return StoredTensor(
        name=name,
        role=Role.STATE,
        axes=("1",),
        shape=(1,),
        dtype="int64",
        positions=1,
        span=Once(),
        bytes=8,
        position_bytes=8,
        once=True,
    )


LayerRule = Callable[..., tuple[StoredTensor, ...]]


def _plain(kind: LayerKind, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return opened.store_all(kind.tensors())


def _growing(
    tensors: tuple[CacheTensor, ...], opened: TransformersOccupancy, window: int | None = None
) -> tuple[StoredTensor, ...]:
    """Store tensors with one entry per token.

    A dynamic sliding layer keeps ``window`` - 1 entries: with window 3 it keeps [CD] of ABCD, and the next token is the third. A static
    layer preallocates min(window, max_cache_len) entries.
    """
    span: Span
    if cache_class(opened) == "static":
        length = static_tokens(opened)
        if length is None:
            span = Full() if window is None else Window(window)
        else:
            span = Fixed(length if window is None else min(window, length))
    else:
        # A layer without a window keeps what its tensors say: every token, or what a policy leaves.
        return opened.store_all(tensors if window is None else (replace(tensor, span=Window(window - 1)) for tensor in tensors))
    return opened.store_all(replace(tensor, span=span) for tensor in tensors)


def _full(kind: FullAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    if cache_class(opened) == "quantized":
        from hwcalc.engines.transformers_quantized import quantized_tensors

        return quantized_tensors(kind, opened, opened.dtypes.roles[Role.KEY])
    return _growing(kind.tensors(), opened)


def _sliding(kind: SlidingAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return _growing(kind.tensors(), opened, kind.window)


def _chunked(kind: ChunkedAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return _growing(kind.tensors(), opened, kind.chunk)


def _latent(kind: LatentAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    latent = (version_numbers(opened.version) or ()) >= LATENT_SINCE
    return _growing(kind.tensors() if latent else kind.expanded().tensors(), opened, kind.window)


def _expanded(kind: ExpandedLatentAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return _growing(kind.tensors(), opened, kind.window)


def _indexer(kind: SparseIndexer, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    keys = _growing(kind.tensors(), opened)
    if cache_class(opened) == "static" and opened.model.model_type in _COUNTED_INDEXERS:
        return (*keys, counter("indexer_length"))
    return keys


def _whole_kernel(kind: LayerKind, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """The states of a layer: LinearAttentionLayer keeps all columns of the convolution's kernel, one more than it needs."""
    return opened.store_all(
        replace(tensor, span=Fixed(tensor.span.positions(1) + 1)) if tensor.role is Role.CONV else tensor
        for tensor in kind.tensors()
    )


def _short_convolution(kind: ShortConvolution, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    if opened.model.model_type in _OWN_CONV_SIZES:
        return _plain(kind, opened)
    return _whole_kernel(kind, opened)


def _compressed(kind: CompressedAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """DeepSeek-V4: compressed layers keep key and value as one tensor, layers with only a window as two."""
    dtype = opened.dtypes.roles[Role.LATENT]
    if kind.compress_ratio is None:
        tensors = key_value_tensors(1, kind.head_dim, kind.head_dim, kind.tensors()[0].span)
        return _growing(tensors, opened, kind.window)
    window, compressed = kind.tensors()[:2]
    out = [
        opened.store(replace(window, span=Window(kind.window - 1)), dtype=dtype),
        opened.store(compressed, dtype=dtype),
    ]
    halves = 2 if kind.overlap else 1
    widths = {"compressor": kind.head_dim}
    if kind.index_head_dim is not None:
        widths["indexer"] = kind.index_head_dim
        out.append(opened.store(kind.tensors()[4], dtype=dtype))
    # With ratio 4, overlap and tokens ABCDEF: [EF] wait in the buffers, and [ABCD] stay as the overlap of the next entry.
    rest, overlap = Remainder(kind.compress_ratio), Latest(kind.compress_ratio)
    for name, width in widths.items():
        for part in ("value", "gate"):
            out.append(opened.store(_slots(f"{name}_{part}", halves * width, rest), dtype=dtype))
            if kind.overlap:
                out.append(opened.store(_slots(f"{name}_overlap_{part}", width, overlap), dtype=dtype))
    return tuple(out)


def _slots(name: str, width: int, span: Span) -> CacheTensor:
    return CacheTensor(name=name, shape=(width,), axes=("width",), role=Role.STATE, span=span)


RULES: Final[Mapping[type[LayerKind], LayerRule]] = MappingProxyType(
    {
        FullAttention: _full,
        SlidingAttention: _sliding,
        ChunkedAttention: _chunked,
        LatentAttention: _latent,
        ExpandedLatentAttention: _expanded,
        SparseIndexer: _indexer,
        CompressedAttention: _compressed,
        Mamba1: _whole_kernel,
        Mamba2: _whole_kernel,
        GatedDeltaNet: _whole_kernel,
        KimiDeltaAttention: _whole_kernel,
        ShortConvolution: _short_convolution,
        LightningAttention: _plain,
        RealGatedLRU: _plain,
        Rwkv4: _plain,
        RwkvMatrix: _plain,
        MatrixLSTM: _plain,
        CrossAttention: _plain,
        SharedCache: _plain,
        NoCache: _plain,
    }
)

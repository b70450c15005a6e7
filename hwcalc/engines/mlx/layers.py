"""What mlx-lm stores for one layer: a rule for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.mlx.models import CHUNKED, EXPANDED, INDEX_ONCE, LISTED, file_of
from hwcalc.engines.mlx.options import Bits, bits_of, number_of, window_of
from hwcalc.engines.mlx.slots import Chunked, Grown, Pieces, Rotating
from hwcalc.engines.mlx.windows import keeps_windows, window_kept
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import (
    CacheTensor,
    ChunkedAttention,
    ExpandedLatentAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    RealGatedLRU,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    SparseIndexer,
)

__all__ = ["PREFILL_STEP", "RULES", "pieces", "quantized_at"]

PREFILL_STEP: Final = 2048

LayerRule = Callable[..., tuple[StoredTensor, ...]]


def pieces(opened: Opened) -> tuple[int, int]:
    """``prefill_step_size``, and the tokens of the prompt; 0 if it is all of a sequence."""
    return number_of(opened, "prefill_step_size", PREFILL_STEP), opened.request.prompt or 0


def _kept(tensors: Iterable[CacheTensor], span: Pieces, opened: Opened) -> tuple[StoredTensor, ...]:
    stored = opened.store_all(replace(tensor, span=span) for tensor in tensors)
    return stored if span.has_stairs else tuple(replace(one, position_bytes=None) for one in stored)


def _grown(tensors: Iterable[CacheTensor], opened: Opened) -> tuple[StoredTensor, ...]:
    """A ``KVCache``, whatever the layer itself would keep; a rotating one with ``max_kv_size``, which is asked of files without a cache of their own alone."""
    window = window_of(opened)
    span = Grown(*pieces(opened)) if window is None else Rotating(*pieces(opened), window)
    return _kept(tensors, span, opened)


def _full(kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
    bits = bits_of(opened)
    if bits is None or not _is_quantized(opened, bits) or file_of(opened.model) in LISTED:
        return _grown(kind.tensors(), opened)
    return _packed(kind.tensors(), bits, opened)


def _is_quantized(opened: Opened, bits: Bits) -> bool:
    """Whether the cache has been quantized by the planned moment: it is looked at behind each piece of the prompt, and each token."""
    return opened.tokens >= bits.start


def quantized_at(opened: Opened, bits: Bits) -> int:
    """The tokens of the moment at which the cache is quantized: the end of the piece in which it gets long enough."""
    step, _ = pieces(opened)
    prompt = opened.request.prompt_tokens
    return min(-(-max(1, bits.start) // step) * step, prompt) if bits.start <= prompt else bits.start


def _packed(tensors: Iterable[CacheTensor], bits: Bits, opened: Opened) -> tuple[StoredTensor, ...]:
    """A ``QuantizedKVCache``: numbers in words of 32 bits, and a scale and a bias of each group in the dtype of the model."""
    out: list[StoredTensor] = []
    for tensor in tensors:
        plain = opened.store(replace(tensor, span=Grown(*pieces(opened))))
        scale_bytes = opened.dtypes.roles[tensor.role].block_bytes
        data, scales = bits.row_bytes(tensor.shape[-1], scale_bytes)
        rows = opened.batch * plain.positions * tensor.elements_per_position // tensor.shape[-1]
        groups = f"{tensor.shape[-1]:,} / {bits.group} groups x {scale_bytes} B"
        parts = (
            ("", f"int{bits.bits}", data, f"{rows:,} rows x {tensor.shape[-1]:,} x {bits.bits} bits / 8"),
            ("_scales", plain.dtype, scales, f"{rows:,} rows x {groups}"),
            ("_biases", plain.dtype, scales, f"{rows:,} rows x {groups}"),
        )
        out += [
            replace(plain, name=tensor.name + suffix, dtype=dtype, bytes=rows * size, rule=rule, position_bytes=None)
            for suffix, dtype, size, rule in parts
        ]
    return tuple(out)


def _sliding(kind: SlidingAttention, opened: Opened) -> tuple[StoredTensor, ...]:
    if not keeps_windows(opened.model):
        return _full(kind, opened)
    return _kept(kind.tensors(), Rotating(*pieces(opened), window_kept(opened.model, kind.window)), opened)


def _chunked(kind: ChunkedAttention, opened: Opened) -> tuple[StoredTensor, ...]:
    if file_of(opened.model) not in CHUNKED:
        return _full(kind, opened)
    return _kept(kind.tensors(), Chunked(*pieces(opened), kind.chunk), opened)


def _latent(kind: LatentAttention, opened: Opened) -> tuple[StoredTensor, ...]:
    """The latent as keys and the rotary key as values, of one head; a file from before that keeps what the latent expands to."""
    if file_of(opened.model) in EXPANDED:
        return _full(kind.expanded(), opened)
    return _grown(kind.tensors(), opened)


def _indexer(kind: SparseIndexer, opened: Opened) -> tuple[StoredTensor, ...]:
    """``update_and_fetch(k, k)``: the keys are stored as values again."""
    keys = kind.tensors()
    twice = () if file_of(opened.model) in INDEX_ONCE else tuple(replace(one, name=f"{one.name}_again") for one in keys)
    return _kept((*keys, *twice), Grown(*pieces(opened)), opened)


def _state(kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
    return opened.store_all(kind.tensors())


RULES: Final[Mapping[type[LayerKind], LayerRule]] = MappingProxyType(
    {
        FullAttention: _full,
        SlidingAttention: _sliding,
        ChunkedAttention: _chunked,
        LatentAttention: _latent,
        ExpandedLatentAttention: _full,
        SparseIndexer: _indexer,
        Mamba1: _state,
        Mamba2: _state,
        GatedDeltaNet: _state,
        KimiDeltaAttention: _state,
        LightningAttention: _state,
        ShortConvolution: _state,
        RealGatedLRU: _state,
        RwkvMatrix: _state,
        SharedCache: _state,
        NoCache: _state,
    }
)

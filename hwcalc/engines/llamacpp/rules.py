"""What llama.cpp stores for one layer: a rule for each kind of layer.

The caches are those of src/llama-kv-cache*.cpp and src/llama-memory-recurrent.cpp. A layer's keys are one tensor of
[row, cells, streams], its values another; recurrent states are 32-bit floats whatever the format of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.llamacpp.opened import LlamacppOpened
from hwcalc.engines.llamacpp.settings import rounded_up
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    DType,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    Role,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.formats import FP32
from hwcalc.parsers.gguf.architectures import Memory
from hwcalc.parsers.gguf.layers import CSA_RATIO, NoHeads

__all__ = ["RULES", "STATE_DTYPE", "cells_in_words", "state_tensor"]

STATE_DTYPE: Final = DType(name=FP32.name, block_elements=1, block_bytes=4)
"""``GGML_TYPE_F32``, which ``create_memory`` names for every recurrent state (src/llama-model.cpp)."""

LayerRule = Callable[..., tuple[StoredTensor, ...]]


def cells_in_words(opened: LlamacppOpened, *, window: bool) -> str:
    """How many cells a stream has, as arithmetic."""
    one = opened.settings
    asked = one.n_ctx_asked
    if one.kv_unified or one.n_seq_max == 1:
        full = f"roundup({asked:,}, 256)"
    else:
        full = f"roundup(roundup({asked:,}, 256) // {one.n_seq_max}, 256)"
    if not window or one.swa_full:
        return full
    shared = one.n_stream == 1 and one.n_seq_max > 1
    windows = f"{opened.hparams.n_swa:,} x {one.n_seq_max}" if shared else f"{opened.hparams.n_swa:,}"
    return f"roundup(min({one.n_ctx_seq:,}, {windows} + n_ubatch {one.n_ubatch:,}), 256)"


def _cells(opened: LlamacppOpened, name: str, role: Role, width: int, axis: str, cells: int, words: str) -> StoredTensor:
    """A tensor with one row for each cell of each stream."""
    one = opened.settings
    dtype = one.type_v if role is Role.VALUE else one.type_k
    return StoredTensor(
        name=name,
        role=role,
        axes=(axis,),
        shape=(width,),
        dtype=dtype.name,
        positions=cells,
        span=OwnRule(words, cells),
        bytes=one.n_stream * cells * dtype.row_bytes(width),
        rule=f"{_streams(opened)}{words} x {width:,} in {dtype.name}" if one.n_stream != opened.batch else None,
    )


def _streams(opened: LlamacppOpened) -> str:
    count = opened.settings.n_stream
    return f"{count} streams x " if count > 1 else ""


def _attention(kind: AttentionKind, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    """Keys and values in cells; those of layers with a window have a buffer of their own."""
    one, read = opened.settings, opened.hparams
    window = not isinstance(kind, FullAttention)
    cells, words = one.cells_swa if window else one.n_ctx_seq, cells_in_words(opened, window=window)
    # Without flash attention values lie transposed, and all layers have rows of the widest one.
    widest = read.n_embd_v_gqa_max
    value = kind.num_key_value_heads * kind.v_head_dim if one.flash_attn else widest
    axis = "num_key_value_heads x v_head_dim" if one.flash_attn else "widest values of all layers"
    keys = kind.num_key_value_heads * kind.head_dim
    return (
        _cells(opened, "keys", Role.KEY, keys, "num_key_value_heads x head_dim", cells, words),
        _cells(opened, "values", Role.VALUE, value, axis, cells, words),
    )


def _no_heads(kind: NoHeads, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    one, width = opened.settings, opened.hparams.n_embd_v_gqa_max
    if one.flash_attn or not width:
        return ()
    words = cells_in_words(opened, window=False)
    return (_cells(opened, "values", Role.VALUE, width, "widest values of all layers", one.n_ctx_seq, words),)


def _latent(kind: LatentAttention, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    """Keys alone: the values are a part of them."""
    one, window = opened.settings, kind.window is not None
    cells, words = one.cells_swa if window else one.n_ctx_seq, cells_in_words(opened, window=window)
    width = kind.kv_lora_rank + kind.qk_rope_head_dim
    return (_cells(opened, "latent", Role.LATENT, width, "kv_lora_rank + qk_rope_head_dim", cells, words),)


def _indexer(kind: SparseIndexer, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    """A cache of its own with one key head. Where the model's cache has values, this one has them too, and nothing reads them."""
    one, read = opened.settings, opened.hparams
    words = cells_in_words(opened, window=False)
    width = kind.index_head_dim + kind.index_extra_elements
    keys = _cells(opened, "indexer_keys", Role.INDEX, width, "index_head_dim", one.n_ctx_seq, words)
    if read.is_mla or read.architecture.memory is Memory.HYBRID_INDEXER or not read.head_v:
        return (keys,)
    return keys, _cells(opened, "indexer_values", Role.VALUE, read.head_v, "v_head_dim, not used", one.n_ctx_seq, words)


def state_tensor(opened: LlamacppOpened, name: str, role: Role, width: int, axis: str) -> StoredTensor:
    """A state in 32-bit floats: a row for each sequence, and for each older state that is kept."""
    one = opened.settings
    rows = one.state_rows
    words = f"{one.n_seq_max} x (1 + n_rs_seq {one.n_rs_seq})" if one.n_rs_seq else f"n_seq_max {one.n_seq_max}"
    return StoredTensor(
        name=name,
        role=role,
        axes=(axis,),
        shape=(width,),
        dtype=STATE_DTYPE.name,
        positions=1 + one.n_rs_seq,
        span=OwnRule("1 + n_rs_seq" if one.n_rs_seq else "1", 1 + one.n_rs_seq),
        bytes=rows * STATE_DTYPE.row_bytes(width),
        rule=f"{words} x {axis} {width:,} x 4 B",
    )


def _state(kind: LayerKind, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    """The rolling state and the recurrent one: ``n_embd_r`` and ``n_embd_s``, the same for every recurrent layer of a model."""
    read = opened.hparams
    both = (("conv_state", Role.CONV, read.n_embd_r, "n_embd_r"), ("recurrent_state", Role.STATE, read.n_embd_s, "n_embd_s"))
    return tuple(state_tensor(opened, name, role, width, axis) for name, role, width, axis in both if width)


def _compressed(kind: CompressedAttention, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    """DeepSeek-V4: a window of latents; one for each group of tokens; and the states of the compressors."""
    one, read = opened.settings, opened.hparams
    heads = kind.head_dim
    row = heads * read.n_head_kv[0]
    out = [_cells(opened, "window_latent", Role.LATENT, row, "head_dim", one.cells_swa, cells_in_words(opened, window=True))]
    ratio = kind.compress_ratio
    if ratio not in _COMPRESSORS:
        return tuple(out)
    cells = rounded_up(max(1, -(-one.n_ctx_seq // ratio)))
    words = f"roundup(ceil({one.n_ctx_seq:,} / {ratio}), 256)"
    out.append(_cells(opened, "compressed_latent", Role.LATENT, row, "head_dim", cells, words))
    slots, times = _COMPRESSORS[ratio]
    out += _compressor(opened, "compressor", slots, times * heads)
    if kind.index_head_dim is not None:
        out.append(_cells(opened, "indexer_keys", Role.INDEX, kind.index_head_dim, "index_head_dim", cells, words))
        out += _compressor(opened, "indexer", slots, times * kind.index_head_dim)
    return tuple(out)


_COMPRESSORS: Final[Mapping[int, tuple[int, int]]] = {CSA_RATIO: (2 * CSA_RATIO, 2), 128: (128, 1)}
"""Ratio -> rows of the compressor's state, and how many times as wide as a latent they are (``DSV4_HCA_RATIO`` is 128)."""


def _compressor(opened: LlamacppOpened, name: str, slots: int, width: int) -> tuple[StoredTensor, StoredTensor]:
    """Values and scores of the tokens that are not compressed yet, for each stream and each older state that is kept."""
    value, score = (
        state_tensor(opened, f"{name}_{part}", Role.STATE, slots * width, f"{slots} rows x {width:,} =")
        for part in ("value", "gate")
    )
    return value, score


def _nothing(kind: LayerKind, opened: LlamacppOpened) -> tuple[StoredTensor, ...]:
    return ()


RULES: Final[Mapping[type[LayerKind], LayerRule]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        NoHeads: _no_heads,
        LatentAttention: _latent,
        SparseIndexer: _indexer,
        CompressedAttention: _compressed,
        Mamba1: _state,
        Mamba2: _state,
        GatedDeltaNet: _state,
        KimiDeltaAttention: _state,
        LightningAttention: _state,
        RwkvMatrix: _state,
        ShortConvolution: _state,
        SharedCache: _nothing,
        NoCache: _nothing,
    }
)
"""Kind -> rule. The layers of a file have no other kinds (:func:`hwcalc.parsers.gguf.layers.cached_layers`)."""

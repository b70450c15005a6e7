"""What a layer keeps on one rank, and the layers of each pipeline stage: rows in blocks, all of them or those of a window, and states.

Read, not run: pyexecutor/resource_manager.py get_cache_bytes_per_token, sparse/dsa/cache_manager.py, sparse/deepseek_v4/deepseek_v4.py
get_token_bytes, and config_utils.py get_states_bytes_per_layer of the sources of 1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.tensorrt_llm.settings import ITEM_BYTES, Settings
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    Mamba2,
    NoCache,
    Role,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.formulas.attention import AttentionKind

_SCALE_EVERY: Final = 16
_INDEX_SCALE_EVERY: Final = 128
_STATE: Final = 4
"""Bytes of a number of DeepSeek-V4's compressor, which is always fp32."""


class Piece(Record):
    """One buffer of a layer on a rank: ``row`` bytes for each token of a block, or ``state`` bytes for each slot.

    ``window`` cuts it to the blocks of the last tokens; ``key`` is what layers have in common that share one scratch block.
    """

    name: str
    role: Role
    dtype: str
    row: int = 0
    state: int = 0
    window: int | None = None
    key: tuple[object, ...] = ()


def pieces_of(kind: LayerKind, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """The buffers of one layer on a rank."""
    return RULES[type(kind)](kind, settings, window)


def _attention(kind: AttentionKind, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """Keys and values, which are as wide as keys; with more ranks than heads each rank has a head."""
    if settings.kv_dtype == "fp8_ds_mla":
        raise UnsupportedError(f"--dtype fp8_ds_mla packs a latent; {kind.title} has keys.", hint="Use: --dtype fp8")
    numbers = -(-kind.num_key_value_heads // settings.tp) * kind.head_dim
    row = _row(numbers, settings)
    return tuple(
        Piece(name=name, role=role, dtype=settings.kv_dtype, row=row, window=window, key=(window, 2 * row))
        for name, role in (("keys", Role.KEY), ("values", Role.VALUE))
    )


def _row(numbers: int, settings: Settings) -> int:
    """Bytes of ``numbers`` numbers in the KV dtype, with their scales."""
    if settings.kv_dtype == "nvfp4":
        if numbers % _SCALE_EVERY:
            raise UnsupportedError(
                f"NVFP4 cache size must be divisible by quant vector size: {numbers:,} numbers are no multiple of 16.",
                hint="Use: --dtype fp8",
            )
        return numbers // 2 + numbers // _SCALE_EVERY
    return numbers * ITEM_BYTES.get(settings.kv_dtype, 1)


def _latent(kind: LatentAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """One row that is key and value at once, whole on every rank."""
    if kind.window is not None:
        raise UnsupportedError("TensorRT-LLM has no latent attention with a window.", hint="Plan it with --engine vllm.")
    if settings.kv_dtype == "fp8_ds_mla":
        row = kind.kv_lora_rank + kind.kv_lora_rank // 128 * 4 + 2 * kind.qk_rope_head_dim
    else:
        row = _row(kind.kv_lora_rank + kind.qk_rope_head_dim, settings)
    return (Piece(name="latent", role=Role.LATENT, dtype=settings.kv_dtype, row=row, window=window, key=(window, row)),)


def _index_row(width: int, settings: Settings) -> int:
    """Bytes of an indexer's key of ``width`` numbers, with a scale for each 128 of them, whatever the KV dtype."""
    return (width // 2 if settings.index_fp4 else width) + width // _INDEX_SCALE_EVERY * 4


def _indexer(kind: SparseIndexer, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    if not kind.index_quantized or kind.index_extra_elements:
        raise UnsupportedError(
            "TensorRT-LLM keeps this indexer's keys in pools of their own, whose rows are not known.",
            hint="Plan it with --engine vllm.",
        )
    row = _index_row(kind.index_head_dim, settings)
    return (Piece(name="indexer_keys", role=Role.INDEX, dtype="fp4" if settings.index_fp4 else "fp8", row=row),)


def _compressed(kind: CompressedAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """DeepSeek-V4: a window of raw tokens and of the compressor's states in whole blocks, and rows of compressed tokens."""
    item, ratio, dtype = ITEM_BYTES.get(settings.kv_dtype, 1), kind.compress_ratio, settings.kv_dtype
    held = [_sliding("window_latent", Role.LATENT, dtype, kind.head_dim * item, kind.window, 1)]
    if ratio is None:
        return tuple(held)
    halves = 2 if kind.overlap else 1
    reach = halves * ratio
    held.append(Piece(name="compressed_latent", role=Role.LATENT, dtype=dtype, row=kind.head_dim * item // ratio))
    held += [
        _sliding(name, Role.STATE, "fp32", halves * kind.head_dim * _STATE, reach, ratio)
        for name in ("compressor_value", "compressor_gate")
    ]
    if kind.index_head_dim is not None:
        width = kind.index_head_dim
        row = width // 2 + width // 32 if settings.index_fp4 else width + width // _INDEX_SCALE_EVERY * 4
        held.append(Piece(name="indexer_keys", role=Role.INDEX, dtype="fp8", row=row // ratio))
        held += [
            _sliding(name, Role.STATE, "fp32", halves * width * _STATE, reach, ratio)
            for name in ("indexer_value", "indexer_gate")
        ]
    return tuple(held)


def _sliding(name: str, role: Role, dtype: str, row: int, window: int, ratio: int) -> Piece:
    return Piece(name=name, role=role, dtype=dtype, row=row, window=window, key=(name, ratio))


def _state(conv: int, columns: int, matrix: int, settings: Settings) -> tuple[Piece, ...]:
    """The convolution's last columns in the model's dtype, and the recurrence in that of states."""
    return (
        Piece(
            name="conv_state",
            role=Role.CONV,
            dtype=settings.model_dtype,
            state=conv // settings.tp * columns * ITEM_BYTES[settings.model_dtype],
        ),
        Piece(name="state", role=Role.STATE, dtype=settings.state_dtype, state=matrix * ITEM_BYTES[settings.state_dtype]),
    )


def _mamba2(kind: Mamba2, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    heads = _share(kind.num_heads, settings.tp, "num_heads")
    conv = kind.num_heads * kind.head_dim + 2 * kind.n_groups * kind.d_state
    return _state(conv, kind.d_conv - 1, heads * kind.head_dim * kind.d_state, settings)


def _gated_delta(kind: GatedDeltaNet, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    heads = _share(kind.num_value_heads, settings.tp, "num_value_heads")
    return _state(kind.conv_dim, kind.d_conv - 1, heads * kind.value_head_dim * kind.key_head_dim, settings)


def _kimi_delta(kind: KimiDeltaAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """The convolution keeps as many columns as it is wide, one more than it needs."""
    heads = _share(kind.num_heads, settings.tp, "num_heads")
    return _state(kind.conv_dim, kind.d_conv, heads * kind.head_dim * kind.head_dim, settings)


def _share(number: int, tp: int, name: str) -> int:
    if number % tp:
        raise UsageError(f"TensorRT-LLM cannot split {name} {number:,} over tp {tp}.", hint="Use a tp that divides it.")
    return number // tp


def _nothing(kind: LayerKind, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    return ()


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[Piece, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        LatentAttention: _latent,
        SparseIndexer: _indexer,
        CompressedAttention: _compressed,
        Mamba2: _mamba2,
        GatedDeltaNet: _gated_delta,
        KimiDeltaAttention: _kimi_delta,
        NoCache: _nothing,
    }
)


class Stage(Record):
    """The layers of one pipeline stage: the pieces of each kind, and how many layers have them."""

    kinds: tuple[tuple[tuple[Piece, ...], int], ...]

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, int], ...]:
        """Each piece and how many layers have it."""
        return tuple((piece, count) for pieces, count in self.kinds for piece in pieces)

    @cached_property
    def growing(self) -> int:
        """Bytes for each token, in layers that keep all of them."""
        return sum(count * piece.row for piece, count in self.pieces if piece.window is None)

    @cached_property
    def windows(self) -> dict[int, int]:
        """Window -> bytes for each token in the layers with that window, the smallest first."""
        found: dict[int, int] = {}
        for piece, count in self.pieces:
            if piece.window is not None:
                found[piece.window] = found.get(piece.window, 0) + count * piece.row
        return dict(sorted(found.items()))

    @cached_property
    def state(self) -> int:
        """Bytes of a slot of all recurrent states."""
        return sum(count * piece.state for piece, count in self.pieces)

    def reading(self, scratch: bool) -> int:
        """Bytes of windowed layers for each token of a prompt that is read; with scratch blocks one layer of each kind."""
        sliding = [(piece, count) for piece, count in self.pieces if piece.window is not None]
        if not scratch:
            return sum(count * piece.row for piece, count in sliding)
        return sum({piece.key: piece.row for piece, _ in sliding}.values())

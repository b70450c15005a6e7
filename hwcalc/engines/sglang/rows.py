"""What one layer stores for one token on one rank.

Source: SGLang 0.5.23, ``model_executor/pool_configurator.py`` and ``mem_cache/kv_cache_configurator.py``. Heads are divided and rounded
down, at least one a rank; a latent and an indexer are whole on every rank.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hwcalc.engines.sglang.backends import BLACKWELL
from hwcalc.engines.sglang.settings import FOUR_BITS, SglangSettings
from hwcalc.formulas import ChunkedAttention, FullAttention, LatentAttention, LayerKind, Role, SlidingAttention, SparseIndexer
from hwcalc.formulas.attention import AttentionKind

INDEX_BLOCK: Final = 128
"""Numbers of an indexer key that share a scale of four bytes."""
_SCALED_LATENT: Final = 128
"""Numbers of a latent that share one."""
_MX_BLOCK: Final = 32
_FP4_BLOCK: Final = 16
_RAW_BACKENDS: Final = ("trtllm", "tilelang")
"""Kernels that read latents in fp8 without scales."""
ROW_KINDS: Final = (FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, SparseIndexer)
_FLOAT_INDEX_BYTES: Final = 2


class Row(NamedTuple):
    """One tensor of a layer: its bytes for a token on a rank, and the numbers that they hold."""

    name: str
    role: Role
    elements: int
    bytes: int
    dtype: str


def attention_elements(kind: AttentionKind, tp: int) -> tuple[int, int]:
    """Numbers of the key and of the value of a token on a rank."""
    heads = max(1, kind.num_key_value_heads // tp)
    return heads * kind.head_dim, heads * kind.v_head_dim


def rows_of(
    kind: LayerKind, settings: SglangSettings, *, sparse: bool, split: bool, fp8_index: bool = False, plain: bool = False
) -> tuple[Row, ...]:
    """The rows of a layer of this kind. ``sparse`` latents have an indexer; ``split`` is a model whose windows have their own pool.

    ``fp8_index`` says whether an indexer without scales follows a cache in fp8, and ``plain`` that scales are never counted.
    """
    if isinstance(kind, LatentAttention):
        return (_latent(kind, settings, sparse=sparse),)
    if isinstance(kind, SparseIndexer):
        width = kind.index_head_dim
        if kind.index_quantized:
            return (Row("indexer_keys", Role.INDEX, width, width + width // INDEX_BLOCK * 4, "fp8_e4m3"),)
        size = settings.element_bytes if fp8_index else _FLOAT_INDEX_BYTES
        return (Row("indexer_keys", Role.INDEX, width, width * size, settings.kv_dtype if size == 1 else "bf16"),)
    assert isinstance(kind, AttentionKind)
    key, value = attention_elements(kind, settings.tp)
    name = settings.kv_dtype
    sizes = tuple(count * settings.element_bytes if plain else _bytes(count, settings, split=split) for count in (key, value))
    return Row("keys", Role.KEY, key, sizes[0], name), Row("values", Role.VALUE, value, sizes[1], name)


def _bytes(elements: int, settings: SglangSettings, *, split: bool) -> int:
    if settings.kv_dtype == "mxfp8":
        return elements + elements // _MX_BLOCK
    if settings.kv_dtype in FOUR_BITS and not split:
        # Kernels of Blackwell read scales in an order of their own, beside that in which prompts are unpacked.
        layouts = 2 if settings.kv_dtype == "nvfp4" and settings.major == BLACKWELL and settings.unpacks else 1
        return elements // 2 + layouts * (elements // _FP4_BLOCK)
    # Pools that are split charge four bits a whole byte (``HybridSWAPoolConfigurator``).
    return elements * settings.element_bytes


def _latent(kind: LatentAttention, settings: SglangSettings, *, sparse: bool) -> Row:
    width = kind.kv_lora_rank + kind.qk_rope_head_dim
    size = width * settings.element_bytes
    if settings.kv_dtype in FOUR_BITS:
        size = width // 2 + width // _FP4_BLOCK
    elif sparse and settings.kv_dtype == "fp8_e4m3" and settings.dsa_backend not in _RAW_BACKENDS:
        # Scales of the latent, and the rotary key in 16 bits (``calculate_mla_kv_cache_dim``).
        size = kind.kv_lora_rank + kind.kv_lora_rank // _SCALED_LATENT * 4 + kind.qk_rope_head_dim * 2
    return Row("latent", Role.LATENT, width, size, settings.kv_dtype)


def workspace_bytes(kind: LayerKind, settings: SglangSettings) -> int:
    """What four-bit keys and values take for a token beside the layers: a place where one layer is unpacked in fp8 for prompts.

    Kernels of Blackwell read four bits themselves (``NVFP4KVCacheMethod``), and ``fp4_mx_block16`` has no such place.
    """
    if settings.kv_dtype != "nvfp4" or not settings.unpacks or not isinstance(kind, AttentionKind):
        return 0
    return sum(attention_elements(kind, settings.tp))

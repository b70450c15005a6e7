"""Short convolutions, instead of attention (LFM2, LFM3) or beside it (Inkling, ZAYA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.formulas import Layer, ShortConvolution
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, LayerReader, Reading, attention_dims, build_layers, full_layer, windowed_layer
from hwcalc.parsers.states import spelled_layer_types

__all__ = ["read"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_CONV: Final = "conv"
_HYBRID: Final = "hybrid"
_HYBRID_SLIDING: Final = "hybrid_sliding"


def read(config: Config) -> Reading:
    """Read a config whose layers have short convolutions."""
    count = config.number_of_layers()
    types, readers, without_effect = _DIALECTS[config.model_type or ""]
    spelled = spelled_layer_types(config, count)
    config.ignore(*without_effect)
    return Reading(layers=build_layers(config, spelled or types(config, count), readers), config=config)


def _lfm2_types(config: Config, count: int) -> list[str]:
    """``full_attn_idxs`` counts from 0; null or absent is attention on every layer. The mixture-of-experts type must spell it out."""
    full = config.integers("full_attn_idxs")
    if full is None and config.model_type == "lfm2_moe":
        raise config.missing("layer_types")
    attending = set(range(count) if full is None else full)
    return [_FULL if i in attending else _CONV for i in range(count)]


def _lfm3_types(config: Config, count: int) -> list[str]:
    """Convolutions on odd layers and on the first; the others alternate between attending to all and to a window."""
    return [_FULL if i % 4 == 2 else _SLIDING if i % 4 == 0 and i > 0 else _CONV for i in range(count)]


def _inkling_types(config: Config, count: int) -> list[str]:
    """``local_layer_ids`` counts from 0; without it every sixth layer attends to all."""
    local = config.integers("local_layer_ids")
    windowed = {i for i in range(count) if (i + 1) % 6} if local is None else set(local)
    return [_HYBRID_SLIDING if i in windowed else _HYBRID for i in range(count)]


def _zaya_types(config: Config, count: int) -> list[str]:
    return [_HYBRID] * count


def _conv_layer(config: Config, index: int) -> Layer:
    return (ShortConvolution(channels=config.integer("hidden_size"), d_conv=config.integer("conv_L_cache")),)


def _inkling_layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """Attention whose keys and values, and whose block's two outputs, each pass a convolution: four states in a layer."""
    prefix = "swa_" if sliding else ""
    heads = config.integer(f"{prefix}num_attention_heads")
    kv_heads = config.maybe_integer(f"{prefix}num_key_value_heads") or heads
    head_dim = config.integer(f"{prefix}head_dim")
    dims = AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    kernel = config.integer("conv_kernel_size")
    keys = ShortConvolution(channels=kv_heads * head_dim, d_conv=kernel)
    hidden = ShortConvolution(channels=config.integer("hidden_size"), d_conv=kernel)
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, keys, keys, hidden, hidden)


def _zaya_layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """Attention whose queries and keys pass two convolutions, one after the other, and half of whose values lag a token behind.

    Kernels of 2 and 2 look back (2 - 1) + (2 - 1) = 2 tokens, over the channels of queries and keys together; the lag needs
    the last token's half of the values.
    """
    dims = attention_dims(config)
    reach = config.integer("cca_time0") + config.integer("cca_time1") - 2
    width = dims.num_key_value_heads * dims.head_dim
    channels = dims.num_attention_heads * dims.head_dim + width
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, ShortConvolution(channels=channels, d_conv=reach + 1), ShortConvolution(channels=width // 2, d_conv=2))


_LFM: Final[Mapping[str, LayerReader]] = {_CONV: _conv_layer, _FULL: full_layer, _SLIDING: windowed_layer}
_INKLING: Final[Mapping[str, LayerReader]] = {
    _HYBRID: lambda config, index: _inkling_layer(config, index, sliding=False),
    _HYBRID_SLIDING: lambda config, index: _inkling_layer(config, index, sliding=True),
}
_ZAYA: Final[Mapping[str, LayerReader]] = {
    _HYBRID: lambda config, index: _zaya_layer(config, index, sliding=False),
    _HYBRID_SLIDING: lambda config, index: _zaya_layer(config, index, sliding=True),
}

_LFM_KEYS: Final = (
    "conv_L_cache", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "full_attn_idxs", "num_attention_heads", "num_heads",
    "num_key_value_heads",
)  # fmt: skip
_INKLING_KEYS: Final = (
    "head_dim", "local_layer_ids", "model_max_length", "mtp_local_layer_ids", "num_attention_heads", "num_key_value_heads",
    "number_of_conv_states", "shared_expert_sink", "sliding_window", "sliding_window_size", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads",
)  # fmt: skip

_DIALECTS: Final[Mapping[str, tuple[Callable[[Config, int], list[str]], Mapping[str, LayerReader], tuple[str, ...]]]] = {
    "lfm2": (_lfm2_types, _LFM, _LFM_KEYS),
    "lfm2_moe": (_lfm2_types, _LFM, _LFM_KEYS),
    "lfm3": (_lfm3_types, _LFM, ("conv_L_cache", "head_dim", "num_attention_heads", "num_key_value_heads", "sliding_window")),
    "inkling_text": (_inkling_types, _INKLING, _INKLING_KEYS),
    "inkling2_text": (_inkling_types, _INKLING, _INKLING_KEYS),
    "zaya": (_zaya_types, _ZAYA, ("sliding_window",)),
}
"""How the layers are typed where the file does not say, what a layer of each type keeps, and the keys without effect."""

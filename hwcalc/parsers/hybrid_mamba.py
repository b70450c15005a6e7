"""Mamba and attention in one stack: on layers of their own, or both in one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Reading,
    attention_dims,
    build_layers,
    every,
    full_layer,
    read_layer_types,
)
from hwcalc.parsers.states import LINEAR, inner_width, no_cache_layer, spelled_layer_types, state_dtype

__all__ = ["nemotron_mtp_types", "nemotron_types", "read"]

_FULL: Final = "full_attention"
_HYBRID: Final = "hybrid"
# One letter for each layer in Nemotron-H files: Mamba, attention, feed-forward, experts.
_LETTERS: Final = {"M": LINEAR, "*": _FULL, "-": "mlp", "E": "moe"}
# Zamba2's stack where the file leaves it out: the layers that attend as well, of 54.
_ZAMBA2_LAYERS: Final = 54
_ZAMBA2_HYBRID: Final = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})

# Keys of both sorts of layer, which a stack without one sort leaves unread, and keys that never bear on the cache.
_COMMON: Final = (
    "head_dim", "mamba_chunk_size", "mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_attention_heads",
    "num_key_value_heads", "use_mamba_kernels",
)  # fmt: skip
_BY_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    "bamba": ("attn_layer_indices", "mamba_d_head", "mamba_n_groups", "mamba_n_heads"),
    "falcon_h1": ("mamba_use_mlp", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier"),
    "granitemoehybrid": ("mamba_d_head", "mamba_n_groups", "mamba_n_heads"),
    "jamba": ("use_mambapy",),
    "nemotron_h": (
        "attention_head_dim", "chunk_size", "conv_kernel", "expand", "hybrid_override_pattern", "mamba_head_dim", "mamba_n_groups",
        "mamba_num_heads", "moe_latent_size", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "n_groups", "sliding_window",
        "ssm_state_size",
    ),
    "zamba": ("attention_head_dim", "attention_hidden_size", "attn_layer_offset", "attn_layer_period", "n_mamba_heads"),
    "zamba2": (
        "attention_head_dim", "attention_hidden_size", "chunk_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim",
        "mamba_ngroups", "n_mamba_heads", "num_query_groups", "use_shared_attention_adapter",
    ),
}  # fmt: skip


def read(config: Config) -> Reading:
    """Read a config whose layers are Mamba, attention, or both."""
    name = config.model_type or ""
    types, mamba, attention = _DIALECTS[name]
    config.ignore(*_COMMON, *_BY_TYPE[name])
    readers: dict[str, LayerReader] = {
        LINEAR: mamba,
        _FULL: attention,
        _HYBRID: lambda layer, index: (*attention(layer, index), *mamba(layer, index)),
        "mlp": no_cache_layer,
        "moe": no_cache_layer,
    }
    return Reading(layers=build_layers(config, types(config), readers), config=config, state_dtype=state_dtype(config))


def _jamba_types(config: Config) -> list[str]:
    count = config.number_of_layers()
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise config.error("attn_layer_offset", offset, f"less than attn_layer_period ({period})")
    return every(period, count, _FULL, LINEAR, offset)


def _bamba_types(config: Config) -> list[str]:
    """``attn_layer_indices`` counts from 0; without it no layer attends."""
    count = config.number_of_layers()
    full = set(config.integers("attn_layer_indices") or ())
    spelled = spelled_layer_types(config, count)
    return spelled or [_FULL if i in full else LINEAR for i in range(count)]


def _granite_types(config: Config) -> list[str]:
    count = config.number_of_layers()
    return spelled_layer_types(config, count) or [LINEAR] * count


def _falcon_types(config: Config) -> list[str]:
    config.ignore("layers_block_type", "layer_types")
    return [_HYBRID] * config.number_of_layers()


def _zamba_types(config: Config) -> list[str]:
    """Two Mamba layers and a hybrid one, then a hybrid one in every period counted from there."""
    count = config.number_of_layers()
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    rest = [_HYBRID if i % period == offset else LINEAR for i in range(max(0, count - 3))]
    return [LINEAR, LINEAR, _HYBRID, *rest][:count]


def _zamba2_types(config: Config) -> list[str]:
    count = config.number_of_layers()
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    if count != _ZAMBA2_LAYERS:
        raise config.missing("layers_block_type")
    return [_HYBRID if i in _ZAMBA2_HYBRID else LINEAR for i in range(count)]


def nemotron_types(config: Config) -> list[str]:
    """A list, else a pattern such as ``M-M*``; the layer count is its length, whatever num_hidden_layers says."""
    config.ignore("num_hidden_layers")
    spelled = config.strings("layers_block_type")
    if spelled is not None:
        if not 1 <= len(spelled) <= MAX_LAYERS:
            raise config.error("layers_block_type", f"{len(spelled)} items long", f"a list of 1 to {MAX_LAYERS:,} items")
        return read_layer_types(config, len(spelled), "layers_block_type") or []
    # The class's own default: one layer of each sort.
    return _nemotron_pattern(config, "hybrid_override_pattern") or [LINEAR, "moe", _FULL, "mlp"]


def nemotron_mtp_types(config: Config) -> list[str]:
    """Types of one multi-token-prediction step of Nemotron-H, attention and experts unless said; empty where there is none."""
    if not config.maybe_integer("num_nextn_predict_layers", minimum=0, maximum=MAX_LAYERS):
        return []
    spelled = config.strings("mtp_layers_block_type")
    if spelled:
        return read_layer_types(config, min(len(spelled), MAX_LAYERS), "mtp_layers_block_type") or []
    return _nemotron_pattern(config, "mtp_hybrid_override_pattern") or [_FULL, "moe"]


def _nemotron_pattern(config: Config, key: str) -> list[str] | None:
    pattern = config.text(key)
    if pattern is None:
        return None
    if not pattern or len(pattern) > MAX_LAYERS or set(pattern) - set(_LETTERS):
        raise config.error(key, pattern, f"1 to {MAX_LAYERS:,} letters out of {' '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]


def _jamba_mamba(config: Config, index: int) -> Layer:
    return (
        Mamba1(
            d_inner=inner_width(config, "mamba_expand"),
            d_state=config.integer("mamba_d_state"),
            d_conv=config.integer("mamba_d_conv"),
        ),
    )


def _bamba_mamba(config: Config, index: int) -> Layer:
    """Mamba-2 by the mamba_* keys; ``mamba_d_head`` may be ``"auto"``: the inner width shared out evenly.

    Falcon-H1 names the inner width itself, ``mamba_d_ssm``: 34B has 4,096 where expand x hidden_size would be 10,240.
    """
    heads = config.integer("mamba_n_heads")
    named = config.maybe_integer("mamba_d_ssm") if config.model_type == "falcon_h1" else None
    inner = named or inner_width(config, "mamba_expand")
    head_dim = config.get("mamba_d_head")
    head_dim = inner // heads if head_dim in (None, "auto") else config.checked_integer("mamba_d_head", head_dim)
    if heads * head_dim != inner:
        raise config.error("mamba_n_heads", heads, f"such that mamba_n_heads x mamba_d_head is the inner width ({inner:,})")
    return (
        Mamba2(
            num_heads=heads,
            head_dim=head_dim,
            d_state=config.integer("mamba_d_state"),
            n_groups=config.integer("mamba_n_groups"),
            d_conv=config.integer("mamba_d_conv"),
        ),
    )


def _zamba2_mamba(config: Config, index: int) -> Layer:
    # Published files carry a state_size beside mamba_d_state; the model reads the latter.
    config.ignore("state_size")
    heads = config.integer("n_mamba_heads")
    return (
        Mamba2(
            num_heads=heads,
            head_dim=config.maybe_integer("mamba_headdim") or inner_width(config, "mamba_expand") // heads,
            d_state=config.integer("mamba_d_state"),
            n_groups=config.integer("mamba_ngroups"),
            d_conv=config.integer("mamba_d_conv"),
        ),
    )


def _zamba_mamba(config: Config, index: int) -> Layer:
    # Its heads only split the channels: n_mamba_heads x (d_inner / n_mamba_heads) x d_state is Mamba-1's d_inner x d_state.
    return _jamba_mamba(config, index)


def _nemotron_mamba(config: Config, index: int) -> Layer:
    """Mamba-2 whose inner width is mamba_num_heads x mamba_head_dim and not expand x hidden_size.

    Nemotron-3-Nano: 64 x 64 = 4,096 where expand x hidden_size would be 5,376. Early files say mamba_n_groups and mamba_d_conv.
    """
    return (
        Mamba2(
            num_heads=config.integer("mamba_num_heads"),
            head_dim=config.integer("mamba_head_dim"),
            d_state=config.integer("ssm_state_size"),
            n_groups=config.maybe_integer("mamba_n_groups") or config.integer("n_groups"),
            d_conv=config.maybe_integer("mamba_d_conv") or config.integer("conv_kernel"),
        ),
    )


def _nemotron_attention(config: Config, index: int) -> Layer:
    # Early files call it attention_head_dim.
    early = None if config.has("head_dim") else config.maybe_integer("attention_head_dim")
    return (attention_dims(config).full() if early is None else _attention(config, early).full(),)


def _attention(config: Config, head_dim: int) -> AttentionDims:
    heads = config.integer("num_attention_heads")
    return AttentionDims(
        num_attention_heads=heads,
        num_key_value_heads=config.maybe_integer("num_key_value_heads") or heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
    )


def _zamba_attention(config: Config, index: int) -> Layer:
    """Attention over the layer's input and the embeddings side by side: head_dim is 2 x hidden_size / heads.

    The attention weights are shared among layers, their keys and values are not.
    """
    heads = config.integer("num_attention_heads")
    head_dim = config.maybe_integer("attention_head_dim") or 2 * config.integer("hidden_size") // heads
    return (_attention(config, head_dim).full(),)


_DIALECTS: Final[Mapping[str, tuple[Callable[[Config], list[str]], LayerReader, LayerReader]]] = {
    "jamba": (_jamba_types, _jamba_mamba, full_layer),
    "bamba": (_bamba_types, _bamba_mamba, full_layer),
    "falcon_h1": (_falcon_types, _bamba_mamba, full_layer),
    "granitemoehybrid": (_granite_types, _bamba_mamba, full_layer),
    "zamba": (_zamba_types, _zamba_mamba, _zamba_attention),
    "zamba2": (_zamba2_types, _zamba2_mamba, _zamba_attention),
    "nemotron_h": (nemotron_types, _nemotron_mamba, _nemotron_attention),
}
"""How the layers are typed, what a Mamba layer keeps, what an attention layer keeps."""

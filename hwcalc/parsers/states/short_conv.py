"""LFM2 and LFM3: short convolutions on most layers, attention on the others (``modeling_lfm*.py`` of transformers 5.23)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, ShortConvolution
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, linear
from hwcalc.formulas.weights_state import short_convolution
from hwcalc.parsers.blocks import Named, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, full_layer, windowed_layer
from hwcalc.parsers.states import FULL, SLIDING, Interleaved, spelled_layer_types

__all__ = ["LFM2", "LFM3"]

_CONV: Final = "conv"


def _lfm2_types(config: Config, count: int) -> list[str]:
    """``full_attn_idxs`` counts from 0; null or absent is attention on every layer. The mixture-of-experts type must spell it out."""
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    full = config.integers("full_attn_idxs")
    if full is None and config.model_type == "lfm2_moe":
        raise config.missing("layer_types")
    attending = set(range(count) if full is None else full)
    return [FULL if i in attending else _CONV for i in range(count)]


def _lfm3_types(config: Config, count: int) -> list[str]:
    """Convolutions on odd layers and on the first; the others alternate between attending to all and to a window."""
    spelled = spelled_layer_types(config, count)
    return spelled or [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i > 0 else _CONV for i in range(count)]


def _conv_layer(config: Config, index: int) -> Layer:
    return (ShortConvolution(channels=config.integer("hidden_size"), d_conv=config.integer("conv_L_cache")),)


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """One mixer and one MLP a layer, or experts after ``num_dense_layers``."""
    hidden, bias = config.integer("hidden_size"), config.flag("conv_bias")
    names = ["operator_norm", "ffn_norm"]
    if config.model_type == "lfm3" and config.flag("use_sandwich_norm"):
        names += ["post_operator_norm", "post_ffn_norm"]

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        (kind,), sparse = key
        if isinstance(kind, AttentionKind):
            yield "attention", _attention(config, kind)
        else:
            assert isinstance(kind, ShortConvolution)
            yield "conv", short_convolution(hidden, kind.d_conv, bias=bias)
        yield ("moe", _experts(config)) if sparse else ("mlp", _swiglu(hidden, _width(config), "feed_forward"))
        yield "norm", rms_norms(hidden, *names)

    dense = config.maybe_integer("num_dense_layers", minimum=0) or 0
    layers = [(layer, config.model_type == "lfm2_moe" and i >= dense) for i, layer in enumerate(reading.layers)]
    return ends(config, top, norm="model.embedding_norm") + repeated(layers, weigh)


def _width(config: Config) -> int:
    """LFM2 takes two thirds of ``block_ff_dim``, times a factor, rounded up: 12,288 -> 8,192."""
    width = config.integer("intermediate_size")
    if config.model_type != "lfm2" or not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if config.get("block_ffn_dim_multiplier") is None:
        return width
    step = config.integer("block_multiple_of")
    scaled = int(config.number("block_ffn_dim_multiplier", 1) * width)
    return config.checked_integer("block_ffn_dim_multiplier", -(-scaled // step) * step)


def _attention(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    """LFM3 renames the norms and the output, may have biases, and may gate each head."""
    hidden = config.integer("hidden_size")
    if config.model_type == "lfm3":
        bias = config.flag("attention_bias")
        weights = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)
        gated = config.flag("use_attention_gate")
        return weights + (linear("self_attn.g_proj", hidden, kind.num_attention_heads) if gated else ())
    weights = attention_of(kind, hidden)[:-1]
    weights += linear("self_attn.out_proj", kind.num_attention_heads * kind.v_head_dim, hidden)
    return weights + rms_norms(kind.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm")


def _experts(config: Config) -> tuple[Weight, ...]:
    hidden, count = config.integer("hidden_size"), config.integer("num_experts")
    expert = _swiglu(hidden, config.integer("moe_intermediate_size"), "feed_forward.experts")
    router = linear("feed_forward.gate", hidden, count, role=WeightRole.ROUTER)
    return experts(expert, count, config.integer("num_experts_per_tok")) + router


def _swiglu(hidden: int, width: int, path: str) -> tuple[Weight, ...]:
    """Gate, up and down under the names of LFM."""
    return linear(f"{path}.w1", hidden, width) + linear(f"{path}.w3", hidden, width) + linear(f"{path}.w2", width, hidden)


_READERS: Final = {_CONV: _conv_layer, FULL: full_layer, SLIDING: windowed_layer}
# Keys without effect on the cache, and keys of one type of layer, which a stack of the other leaves unread.
LFM2: Final = Interleaved(
    types=_lfm2_types,
    readers=_READERS,
    weights=_weights,
    ignored=(
        "conv_L_cache", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "full_attn_idxs", "num_attention_heads", "num_heads",
        "num_key_value_heads",
    ),
    dtype_keys=(),
)  # fmt: skip
LFM3: Final = Interleaved(
    types=_lfm3_types,
    readers=_READERS,
    weights=_weights,
    ignored=("conv_L_cache", "head_dim", "num_attention_heads", "num_key_value_heads", "sliding_window"),
    dtype_keys=(),
)

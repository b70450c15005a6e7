"""ZAYA: attention whose queries and keys pass two convolutions (``modeling_zaya.py`` of transformers 5.23)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from hwcalc.formulas import Layer, ShortConvolution
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, attention_dims
from hwcalc.parsers.states import HYBRID, HYBRID_SLIDING, Interleaved, spelled_layer_types

__all__ = ["ZAYA"]


def _types(config: Config, count: int) -> list[str]:
    return spelled_layer_types(config, count) or [HYBRID] * count


def _layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """The two convolutions come one after the other, and half of the values lag a token behind.

    Kernels of 2 and 2 look back (2 - 1) + (2 - 1) = 2 tokens, over the channels of queries and keys together; the lag needs
    the last token's half of the values.
    """
    dims = attention_dims(config)
    reach = config.integer("cca_time0") + config.integer("cca_time1") - 2
    width = dims.num_key_value_heads * dims.head_dim
    channels = dims.num_attention_heads * dims.head_dim + width
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, ShortConvolution(channels=channels, d_conv=reach + 1), ShortConvolution(channels=width // 2, d_conv=2))


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """A depthwise and a grouped convolution; a small MLP routes, and may choose to skip all experts."""
    hidden, router = config.integer("hidden_size"), config.integer("router_hidden_size")
    bias = config.flag("attention_bias")
    moe = _experts(config, router)
    vectors = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    scales = tuple(
        parameter(f"post_{place}_residual_scale.{name}", hidden)[0] for place in ("attention", "mlp") for name in vectors
    )

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = layer[0]
        assert isinstance(kind, AttentionKind)
        yield "attention", _attention(config, kind, bias=bias)
        yield "moe", moe
        yield "router", () if first else parameter("mlp.gate.router_states_scale", router, role=WeightRole.ROUTER)
        yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
        yield "residual", scales

    layers = [(layer, i == 0) for i, layer in enumerate(reading.layers)]
    scaled = parameter("model.input_hidden_states_scale", hidden) + parameter("model.input_hidden_states_bias", hidden)
    out = [*ends(config, top), *repeated(layers, weigh), Block(kind="residual", weights=scaled)]
    if config.flag("lm_head_bias"):
        vocab = config.integer("vocab_size")
        out.append(Block(kind="head", weights=parameter("lm_head.bias", vocab, role=WeightRole.BIAS)))
    return out


def _experts(config: Config, router: int) -> tuple[Weight, ...]:
    hidden, count, width = config.integer("hidden_size"), config.integer("num_experts"), config.integer("moe_intermediate_size")
    weights = experts(gated_mlp(hidden, width, path="mlp.experts"), count, config.integer("num_experts_per_tok"))
    weights += linear("mlp.gate.down_proj", hidden, router, bias=True, role=WeightRole.ROUTER)
    weights += rms_norm("mlp.gate.router_mlp.norm", router)
    for name in ("fc1", "fc2"):
        weights += linear(f"mlp.gate.router_mlp.{name}", router, router, bias=True, role=WeightRole.ROUTER)
    return weights + linear("mlp.gate.router_mlp.out_proj", router, count + 1, role=WeightRole.ROUTER)


def _attention(config: Config, kind: AttentionKind, *, bias: bool) -> tuple[Weight, ...]:
    hidden, heads, kv_heads = config.integer("hidden_size"), kind.num_attention_heads, kind.num_key_value_heads
    path, queries, keys = "self_attn.qkv_proj", heads * kind.head_dim, kv_heads * kind.head_dim
    weights = linear(f"{path}.q_proj", hidden, queries, bias=bias) + linear(f"{path}.k_proj", hidden, keys, bias=bias)
    for name in ("current", "delayed"):
        weights += linear(f"{path}.v_proj_{name}", hidden, keys // 2, bias=bias)
    channels = queries + keys
    weights += convolution(f"{path}.conv_qk_depthwise", channels, config.integer("cca_time0"), bias=True)
    grouped = config.integer("cca_time1")
    weights += convolution(f"{path}.conv_qk_grouped", channels, grouped, inputs=kind.head_dim, bias=True)
    return weights + linear("self_attn.o_proj", queries, hidden, bias=bias) + parameter("self_attn.qk_norm.temp", kv_heads)


ZAYA: Final = Interleaved(
    types=_types,
    readers={HYBRID: partial(_layer, sliding=False), HYBRID_SLIDING: partial(_layer, sliding=True)},
    weights=_weights,
    ignored=("sliding_window",),
    dtype_keys=(),
)

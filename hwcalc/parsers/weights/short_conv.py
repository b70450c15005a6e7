"""Short convolutions instead of attention (LFM2, LFM3) or beside it (Inkling, ZAYA).

Mirrors ``modeling_*.py`` of those names in transformers 5.23. What a layer convolves is read from what it caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas import FullAttention, Layer, ShortConvolution
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution, short_convolution
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.decoder import sparse_layers
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of one of the models above."""
    return tuple(_RULES[config.model_type or ""](config, top))


def _swiglu(hidden: int, width: int, path: str) -> tuple[Weight, ...]:
    """Gate, up and down under the names of LFM."""
    return linear(f"{path}.w1", hidden, width) + linear(f"{path}.w3", hidden, width) + linear(f"{path}.w2", width, hidden)


def _lfm_width(config: Config) -> int:
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


def _lfm(config: Config, top: Config) -> list[Block]:
    """LFM2 and LFM3: one mixer and one MLP a layer, or experts after ``num_dense_layers``."""
    hidden, bias = config.integer("hidden_size"), config.flag("conv_bias")
    third = config.model_type == "lfm3"
    sandwich = third and config.flag("use_sandwich_norm")
    norms = rms_norm("operator_norm", hidden) + rms_norm("ffn_norm", hidden)
    if sandwich:
        norms += rms_norm("post_operator_norm", hidden) + rms_norm("post_ffn_norm", hidden)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        (kind,), sparse = key
        if isinstance(kind, AttentionKind):
            yield "attention", _lfm_attention(config, kind)
        else:
            assert isinstance(kind, ShortConvolution)
            yield "conv", short_convolution(hidden, kind.d_conv, bias=bias)
        yield ("moe", _lfm_experts(config)) if sparse else ("mlp", _swiglu(hidden, _lfm_width(config), "feed_forward"))
        yield "norm", norms

    layers = cached_layers(config)
    dense = config.maybe_integer("num_dense_layers", minimum=0) or 0
    sparse = [config.model_type == "lfm2_moe" and i >= dense for i in range(len(layers))]
    return ends(config, top, norm="model.embedding_norm") + repeated(zip(layers, sparse, strict=True), weigh)


def _lfm_attention(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    """LFM3 renames the norms and the output, may have biases, and may gate each head."""
    hidden = config.integer("hidden_size")
    if config.model_type == "lfm3":
        bias = config.flag("attention_bias")
        weights = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)
        gated = config.flag("use_attention_gate")
        return weights + (linear("self_attn.g_proj", hidden, kind.num_attention_heads) if gated else ())
    weights = attention_of(kind, hidden)[:-1]
    weights += linear("self_attn.out_proj", kind.num_attention_heads * kind.v_head_dim, hidden)
    return weights + rms_norm("self_attn.q_layernorm", kind.head_dim) + rms_norm("self_attn.k_layernorm", kind.head_dim)


def _lfm_experts(config: Config) -> tuple[Weight, ...]:
    hidden, count = config.integer("hidden_size"), config.integer("num_experts")
    expert = _swiglu(hidden, config.integer("moe_intermediate_size"), "feed_forward.experts")
    router = linear("feed_forward.gate", hidden, count, role=WeightRole.ROUTER)
    return experts(expert, count, config.integer("num_experts_per_tok")) + router


def _normed_ends(config: Config, top: Config) -> list[Block]:
    """Inkling's embeddings pass a norm."""
    return [
        *ends(config, top),
        Block(kind="norm", weights=rms_norm("model.embed_tokens.embed_norm", config.integer("hidden_size"))),
    ]


def _inkling(config: Config, top: Config) -> list[Block]:
    """Relative positions are learned: ``d_rel`` numbers a head for each distance up to an extent or the window."""
    hidden = config.integer("hidden_size")
    norms = rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)
    named = config.maybe_integer("dense_intermediate_size")
    # A file that names the dense width apart means the experts' by intermediate_size.
    width = config.integer("intermediate_size" if named is not None else "moe_intermediate_size")
    count, shared = config.integer("n_routed_experts"), config.integer("n_shared_experts")
    scale = parameter("mlp.gate.global_scale", 1)
    moe = experts(gated_mlp(hidden, width, path="mlp.experts"), count, config.integer("num_experts_per_tok"))
    moe += experts(gated_mlp(hidden, width, path="mlp.shared_experts"), shared, shared)
    moe += linear("mlp.gate", hidden, count + shared, role=WeightRole.ROUTER) + scale

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        kind = layer[0]
        assert isinstance(kind, AttentionKind)
        yield "attention", (*attention_of(kind, hidden, qk_norm=True), *_relative(config, kind))
        yield "conv", _convolutions(layer, ("self_attn.k_sconv", "self_attn.v_sconv", "attn_sconv", "mlp_sconv"))
        if sparse:
            yield "moe", moe
        else:
            dense = named if named is not None else config.integer("intermediate_size")
            yield "mlp", gated_mlp(hidden, dense) + parameter("mlp.global_scale", 1)
        yield "norm", norms

    layers = cached_layers(config)
    dense = config.maybe_integer("dense_mlp_idx", minimum=0) or 0
    sparse = sparse_layers(config, len(layers), dense)
    return _normed_ends(config, top) + repeated(zip(layers, sparse, strict=True), weigh)


def _relative(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    depth = config.integer("d_rel")
    extent = config.integer("rel_extent" if isinstance(kind, FullAttention) else "sliding_window")
    weights = linear("self_attn.r_proj", config.integer("hidden_size"), kind.num_attention_heads * depth)
    return weights + parameter("self_attn.rel_logits_proj.proj", depth, extent)


def _convolutions(layer: Layer, names: tuple[str, ...]) -> tuple[Weight, ...]:
    kinds = [kind for kind in layer if isinstance(kind, ShortConvolution)]
    return tuple(
        weight
        for name, kind in zip(names, kinds[-len(names) :], strict=True)
        for weight in convolution(f"{name}.conv1d", kind.channels, kind.d_conv)
    )


def _inkling2(config: Config, top: Config) -> list[Block]:
    """Experts on every layer; a learned query before each block chooses among the sums of earlier layers.

    A full-attention layer chooses three times, for queries, keys and values, and computes its convolutions per token.
    """
    hidden, count = config.integer("hidden_size"), config.integer("n_routed_experts")
    width, active = config.integer("moe_intermediate_size"), config.integer("num_experts_per_tok")
    moe = gated_experts(hidden, width, count, active)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = layer[0]
        assert isinstance(kind, AttentionKind)
        full, heads = isinstance(kind, FullAttention), kind.num_attention_heads
        weights = attention_of(kind, hidden) + _relative(config, kind)
        weights += linear("self_attn.gate_proj", hidden, heads * kind.head_dim) + linear("self_attn.sink_proj", hidden, heads)
        weights += parameter("self_attn.q_l2_clip.scale", heads, kind.head_dim)
        weights += parameter("self_attn.rel_l2_clip.scale", heads, config.integer("d_rel"))
        yield "attention", weights
        after = ("post_attention_convolution", "post_mlp_convolution")
        names = after if full else ("self_attn.k_sconv", "self_attn.v_sconv", *after)
        yield "conv", _convolutions(layer, names) + (_dynamic(config, kind) if full else ())
        yield "moe", moe
        before = ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm") if full else ("input_layernorm",)
        yield "norm", tuple(weight for name in (*before, "post_attention_layernorm") for weight in rms_norm(name, hidden))
        queries = parameter("mlp_input.query", hidden)
        if not first:
            queries += parameter("attention_input.query", 3, hidden) if full else parameter("attention_input.query", hidden)
        yield "residual", queries

    layers = [(layer, i == 0) for i, layer in enumerate(cached_layers(config))]
    last = Block(kind="residual", weights=parameter("model.final_input.query", hidden))
    return [*_normed_ends(config, top), *repeated(layers, weigh), last]


def _dynamic(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    kernel, heads = config.integer("conv_kernel_size"), kind.num_key_value_heads
    return tuple(
        weight
        for name in ("self_attn.k_sconv", "self_attn.v_sconv")
        for weight in (
            *parameter(f"{name}.static_weight", kernel, heads * kind.head_dim, role=WeightRole.CONV),
            *linear(f"{name}.weight_proj", config.integer("hidden_size"), heads * kernel),
        )
    )


def _zaya(config: Config, top: Config) -> list[Block]:
    """Queries and keys pass a depthwise and a grouped convolution; a small MLP routes, and may choose to skip all experts."""
    hidden, count = config.integer("hidden_size"), config.integer("num_experts")
    router, bias = config.integer("router_hidden_size"), config.flag("attention_bias")
    vectors = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    scales = tuple(
        parameter(f"post_{place}_residual_scale.{name}", hidden)[0] for place in ("attention", "mlp") for name in vectors
    )
    width = config.integer("moe_intermediate_size")
    moe = experts(gated_mlp(hidden, width, path="mlp.experts"), count, config.integer("num_experts_per_tok"))
    moe += linear("mlp.gate.down_proj", hidden, router, bias=True, role=WeightRole.ROUTER)
    moe += rms_norm("mlp.gate.router_mlp.norm", router)
    for name in ("fc1", "fc2"):
        moe += linear(f"mlp.gate.router_mlp.{name}", router, router, bias=True, role=WeightRole.ROUTER)
    moe += linear("mlp.gate.router_mlp.out_proj", router, count + 1, role=WeightRole.ROUTER)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = layer[0]
        assert isinstance(kind, AttentionKind)
        yield "attention", _zaya_attention(config, kind, bias=bias)
        yield "moe", moe
        yield "router", () if first else parameter("mlp.gate.router_states_scale", router, role=WeightRole.ROUTER)
        yield "norm", rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)
        yield "residual", scales

    layers = [(layer, i == 0) for i, layer in enumerate(cached_layers(config))]
    scaled = parameter("model.input_hidden_states_scale", hidden) + parameter("model.input_hidden_states_bias", hidden)
    out = [*ends(config, top), *repeated(layers, weigh), Block(kind="residual", weights=scaled)]
    if config.flag("lm_head_bias"):
        vocab = config.integer("vocab_size")
        out.append(Block(kind="head", weights=parameter("lm_head.bias", vocab, role=WeightRole.BIAS)))
    return out


def _zaya_attention(config: Config, kind: AttentionKind, *, bias: bool) -> tuple[Weight, ...]:
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


_RULES: Final[dict[str, Callable[[Config, Config], list[Block]]]] = {
    "inkling2_text": _inkling2,
    "inkling_text": _inkling,
    "lfm2": _lfm,
    "lfm2_moe": _lfm,
    "lfm3": _lfm,
    "zaya": _zaya,
}

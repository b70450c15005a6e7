"""Inkling and Inkling 2: attention whose keys and values, and whose block's two outputs, each pass a short convolution.

Mirrors ``modeling_inkling.py`` and ``modeling_inkling2.py`` of transformers 5.23. Relative positions are learned: ``d_rel``
numbers a head for each distance up to an extent or the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from hwcalc.formulas import FullAttention, Layer, ShortConvolution
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import sparse_layers
from hwcalc.parsers.reading import LayerReader, Reading, equal_dims
from hwcalc.parsers.states import HYBRID, HYBRID_SLIDING, Interleaved, spelled_layer_types

__all__ = ["INKLING", "INKLING2"]


def _types(config: Config, count: int) -> list[str]:
    """``local_layer_ids`` counts from 0; without it every sixth layer attends to all."""
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    local = config.integers("local_layer_ids")
    windowed = {i for i in range(count) if (i + 1) % 6} if local is None else set(local)
    return [HYBRID_SLIDING if i in windowed else HYBRID for i in range(count)]


def _layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """Attention and four states: of keys, of values, and of the outputs of attention and MLP."""
    prefix = "swa_" if sliding else ""
    heads = config.integer(f"{prefix}num_attention_heads")
    kv_heads = config.maybe_integer(f"{prefix}num_key_value_heads")
    dims = equal_dims(heads, kv_heads, config.integer(f"{prefix}head_dim"))
    kernel = config.integer("conv_kernel_size")
    keys = ShortConvolution(channels=dims.num_key_value_heads * dims.head_dim, d_conv=kernel)
    hidden = ShortConvolution(channels=config.integer("hidden_size"), d_conv=kernel)
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, keys, keys, hidden, hidden)


def _ends(config: Config, top: Config) -> list[Block]:
    """The embeddings pass a norm."""
    embedded = rms_norm("model.embed_tokens.embed_norm", config.integer("hidden_size"))
    return [*ends(config, top), Block(kind="norm", weights=embedded)]


def _inkling(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden = config.integer("hidden_size")
    named = config.maybe_integer("dense_intermediate_size")
    # A file that names the dense width apart means the experts' by intermediate_size.
    width = config.integer("intermediate_size" if named is not None else "moe_intermediate_size")
    count, shared = config.integer("n_routed_experts"), config.integer("n_shared_experts")
    moe = experts(gated_mlp(hidden, width, path="mlp.experts"), count, config.integer("num_experts_per_tok"))
    moe += experts(gated_mlp(hidden, width, path="mlp.shared_experts"), shared, shared)
    moe += linear("mlp.gate", hidden, count + shared, role=WeightRole.ROUTER) + parameter("mlp.gate.global_scale", 1)

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
        yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    dense = config.maybe_integer("dense_mlp_idx", minimum=0) or 0
    sparse = sparse_layers(config, len(reading.layers), dense)
    return _ends(config, top) + repeated(zip(reading.layers, sparse, strict=True), weigh)


def _relative(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    depth = config.integer("d_rel")
    extent = config.integer("rel_extent" if isinstance(kind, FullAttention) else "sliding_window")
    weights = linear("self_attn.r_proj", config.integer("hidden_size"), kind.num_attention_heads * depth)
    return weights + parameter("self_attn.rel_logits_proj.proj", depth, extent)


def _convolutions(layer: Layer, names: tuple[str, ...]) -> tuple[Weight, ...]:
    """The last convolutions of a layer, as many as there are names."""
    kinds = [kind for kind in layer if isinstance(kind, ShortConvolution)]
    return tuple(
        weight
        for name, kind in zip(names, kinds[-len(names) :], strict=True)
        for weight in convolution(f"{name}.conv1d", kind.channels, kind.d_conv)
    )


def _inkling2(config: Config, top: Config, reading: Reading) -> list[Block]:
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
        yield "norm", rms_norms(hidden, *before, "post_attention_layernorm")
        queries = parameter("mlp_input.query", hidden)
        if not first:
            queries += parameter("attention_input.query", 3, hidden) if full else parameter("attention_input.query", hidden)
        yield "residual", queries

    layers = [(layer, i == 0) for i, layer in enumerate(reading.layers)]
    last = Block(kind="residual", weights=parameter("model.final_input.query", hidden))
    return [*_ends(config, top), *repeated(layers, weigh), last]


def _dynamic(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    """Convolutions of keys and values whose kernels are computed from each token."""
    kernel, heads = config.integer("conv_kernel_size"), kind.num_key_value_heads
    return tuple(
        weight
        for name in ("self_attn.k_sconv", "self_attn.v_sconv")
        for weight in (
            *parameter(f"{name}.static_weight", kernel, heads * kind.head_dim, role=WeightRole.CONV),
            *linear(f"{name}.weight_proj", config.integer("hidden_size"), heads * kernel),
        )
    )


_READERS: Final[dict[str, LayerReader]] = {HYBRID: partial(_layer, sliding=False), HYBRID_SLIDING: partial(_layer, sliding=True)}
# Keys without effect on the cache, and keys of one type of layer, which a stack of the other leaves unread.
_IGNORED: Final = (
    "head_dim", "local_layer_ids", "model_max_length", "mtp_local_layer_ids", "num_attention_heads", "num_key_value_heads",
    "number_of_conv_states", "shared_expert_sink", "sliding_window", "sliding_window_size", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads",
)  # fmt: skip
INKLING: Final = Interleaved(types=_types, readers=_READERS, weights=_inkling, ignored=_IGNORED, dtype_keys=())
INKLING2: Final = Interleaved(types=_types, readers=_READERS, weights=_inkling2, ignored=_IGNORED, dtype_keys=())

"""Attention-only models whose layers differ in heads, or of which some have an indexer or attend to an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import Block, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import attention_dims, read_layer_types
from hwcalc.parsers.weights.decoder import Decoder, Experts, Layers, attention_weights, build, not_sparse, sparse_layers, width

__all__ = ["blocks"]

_SLIDING: Final = "sliding_attention"


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    return build(config, top, _TABLE[config.model_type or ""])


def _laguna(config: Config, spec: Decoder, count: int) -> Layers:
    """Laguna: query heads per layer, and a gate for each head or each channel."""
    dims = attention_dims(config)
    listed = config.integers("num_attention_heads_per_layer", length=count, minimum=1)
    gating = config.get("gating")
    hidden = config.integer("hidden_size")

    def layer(heads: int) -> Weighed:
        rows = heads if gating is True or gating == "per-head" else heads * dims.head_dim
        own = attention_weights(config, spec, replace(dims, num_attention_heads=heads))
        return own + linear("self_attn.g_proj", hidden, rows)

    heads = listed or [dims.num_attention_heads] * count
    return [(layer(number), heads.count(number)) for number in dict.fromkeys(heads)]


def _mimo_v2(config: Config, spec: Decoder, count: int) -> Layers:
    """MiMo-V2: sliding layers have more key/value heads, and sinks.

    The published files name the layers by ``hybrid_layer_pattern`` (1 slides) and the heads by ``swa_num_key_value_heads``;
    transformers derives full attention on layer 0 and every sixth, and doubles the heads.
    """
    dims = attention_dims(config)
    pattern = config.integers("hybrid_layer_pattern", length=count)
    types = read_layer_types(config, count)
    if types is not None:
        sliding = sum(name == _SLIDING for name in types)
    elif pattern is not None:
        sliding = sum(map(bool, pattern))
    else:
        sliding = sum(i != 0 and (i + 1) % 6 != 0 for i in range(count))
    heads = config.maybe_integer("swa_num_key_value_heads") or 2 * dims.num_key_value_heads
    full = attention_weights(config, spec)
    windowed = attention_weights(config, replace(spec, sinks=True), replace(dims, num_key_value_heads=heads))
    return [group for group in ((full, count - sliding), (windowed, sliding)) if group[1]]


def _step3p5(config: Config, spec: Decoder, count: int) -> Layers:
    """Step-3.7: sliding layers may have another number of query heads; a gate for each head."""
    dims = attention_dims(config)
    types = read_layer_types(config, count) or ["full_attention"] * count
    sliding = sum(name == _SLIDING for name in types)
    other = config.get("attention_other_setting")
    heads = config.maybe_integer("num_sliding_attention_heads")
    if heads is None and isinstance(other, Mapping):
        heads = Config(other, None, "attention_other_setting").maybe_integer("num_attention_heads")
    full = attention_weights(config, spec)
    windowed = attention_weights(config, spec, replace(dims, num_attention_heads=heads or dims.num_attention_heads))
    return [group for group in ((full, count - sliding), (windowed, sliding)) if group[1]]


def _step3p5_dense(config: Config, count: int) -> list[bool]:
    """``mlp_layer_types``, or ``moe_layers_enum`` (a list, or numbers between commas), or three leading layers."""
    listed = config.get("moe_layers_enum")
    if listed is None or config.strings("mlp_layer_types") is not None:
        return [not sparse for sparse in sparse_layers(config, count, 3, None)]
    if isinstance(listed, str):
        items = [item.strip() for item in listed.split(",") if item.strip()]
        if not all(item.isdecimal() and len(item) < 8 for item in items):
            raise config.error("moe_layers_enum", listed, "layer numbers with commas between")
        sparse = {int(item) for item in items}
    else:
        sparse = set(config.integers("moe_layers_enum") or [])
    return [i not in sparse for i in range(count)]


def _minimax_m3(config: Config, spec: Decoder, count: int) -> Layers:
    """MiniMax-M3: the sparse layers have an indexer with norms of its own."""
    nested = config.sub("sparse_attention_config") or Config({}, None)
    frequency = nested.integers("sparse_attention_freq", length=count)
    types = read_layer_types(config, count) or ["minimax_m3_sparse" if flag else "full" for flag in (frequency or [0] * count)]
    sparse = sum(name == "minimax_m3_sparse" for name in types)
    heads = nested.maybe_integer("sparse_num_index_heads") or config.integer("index_n_heads")
    wide = nested.maybe_integer("sparse_index_dim") or config.integer("index_head_dim")
    hidden, own = config.integer("hidden_size"), attention_weights(config, spec)
    index = (
        *linear("self_attn.indexer.q_proj", hidden, heads * wide),
        *linear("self_attn.indexer.k_proj", hidden, wide),
        *rms_norm("self_attn.indexer.q_norm", wide),
        *rms_norm("self_attn.indexer.k_norm", wide),
    )
    return [group for group in ((own, count - sparse), (own + index, sparse)) if group[1]]


def _minimax_m3_dense(config: Config, count: int) -> list[bool]:
    frequency = config.integers("moe_layer_freq", length=count)
    if frequency is None or config.strings("mlp_layer_types") is not None:
        return [not sparse for sparse in sparse_layers(config, count, 0, None)]
    return [not flag for flag in frequency]


def _mllama(config: Config, spec: Decoder, count: int) -> Layers:
    """Llama 3.2 Vision: layers that attend to the image have norms of queries and keys, and two gates."""
    images = {index for index in config.integers("cross_attention_layers") or [] if index < count}
    cross = attention_weights(config, replace(spec, attn="cross_attn", qk_norm="head"))
    cross += parameter("cross_attn_attn_gate", 1) + parameter("cross_attn_mlp_gate", 1)
    groups = ((attention_weights(config, spec), count - len(images)), (cross, len(images)))
    return [group for group in groups if group[1]]


_HEAD_NORM: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head")
_TABLE: Final[dict[str, Decoder]] = {
    "laguna": replace(
        _HEAD_NORM,
        attentions=_laguna,
        experts=Experts(
            shared=width("shared_expert_intermediate_size"),
            dense=not_sparse(1, None),
            extra=lambda config: parameter("mlp.gate.e_score_correction_bias", config.integer("num_experts")),
        ),
    ),
    "mimo_v2_flash": Decoder(
        qkv_bias="attention_bias",
        attentions=_mimo_v2,
        experts=Experts(count="n_routed_experts", dense=not_sparse(1, None)),
    ),
    "step3p5": replace(
        _HEAD_NORM,
        gate="head",
        mlp_bias="mlp_bias",
        attentions=_step3p5,
        experts=Experts(count="n_routed_experts", shared=width("share_expert_dim"), shared_bias="mlp_bias", dense=_step3p5_dense),
    ),
    "minimax_m3_vl_text": Decoder(
        qk_norm="head",
        width="dense_intermediate_size",
        attentions=_minimax_m3,
        experts=Experts(
            count="num_local_experts",
            width="intermediate_size",
            shared=width("shared_intermediate_size"),
            dense=_minimax_m3_dense,
        ),
    ),
    "mllama_text_model": Decoder(
        # Eight rows more, for the image token.
        rows=lambda config: config.integer("vocab_size") + 8,
        attentions=_mllama,
    ),
}

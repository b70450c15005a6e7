"""Gemma 3n and 4: layers that share keys and values, inputs of each layer's own, and wider heads on the full layers."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, WeightRole, embedding, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.gemma import layer_dims, layer_types
from hwcalc.parsers.reading import AttentionDims
from hwcalc.parsers.weights.decoder import Decoder, Layers, attention_weights, build, mlp_weights

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a Gemma 3n or 4 text model."""
    return build(config, top, _THREE if config.model_type == "gemma3n_text" else _FOUR)


def _sharing(config: Config, count: int) -> list[bool]:
    """Which layers read the keys and values of an earlier one, and so do not project any: the last ones."""
    shared = config.maybe_integer("num_kv_shared_layers", minimum=0, maximum=count) or 0
    return [index >= count - shared for index in range(count)]


def _attentions(config: Config, spec: Decoder, count: int) -> Layers:
    """One kind for each combination of widths, sharing, and (Gemma 4's full layers) values that are the keys."""
    k_eq_v = config.model_type != "gemma3n_text" and config.flag("attention_k_eq_v")
    kinds: dict[tuple[AttentionDims, bool, bool], int] = {}
    for index, (name, shares) in enumerate(zip(layer_types(config, count), _sharing(config, count), strict=False)):
        full = name == "full_attention"
        kind = (layer_dims(config, index, full=full), shares, k_eq_v and full)
        kinds[kind] = kinds.get(kind, 0) + 1

    def layer(dims: AttentionDims, shares: bool, no_values: bool) -> Weighed:
        absent = (".k_", ".v_") if shares else (".v_proj",) if no_values else ()
        return tuple(
            weight for weight in attention_weights(config, spec, dims) if not any(part in weight.path for part in absent)
        )

    return [(layer(*kind), number) for kind, number in kinds.items()]


def _mlps(config: Config, spec: Decoder, count: int) -> Layers:
    """Widths may be listed (3n); layers without keys may be twice as wide, and experts may stand beside the MLP (4)."""
    if config.model_type == "gemma3n_text":
        listed = config.get("intermediate_size")
        widths = config.integers("intermediate_size", length=count, minimum=1) if isinstance(listed, (list, tuple)) else None
        widths = widths or [config.integer("intermediate_size")] * count
        return [(mlp_weights(config, spec, wide), widths.count(wide)) for wide in dict.fromkeys(widths)]
    double = config.flag("use_double_wide_mlp")
    wide = config.integer("intermediate_size")
    widths = [2 * wide if double and shares else wide for shares in _sharing(config, count)]
    beside = _moe(config) if config.flag("enable_moe_block") else ()
    return [(mlp_weights(config, spec, wide) + beside, widths.count(wide)) for wide in dict.fromkeys(widths)]


def _moe(config: Config) -> Weighed:
    """Gemma 4's experts, with a scale for each channel of the router and each expert, and three norms more."""
    hidden, number = config.integer("hidden_size"), config.integer("num_experts")
    expert = gated_mlp(hidden, config.integer("moe_intermediate_size"), path="experts")
    return (
        *experts(expert, number, config.integer("top_k_experts")),
        *linear("router.proj", hidden, number, role=WeightRole.ROUTER),
        *parameter("router.scale", hidden),
        *parameter("router.per_expert_scale", number),
        *rms_norm("post_feedforward_layernorm_1", hidden),
        *rms_norm("post_feedforward_layernorm_2", hidden),
        *rms_norm("pre_feedforward_layernorm_2", hidden),
    )


def _inputs_of_layer(config: Config) -> Weighed:
    """What mixes a layer's own input in."""
    hidden, own = config.integer("hidden_size"), config.maybe_integer("hidden_size_per_layer_input", minimum=0) or 0
    if not own:
        return ()
    return (
        *linear("per_layer_input_gate", hidden, own),
        *linear("per_layer_projection", own, hidden),
        *rms_norm("post_per_layer_input_norm", hidden),
    )


def _inputs(config: Config) -> Weighed:
    """The inputs of all layers: a table of embeddings for each, and a projection of the common one."""
    hidden, own = config.integer("hidden_size"), config.maybe_integer("hidden_size_per_layer_input", minimum=0) or 0
    if not own:
        return ()
    wide = own * config.number_of_layers()
    return (
        *embedding("model.embed_tokens_per_layer", config.integer("vocab_size_per_layer_input"), wide),
        *linear("model.per_layer_model_projection", hidden, wide),
        *rms_norm("model.per_layer_projection_norm", own),
    )


def _altup_layer(config: Config) -> Weighed:
    """Gemma 3n's alternating updates, and its low-rank residual (LAuReL)."""
    hidden, inputs, rank = config.integer("hidden_size"), config.integer("altup_num_inputs"), config.integer("laurel_rank")
    return (
        *parameter("altup.correct_output_scale", hidden),
        *linear("altup.correction_coefs", inputs, inputs),
        *linear("altup.prediction_coefs", inputs, inputs * inputs),
        *linear("altup.modality_router", hidden, inputs, role=WeightRole.ROUTER),
        *rms_norm("altup.router_norm", hidden),
        *linear("laurel.linear_left", hidden, rank),
        *linear("laurel.linear_right", rank, hidden),
        *rms_norm("laurel.post_laurel_norm", hidden),
        *_inputs_of_layer(config),
    )


def _altup(config: Config) -> Weighed:
    hidden, others = config.integer("hidden_size"), config.integer("altup_num_inputs") - 1
    projections = tuple(
        weight
        for name in ("altup_projections", "altup_unembed_projections")
        for index in range(others)
        for weight in linear(f"model.{name}.{index}", hidden, hidden)
    )
    return projections + _inputs(config)


_FOUR: Final = Decoder(
    norms=4,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    qk_norm="head",
    attentions=_attentions,
    mlps=_mlps,
    extra=_inputs_of_layer,
    outer=_inputs,
)
_THREE: Final = Decoder(
    norms=4,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    qk_norm="head",
    attentions=_attentions,
    mlps=_mlps,
    extra=_altup_layer,
    outer=_altup,
)
_TYPES: Final = frozenset({"gemma3n_text", "gemma4_text", "gemma4_unified_text"})

"""Mixtures of experts in the manner of Llama: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.decoder import (
    Decoder,
    Experts,
    Layers,
    build,
    dense_prefix,
    grouped,
    mlp_weights,
    not_sparse,
    sparse_layers,
    times,
    width,
)

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    return build(config, top, _TABLE[config.model_type or ""])


def _by_step(default: list[int]) -> Callable[[Config, int], list[bool]]:
    """Qwen's rule: dense where ``mlp_only_layers`` says so, off the ``decoder_sparse_step``, or for want of experts."""

    def dense(config: Config, count: int) -> list[bool]:
        listed = config.integers("mlp_only_layers")
        only = set(default if listed is None else listed)
        step = config.maybe_integer("decoder_sparse_step") or 1
        empty = config.maybe_integer("num_experts", minimum=0) == 0
        return [empty or i in only or (i + 1) % step != 0 for i in range(count)]

    return dense


def _ernie_dense(config: Config, count: int) -> list[bool]:
    """Experts on every ``moe_layer_interval``-th layer between two indices, -1 being the last."""
    interval = config.integer("moe_layer_interval")
    start = config.integer("moe_layer_start_index", minimum=0)
    end = config.integer("moe_layer_end_index", minimum=-1)
    last = count - 1 if end == -1 else end
    return [(i + 1) % interval != 0 or not start <= i <= last for i in range(count)]


def _llama4_dense(config: Config, count: int) -> list[bool]:
    """``moe_layers`` names the layers with experts, else every ``interleave_moe_layer_step``-th has them."""
    listed = config.integers("moe_layers")
    step = config.integer("interleave_moe_layer_step")
    sparse = set(range(step - 1, count, step) if listed is None else listed)
    return [i not in sparse for i in range(count)]


def _per_expert(path: str, key: str = "num_experts") -> Callable[[Config], tuple[Weight, ...]]:
    """One learned number per expert: a correction of the router that transformers keeps as a parameter."""
    return lambda config: parameter(path, config.integer(key))


def _gate_bias(config: Config) -> tuple[Weight, ...]:
    return parameter("self_attn.gate_bias", config.integer("num_attention_heads"))


def _cohere2_width(config: Config) -> int:
    return config.maybe_integer("prefix_dense_intermediate_size") or config.integer("intermediate_size")


def _ernie_vl(config: Config, spec: Decoder, count: int) -> Layers:
    """ERNIE-4.5-VL: experts for text and experts for images, with widths of their own; a token uses one kind."""
    hidden, number = config.integer("hidden_size"), config.integer("moe_num_experts")
    active = config.integer("moe_k")
    widths = config.integers("moe_intermediate_size", length=2, minimum=1) or [1536, 512]
    sparse: tuple[Weight, ...] = ()
    for kind, per_expert in zip(("text_moe", "vision_moe"), widths, strict=True):
        path = f"mlp.{kind}"
        expert = gated_mlp(hidden, per_expert, path=f"{path}.experts")
        sparse += experts(expert, number, active if kind == "text_moe" else 0)
        sparse += linear(f"{path}.gate", hidden, number, role=WeightRole.ROUTER)
        sparse += parameter(f"{path}.gate.moe_statics.e_score_correction_bias", 1, number)
    shared = config.maybe_integer("moe_num_shared_experts", minimum=0) or 0
    if shared:
        sparse += gated_mlp(hidden, widths[0] * shared, bias=config.flag("use_bias"), path="mlp.shared_experts")
    dense = mlp_weights(config, spec)
    return grouped(sparse if flag else dense for flag in sparse_layers(config, count, 1, None))


def _muse_spark(config: Config, spec: Decoder, count: int) -> Layers:
    """Muse Spark: experts work at a width of their own, between two projections and two norms."""
    hidden, inner = config.integer("hidden_size"), config.integer("moe_hidden_size")
    number, active = config.integer("num_local_experts"), config.integer("num_experts_per_tok")
    expert = gated_mlp(inner, config.integer("moe_intermediate_size"), path="mlp.experts")
    sparse = (
        *linear("mlp.gate", hidden, number, role=WeightRole.ROUTER),
        *linear("mlp.pre_expert_proj", hidden, inner),
        *rms_norm("mlp.pre_expert_norm", inner),
        *experts(expert, number, active),
        *rms_norm("mlp.experts.post_expert_norm", inner),
        *linear("mlp.post_expert_proj", inner, hidden),
    )
    dense = mlp_weights(config, spec)
    return grouped(sparse if flag else dense for flag in sparse_layers(config, count, 0, None))


def _residual_gates(config: Config) -> tuple[Weight, ...]:
    hidden = config.integer("hidden_size")
    return parameter("post_attention_residual_gate.gate", hidden) + parameter("post_feedforward_residual_gate.gate", hidden)


def _doge(config: Config, spec: Decoder, count: int) -> Layers:
    """Doge: with ``is_moe`` each expert is one row of two tables, found by the sum of two keys, beside the MLP."""
    weights = mlp_weights(config, spec)
    if config.flag("is_moe"):
        hidden, number = config.integer("hidden_size"), config.integer("num_experts")
        keys = int(number**0.5)
        weights += linear("mlp.router_gate", hidden, 2 * keys, role=WeightRole.ROUTER)
        rows = (*parameter("mlp.down_embed.weight", hidden), *parameter("mlp.up_embed.weight", hidden))
        rows = tuple(replace(row, role=WeightRole.EXPERT) for row in rows)
        weights += experts(rows, number, config.integer("num_experts_per_tok"))
    return [(weights, count)]


def _doge_extra(config: Config) -> tuple[Weight, ...]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    groups = config.maybe_integer("num_key_value_heads") or heads
    head_dim = config.maybe_integer("head_dim") or hidden // heads
    return (
        *parameter("self_attn.A", groups),
        *linear("self_attn.dt_proj", groups * head_dim, groups, bias=config.flag("attention_bias")),
        *parameter("input_residual", hidden),
        *parameter("post_attention_residual", hidden),
    )


_ATTENTION_BIAS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias")
_HEAD_NORM: Final = replace(_ATTENTION_BIAS, qk_norm="head")
_LOCAL: Final = Experts(count="num_local_experts", width="intermediate_size")
_ROUTED: Final = Experts(count="n_routed_experts", shared=times("n_shared_experts"))
_QWEN3_MOE: Final = replace(_HEAD_NORM, experts=Experts(dense=_by_step([])))
_GRANITE: Final = replace(_LOCAL, path="block_sparse_moe", router="router.layer", shared=width("shared_intermediate_size"))
_OCR: Final = replace(
    _ATTENTION_BIAS,
    mlp_bias="mlp_bias",
    experts=replace(_ROUTED, shared_bias="mlp_bias", dense=not_sparse(1)),
)
_TABLE: Final[dict[str, Decoder]] = {
    "mixtral": Decoder(experts=replace(_LOCAL, path="block_sparse_moe")),
    "minimax_m2": Decoder(qk_norm="full", experts=replace(_LOCAL, path="block_sparse_moe")),
    "phimoe": replace(_ATTENTION_BIAS, norm="layer", head_bias="lm_head_bias", experts=replace(_LOCAL, path="block_sparse_moe")),
    "granitemoe": replace(_ATTENTION_BIAS, experts=_GRANITE),
    "granitemoeshared": replace(_ATTENTION_BIAS, experts=_GRANITE),
    "granitemoe_swa": replace(_ATTENTION_BIAS, sinks=True, experts=_GRANITE),
    "gpt_oss": replace(_ATTENTION_BIAS, sinks=True, experts=replace(_LOCAL, router="router", router_bias=True, expert_bias=True)),
    "qwen2_moe": Decoder(
        qkv_bias="qkv_bias",
        experts=Experts(
            shared=width("shared_expert_intermediate_size"), shared_path="shared_expert", shared_gate=True, dense=_by_step([])
        ),
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "flint": replace(
        _HEAD_NORM,
        sinks=True,
        experts=Experts(shared=width("shared_expert_intermediate_size"), shared_path="shared_expert", dense=_by_step([0, 1])),
    ),
    "glm4_moe": Decoder(
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_norm_if="use_qk_norm",
        experts=replace(_ROUTED, dense=dense_prefix("first_k_dense_replace")),
        mtp="copies",
    ),
    "glm4v_moe_text": Decoder(qkv_bias="attention_bias", experts=replace(_ROUTED, dense=dense_prefix("first_k_dense_replace"))),
    "solar_open": Decoder(qkv_bias="attention_bias", experts=_ROUTED),
    "dots1": replace(_HEAD_NORM, experts=replace(_ROUTED, dense=dense_prefix("first_k_dense_replace"))),
    "unlimited_ocr_text": _OCR,
    "deepseek_ocr2_text": _OCR,
    "hy_v3": replace(
        _HEAD_NORM,
        mlp_bias="mlp_bias",
        experts=Experts(shared=times("num_shared_experts"), shared_bias="mlp_bias", dense=not_sparse(1, None)),
        mtp="shared",
    ),
    "exaone_moe": Decoder(qk_norm="head", experts=Experts(shared=times("num_shared_experts"), dense=not_sparse(1))),
    "mellum": replace(_HEAD_NORM, experts=Experts(dense=not_sparse(0, None))),
    "kolibri1": Decoder(qk_norm="head", norms=4, experts=Experts(shared=width("shared_expert_intermediate_size"))),
    "beam": replace(_HEAD_NORM, norms=4, gate="full", extra=_gate_bias, experts=Experts(dense=not_sparse(3, None))),
    "afmoe": replace(
        _HEAD_NORM,
        norms=4,
        gate="full",
        experts=Experts(
            router="router.gate",
            shared=times("num_shared_experts"),
            dense=dense_prefix("num_dense_layers"),
            extra=_per_expert("mlp.expert_bias"),
        ),
    ),
    "aria_text": replace(
        _ATTENTION_BIAS,
        experts=Experts(
            count="moe_num_experts",
            per_token="moe_topk",
            width="intermediate_size",
            router="router",
            shared=times("moe_num_shared_experts", "intermediate_size"),
            shared_bias="mlp_bias",
        ),
    ),
    "ernie4_5_moe": Decoder(
        qkv_bias="use_bias",
        o_bias="use_bias",
        mlp_bias="use_bias",
        head_bias="use_bias",
        experts=Experts(
            count="moe_num_experts",
            per_token="moe_k",
            shared=times("moe_num_shared_experts"),
            shared_bias="use_bias",
            dense=_ernie_dense,
            extra=_per_expert("mlp.moe_statics.e_score_correction_bias", "moe_num_experts"),
        ),
    ),
    "ernie4_5_vl_moe_text": Decoder(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", mlps=_ernie_vl),
    "hunyuan_v1_moe": replace(
        _HEAD_NORM,
        experts=Experts(
            per_token="moe_topk",
            width="intermediate_size",
            router="gate.wg",
            shared=width("intermediate_size"),
            shared_path="shared_mlp",
        ),
    ),
    "cohere2_moe": replace(
        _ATTENTION_BIAS,
        norm="scale",
        norms=1,
        width=_cohere2_width,
        experts=Experts(width="intermediate_size", shared=times("num_shared_experts", "intermediate_size"), dense=not_sparse()),
    ),
    "flex_olmo": replace(_ATTENTION_BIAS, qk_norm="full", experts=Experts(width="intermediate_size")),
    "olmoe": replace(_ATTENTION_BIAS, qk_norm="full", experts=Experts(width="intermediate_size")),
    "llama4_text": replace(
        _ATTENTION_BIAS,
        mlp="feed_forward",
        width="intermediate_size_mlp",
        experts=replace(
            _LOCAL,
            path="feed_forward",
            router="router",
            shared=width("intermediate_size"),
            shared_path="shared_expert",
            dense=_llama4_dense,
        ),
    ),
    "muse_spark_text": replace(_ATTENTION_BIAS, norms=3, gate="full", ties=False, extra=_residual_gates, mlps=_muse_spark),
    "doge": replace(_HEAD_NORM, mlp_bias="mlp_bias", extra=_doge_extra, mlps=_doge),
}

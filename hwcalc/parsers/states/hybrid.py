"""Mamba and attention in one stack, on layers of their own or both in one: Jamba, Bamba, Falcon-H1 and Granite 4 hybrids.

Mirrors ``modeling_*.py`` of those names in transformers 5.23.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, gated_mlp, linear
from hwcalc.formulas.weights_state import mamba2
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, every
from hwcalc.parsers.states import FULL, HYBRID, LINEAR, Interleaved, spelled_layer_types
from hwcalc.parsers.states.mamba import hybrid_readers, inner_width, mamba1_layer, mamba1_mixer, mamba2_kind

__all__ = ["BAMBA", "FALCON_H1", "GRANITE", "JAMBA"]

# Keys of both types of layer, which a stack without one of them leaves unread, and keys that never bear on the cache.
_IGNORED: Final = (
    "head_dim", "mamba_chunk_size", "mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_attention_heads",
    "num_key_value_heads", "use_mamba_kernels",
)  # fmt: skip
_HEADS: Final = ("mamba_d_head", "mamba_n_groups", "mamba_n_heads")


def _jamba_types(config: Config, count: int) -> list[str]:
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise config.error("attn_layer_offset", offset, f"less than attn_layer_period ({period})")
    return every(period, count, FULL, LINEAR, offset)


def _bamba_types(config: Config, count: int) -> list[str]:
    """``attn_layer_indices`` counts from 0; without it no layer attends."""
    full = set(config.integers("attn_layer_indices") or ())
    return spelled_layer_types(config, count) or [FULL if i in full else LINEAR for i in range(count)]


def _granite_types(config: Config, count: int) -> list[str]:
    return spelled_layer_types(config, count) or [LINEAR] * count


def _falcon_types(config: Config, count: int) -> list[str]:
    return [HYBRID] * count


def _mamba2_layer(config: Config, index: int) -> Layer:
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
    return (mamba2_kind(config, heads, head_dim),)


def _attention(config: Config, layer: Layer, *, bias: bool = False) -> list[Named]:
    hidden = config.integer("hidden_size")
    return [
        ("attention", attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)) for kind in layer if isinstance(kind, AttentionKind)
    ]


def _mamba2(config: Config, layer: Layer, *, norm: bool = True, out_bias: bool | None = None) -> list[Named]:
    bias, conv_bias = config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    mixer = partial(
        mamba2, config.integer("hidden_size"), bias=bias, out_bias=out_bias, conv_bias=conv_bias, norm=norm, path="mamba"
    )
    return [("mamba", mixer(**vars(kind))) for kind in layer if isinstance(kind, Mamba2)]


def _jamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Experts stand where i % expert_layer_period == expert_layer_offset, unless there is only one."""
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    count, active = config.integer("num_experts"), config.integer("num_experts_per_tok")
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", minimum=0)
    mixer = mamba1_mixer(config, norms=True)
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")

    def weigh(key: tuple[Layer, bool]) -> list[Named]:
        layer, sparse = key
        mixers = _attention(config, layer) + [("mamba", mixer(**vars(kind))) for kind in layer if isinstance(kind, Mamba1)]
        moe = gated_experts(hidden, width, count, active, path="feed_forward", router="router")
        mlp = gated_mlp(hidden, width, path="feed_forward")
        return [("norm", norms), *mixers, ("moe", moe) if sparse else ("mlp", mlp)]

    layers = [(layer, count > 1 and i % period == offset) for i, layer in enumerate(reading.layers)]
    return ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)


def _bamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Bamba, and Falcon-H1, whose layers have both mixers; its norm within Mamba may be absent."""
    hidden = config.integer("hidden_size")
    falcon = config.model_type == "falcon_h1"
    norm = config.flag("mamba_rms_norm") if falcon else True
    out_bias = config.flag("projectors_bias") if falcon else None
    bias = config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path="feed_forward")
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")

    def weigh(layer: Layer) -> list[Named]:
        mixers = _attention(config, layer, bias=bias) + _mamba2(config, layer, norm=norm, out_bias=out_bias)
        return [("norm", norms), *mixers, ("mlp", mlp)]

    return ends(config, top, norm="model.final_layernorm") + repeated(reading.layers, weigh)


def _granite(config: Config, top: Config, reading: Reading) -> list[Block]:
    """A shared MLP on every layer, and experts beside it unless there are none."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    bias = config.flag("attention_bias")
    count = config.maybe_integer("num_local_experts", minimum=0) or 0
    mlp = linear("shared_mlp.input_linear", hidden, 2 * shared) + linear("shared_mlp.output_linear", shared, hidden)
    rest: list[Named] = [("norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")), ("mlp", mlp)]
    if count:
        width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
        rest.append(("moe", gated_experts(hidden, width, count, active, path="block_sparse_moe", router="router")))

    def weigh(layer: Layer) -> list[Named]:
        return [*_attention(config, layer, bias=bias), *_mamba2(config, layer), *rest]

    return ends(config, top) + repeated(reading.layers, weigh)


JAMBA: Final = Interleaved(
    types=_jamba_types, readers=hybrid_readers(mamba1_layer), weights=_jamba, ignored=(*_IGNORED, "use_mambapy")
)
BAMBA: Final = Interleaved(
    types=_bamba_types, readers=hybrid_readers(_mamba2_layer), weights=_bamba, ignored=(*_IGNORED, *_HEADS, "attn_layer_indices")
)
FALCON_H1: Final = Interleaved(
    types=_falcon_types,
    readers=hybrid_readers(_mamba2_layer),
    weights=_bamba,
    ignored=(
        *_IGNORED, "layer_types", "layers_block_type", "mamba_use_mlp", "ssm_in_multiplier", "ssm_multipliers",
        "ssm_out_multiplier",
    ),
)  # fmt: skip
GRANITE: Final = Interleaved(
    types=_granite_types, readers=hybrid_readers(_mamba2_layer), weights=_granite, ignored=(*_IGNORED, *_HEADS)
)

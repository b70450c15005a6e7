"""Mamba and attention in one stack: Jamba, Bamba, Falcon-H1, Granite 4 hybrids, Nemotron-H, Zamba and Zamba2.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Zamba's attention block exists once, however many layers
run it; so do each of Zamba2's ``num_mem_blocks``, but for an adapter of its own at every place that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, attention, experts, gated_mlp, linear, plain_mlp, rms_norm
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.hybrid_mamba import nemotron_mtp_types, nemotron_types
from hwcalc.parsers.weights.mamba import mamba1_of, mamba2_of, time_step_rank
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of one of the models above."""
    return tuple(_RULES[config.model_type or ""](config, top))


def _attention(config: Config, layer: Layer, *, bias: bool = False) -> list[Named]:
    hidden = config.integer("hidden_size")
    return [
        ("attention", attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)) for kind in layer if isinstance(kind, AttentionKind)
    ]


def _mamba2(config: Config, layer: Layer, *, norm: bool = True, out_bias: bool | None = None) -> list[Named]:
    hidden, bias, conv_bias = config.integer("hidden_size"), config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    return [
        ("mamba", mamba2_of(kind, hidden, bias=bias, conv_bias=conv_bias, out_bias=out_bias, norm=norm, path="mamba"))
        for kind in layer
        if isinstance(kind, Mamba2)
    ]


def _norms(config: Config, *names: str) -> Named:
    hidden = config.integer("hidden_size")
    return "norm", tuple(weight for name in names for weight in rms_norm(name, hidden))


def _jamba(config: Config, top: Config) -> list[Block]:
    """Experts stand where i % expert_layer_period == expert_layer_offset, unless there is only one."""
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    count, active = config.integer("num_experts"), config.integer("num_experts_per_tok")
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", minimum=0)
    bias, conv_bias = config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    rank = time_step_rank(config, "mamba_dt_rank")
    norms = _norms(config, "input_layernorm", "pre_ff_layernorm")

    def weigh(key: tuple[Layer, bool]) -> list[Named]:
        layer, sparse = key
        out = [norms, *_attention(config, layer)]
        for kind in layer:
            if isinstance(kind, Mamba1):
                mixer = mamba1_of(kind, hidden, rank, bias=bias, conv_bias=conv_bias, norms=True, path="mamba")
                out.append(("mamba", mixer))
        if sparse:
            return [*out, ("moe", gated_experts(hidden, width, count, active, path="feed_forward", router="router"))]
        return [*out, ("mlp", gated_mlp(hidden, width, path="feed_forward"))]

    layers = [(layer, count > 1 and i % period == offset) for i, layer in enumerate(cached_layers(config))]
    return ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)


def _bamba(config: Config, top: Config) -> list[Block]:
    """Bamba, and Falcon-H1, whose layers have both mixers; its norm within Mamba may be absent."""
    hidden = config.integer("hidden_size")
    falcon = config.model_type == "falcon_h1"
    norm = config.flag("mamba_rms_norm") if falcon else True
    out_bias = config.flag("projectors_bias") if falcon else None
    bias = config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path="feed_forward")
    norms = _norms(config, "input_layernorm", "pre_ff_layernorm")

    def weigh(layer: Layer) -> list[Named]:
        mixers = _attention(config, layer, bias=bias) + _mamba2(config, layer, norm=norm, out_bias=out_bias)
        return [norms, *mixers, ("mlp", mlp)]

    return ends(config, top, norm="model.final_layernorm") + repeated(cached_layers(config), weigh)


def _granite(config: Config, top: Config) -> list[Block]:
    """A shared MLP on every layer, and experts beside it unless there are none."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    bias = config.flag("attention_bias")
    count = config.maybe_integer("num_local_experts", minimum=0) or 0
    mlp = linear("shared_mlp.input_linear", hidden, 2 * shared) + linear("shared_mlp.output_linear", shared, hidden)
    rest: list[Named] = [_norms(config, "input_layernorm", "post_attention_layernorm"), ("mlp", mlp)]
    if count:
        width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
        rest.append(("moe", gated_experts(hidden, width, count, active, path="block_sparse_moe", router="router")))

    def weigh(layer: Layer) -> list[Named]:
        return [*_attention(config, layer, bias=bias), *_mamba2(config, layer), *rest]

    return ends(config, top) + repeated(cached_layers(config), weigh)


def _nemotron(config: Config, top: Config) -> list[Block]:
    """One norm and one mixer a layer: Mamba, attention, an MLP or experts, all of two matrices."""
    hidden = config.integer("hidden_size")
    bias, mlp_bias = config.flag("use_bias"), config.flag("mlp_bias")
    conv_bias = config.flag("mamba_conv_bias" if config.has("mamba_conv_bias") else "use_conv_bias")
    names = ("up_proj", "down_proj")

    def weigh(key: tuple[str, Layer]) -> list[Named]:
        name, layer = key
        out = [("norm", rms_norm("norm", hidden))]
        if name == "mlp":
            width = config.integer("intermediate_size")
            out.append(("mlp", plain_mlp(hidden, width, bias=mlp_bias, path="mixer", names=names)))
        elif name == "moe":
            out.append(("moe", _nemotron_experts(config)))
        for kind in layer:
            if isinstance(kind, Mamba2):
                out.append(("mamba", mamba2_of(kind, hidden, bias=bias, conv_bias=conv_bias, path="mixer")))
            elif isinstance(kind, AttentionKind):
                out.append(("attention", attention_of(kind, hidden, path="mixer")))
        return out

    layers = cached_layers(config)
    typed = list(zip(nemotron_types(config), layers, strict=True))
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f") + repeated(typed, weigh)
    predicted = nemotron_mtp_types(config)
    if predicted:
        by_type = dict(typed)
        if not set(predicted) <= set(by_type):
            return out
        join = rms_norm("enorm", hidden) + rms_norm("hnorm", hidden) + linear("eh_proj", 2 * hidden, hidden)
        join += rms_norm("final_layernorm", hidden)
        steps = config.integer("num_nextn_predict_layers")
        mtp = repeated([(name, by_type[name]) for name in predicted * steps], weigh, Part.MTP)
        out += [Block(kind="mtp", weights=join, part=Part.MTP, count=steps), *mtp]
    return out


def _nemotron_experts(config: Config) -> tuple[Weight, ...]:
    """Experts of two matrices, between two projections to ``moe_latent_size`` if that is set."""
    hidden, bias = config.integer("hidden_size"), config.flag("mlp_bias")
    latent = config.maybe_integer("moe_latent_size")
    names = ("up_proj", "down_proj")
    count = config.integer("n_routed_experts")
    expert = plain_mlp(latent or hidden, config.integer("moe_intermediate_size"), bias=False, path="mixer.experts", names=names)
    weights = experts(expert, count, config.integer("num_experts_per_tok"))
    weights += linear("mixer.gate", hidden, count, role=WeightRole.ROUTER)
    shared = config.integer("moe_shared_expert_intermediate_size")
    weights += plain_mlp(hidden, shared, bias=bias, path="mixer.shared_experts", names=names)
    if latent is not None:
        weights += linear("mixer.fc1_latent_proj", hidden, latent, bias=bias)
        weights += linear("mixer.fc2_latent_proj", latent, hidden, bias=bias)
    return weights


def _shared_attention(config: Config, kind: AttentionKind, path: str) -> tuple[Weight, ...]:
    """Zamba's attention, over the layer's input and the embeddings side by side: twice as wide as what it puts out."""
    hidden = config.integer("hidden_size")
    wide = 2 * hidden
    dims = (kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim)
    weights = attention(wide, *dims, path=f"{path}.self_attn")[:-1]
    weights += linear(f"{path}.self_attn.o_proj", kind.num_attention_heads * kind.head_dim, hidden)
    return weights + rms_norm(f"{path}.input_layernorm", wide) + rms_norm(f"{path}.pre_ff_layernorm", hidden)


def _zamba(config: Config, top: Config) -> list[Block]:
    hidden, heads = config.integer("hidden_size"), config.integer("n_mamba_heads")
    bias, conv_bias = config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    rank = time_step_rank(config, "mamba_dt_rank")

    def weigh(layer: Layer) -> list[Named]:
        mixer = next(kind for kind in layer if isinstance(kind, Mamba1))
        out = [
            ("mamba", mamba1_of(mixer, hidden, rank, bias=bias, conv_bias=conv_bias, heads=heads, path="mamba")),
            _norms(config, "input_layernorm"),
        ]
        return out if len(layer) == 1 else [*out, ("join", linear("linear", hidden, hidden))]

    layers = cached_layers(config)
    out = ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)
    attending = _attending(layers)
    if attending:
        path = "shared_transf"
        out.append(Block(kind="attention", weights=_shared_attention(config, attending[0], path)))
        mlp = gated_mlp(hidden, config.integer("intermediate_size"), path=f"{path}.feed_forward")
        out.append(Block(kind="mlp", weights=mlp))
    return out


def _zamba2(config: Config, top: Config) -> list[Block]:
    hidden = config.integer("hidden_size")
    bias = config.flag("add_bias_linear")
    width = config.maybe_integer("intermediate_size") or 4 * hidden

    def weigh(layer: Layer) -> list[Named]:
        mixer = next(kind for kind in layer if isinstance(kind, Mamba2))
        out = [
            ("mamba", mamba2_of(mixer, hidden, bias=bias, conv_bias=True, path="mamba")),
            _norms(config, "input_layernorm"),
        ]
        return out if len(layer) == 1 else [*out, ("join", linear("linear", hidden, hidden))]

    layers = cached_layers(config)
    out = ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)
    attending = _attending(layers)
    if not attending:
        return out
    path = "shared_transformer"
    shared = min(config.integer("num_mem_blocks"), len(attending))
    mlp = linear(f"{path}.feed_forward.gate_up_proj", hidden, 2 * width, bias=bias)
    mlp += linear(f"{path}.feed_forward.down_proj", width, hidden, bias=bias)
    out.append(Block(kind="attention", weights=_shared_attention(config, attending[0], path), count=shared))
    out.append(Block(kind="mlp", weights=mlp, count=shared))
    rank = config.integer("adapter_rank")
    adapter = linear(f"{path}.feed_forward.gate_up_proj_adapter_list.0", hidden, rank)
    adapter += linear(f"{path}.feed_forward.gate_up_proj_adapter_list.1", rank, 2 * width)
    if config.flag("use_shared_attention_adapter"):
        for name in "qkv":
            adapter += linear(f"{path}.self_attn.linear_{name}_adapter_list.0", 2 * hidden, rank)
            adapter += linear(f"{path}.self_attn.linear_{name}_adapter_list.1", rank, 2 * hidden)
    out.append(Block(kind="adapter", weights=adapter, count=len(attending)))
    return out


def _attending(layers: tuple[Layer, ...]) -> list[AttentionKind]:
    return [kind for layer in layers for kind in layer if isinstance(kind, AttentionKind)]


_RULES: Final[dict[str, Callable[[Config, Config], list[Block]]]] = {
    "bamba": _bamba,
    "falcon_h1": _bamba,
    "granitemoehybrid": _granite,
    "jamba": _jamba,
    "nemotron_h": _nemotron,
    "zamba": _zamba,
    "zamba2": _zamba2,
}

"""Mamba and attention in one stack, on layers of their own or both on one layer: Jamba, Bamba, Falcon-H1, Granite 4 and Zamba.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Zamba and Zamba2 have Mamba on every layer, and a few attention
blocks that many layers share: Zamba's block exists once, however many layers run it. So does each of Zamba2's
``num_mem_blocks``, but there every layer that runs a block has an adapter of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, attention, gated_mlp, linear, rms_norm
from hwcalc.formulas.weights_state import mamba2
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, every
from hwcalc.parsers.states import FULL, HYBRID, LINEAR, Interleaved, Mixers, mixed, mixed_layers
from hwcalc.parsers.states.mamba import (
    HYBRID_KEYS,
    dims_with,
    hybrid_readers,
    inner_width,
    mamba1_layer,
    mamba1_mixer,
    mamba2_kind,
)

_HEADS: Final = ("mamba_d_head", "mamba_n_groups", "mamba_n_heads")


def _jamba_types(config: Config, count: int) -> list[str]:
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise config.error("attn_layer_offset", offset, f"less than attn_layer_period ({period})")
    return every(period, count, FULL, LINEAR, offset)


def _bamba_types(config: Config, count: int) -> list[str]:
    """``attn_layer_indices`` counts from 0. Without it no layer has attention."""
    full = set(config.integers("attn_layer_indices") or ())
    return [FULL if i in full else LINEAR for i in range(count)]


def _mamba2_layer(config: Config, index: int) -> Layer:
    """Mamba-2 by the mamba_* keys. ``mamba_d_head`` may be ``"auto"``: the inner width divided by the heads.

    Falcon-H1 gives the inner width as ``mamba_d_ssm``: 34B has 4,096, where expand x hidden_size would be 10,240.
    """
    heads = config.integer("mamba_n_heads")
    named = config.maybe_integer("mamba_d_ssm") if config.model_type == "falcon_h1" else None
    inner = named or inner_width(config, "mamba_expand")
    head_dim = config.get("mamba_d_head")
    head_dim = inner // heads if head_dim in (None, "auto") else config.checked_integer("mamba_d_head", head_dim)
    if heads * head_dim != inner:
        if config.model_type == "falcon_h1" and not config.has("mamba_d_ssm"):
            raise ConfigError(
                f"mamba_d_ssm is missing: the class's default is {inner:,}, but {heads} heads are {heads * head_dim:,} wide.",
                hint=f"Transformers refuses such a file too. The published files have mamba_d_ssm: here {heads * head_dim}.",
            )
        raise config.error("mamba_n_heads", heads, f"such that mamba_n_heads x mamba_d_head is the inner width ({inner:,})")
    return (mamba2_kind(config, heads, head_dim),)


def _mixers(config: Config, *, bias: bool, norm: bool = True, out_bias: bool | None = None) -> Mixers:
    """Attention and Mamba-2. ``bias`` is that of attention, ``out_bias`` that of Mamba's output if it differs from the input's."""
    hidden = config.integer("hidden_size")
    biases: dict[str, Any] = {"bias": config.flag("mamba_proj_bias"), "conv_bias": config.flag("mamba_conv_bias")}
    mamba = partial(mamba2, hidden, **biases, out_bias=out_bias, norm=norm, path="mamba")
    return {
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)),
        Mamba2: ("mamba", lambda kind: mamba(**kind.numbers())),
    }


def _jamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Layers with i % expert_layer_period == expert_layer_offset have experts, unless there is only one expert."""
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    count, active = config.integer("num_experts"), config.integer("num_experts_per_tok")
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", minimum=0)
    mixer = mamba1_mixer(config, norms=True)
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")
    mixers: Mixers = {
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden)),
        Mamba1: ("mamba", lambda kind: mixer(**kind.numbers())),
    }

    def weigh(key: tuple[Layer, bool]) -> list[Named]:
        layer, sparse = key
        moe = gated_experts(hidden, width, count, active, path="feed_forward", router="router")
        mlp = gated_mlp(hidden, width, path="feed_forward")
        return [("norm", norms), *mixed(layer, mixers), ("moe", moe) if sparse else ("mlp", mlp)]

    layers = [(layer, count > 1 and i % period == offset) for i, layer in enumerate(reading.layers)]
    return ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)


def _bamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Bamba and Falcon-H1. Each layer of Falcon-H1 has both mixers, and its Mamba may have no norm."""
    hidden = config.integer("hidden_size")
    falcon = config.model_type == "falcon_h1"
    mixers = _mixers(
        config,
        bias=config.flag("attention_bias"),
        norm=config.flag("mamba_rms_norm") if falcon else True,
        out_bias=config.flag("projectors_bias") if falcon else None,
    )
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path="feed_forward")
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")
    out = ends(config, top, norm="model.final_layernorm")
    return out + mixed_layers(reading.layers, mixers, ("mlp", mlp), before=(("norm", norms),))


def _granite(config: Config, top: Config, reading: Reading) -> list[Block]:
    """A shared MLP on every layer, with experts beside it if the model has any."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    count = config.maybe_integer("num_local_experts", minimum=0) or 0
    mlp = linear("shared_mlp.input_linear", hidden, 2 * shared) + linear("shared_mlp.output_linear", shared, hidden)
    rest: list[Named] = [("norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")), ("mlp", mlp)]
    if count:
        width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
        rest.append(("moe", gated_experts(hidden, width, count, active, path="block_sparse_moe", router="router")))
    mixers = _mixers(config, bias=config.flag("attention_bias"))
    return ends(config, top) + mixed_layers(reading.layers, mixers, *rest)


JAMBA: Final = Interleaved(
    types=_jamba_types,
    readers=hybrid_readers(mamba1_layer),
    weights=_jamba,
    ignored=(*HYBRID_KEYS, "use_mambapy"),
    spelled=False,
)
BAMBA: Final = Interleaved(
    types=_bamba_types,
    readers=hybrid_readers(_mamba2_layer),
    weights=_bamba,
    ignored=(*HYBRID_KEYS, *_HEADS, "attn_layer_indices"),
)
FALCON_H1: Final = Interleaved(
    types=lambda _, count: [HYBRID] * count,
    readers=hybrid_readers(_mamba2_layer),
    weights=_bamba,
    ignored=(
        *HYBRID_KEYS, "layer_types", "layers_block_type", "mamba_use_mlp", "ssm_in_multiplier", "ssm_multipliers",
        "ssm_out_multiplier",
    ),
    spelled=False,
)  # fmt: skip
GRANITE: Final = Interleaved(
    types=lambda _, count: [LINEAR] * count,
    readers=hybrid_readers(_mamba2_layer),
    weights=_granite,
    ignored=(*HYBRID_KEYS, *_HEADS),
)


# Zamba and Zamba2.

# Zamba2's stack where the file does not list it: of 54 layers, these have attention as well.
_ZAMBA2_LAYERS: Final = 54
_ZAMBA2_HYBRID: Final = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})


def _zamba_types(config: Config, count: int) -> list[str]:
    """Two Mamba layers and a hybrid one, then one hybrid layer in each period, counted from there."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    rest = [HYBRID if i % period == offset else LINEAR for i in range(max(0, count - 3))]
    return [LINEAR, LINEAR, HYBRID, *rest][:count]


def _zamba2_types(config: Config, count: int) -> list[str]:
    if count != _ZAMBA2_LAYERS:
        raise config.missing("layers_block_type")
    return [HYBRID if i in _ZAMBA2_HYBRID else LINEAR for i in range(count)]


def _zamba2_mamba(config: Config, index: int) -> Layer:
    # Published files have a state_size beside mamba_d_state. The model reads mamba_d_state.
    config.ignore("state_size")
    heads = config.integer("n_mamba_heads")
    head_dim = config.maybe_integer("mamba_headdim") or inner_width(config, "mamba_expand") // heads
    return (mamba2_kind(config, heads, head_dim, groups="mamba_ngroups"),)


def _zamba_attention(config: Config, index: int) -> Layer:
    """Attention over the layer's input beside the embeddings: head_dim is 2 x hidden_size / heads.

    Layers share the weights of attention, but not the keys and values.
    """
    heads = config.integer("num_attention_heads")
    head_dim = config.maybe_integer("attention_head_dim") or 2 * config.integer("hidden_size") // heads
    return (dims_with(config, head_dim).full(),)


def _zamba_layers(config: Config, top: Config, reading: Reading, mixer: Callable[..., Weighed]) -> list[Block]:
    """Everything except the shared blocks. A layer that runs such a block has a matrix for the block's output."""
    hidden = config.integer("hidden_size")

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[-1]
        if not isinstance(kind, (Mamba1, Mamba2)):
            raise ConfigError(f"a {config.model_type} model has Mamba on every layer.")
        out = [("mamba", mixer(**kind.numbers())), ("norm", rms_norm("input_layernorm", hidden))]
        return out if len(layer) == 1 else [*out, ("join", linear("linear", hidden, hidden))]

    return ends(config, top, norm="model.final_layernorm") + repeated(reading.layers, weigh)


def _attending(reading: Reading) -> dict[int, AttentionKind]:
    return {i: kind for i, layer in enumerate(reading.layers) for kind in layer if isinstance(kind, AttentionKind)}


def _shared(config: Config, kind: AttentionKind, mlp: Weighed, path: str, count: int = 1) -> list[Block]:
    """The shared blocks. They have no layer numbers, since they belong to no layer and run in many.

    Their attention reads the layer's input beside the embeddings, so its input is twice as wide as its output.
    """
    hidden = config.integer("hidden_size")
    wide = 2 * hidden
    dims = (kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim)
    weights = attention(wide, *dims, path=f"{path}.self_attn")[:-1]
    weights += linear(f"{path}.self_attn.o_proj", kind.num_attention_heads * kind.head_dim, hidden)
    weights += rms_norm(f"{path}.input_layernorm", wide) + rms_norm(f"{path}.pre_ff_layernorm", hidden)
    return [Block(kind="attention", weights=weights, count=count), Block(kind="mlp", weights=mlp, count=count)]


def _zamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    out = _zamba_layers(config, top, reading, mamba1_mixer(config, heads=config.integer("n_mamba_heads")))
    attending = _attending(reading)
    if attending:
        mlp = gated_mlp(config.integer("hidden_size"), config.integer("intermediate_size"), path="shared_transf.feed_forward")
        out += _shared(config, next(iter(attending.values())), mlp, "shared_transf")
    return out


def _zamba2(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden = config.integer("hidden_size")
    bias = config.flag("add_bias_linear")
    width = config.maybe_integer("intermediate_size") or 4 * hidden
    out = _zamba_layers(config, top, reading, partial(mamba2, hidden, bias=bias, conv_bias=True, path="mamba"))
    attending = _attending(reading)
    if attending:
        path = "shared_transformer"
        mlp = gated_mlp(hidden, width, bias=bias, path=f"{path}.feed_forward", fused="gate_up_proj")
        shared = min(config.integer("num_mem_blocks"), len(attending))
        out += _shared(config, next(iter(attending.values())), mlp, path, shared)
        adapter = _adapter(config, path, width)
        out.append(Block(kind="adapter", weights=adapter, count=len(attending), layers=tuple(attending)))
    return out


def _adapter(config: Config, path: str, width: int) -> Weighed:
    hidden, rank = config.integer("hidden_size"), config.integer("adapter_rank")
    weights = linear(f"{path}.feed_forward.gate_up_proj_adapter_list.0", hidden, rank)
    weights += linear(f"{path}.feed_forward.gate_up_proj_adapter_list.1", rank, 2 * width)
    if config.flag("use_shared_attention_adapter"):
        for name in "qkv":
            weights += linear(f"{path}.self_attn.linear_{name}_adapter_list.0", 2 * hidden, rank)
            weights += linear(f"{path}.self_attn.linear_{name}_adapter_list.1", rank, 2 * hidden)
    return weights


_ZAMBA_IGNORED: Final = (*HYBRID_KEYS, "attention_head_dim", "attention_hidden_size", "n_mamba_heads")

# Zamba's heads only split the channels of Mamba-1: n_mamba_heads x (d_inner / n_mamba_heads) x d_state is d_inner x d_state.
ZAMBA: Final = Interleaved(
    types=_zamba_types,
    readers=hybrid_readers(mamba1_layer, _zamba_attention),
    weights=_zamba,
    ignored=(*_ZAMBA_IGNORED, "attn_layer_offset", "attn_layer_period"),
)
ZAMBA2: Final = Interleaved(
    types=_zamba2_types,
    readers=hybrid_readers(_zamba2_mamba, _zamba_attention),
    weights=_zamba2,
    ignored=(
        *_ZAMBA_IGNORED, "chunk_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim", "mamba_ngroups", "num_query_groups",
        "use_shared_attention_adapter",
    ),
)  # fmt: skip

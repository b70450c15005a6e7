"""Zamba and Zamba2: Mamba on every layer, and a few attention blocks that many layers share.

Mirrors ``modeling_zamba.py`` and ``modeling_zamba2.py`` of transformers 5.23. Zamba's attention block exists once, however many
layers run it; so does each of Zamba2's ``num_mem_blocks``, but for an adapter of its own at every layer that runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, attention, gated_mlp, linear, rms_norm
from hwcalc.formulas.weights_state import mamba2
from hwcalc.parsers.blocks import Named, Weighed, ends, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.states import HYBRID, LINEAR, Interleaved, spelled_layer_types
from hwcalc.parsers.states.mamba import dims_with, hybrid_readers, inner_width, mamba1_layer, mamba1_mixer, mamba2_kind

__all__ = ["ZAMBA", "ZAMBA2"]

# Zamba2's stack where the file leaves it out: the layers that attend as well, of 54.
_ZAMBA2_LAYERS: Final = 54
_ZAMBA2_HYBRID: Final = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})


def _zamba_types(config: Config, count: int) -> list[str]:
    """Two Mamba layers and a hybrid one, then a hybrid one in every period counted from there."""
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    rest = [HYBRID if i % period == offset else LINEAR for i in range(max(0, count - 3))]
    return [LINEAR, LINEAR, HYBRID, *rest][:count]


def _zamba2_types(config: Config, count: int) -> list[str]:
    spelled = spelled_layer_types(config, count)
    if spelled is not None:
        return spelled
    if count != _ZAMBA2_LAYERS:
        raise config.missing("layers_block_type")
    return [HYBRID if i in _ZAMBA2_HYBRID else LINEAR for i in range(count)]


def _zamba2_mamba(config: Config, index: int) -> Layer:
    # Published files carry a state_size beside mamba_d_state; the model reads the latter.
    config.ignore("state_size")
    heads = config.integer("n_mamba_heads")
    head_dim = config.maybe_integer("mamba_headdim") or inner_width(config, "mamba_expand") // heads
    return (mamba2_kind(config, heads, head_dim, groups="mamba_ngroups"),)


def _attention_layer(config: Config, index: int) -> Layer:
    """Attention over the layer's input and the embeddings side by side: head_dim is 2 x hidden_size / heads.

    The attention weights are shared among layers, their keys and values are not.
    """
    heads = config.integer("num_attention_heads")
    head_dim = config.maybe_integer("attention_head_dim") or 2 * config.integer("hidden_size") // heads
    return (dims_with(config, head_dim).full(),)


def _stack(config: Config, top: Config, reading: Reading, mixer: Callable[..., Weighed]) -> list[Block]:
    """Everything but the shared blocks. A layer that runs one has a matrix for what the block puts out."""
    hidden = config.integer("hidden_size")

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[-1]
        if not isinstance(kind, (Mamba1, Mamba2)):
            raise ConfigError(f"a {config.model_type} model has Mamba on every layer.")
        out = [("mamba", mixer(**vars(kind))), ("norm", rms_norm("input_layernorm", hidden))]
        return out if len(layer) == 1 else [*out, ("join", linear("linear", hidden, hidden))]

    return ends(config, top, norm="model.final_layernorm") + repeated(reading.layers, weigh)


def _attending(reading: Reading) -> dict[int, AttentionKind]:
    return {i: kind for i, layer in enumerate(reading.layers) for kind in layer if isinstance(kind, AttentionKind)}


def _shared(config: Config, kind: AttentionKind, mlp: Weighed, path: str, count: int = 1) -> list[Block]:
    """The shared blocks, which have no layer numbers: they are in no layer, and run in many.

    Their attention sees the layer's input and the embeddings side by side: it is twice as wide as what it puts out.
    """
    hidden = config.integer("hidden_size")
    wide = 2 * hidden
    dims = (kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim)
    weights = attention(wide, *dims, path=f"{path}.self_attn")[:-1]
    weights += linear(f"{path}.self_attn.o_proj", kind.num_attention_heads * kind.head_dim, hidden)
    weights += rms_norm(f"{path}.input_layernorm", wide) + rms_norm(f"{path}.pre_ff_layernorm", hidden)
    return [Block(kind="attention", weights=weights, count=count), Block(kind="mlp", weights=mlp, count=count)]


def _zamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    out = _stack(config, top, reading, mamba1_mixer(config, heads=config.integer("n_mamba_heads")))
    attending = _attending(reading)
    if attending:
        mlp = gated_mlp(config.integer("hidden_size"), config.integer("intermediate_size"), path="shared_transf.feed_forward")
        out += _shared(config, next(iter(attending.values())), mlp, "shared_transf")
    return out


def _zamba2(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden = config.integer("hidden_size")
    bias = config.flag("add_bias_linear")
    width = config.maybe_integer("intermediate_size") or 4 * hidden
    out = _stack(config, top, reading, partial(mamba2, hidden, bias=bias, conv_bias=True, path="mamba"))
    attending = _attending(reading)
    if attending:
        path = "shared_transformer"
        mlp = linear(f"{path}.feed_forward.gate_up_proj", hidden, 2 * width, bias=bias)
        mlp += linear(f"{path}.feed_forward.down_proj", width, hidden, bias=bias)
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


# Keys of both types of layer, which a stack without one of them leaves unread, and keys that never bear on the cache.
_IGNORED: Final = (
    "attention_head_dim", "attention_hidden_size", "head_dim", "mamba_chunk_size", "mamba_d_conv", "mamba_d_state",
    "mamba_dt_rank", "mamba_expand", "n_mamba_heads", "num_attention_heads", "num_key_value_heads", "use_mamba_kernels",
)  # fmt: skip

# Zamba's heads only split the channels of Mamba-1: n_mamba_heads x (d_inner / n_mamba_heads) x d_state is d_inner x d_state.
ZAMBA: Final = Interleaved(
    types=_zamba_types,
    readers=hybrid_readers(mamba1_layer, _attention_layer),
    weights=_zamba,
    ignored=(*_IGNORED, "attn_layer_offset", "attn_layer_period"),
)
ZAMBA2: Final = Interleaved(
    types=_zamba2_types,
    readers=hybrid_readers(_zamba2_mamba, _attention_layer),
    weights=_zamba2,
    ignored=(
        *_IGNORED, "chunk_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim", "mamba_ngroups", "num_query_groups",
        "use_shared_attention_adapter",
    ),
)  # fmt: skip

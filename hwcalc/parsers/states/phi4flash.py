"""Phi-4-mini-flash (SambaY), whose code lives with the model: ``SambaYCache`` for 32 layers, weights as in vLLM's ``phi4flash.py``.

Layers 0 to 16 alternate Mamba-1 and a window, 17 is the only full attention. After it nothing is kept: odd layers read 17's
cache, even ones gate the current token by 16's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, Mamba1, NoCache, SharedCache
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, layer_norm, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import mamba1
from hwcalc.parsers.blocks import Named, ends, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading, attention_dims
from hwcalc.parsers.states.mamba import time_step_rank

__all__ = ["PHI4FLASH"]


def _read(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    period = config.maybe_integer("mb_per_layer", minimum=0) or 0
    half = count // 2
    windows = _windows(config, count)
    # Made from the same numbers when the file was written.
    config.ignore("layer_types", "layers_block_type", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
    mamba = Mamba1(
        d_inner=config.integer("mamba_expand") * config.integer("hidden_size"),
        d_state=config.integer("mamba_d_state"),
        d_conv=config.integer("mamba_d_conv"),
    )

    def layer(index: int) -> Layer:
        is_mamba = period > 0 and index % period == 0
        if index >= half + 2:
            return (NoCache() if is_mamba else SharedCache(),)
        if is_mamba:
            return (mamba,)
        return (dims.within(windows[index] if index < half else None),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _windows(config: Config, count: int) -> list[int | None]:
    """The window of each layer: spelled out, or one number for the odd layers."""
    given = config.get("sliding_window")
    if isinstance(given, (list, tuple)):
        entries = config.sequence("sliding_window", length=count) or []
        return [None if entry is None else config.checked_integer("sliding_window", entry) for entry in entries]
    window = config.maybe_integer("sliding_window")
    return [window if index % 2 else None for index in range(count)]


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Layer norms; differential attention. Past the middle, attention has only queries and Mamba only a gate and an output."""
    hidden = config.integer("hidden_size")
    out = ends(config, top, norm=layer_norm("model.final_layernorm", hidden))
    # Layers that read another's cache have its dims; the kinds that keep nothing do not say them.
    dims = attention_dims(config)
    width = config.integer("intermediate_size")
    mlp = linear("mlp.fc1", hidden, 2 * width) + linear("mlp.fc2", width, hidden)
    queries, keys = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.head_dim
    inner = config.integer("mamba_expand") * hidden

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba1):
            yield "mamba", mamba1(hidden, **vars(kind), dt_rank=time_step_rank(config), path="attn")
        elif isinstance(kind, NoCache):
            yield "gate", linear("attn.in_proj", hidden, inner) + linear("attn.out_proj", inner, hidden)
        else:
            own = queries + 2 * keys if isinstance(kind, AttentionKind) else queries
            weights = linear("attn.Wqkv", hidden, own, bias=True) + linear("attn.out_proj", queries, hidden, bias=True)
            for name in ("q1", "k1", "q2", "k2"):
                weights += parameter(f"attn.inner_cross_attn.lambda_{name}", dims.head_dim)
            yield "attention", weights + rms_norm("attn.inner_cross_attn.subln", 2 * dims.head_dim)
        yield "mlp", mlp
        yield "norm", layer_norm("input_layernorm", hidden) + layer_norm("post_attention_layernorm", hidden)

    return out + repeated(reading.layers, weigh)


PHI4FLASH: Final = Readers(layers=_read, weights=_weights)

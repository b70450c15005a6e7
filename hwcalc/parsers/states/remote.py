"""Hybrids of Mamba and attention whose code lives with the models: Phi-4-mini-flash, PLaMo 2 and PLaMo 3.

- phi4flash (SambaY): the cache is that of ``SambaYCache`` for 32 layers, the weights are those of vLLM's ``phi4flash.py``. Layers
  0 to 16 alternate between Mamba-1 and a window, and layer 17 has the only full attention. The layers after it keep nothing: odd
  ones read the cache of layer 17, even ones gate the current token with the output of layer 16.
- plamo2: attention where i % mamba_step == mamba_step // 2, or only on the last layer if the stack is no longer than half a step
  (``is_mamba`` in the model and in vLLM's ``plamo2.py``, which the weights follow too). Attention keeps the last
  ``attention_window_size`` tokens, and all tokens on the layers of ``full_attention_idx``. The state is that of Mamba-2, but only
  x passes the convolution.
- plamo3: full attention where (i + 1) % sliding_window_pattern == 0, else the last ``window_size`` tokens (``is_full_attn``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, Mamba1, Mamba2, NoCache, SharedCache
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, attention, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution, mamba1
from hwcalc.parsers.blocks import Named, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading, attention_dims, equal_dims
from hwcalc.parsers.states import Mixers, mixed_layers
from hwcalc.parsers.states.mamba import time_step_rank


def _phi4flash(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    period = config.maybe_integer("mb_per_layer", minimum=0) or 0
    half = count // 2
    windows = _phi4flash_windows(config, count)
    # The code that wrote the file derived these from the same numbers.
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


def _phi4flash_windows(config: Config, count: int) -> list[int | None]:
    """The window of each layer: the file gives a list, or one number for the odd layers."""
    given = config.get("sliding_window")
    if isinstance(given, (list, tuple)):
        entries = config.sequence("sliding_window", length=count) or []
        return [None if entry is None else config.checked_integer("sliding_window", entry) for entry in entries]
    window = config.maybe_integer("sliding_window")
    return [window if index % 2 else None for index in range(count)]


def _phi4flash_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Layer norms and differential attention. Past the middle, attention has only queries, and Mamba only a gate and an output."""
    hidden = config.integer("hidden_size")
    out = ends(config, top, norm=layer_norm("model.final_layernorm", hidden))
    # A layer that reads another layer's cache has the dims of that layer, but its own kind does not hold them.
    dims = attention_dims(config)
    width = config.integer("intermediate_size")
    mlp = linear("mlp.fc1", hidden, 2 * width) + linear("mlp.fc2", width, hidden)
    queries, keys = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.head_dim
    inner = config.integer("mamba_expand") * hidden

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba1):
            yield "mamba", mamba1(hidden, **kind.numbers(), dt_rank=time_step_rank(config), path="attn")
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


_PLAMO2_WINDOW: Final = 2_048
"""The default of ``attention_window_size`` in the model's config class. Null means no window."""


def _plamo2(config: Config) -> Reading:
    count = config.number_of_layers()
    # Some engine writes a head_dim of its own into the file. The model reads hidden_size_per_head.
    config.ignore("head_dim")
    head_dim = config.integer("hidden_size_per_head")
    dims = equal_dims(config.integer("num_attention_heads"), config.integer("num_key_value_heads"), head_dim)
    step = config.integer("mamba_step", minimum=2)
    window = config.maybe_integer("attention_window_size") if config.has("attention_window_size") else _PLAMO2_WINDOW
    full = set(config.integers("full_attention_idx") or [])
    # Older files give the window a second time, for an engine that reads only this key.
    config.ignore("sliding_window", "mamba_chunk_size", "interleaved_sliding_window")
    mamba: Layer = (
        Mamba2(
            num_heads=config.integer("mamba_num_heads"),
            head_dim=head_dim,
            d_state=config.integer("mamba_d_state"),
            n_groups=0,
            d_conv=config.integer("mamba_d_conv"),
        ),
    )
    enabled = config.flag("mamba_enabled", default=True)

    def layer(index: int) -> Layer:
        attends = index == count - 1 if count <= step // 2 else index % step == step // 2
        if enabled and not attends:
            return mamba
        return (dims.within(None if index in full else window),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _plamo2_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has four norms. Queries and keys have a scale for each channel of each head."""
    hidden = config.integer("hidden_size")
    norms = rms_norms(hidden, "pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), fused="gate_up_proj")

    mixers: Mixers = {
        Mamba2: ("mamba", lambda kind: _plamo2_mamba(kind, hidden)),
        AttentionKind: ("attention", lambda kind: _plamo2_attention(kind, hidden)),
    }
    return ends(config, top) + mixed_layers(reading.layers, mixers, ("mlp", mlp), ("norm", norms))


def _plamo2_attention(kind: AttentionKind, hidden: int) -> tuple[Weight, ...]:
    heads, kv_heads, width = kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim
    weights = attention(hidden, heads, kv_heads, width, path="mixer", fused="qkv_proj")
    weights += parameter("mixer.q_weight", heads, width, role=WeightRole.NORM)
    return weights + parameter("mixer.k_weight", kv_heads, width, role=WeightRole.NORM)


def _plamo2_mamba(kind: Mamba2, hidden: int) -> tuple[Weight, ...]:
    """The heads of Mamba-2 with the projections of Mamba-1: B, C and the time step come from x, each with a norm."""
    inner, state = kind.num_heads * kind.head_dim, kind.d_state
    rank = max(64, hidden // 16)
    weights = linear("mixer.in_proj", hidden, 2 * inner) + convolution("mixer.conv1d", inner, kind.d_conv)
    weights += linear("mixer.bcdt_proj", inner, rank + 2 * state) + linear("mixer.dt_proj", rank, kind.num_heads)
    weights += parameter("mixer.dt_bias", kind.num_heads, role=WeightRole.BIAS)
    weights += parameter("mixer.A_log", kind.num_heads) + parameter("mixer.D", kind.num_heads)
    weights += rms_norms(rank, "mixer.dt_norm") + rms_norms(state, "mixer.B_norm", "mixer.C_norm")
    return weights + linear("mixer.out_proj", inner, hidden)


def _plamo3(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    period = config.integer("sliding_window_pattern")
    sliding = dims.sliding(config.integer("window_size"))
    # Files repeat the same rule for other engines.
    config.ignore("sliding_window", "interleaved_sliding_window", "layer_types")
    return Reading(layers=tuple((sliding if (i + 1) % period else dims.full(),) for i in range(count)), config=config)


PHI4FLASH: Final = Readers(layers=_phi4flash, weights=_phi4flash_weights)
PLAMO2: Final = Readers(layers=_plamo2, weights=_plamo2_weights)
PLAMO3: Final = Readers(layers=_plamo3)

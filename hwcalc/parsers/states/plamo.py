"""PLaMo 2 and 3, whose code lives with the models.

- plamo2: attention where i % mamba_step == mamba_step // 2, on the last layer alone if the stack is no longer than half a
  step (``is_mamba`` in the model and in vLLM's ``plamo2.py``, which the weights follow too). Attention forgets all but
  ``attention_window_size`` tokens outside ``full_attention_idx``. The state is Mamba-2's, but only x is convolved.
- plamo3: full where (i + 1) % sliding_window_pattern == 0, else the last ``window_size`` tokens (``is_full_attn``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, attention, gated_mlp, linear, parameter
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading, attention_dims, equal_dims

__all__ = ["PLAMO2", "PLAMO3"]

_PLAMO2_WINDOW: Final = 2_048
"""``attention_window_size`` of the model's config class, where a file leaves it out; null is no window."""


def _plamo2(config: Config) -> Reading:
    count = config.number_of_layers()
    # An engine puts a head_dim of its own into the file; the model's width is hidden_size_per_head.
    config.ignore("head_dim")
    head_dim = config.integer("hidden_size_per_head")
    dims = equal_dims(config.integer("num_attention_heads"), config.integer("num_key_value_heads"), head_dim)
    step = config.integer("mamba_step", minimum=2)
    window = config.maybe_integer("attention_window_size") if config.has("attention_window_size") else _PLAMO2_WINDOW
    full = set(config.integers("full_attention_idx") or [])
    # Older files name the window a second time, for an engine that reads only this key.
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
    """Four norms a layer; queries and keys have a scale for each channel of each head."""
    hidden = config.integer("hidden_size")
    norms = rms_norms(hidden, "pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), fused="gate_up_proj")

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba2):
            yield "mamba", _plamo2_mamba(kind, hidden)
        else:
            assert isinstance(kind, AttentionKind)
            yield "attention", _plamo2_attention(kind, hidden)
        yield "mlp", mlp
        yield "norm", norms

    return ends(config, top) + repeated(reading.layers, weigh)


def _plamo2_attention(kind: AttentionKind, hidden: int) -> tuple[Weight, ...]:
    heads, kv_heads, width = kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim
    weights = attention(hidden, heads, kv_heads, width, path="mixer", fused="qkv_proj")
    weights += parameter("mixer.q_weight", heads, width, role=WeightRole.NORM)
    return weights + parameter("mixer.k_weight", kv_heads, width, role=WeightRole.NORM)


def _plamo2_mamba(kind: Mamba2, hidden: int) -> tuple[Weight, ...]:
    """Mamba-2's heads behind Mamba-1's projections: B, C and the time step come from x, each with a norm."""
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
    # The same rule once more, spelled out for other engines.
    config.ignore("sliding_window", "interleaved_sliding_window", "layer_types")
    return Reading(layers=tuple((sliding if (i + 1) % period else dims.full(),) for i in range(count)), config=config)


PLAMO2: Final = Readers(layers=_plamo2, weights=_plamo2_weights)
PLAMO3: Final = Readers(layers=_plamo3)

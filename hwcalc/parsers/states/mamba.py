"""Mamba layers, and the models that have no others: mamba, falcon_mamba, mamba2 (``modeling_*.py`` of transformers 5.23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from hwcalc.formulas import Layer, Mamba1, Mamba2, NoCache
from hwcalc.formulas.weights import Block, rms_norm
from hwcalc.formulas.weights_state import mamba1, mamba2
from hwcalc.parsers.blocks import Weighed, ends
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, LayerReader, Readers, Reading, equal_dims, full_layer
from hwcalc.parsers.states import FULL, HYBRID, LINEAR, Mixers, mixed_layers, state_dtype

__all__ = [
    "MAMBA1",
    "MAMBA2",
    "dims_with",
    "hybrid_readers",
    "inner_width",
    "mamba1_layer",
    "mamba1_mixer",
    "mamba2_kind",
    "time_step_rank",
]

_WITHOUT_EFFECT: Final = ("chunk_size", "d_inner", "use_conv_bias", "use_falcon_mambapy", "use_mamba_kernels", "use_mambapy")


def inner_width(config: Config, expand_key: str) -> int:
    """Channels inside a Mamba layer: expand x hidden_size. With expand 2, 4 channels become 8."""
    hidden = config.integer("hidden_size")
    width = int(config.number(expand_key, 2) * hidden)
    return config.checked_integer(expand_key, width)


def mamba1_layer(config: Config, index: int) -> Layer:
    """A Mamba-1 layer of a hybrid, by the mamba_* keys."""
    inner = inner_width(config, "mamba_expand")
    return (Mamba1(d_inner=inner, d_state=config.integer("mamba_d_state"), d_conv=config.integer("mamba_d_conv")),)


def mamba2_kind(
    config: Config,
    heads: int,
    head_dim: int,
    *,
    state: str = "mamba_d_state",
    groups: str = "mamba_n_groups",
    conv: str = "mamba_d_conv",
) -> Mamba2:
    """Mamba-2 with these heads. The other dims come from the named keys."""
    d_state, n_groups, d_conv = (config.integer(key) for key in (state, groups, conv))
    return Mamba2(num_heads=heads, head_dim=head_dim, d_state=d_state, n_groups=n_groups, d_conv=d_conv)


def dims_with(config: Config, head_dim: int) -> AttentionDims:
    """The attention of a hybrid whose head_dim does not come from the common key."""
    heads = config.integer("num_attention_heads")
    return equal_dims(heads, config.maybe_integer("num_key_value_heads"), head_dim)


def hybrid_readers(mamba: LayerReader, attention: LayerReader = full_layer) -> Mapping[str, LayerReader]:
    """The readers of the layers of hybrids. A layer has Mamba, attention, both at once, or neither."""

    def both(config: Config, index: int) -> Layer:
        return (*attention(config, index), *mamba(config, index))

    return {LINEAR: mamba, FULL: attention, HYBRID: both, "mlp": _no_cache_layer, "moe": _no_cache_layer}


def _no_cache_layer(config: Config, index: int) -> Layer:
    """An MLP or experts as a layer of their own."""
    return (NoCache(),)


def time_step_rank(config: Config, key: str = "mamba_dt_rank") -> int:
    """The rank of Mamba-1's time step. ``"auto"`` is a sixteenth of ``hidden_size``, rounded up."""
    if config.get(key) in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)


def mamba1_mixer(config: Config, *, norms: bool = False, heads: int | None = None) -> Callable[..., Weighed]:
    """A function that weighs the Mamba-1 of a hybrid. Its arguments are the fields of :class:`Mamba1`."""
    hidden, bias, conv_bias = config.integer("hidden_size"), config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    more = partial(mamba1, bias=bias, conv_bias=conv_bias, norms=norms, heads=heads, path="mamba")
    return partial(more, hidden, dt_rank=time_step_rank(config))


def _alike(kind_of: Callable[[Config], Mamba1 | Mamba2]) -> Readers:
    """A family without attention, whose layers are all alike."""

    def read(config: Config) -> Reading:
        count = config.number_of_layers()
        config.ignore(*_WITHOUT_EFFECT)
        return Reading(layers=((kind_of(config),),) * count, config=config, state_dtype=state_dtype(config))

    return Readers(layers=read, weights=_weights)


def _mamba1(config: Config) -> Mamba1:
    # Falcon-Mamba-7B has expand 16 and intermediate_size 8,192 with hidden_size 4,096: the intermediate_size is right.
    inner = config.maybe_integer("intermediate_size") or inner_width(config, "expand")
    return Mamba1(d_inner=inner, d_state=config.integer("state_size"), d_conv=config.integer("conv_kernel"))


def _mamba2(config: Config) -> Mamba2:
    heads, head_dim = config.integer("num_heads"), config.integer("head_dim")
    inner = inner_width(config, "expand")
    if heads * head_dim != inner:
        raise config.error("num_heads", heads, f"such that num_heads x head_dim is expand x hidden_size ({inner:,})")
    return mamba2_kind(config, heads, head_dim, state="state_size", groups="n_groups", conv="conv_kernel")


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has one mixer and one norm."""
    hidden = config.integer("hidden_size")
    biases: dict[str, Any] = {"bias": config.flag("use_bias"), "conv_bias": config.flag("use_conv_bias")}

    mixers: Mixers = {
        Mamba1: (
            "mamba",
            lambda kind: mamba1(hidden, **vars(kind), dt_rank=time_step_rank(config, "time_step_rank"), **biases),
        ),
        Mamba2: ("mamba", lambda kind: mamba2(hidden, **vars(kind), **biases)),
    }
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    return out + mixed_layers(reading.layers, mixers, ("norm", rms_norm("norm", hidden)))


MAMBA1: Final = _alike(_mamba1)
MAMBA2: Final = _alike(_mamba2)

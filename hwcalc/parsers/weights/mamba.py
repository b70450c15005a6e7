"""Mamba on every layer: mamba, falcon_mamba, mamba2. Mirrors ``modeling_*.py`` of those names in transformers 5.23."""

from __future__ import annotations

from hwcalc.formulas import Layer, Mamba1, Mamba2
from hwcalc.formulas.weights import Block, Weight, rms_norm
from hwcalc.formulas.weights_state import mamba1, mamba2
from hwcalc.parsers.blocks import Named, ends, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks", "mamba1_of", "mamba2_of", "time_step_rank"]


def time_step_rank(config: Config, key: str) -> int:
    """The rank that Mamba-1's time step is projected from; ``"auto"`` is a sixteenth of ``hidden_size``, rounded up."""
    if config.get(key) in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)


def mamba1_of(
    kind: Mamba1,
    hidden_size: int,
    dt_rank: int,
    *,
    bias: bool,
    conv_bias: bool,
    norms: bool = False,
    heads: int | None = None,
    path: str,
) -> tuple[Weight, ...]:
    """A Mamba-1 mixer by what it caches."""
    return mamba1(
        hidden_size,
        kind.d_inner,
        kind.d_state,
        kind.d_conv,
        dt_rank,
        bias=bias,
        conv_bias=conv_bias,
        norms=norms,
        heads=heads,
        path=path,
    )


def mamba2_of(
    kind: Mamba2, hidden_size: int, *, bias: bool, conv_bias: bool, out_bias: bool | None = None, norm: bool = True, path: str
) -> tuple[Weight, ...]:
    """A Mamba-2 mixer by what it caches."""
    return mamba2(
        hidden_size,
        kind.num_heads,
        kind.head_dim,
        kind.d_state,
        kind.n_groups,
        kind.d_conv,
        bias=bias,
        out_bias=out_bias,
        conv_bias=conv_bias,
        norm=norm,
        path=path,
    )


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks: one norm and one mixer a layer."""
    hidden = config.integer("hidden_size")
    bias, conv_bias = config.flag("use_bias"), config.flag("use_conv_bias")

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba2):
            mixer = mamba2_of(kind, hidden, bias=bias, conv_bias=conv_bias, path="mixer")
        else:
            assert isinstance(kind, Mamba1)
            rank = time_step_rank(config, "time_step_rank")
            mixer = mamba1_of(kind, hidden, rank, bias=bias, conv_bias=conv_bias, path="mixer")
        return [("mamba", mixer), ("norm", rms_norm("norm", hidden))]

    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    return (*out, *repeated(cached_layers(config), weigh))

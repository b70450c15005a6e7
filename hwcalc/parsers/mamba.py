"""Mamba on every layer: a fixed state and no keys."""

from __future__ import annotations

from hwcalc.formulas import Mamba1, Mamba2
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.states import inner_width, state_dtype

__all__ = ["read"]


def read(config: Config) -> Reading:
    """Read a Mamba-1 (mamba, falcon_mamba) or Mamba-2 config."""
    count = config.number_of_layers()
    config.ignore("chunk_size", "d_inner", "use_conv_bias", "use_mambapy", "use_falcon_mambapy", "use_mamba_kernels")
    layer = (_mamba2(config) if config.model_type == "mamba2" else _mamba1(config),)
    return Reading(layers=(layer,) * count, config=config, state_dtype=state_dtype(config))


def _mamba1(config: Config) -> Mamba1:
    # Falcon-Mamba-7B says expand 16 and intermediate_size 8,192 beside hidden_size 4,096: the width that is spelled out counts.
    spelled = config.maybe_integer("intermediate_size")
    return Mamba1(
        d_inner=spelled or inner_width(config, "expand"),
        d_state=config.integer("state_size"),
        d_conv=config.integer("conv_kernel"),
    )


def _mamba2(config: Config) -> Mamba2:
    heads, head_dim = config.integer("num_heads"), config.integer("head_dim")
    inner = inner_width(config, "expand")
    if heads * head_dim != inner:
        raise config.error("num_heads", heads, f"such that num_heads x head_dim is expand x hidden_size ({inner:,})")
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        d_state=config.integer("state_size"),
        n_groups=config.integer("n_groups"),
        d_conv=config.integer("conv_kernel"),
    )

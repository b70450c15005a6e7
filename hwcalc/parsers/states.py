"""Pieces shared by the dialects whose layers keep a recurrent state."""

from __future__ import annotations

from collections.abc import Iterable

from hwcalc.formulas import Layer, NoCache
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import read_layer_types
from hwcalc.profiles.dtypes import find_dtype

__all__ = ["LINEAR", "inner_width", "no_cache_layer", "spelled_layer_types", "state_dtype"]

LINEAR = "linear_attention"
"""What transformers calls every layer that keeps a state and no keys, Mamba included."""


def state_dtype(config: Config, keys: Iterable[str] = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")) -> str | None:
    """The dtype that the file names for its recurrent states (``"float32"`` is ``"fp32"``); ``None`` where it names none."""
    for key in keys:
        spelled = config.text(key)
        found = find_dtype(spelled.removeprefix("torch.")) if spelled else None
        if found is not None:
            return found.name
    return None


def spelled_layer_types(config: Config, count: int) -> list[str] | None:
    """The types that the file spells out under either of the two names in use, legacy names made current."""
    for key in ("layer_types", "layers_block_type"):
        types = read_layer_types(config, count, key)
        if types is not None:
            return types
    return None


def inner_width(config: Config, expand_key: str) -> int:
    """Channels inside a Mamba layer: expand x hidden_size. Expand 2 of 4 channels is 8."""
    hidden = config.integer("hidden_size")
    width = int(config.number(expand_key, 2) * hidden)
    return config.checked_integer(expand_key, width)


def no_cache_layer(config: Config, index: int) -> Layer:
    """A feed-forward or expert block that stands as a layer of its own."""
    return (NoCache(),)

"""The weights of a config, as :func:`hwcalc.parsers.parse` counts them, without the rest of it."""

from __future__ import annotations

from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from hwcalc.parsers.parse import whole_weights
from hwcalc.parsers.registry import find_family

__all__ = ["read_weights"]


def read_weights(config: Config, top: Config) -> Weights | None:
    """``config`` is the level that describes the language model, ``top`` the whole document."""
    family = find_family(config.model_type)
    return None if family is None else whole_weights(family, config, top, family.read(config))

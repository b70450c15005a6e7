"""Pieces shared by the modules that weigh a stack of unlike layers."""

from __future__ import annotations

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas import Layer
from hwcalc.parsers.config import Config
from hwcalc.parsers.registry import dialect_for, read_with

__all__ = ["cached_layers"]


def cached_layers(config: Config) -> tuple[Layer, ...]:
    """What each layer caches, as the model type's dialect reads it: its dims are those of the weights.

    Raises :class:`~hwcalc.errors.ConfigError` if a value makes no sense.
    """
    try:
        return read_with(dialect_for(config.model_type) or "", config).layers
    except (ConfigError, UsageError):
        raise
    except ValueError as error:
        raise ConfigError(f"the {config.model_type} config does not make sense: {error}.") from error

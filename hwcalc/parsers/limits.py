"""What a config may describe at most. Each bound lies far above the published models, and far below what would take seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.errors import ConfigError
from hwcalc.model import ModelSpec

__all__ = ["MAX_KINDS", "MAX_NAME", "MAX_TENSORS", "check_size"]

MAX_KINDS: Final = 128
"""Most different kinds of layers, as far as their caches go. Published models have up to 30, where each layer has its own number of
heads (OpenELM), and most have one or two."""

MAX_TENSORS: Final = 2_500
"""Most different tensors of weights; equal ones of several layers count once. Published models have up to 150."""

MAX_NAME: Final = 200
"""Most characters of a model type or an architecture; published ones have up to 60."""

_HINT: Final = "Check that the file is the model's config.json."


def check_size(models: Iterable[ModelSpec]) -> None:
    """Raise :class:`~hwcalc.errors.ConfigError` for a model whose plan would take long, since its layers have too little in common."""
    for model in models:
        kinds = len(model.stack.groups)
        if kinds > MAX_KINDS:
            raise ConfigError(f"the config describes {kinds:,} different kinds of layers: more than {MAX_KINDS:,}.", hint=_HINT)
        tensors = 0 if model.counted is None else sum(len(block.weights) for block in model.counted.blocks)
        if tensors > MAX_TENSORS:
            raise ConfigError(f"the config describes {tensors:,} different tensors: more than {MAX_TENSORS:,}.", hint=_HINT)

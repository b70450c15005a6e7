"""What a config says about its model's weights: every parameter is counted, or none.

The language model is read by the module that :data:`LANGUAGE` names for its model type. A type without a line has unknown
weights: ``None``, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from hwcalc.formulas.weights import Block
from hwcalc.parsers.config import Config

__all__ = ["LANGUAGE", "language_blocks"]

# Module -> model types. ``blocks(config, top) -> tuple[Block, ...] | None``: ``config`` is the level that describes the
# language model (of this type), ``top`` the whole document (often the same object); ``None`` where a file does not say enough.
LANGUAGE: Mapping[str, tuple[str, ...]] = {
}

@lru_cache(maxsize=1)
def _by_type() -> Mapping[str, str]:
    return {model_type: module for module, types in LANGUAGE.items() for model_type in types}


def language_blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """The blocks of the language model of a type in :data:`LANGUAGE`, ``None`` for any other."""
    language = _by_type().get(config.model_type or "")
    if language is None:
        return None
    read: Callable[[Config, Config], tuple[Block, ...] | None]
    read = import_module(f"hwcalc.parsers.weights.{language}").blocks
    return read(config, top)

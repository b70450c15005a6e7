"""Find the level of a document that describes the language model, and the family that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Family
from hwcalc.parsers.registry import find_family, model_type_of_architecture

__all__ = ["MAX_NESTING", "NESTED", "architecture_of", "find_language_model"]

NESTED: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder",
    "generator",
    "vlm_config",
    "decoder_config",
)
"""Keys under which models of several parts keep the config of their language model, most specific first."""

MAX_NESTING: Final = 4


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The first of the architectures that a document names."""
    names = config.get("architectures")
    if isinstance(names, (list, tuple)) and names and isinstance(names[0], str):
        return names[0]
    return None


def find_language_model(top: Config) -> tuple[Family, Config] | None:
    """The family and the config level that it reads: by model type from the top down, then by architecture."""
    config: Config | None = top
    for _ in range(MAX_NESTING):
        if config is None:
            break
        family = find_family(config.model_type)
        if family is not None:
            return family, config
        config = _descend(config)
    architecture = architecture_of(top.raw)
    if architecture is not None:
        model_type = model_type_of_architecture(architecture)
        family = find_family(model_type)
        if family is not None and top.model_type != model_type:
            return family, top.retyped(model_type)
    return None


def _descend(config: Config) -> Config | None:
    """The nested config of the language model. Old files keep its keys at the top: they are read as the nested type."""
    for key in NESTED:
        if isinstance(config.raw.get(key), Mapping):
            return config.sub(key)
    for key in NESTED:
        nested = config.nested_type(key)
        if nested is not None and nested != config.model_type:
            return config.retyped(nested)
    return None

"""What a config says about its model's weights: :func:`read_weights` counts every parameter, or says that it cannot.

The language model is read by the module that :data:`LANGUAGE` names for its model type, towers and projectors by the one
that :data:`COMPOSITE` names for the type of the whole. A type without a line has unknown weights: ``None``, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from formulas.weights import Block, Weights
from hwcalc.parsers.config import Config

__all__ = ["COMPOSITE", "LANGUAGE", "read_weights"]

# Module -> model types. ``blocks(config, top) -> tuple[Block, ...]``: ``config`` is the level that describes the language
# model (of this type), ``top`` the whole document (often the same object).
LANGUAGE: Mapping[str, tuple[str, ...]] = {
    "decoder": (
        "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "hy_v3", "llama", "ministral", "ministral3", "mistral", "mixtral",
        "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    ),
    "hybrid": ("bamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "zamba", "zamba2"),
    "mamba": ("falcon_mamba", "mamba", "mamba2"),
}

# Module -> model types of whole documents. ``blocks(top) -> tuple[Block, ...]``: everything that is not the language model.
COMPOSITE: Mapping[str, tuple[str, ...]] = {}


@lru_cache(maxsize=2)
def _by_type(composite: bool) -> Mapping[str, str]:
    table: dict[str, str] = {}
    for module, types in (COMPOSITE if composite else LANGUAGE).items():
        for model_type in types:
            if table.setdefault(model_type, module) != module:
                raise ValueError(f"two modules weigh {model_type!r}: {table[model_type]} and {module}")
    return table


def read_weights(config: Config, top: Config) -> Weights | None:
    """All weights of a model, or ``None`` where a part of it is of a type that nobody weighs.

    ``config`` is the level that describes the language model. Raises :class:`~hwcalc.errors.ConfigError` if a value makes
    no sense.
    """
    language = _by_type(composite=False).get(config.model_type or "")
    if language is None:
        return None
    read: Callable[[Config, Config], tuple[Block, ...]] = import_module(f"hwcalc.parsers.weights.{language}").blocks
    blocks = read(config, top)
    if top.model_type != config.model_type:
        outer = _by_type(composite=True).get(top.model_type or "")
        if outer is None:
            return None
        around: Callable[[Config], tuple[Block, ...]] = import_module(f"hwcalc.parsers.weights.{outer}").blocks
        blocks += around(top)
    return Weights(blocks=blocks)

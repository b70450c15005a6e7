"""All weights of a document: those of the language model, and of the towers and projectors around it."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import find_wrapper

__all__ = ["whole_weights"]

_WITH_TOWERS: Final = frozenset({"chameleon", "kyutai_speech_to_text", "phi3_v", "phi4_multimodal"})
"""Types of documents that keep the language model's keys at the top and have towers beside them."""


def whole_weights(family: Family, config: Config, top: Config, reading: Reading) -> Weights | None:
    """All weights of a model, or ``None`` where a part of it is of a type that nobody weighs.

    ``config`` is the level that describes the language model, ``reading`` what ``family`` read there. Raises
    :class:`~hwcalc.errors.ConfigError` if a value makes no sense.
    """
    blocks = family.weigh(config, top, reading)
    if blocks is None:
        return None
    if top.model_type != config.model_type or config.model_type in _WITH_TOWERS:
        around = find_wrapper(top.model_type)
        beside = None if around is None else around(top, config)
        if beside is None:
            return None
        blocks = (*blocks, *beside)
    return Weights(blocks=tuple(blocks))

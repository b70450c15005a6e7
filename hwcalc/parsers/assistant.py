"""Gemma 4's assistant models: drafters whose every layer reads the keys and values of the model they draft for."""

from __future__ import annotations

from hwcalc.formulas import SharedCache
from hwcalc.model import Note
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading

__all__ = ["read"]


def read(config: Config) -> Reading:
    """Read an assistant: as many layers as its text config has, and no cache of their own (modeling_gemma4_assistant.py)."""
    text = config.sub("text_config") or config
    count = text.number_of_layers()
    text.ignore(*text.raw)
    config.ignore(*config.raw)
    note = Note(code="no-own-cache", message="The assistant reads the target model's cache and keeps none of its own.")
    return Reading(layers=((SharedCache(),),) * count, config=text, notes=(note,))

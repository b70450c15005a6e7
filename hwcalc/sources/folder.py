"""Read a config and the files beside it: the headers of weight files, and a second file about quantisation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hwcalc.errors import KvplanError
from hwcalc.model import Note, WeightFacts
from hwcalc.sources.document import read_document
from hwcalc.text import printable

__all__ = ["read_config", "weights_beside"]


def read_config(path: Path, notes: list[Note]) -> dict[str, Any]:
    """The config at ``path``, merged with ``hf_quant_config.json`` beside it. A ``params.json`` is translated.

    Raises :class:`~hwcalc.errors.ConfigError` if the config cannot be read. If the second file is broken, a note is added.
    """
    config = read_document(path)
    if path.name == "params.json":
        from hwcalc.sources.mistral_params import config_from_params

        config = config_from_params(config, printable(str(path)))
    beside = path.with_name("hf_quant_config.json")
    if os.path.isfile(beside):
        from hwcalc.sources.quantized import with_quantization

        try:
            config, more = with_quantization(config, read_document(beside))
        except KvplanError as error:
            more = (Note(code="quantization", message=f"The file beside the config was left out of account: {error.message}"),)
        notes.extend(more)
    return config


def weights_beside(path: Path, notes: list[Note]) -> WeightFacts | None:
    """The facts about the safetensors files beside the config ``path``, or ``None`` if files are missing or broken."""
    folder = os.path.dirname(path)
    stems = ("consolidated", "model") if path.name == "params.json" else ("model",)
    names = (f"{stem}.safetensors{end}" for stem in stems for end in ("", ".index.json"))
    if not any(os.path.isfile(os.path.join(folder, name)) for name in names):
        return None
    from hwcalc.sources.weights import Folder, read_weights

    try:
        return read_weights(Folder(folder), stems)
    except KvplanError as error:
        notes.append(Note(code="weights", message=f"The weight files could not be read: {error.message}"))
        return None

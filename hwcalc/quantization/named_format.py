"""Find a quantised format in the name of a checkpoint. Some configs do not say how the weights are quantised."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["named_format"]

_FORMATS: Final = {
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "w8a8": "int8",
    "w8a16": "int8",
    "int8": "int8",
    "8bit": "int8",
    "w4a16": "int4",
    "w4a8": "int4",
    "int4": "int4",
    "4bit": "int4",
    "awq": "awq",
    "gptq": "gptq",
    "bnb": "bnb4",
}
"""A word of a name -> the nearest format that ``--weights`` takes."""
_WORD: Final = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(_FORMATS)})(?![a-z0-9])")


def named_format(model_id: str) -> tuple[str, str] | None:
    """The first word of a model's name that means a quantised format, and this format's name for ``--weights``.

    >>> named_format("nvidia/GLM-5-NVFP4")
    ('NVFP4', 'nvfp4')
    >>> named_format("nvidia/GLM-5") is None
    True
    """
    name = model_id.rpartition("/")[2]
    lower = name.lower()
    word = _WORD.search(lower) if any(word in lower for word in _FORMATS) else None
    return None if word is None else (name[word.start() : word.end()], _FORMATS[word[0]])

"""The names of GGUF file types (``llama_ftype`` of include/llama.h, llama.cpp 0c1e57098)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from hwcalc.model import ModelSpec

__all__ = ["FILE_TYPES", "file_type", "stated_type"]

FILE_TYPES: Final[Mapping[int, str]] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l",
    14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs",
    23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m",
    32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4", 40: "q1_0", 41: "q2_0",
}  # fmt: skip
_GUESSED: Final = 1024
"""``LLAMA_FTYPE_GUESSED``: added where the file does not say its type."""


def stated_type(keys: Mapping[str, Any]) -> str | None:
    """The type that a file states in its metadata; ``None`` if it states none that llama.cpp knows."""
    number = keys.get("general.file_type")
    return FILE_TYPES.get(number & ~_GUESSED) if isinstance(number, int) else None


def file_type(model: ModelSpec) -> str | None:
    """The type that a GGUF file states, or else that of most of its weights; ``None`` for what is no file."""
    if model.gguf is None or not model.gguf.tensors:
        return None
    stated = stated_type(model.gguf.keys)
    if stated is not None:
        return stated
    sizes: Counter[str] = Counter()
    for tensor in model.gguf.tensors:
        sizes[tensor.type.lower()] += tensor.bytes
    return sizes.most_common(1)[0][0]

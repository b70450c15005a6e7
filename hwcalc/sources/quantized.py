"""Merge ``hf_quant_config.json`` into the config. Older exports of ModelOpt describe their quantisation in this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.model import Note, WeightFacts

__all__ = ["QUANT_FILE", "is_quantized", "may_be_quantized", "with_quantization"]

QUANT_FILE: Final = "hf_quant_config.json"
_UNQUANTISED: Final = frozenset({"F64", "F32", "F16", "BF16", "C64", "BOOL", "I64"})


def is_quantized(config: Mapping[str, Any]) -> bool:
    """Whether the config itself says how the weights are quantised."""
    levels = (config, *(value for key in ("text_config", "llm_config") if isinstance(value := config.get(key), Mapping)))
    return any(level.get(key) for level in levels for key in ("quantization_config", "compression_config"))


def may_be_quantized(facts: WeightFacts) -> bool:
    """Whether the files contain a dtype that unquantised models do not have."""
    return any(size and dtype not in _UNQUANTISED for dtype, size in facts.bytes_by_dtype.items())


def with_quantization(config: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """The config with the content of ``document`` as its ``quantization_config``. A config that has one stays unchanged.

    ``{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}`` becomes
    ``{"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"], "producer": ...}``.
    """
    quantization = document.get("quantization")
    if is_quantized(config) or not isinstance(quantization, Mapping) or not quantization:
        return dict(config), ()
    merged: dict[str, Any] = {"quant_method": "modelopt", **quantization}
    if isinstance(document.get("producer"), Mapping):
        merged.setdefault("producer", document["producer"])
    note = Note(code="quantization", message=f"How the weights are quantised is taken from {QUANT_FILE}.")
    return {**config, "quantization_config": merged}, (note,)

"""Single facts of a config that engines need besides the layers, read here once so that no engine reads the config again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwcalc.formulas import MAX_DIMENSION
from hwcalc.model import ModelFacts, RopeScaling
from hwcalc.parsers.config import MTP_COUNTS
from hwcalc.text import quoted

__all__ = ["model_facts"]

_MOST_MTP_MODULES: Final = 64
_QUANTIZATION: Final = "quantization_config"
_ROPE: Final = ("rope_parameters", "rope_scaling")
_TEXT: Final = ("text_config", "llm_config")
_PARTS: Final = {"text": "text_config", "vision": "vision_config", "audio": "audio_config"}


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """The facts of a whole config file. A value that makes no sense is passed over, never an error."""
    parts = {name: inner for name, key in _PARTS.items() if isinstance(inner := config.get(key), Mapping)}
    text, vision = parts.get("text"), parts.get("vision", {})
    levels = (config,) if text is None else (config, text)
    deepstack, expert_dtype = vision.get("deepstack_visual_indexes"), config.get("expert_dtype")
    return ModelFacts(
        hash_routed_layers=_first(levels, "num_hash_layers") or 0,
        experts_per_token=_first(levels, "num_experts_per_tok") or 0,
        expert_dtype=expert_dtype if expert_dtype is None or isinstance(expert_dtype, str) else quoted(expert_dtype),
        part_types={name: _type_of(inner) for name, inner in parts.items()},
        ties_text_embeddings=None if text is None else bool(text.get("tie_word_embeddings")),
        draft_vocab_size=_number(config, "draft_vocab_size"),
        mtp_modules=_mtp_modules((*levels, inner) if isinstance(inner := config.get("mtp_config"), Mapping) else levels),
        sliding_window=_number(config, "sliding_window"),
        state_chunk_tokens=_number(config if text is None else text, "mamba_chunk_size")
        or _number(config if text is None else text, "chunk_size"),
        ngram_size=_number(config if text is None else text, "ngram_size"),
        quantizes_text_only=not config.get(_QUANTIZATION)
        and any(isinstance(inner := config.get(key), Mapping) and bool(inner.get(_QUANTIZATION)) for key in _TEXT),
        deepstack_layers=len(deepstack) if isinstance(deepstack, (list, tuple)) else 0,
        rope_scalings=tuple(_rope_scalings(tuple(reversed(levels)))),
        model_max_length=_first(tuple(reversed(levels)), "model_max_length"),
    )


def _rope_scalings(levels: tuple[Mapping[str, Any], ...]) -> Iterator[RopeScaling]:
    """The first description of a rotary embedding: flat, or one for each kind of layer."""
    found = (value for level in levels for key in _ROPE if isinstance(value := level.get(key), Mapping))
    rope = next(found, {})
    for each in (rope, *rope.values()):
        kind = (each.get("rope_type") or each.get("type")) if isinstance(each, Mapping) else None
        if isinstance(kind, str):
            factor = each.get("factor")
            real = isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor <= MAX_DIMENSION
            original = _number(each, "original_max_position_embeddings")
            yield RopeScaling(kind=kind, factor=float(factor) if real else None, original_tokens=original)


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION else None


def _first(levels: tuple[Mapping[str, Any], ...], key: str) -> int | None:
    return next((value for level in levels if (value := _number(level, key)) is not None), None)


def _mtp_modules(levels: tuple[Mapping[str, Any], ...]) -> int | None:
    counts = (_number(level, key) for level in levels for key in MTP_COUNTS)
    return next((count for count in counts if count is not None and count <= _MOST_MTP_MODULES), None)


def _type_of(config: Mapping[str, Any]) -> str:
    name = config.get("model_type")
    return name if isinstance(name, str) else ""

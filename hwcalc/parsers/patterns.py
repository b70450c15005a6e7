"""Which layers are windowed when the file does not spell ``layer_types`` out: one rule per model type.

Each rule mirrors the ``__post_init__`` of that type's config class in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import every

__all__ = ["DERIVED", "derived_layer_types"]

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

Rule = Callable[[Config, int], list[str]]


def derived_layer_types(config: Config, count: int) -> list[str] | None:
    """The layer types by the rule of the model type; ``None`` where it has none."""
    rule = DERIVED.get(config.model_type or "")
    return rule(config, count) if rule is not None else None


def _all_full(config: Config, count: int) -> list[str]:
    # The class has a window in its config, but uses it on no layer unless layer_types says so.
    config.ignore("sliding_window", "attention_chunk_size")
    return [FULL] * count


def _full_every(key: str, fallback: int) -> Rule:
    """Full attention on the last layer of each period of ``key`` layers."""

    def rule(config: Config, count: int) -> list[str]:
        period = config.maybe_integer(key) or fallback
        return every(period, count, FULL, SLIDING)

    return rule


def _fixed(period: int, offset: int = -1) -> Rule:
    """Full attention where i % period == offset."""

    def rule(config: Config, count: int) -> list[str]:
        return every(period, count, FULL, SLIDING, offset)

    return rule


DERIVED: Mapping[str, Rule] = {
    "gemma2": _fixed(2),
    "gpt_oss": _fixed(2),
    "gemma3_text": _full_every("sliding_window_pattern", 6),
    "olmo3": _fixed(4),
}

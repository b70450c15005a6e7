"""Which layers are windowed when the file does not spell ``layer_types`` out: one rule per model type.

Each rule mirrors the ``__post_init__`` of that type's config class in transformers 5.23. A type without a rule windows every
layer if a window is set, and none otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import every

__all__ = ["DERIVED", "derived_layer_types"]

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"

Rule = Callable[[Config, int], list[str]]


def derived_layer_types(config: Config, count: int) -> list[str] | None:
    """The layer types by the rule of the model type; ``None`` where it has none."""
    rule = DERIVED.get(config.model_type or "")
    return rule(config, count) if rule is not None else None


def _full(config: Config, count: int) -> list[str]:
    """Full everywhere: the class has a window in its config, but uses it on no layer unless ``layer_types`` says so."""
    config.ignore("sliding_window", "attention_chunk_size", "sliding_window_pattern")
    return [FULL] * count


def _last_of(period: int, key: str | None = None) -> Rule:
    """Full attention on the last layer of every ``period``; ``key`` may set another period."""

    def rule(config: Config, count: int) -> list[str]:
        return every((config.maybe_integer(key) if key else None) or period, count, FULL, SLIDING)

    return rule


def _first_of(period: int, key: str | None = None) -> Rule:
    """Full attention on the first layer of every ``period``; ``key`` may set another period."""

    def rule(config: Config, count: int) -> list[str]:
        return every((config.maybe_integer(key) if key else None) or period, count, FULL, SLIDING, offset=0)

    return rule


def _with_last_full(rule: Rule) -> Rule:
    """A rule that also makes the last layer full."""

    def forced(config: Config, count: int) -> list[str]:
        return [*rule(config, count)[:-1], FULL]

    return forced


def _counted_from_the_end(config: Config, count: int) -> list[str]:
    """Full attention on the last layer and on every fourth before it."""
    return [FULL if (count - 1 - i) % 4 == 0 else SLIDING for i in range(count)]


def _flint(config: Config, count: int) -> list[str]:
    """Full attention on the first two layers, on every fourth and on the last."""
    return [FULL if i < 2 or i % 4 == 1 or i == count - 1 else SLIDING for i in range(count)]


def _nullable_window(config: Config, count: int) -> list[str]:
    """Full attention on the last of every ``sliding_window_pattern`` layers; no window at all if it is null.

    The pattern is a number, or letters that repeat: ``LLLG`` is three local layers and a global one.
    """
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.error("sliding_window_pattern", pattern, "a number, or letters L (local) and G (global)")
        types = [SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(count)]
    else:
        types = every(config.maybe_integer("sliding_window_pattern", minimum=0) or 4, count, FULL, SLIDING)
    return [FULL] * count if config.maybe_integer("sliding_window") is None else types


def _full_ignoring(*keys: str) -> Rule:
    """Full everywhere, with keys that belong to parts of the model which keep nothing between decode steps."""

    def rule(config: Config, count: int) -> list[str]:
        config.ignore(*keys)
        return [FULL] * count

    return rule


def _minimax_m2(config: Config, count: int) -> list[str]:
    """All full; ``attn_type_list`` (1 is full) is a key that the family inherited from its linear-attention days."""
    kinds = config.integers("attn_type_list", length=count)
    if kinds is not None and set(kinds) != {1}:
        raise config.error("attn_type_list", kinds, "1 (full attention) on every layer")
    return [FULL] * count


def _from_a_layer_on(config: Config, count: int) -> list[str]:
    """Sliding from ``max_window_layers`` on, if ``use_sliding_window``."""
    first = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    if not window or not config.flag("use_sliding_window"):
        return [FULL] * count
    return [SLIDING if i >= first else FULL for i in range(count)]


def _dots1(config: Config, count: int) -> list[str]:
    """Sliding from ``max_window_layers`` on, if a window is set."""
    first = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    config.ignore("use_sliding_window")
    return [SLIDING if window and i >= first else FULL for i in range(count)]


def _qwen2_moe(config: Config, count: int) -> list[str]:
    """Every other layer *below* ``max_window_layers``, if ``use_sliding_window``: the other way round than Qwen2."""
    last = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    use = config.flag("use_sliding_window") and window
    return [SLIDING if use and (i + 1) % 2 and i < last else FULL for i in range(count)]


def _all_or_none(config: Config, count: int) -> list[str]:
    """Every layer sliding if a window is set and ``use_sliding_window`` does not switch it off."""
    config.ignore("max_window_layers")
    window = config.maybe_integer("sliding_window", minimum=0)
    on = config.flag("use_sliding_window") if config.has("use_sliding_window") or config.has_class else True
    return [SLIDING if window and on else FULL] * count


def _smollm3(config: Config, count: int) -> list[str]:
    """Sliding on layers without positions, if ``use_sliding_window``."""
    rope = config.integers("no_rope_layers", length=count)
    period = config.maybe_integer("no_rope_layer_interval") or 4
    has_rope = rope if rope is not None else [int((i + 1) % period != 0) for i in range(count)]
    config.ignore("max_window_layers")
    window = config.maybe_integer("sliding_window", minimum=0)
    use = config.flag("use_sliding_window") and window
    return [SLIDING if use and not has_rope[i] else FULL for i in range(count)]


def _llama4(config: Config, count: int) -> list[str]:
    """Chunked on layers with positions, full on every fourth, which has none. An empty list is no list."""
    rope = config.integers("no_rope_layers")
    period = config.maybe_integer("no_rope_layer_interval") or 4
    if rope and len(rope) < count:
        raise config.error("no_rope_layers", f"{len(rope)} items long", f"a list of {count} items, one for each layer")
    has_rope = rope or [int((i + 1) % period != 0) for i in range(count)]
    return [CHUNKED if has_rope[i] else FULL for i in range(count)]


def _cohere2_moe(config: Config, count: int) -> list[str]:
    """A pattern of its own in the dense prefix; the rest counts from the end of it."""
    prefix = min(config.maybe_integer("first_k_dense_replace", minimum=0) or 0, count)
    in_prefix = config.maybe_integer("prefix_dense_sliding_window_pattern") or 1
    after = config.maybe_integer("sliding_window_pattern") or 4
    return every(in_prefix, prefix, FULL, SLIDING) + every(after, count - prefix, FULL, SLIDING)


DERIVED: Final[Mapping[str, Rule]] = {
    "afmoe": _last_of(4, "global_attn_every_n_layers"),
    "beam": _with_last_full(_last_of(6)),
    "cohere2": _last_of(4, "sliding_window_pattern"),
    "cohere2_moe": _cohere2_moe,
    "cohere_compass_text": _full,
    "cwm": _first_of(4),
    "dots1": _dots1,
    "deepseek_ocr2_text": _full,
    "ernie4_5_moe": _full_ignoring("moe_layer_start_index", "moe_layer_end_index"),
    "evolla": _full_ignoring("resampler_heads", "resampler_dim_head"),
    "exaone4": _nullable_window,
    "exaone_moe": _nullable_window,
    "flint": _flint,
    "gemma2": _last_of(2),
    "gemma3_text": _last_of(6, "sliding_window_pattern"),
    "gpt_oss": _last_of(2),
    "granite_swa": _first_of(4),
    "granitemoe_swa": _first_of(4),
    # Image layers attend to image states that are given anew at every step.
    "idefics": _full_ignoring("cross_layer_interval"),
    "kolibri1": _last_of(5),
    "laguna": _full,
    "llama4_text": _llama4,
    "mellum": _full,
    "minimax_m2": _minimax_m2,
    "modernbert-decoder": _first_of(3, "global_attn_every_n_layers"),
    "muse_glimmer_text": _counted_from_the_end,
    "muse_spark_text": _counted_from_the_end,
    "olmo3": _last_of(4),
    "qwen2": _from_a_layer_on,
    "qwen2_vl_text": _from_a_layer_on,
    "qwen2_5_vl_text": _from_a_layer_on,
    "qwen2_5_omni_text": _from_a_layer_on,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _from_a_layer_on,
    "qwen3_moe": _all_or_none,
    "smollm3": _smollm3,
    "step3p5": _full,
    "t5gemma_module": _last_of(2),
    "vaultgemma": _last_of(2),
}

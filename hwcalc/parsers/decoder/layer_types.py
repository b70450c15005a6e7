"""Which layers of a decoder have a window, and what each layer keeps.

``layer_types`` in the file decides. Without it the rule of the model's class does: each rule here mirrors the ``__post_init__``
of config classes in transformers 5.23. Where the class has no rule, :func:`by_window` is one: transformers' cache looks at the
window that is set, whether the class has such a key or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas import ChunkedAttention, Layer
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, LayerReader, Reading, build_layers, dims_of, every, read_layer_types, windowed

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"

Rule = Callable[[Config, int], list[str]]
"""Gives the type of each layer, by the config and the number of layers."""


def by_window(*ignored: str) -> Rule:
    """Every layer has a window if ``sliding_window`` or ``attention_chunk_size`` is set, as in ``get_layer_types_and_kwargs``.

    ``ignored`` are keys without effect on the cache.
    """

    def rule(config: Config, count: int) -> list[str]:
        config.ignore(*ignored)
        if config.maybe_integer("sliding_window") is not None:
            return [SLIDING] * count
        return [FULL if config.maybe_integer("attention_chunk_size") is None else CHUNKED] * count

    return rule


def layer_types(config: Config, rule: Rule) -> list[str]:
    """The type of every layer: as the file lists it, or by the class's rule."""
    count = config.number_of_layers()
    # Query heads are never cached. The others are derived from layer_types, or mask tokens that stay in the cache.
    config.ignore("num_attention_heads_per_layer", "_sliding_window_pattern", "keep_window_size", "full_attn_mod")
    # The rule is asked first even where the file lists the types, so that its keys count as read.
    derived = rule(config, count)
    # If no layer of these types has a window, these keys have no effect.
    config.ignore("sliding_window", "attention_chunk_size")
    return read_layer_types(config, count) or derived


def read_by_type(config: Config, rule: Rule, dims: Callable[[Config], AttentionDims]) -> Reading:
    """The layers of a decoder: full, sliding or chunked attention with the heads and widths that ``dims`` reads."""

    def chunked(level: Config) -> Layer:
        own, chunk = dims(level), level.maybe_integer("attention_chunk_size")
        return (own.full() if chunk is None else own.chunked(chunk),)

    def alike(read: Callable[[Config], Layer]) -> LayerReader:
        """Layers without numbers of their own are read once."""
        common: list[Layer] = []

        def reader(level: Config, _: int) -> Layer:
            if level is not config:
                return read(level)
            if not common:
                common.append(read(level))
            return common[0]

        return reader

    readers: dict[str, LayerReader] = {
        FULL: alike(lambda level: (dims(level).full(),)),
        SLIDING: alike(lambda level: windowed(level, dims(level))),
        CHUNKED: alike(chunked),
    }
    layers = build_layers(config, layer_types(config, rule), readers)
    if not config.has_class or config.knows("attention_chunk_size"):
        return Reading(layers=layers, config=config)
    # transformers' cache has chunks because the config object says so, in a model whose own code has none.
    whole = tuple((dims_of(layer).full(),) if isinstance(layer[0], ChunkedAttention) else layer for layer in layers)
    return Reading(layers=layers, config=config, readings={} if whole == layers else {"vllm": whole})


def full(*ignored: str) -> Rule:
    """For classes that list full attention themselves, so that a window alone changes nothing.

    ``ignored`` are keys without effect on the cache.
    """

    def rule(config: Config, count: int) -> list[str]:
        config.ignore(*ignored)
        return [FULL] * count

    return rule


def last_of(period: int, key: str | None = None, *, offset: int = -1) -> Rule:
    """Full attention on the last layer of every ``period``; ``key`` may set another period."""

    def rule(config: Config, count: int) -> list[str]:
        return every((config.maybe_integer(key) if key else None) or period, count, FULL, SLIDING, offset)

    return rule


def first_of(period: int, key: str | None = None) -> Rule:
    """Full attention on the first layer of every ``period``; ``key`` may set another period."""
    return last_of(period, key, offset=0)


def with_last_full(rule: Rule) -> Rule:
    """A rule that also makes the last layer full."""
    return lambda config, count: [*rule(config, count)[:-1], FULL]


def from_a_layer_on(config: Config, count: int, *, always: bool = False) -> list[str]:
    """Layers from ``max_window_layers`` on slide, if ``use_sliding_window`` or ``always``."""
    first = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    slides = window and (always or config.flag("use_sliding_window"))
    return [SLIDING if slides and i >= first else FULL for i in range(count)]


def nullable_window(config: Config, count: int) -> list[str]:
    """Full attention on the last of every ``sliding_window_pattern`` layers, and on all of them if ``sliding_window`` is null.

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


def with_positions(config: Config, count: int, *, exact: bool = True) -> list[int]:
    """1 for each layer with rotary positions, 0 for each without.

    ``no_rope_layers`` lists just that, whatever its name says. Unless ``exact``, it may be longer than the stack. Without it
    every ``no_rope_layer_interval``-th layer (every fourth) has no positions.
    """
    given = config.integers("no_rope_layers", length=count if exact else None)
    period = config.maybe_integer("no_rope_layer_interval") or 4
    if given and len(given) < count:
        raise config.error_in_words("no_rope_layers", f"{len(given)} items long", f"a list of {count} items, one for each layer")
    return given or [int((i + 1) % period != 0) for i in range(count)]

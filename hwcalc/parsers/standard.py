"""Plain attention on every layer, all of it full or some of it windowed: the dialect of most decoder-only models.

The layers come from ``layer_types`` where the file spells them out, else from the rule of the model's class
(:mod:`hwcalc.parsers.patterns`), else from ``sliding_window`` / ``attention_chunk_size``: a value that is set makes every
layer windowed, as transformers' ``get_layer_types_and_kwargs`` does.
"""

from __future__ import annotations

from hwcalc.formulas import Layer
from hwcalc.parsers.config import Config
from hwcalc.parsers.patterns import derived_layer_types
from hwcalc.parsers.reading import (
    LayerReader,
    Reading,
    attention_dims,
    build_layers,
    full_layer,
    read_layer_types,
    windowed_layer,
)

__all__ = ["READERS", "layer_types", "read"]


def _chunked(config: Config, index: int) -> Layer:
    chunk = config.maybe_integer("attention_chunk_size")
    dims = attention_dims(config)
    return (dims.full() if chunk is None else dims.chunked(chunk),)


READERS: dict[str, LayerReader] = {
    "full_attention": full_layer,
    "sliding_attention": windowed_layer,
    "chunked_attention": _chunked,
}


def layer_types(config: Config) -> list[str]:
    """The type of every layer: spelled out, by the class's rule, or by what is set."""
    count = config.number_of_layers()
    # Query heads are never cached; the others are what a class makes of its own layer_types, or mask without forgetting.
    config.ignore("num_attention_heads_per_layer", "_sliding_window_pattern", "keep_window_size", "full_attn_mod")
    # The rule is asked first even where the file spells the types out, so that its keys count as read.
    derived = derived_layer_types(config, count)
    types = read_layer_types(config, count) or derived
    if types is not None:
        # A window that no layer of these types uses is known to have no effect.
        config.ignore("sliding_window", "attention_chunk_size")
        return types
    if config.maybe_integer("sliding_window") is not None:
        return ["sliding_attention"] * count
    if config.maybe_integer("attention_chunk_size") is not None:
        return ["chunked_attention"] * count
    return ["full_attention"] * count


def read(config: Config) -> Reading:
    """Read a config whose layers all keep keys and values."""
    return Reading(layers=build_layers(config, layer_types(config), READERS), config=config)

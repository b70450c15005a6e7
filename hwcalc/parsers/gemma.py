"""Gemma 3n and 4: windowed layers, wider heads on the full ones, and last layers that share the cache of earlier ones."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import Layer, SharedCache
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims, every, read_layer_types

__all__ = ["layer_dims", "layer_types", "read"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_GLOBAL_HEAD_DIM: Final = 512
"""Gemma 4's ``global_head_dim`` where the file leaves it out (transformers 5.23, configuration_gemma4.py)."""


def read(config: Config) -> Reading:
    """Read a Gemma 3n or 4 text config."""
    count = config.number_of_layers()
    three = config.model_type == "gemma3n_text"
    types = layer_types(config, count)
    window = config.integer("sliding_window")
    if not three and config.get("use_bidirectional_attention") == "all":
        # Both directions: half the window on each side, and the token itself.
        window = window // 2 + 1
    shared = config.maybe_integer("num_kv_shared_layers", minimum=0, maximum=count) or 0
    layers: list[Layer] = []
    for index, name in enumerate(types):
        dims = layer_dims(config, index, full=name == _FULL)
        if index >= count - shared:
            layers.append((SharedCache(),))
        else:
            layers.append((dims.full() if name == _FULL else dims.sliding(window),))
    return Reading(layers=tuple(layers), config=config)


def layer_types(config: Config, count: int) -> list[str]:
    """The type of every layer: spelled out, or every fifth (3n) or sixth (4) full; the last one of Gemma 4 always is."""
    three = config.model_type == "gemma3n_text"
    types = read_layer_types(config, count) or every(5 if three else 6, count, _FULL, _SLIDING)
    if not three:
        types[-1] = _FULL
    for name in types:
        if name not in (_FULL, _SLIDING):
            raise config.error("layer_types", name, f"{_FULL} or {_SLIDING}")
    return types


def layer_dims(config: Config, index: int, *, full: bool) -> AttentionDims:
    """Heads and widths of one layer.

    Gemma 4's full layers have ``global_head_dim`` and, where keys and values share a projection, fewer heads.

    Sharing the projection does not share the cache: keys are rotated, values are not, and both are kept. An explicit
    ``per_layer_config`` replaces both keys.
    """
    layer = config.layer(index)
    dims = attention_dims(layer)
    global_dim = config.maybe_integer("global_head_dim")
    global_heads = config.maybe_integer("num_global_key_value_heads")
    k_eq_v = config.flag("attention_k_eq_v", default=True)
    if config.model_type == "gemma3n_text" or not full or config.has("per_layer_config"):
        return dims
    head_dim = global_dim or _GLOBAL_HEAD_DIM
    return AttentionDims(
        num_attention_heads=dims.num_attention_heads,
        num_key_value_heads=global_heads if global_heads and k_eq_v else dims.num_key_value_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
    )

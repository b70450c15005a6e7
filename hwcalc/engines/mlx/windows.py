"""The windows of mlx-lm: which model files keep one, on which layers, and of how many tokens.

Source: mlx-lm 0.32.2, ``make_cache`` of the files of models/.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.mlx.models import file_of
from hwcalc.formulas import SlidingAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_WINDOWED: Final = frozenset(
    [
        "afmoe",
        "baichuan_m1",
        "cohere2",
        "exaone4",
        "exaone_moe",
        "gear",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "laguna",
        "llama",
        "mellum",
        "mimo_v2_flash",
        "ministral3",
        "muse_glimmer",
        "muse_spark",
        "olmo3",
        "plamo3",
        "recurrent_gemma",
        "spark2_5",
        "step3p5",
    ]
)
"""Files with a ``RotatingKVCache``; the others keep every token of a layer with a window."""
_BY_PATTERN: Final[Mapping[str, int]] = MappingProxyType({"cohere2": 4, "exaone4": 0, "gemma3": 6, "gemma3_text": 6, "plamo3": 8})
"""Files that read ``sliding_window_pattern`` and not ``layer_types`` -> what it is where the config has none; 0: they need it."""
_BEFORE: Final = frozenset({"mimo_v2_flash"})
"""Files that take the tokens before the query for the whole window, which is one less than the model has."""
_BY_LAYER_TYPES: Final = frozenset({"llama", "ministral3"})
"""Files that read a window from ``layer_types`` alone, of which one must be full attention."""


def keeps_windows(model: ModelSpec) -> bool:
    """Whether layers with a window have a ``RotatingKVCache``, and not one of every token."""
    name = file_of(model)
    if name not in _BY_LAYER_TYPES:
        return name in _WINDOWED
    kinds = [group.kind for group in model.stack.groups if isinstance(group.kind, AttentionKind)]
    return any(not isinstance(kind, SlidingAttention) for kind in kinds)


def other_windows(model: ModelSpec) -> str | None:
    """The ``sliding_window_pattern`` by which a file has windows on other layers than the config; ``None`` if they are the same."""
    given = _BY_PATTERN.get(file_of(model))
    if given is None:
        return None
    text = model.config.get("text_config")
    found = (text if isinstance(text, Mapping) else model.config).get("sliding_window_pattern")
    pattern: object = given if found is None else found
    local = [any(isinstance(kind, SlidingAttention) for kind in layer) for layer in model.stack.layers]
    if isinstance(pattern, str) and pattern:
        windows = [pattern[number % len(pattern)] == "L" for number in range(len(local))]
    elif isinstance(pattern, int) and pattern > 0:
        windows = [(number + 1) % pattern != 0 for number in range(len(local))]
    else:
        windows = [False] * len(local)
    return None if windows == local else brief(str(pattern), 40) if pattern else "missing"


def window_kept(model: ModelSpec, window: int) -> int:
    """The slots of a ``RotatingKVCache`` for a layer with this window."""
    return window - 1 if file_of(model) in _BEFORE else window

"""A file of an unknown type, read as a known one: which of its keys that type leaves unread, and what its class fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas.hybrid import Layer
from hwcalc.formulas.record import Record
from hwcalc.parsers.aliases import ALIASES
from hwcalc.parsers.bearing import bears_on_memory, weighs
from hwcalc.parsers.config import Config
from hwcalc.parsers.known_types import family_of
from hwcalc.parsers.noted import filled_in
from hwcalc.parsers.reading import Family, Reading

__all__ = ["Trial", "is_layout", "judge", "trial"]

_DIMENSIONS: Final[Mapping[str, Sequence[str]]] = {
    "num_attention_heads": ("num_attention_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "v_head_dim": ("v_head_dim",),
    "kv_lora_rank": ("kv_lora_rank",),
    "sliding_window": ("window",),
}
"""The facts of a file that layers have as dimensions, and the names of these. A type may know a key and not use it: of an unknown type
nobody has said that it does not."""
_SPANS: Final[Mapping[str, str]] = {"window": "window", "chunk": "chunk"}
"""Words of keys that have no effect without layers of such a dimension."""
_LAYOUT: Final = re.compile(
    r"layer_types|block_type|block_configs|pattern|period|offset|indices|idx|attn_layer|every_n|layer_freq|interval|attention_layers|"
    r"layer_ids|first_k_dense|max_window_layers"
)
"""Keys that say which layers are which."""
_OF_MLPS: Final = re.compile(r"moe|expert|mlp|dense")
"""Those of them that say it about MLPs and experts alone."""
_OF_HEADS: Final = re.compile(r"^(num_key_value_heads|num_kv_heads|(qk_)?head_dim|v_head_dim|sliding_window|.*window.*)$")
"""Keys that :data:`_DIMENSIONS` judges by the layers, whatever a type says of them."""


class Trial(Record):
    """How well a known type reads a file that is not its own. ``kinds`` are the kinds of layers that it gives."""

    kinds: str
    unread: tuple[str, ...]
    """The keys that bear on the cache and that the layers do not follow."""
    unweighed: tuple[str, ...]
    """The keys that bear on the weights and that nobody read; empty where weights are not counted."""
    filled: Mapping[str, Any]
    """What the file leaves out and the class fills in, as far as it bears on the cache."""
    filled_weights: Mapping[str, Any]
    """The same for what bears on the weights alone."""
    passed_over: int = 0
    """How many other keys that bear on the cache have no effect on this type, and widths that only this type has."""
    layout_given: bool = True
    """Whether the file itself says which layers keep what: all the same, of which nothing comes from the class, or by its own keys."""

    @property
    def faults(self) -> tuple[int, int]:
        """How much of the file is left out of account and how much is added, for the cache and for the weights."""
        return len(self.unread) + len(self.filled) + self.passed_over, len(self.unweighed) + len(self.filled_weights)


def is_layout(key: str) -> bool:
    """Whether a key says which layers keep what."""
    return bool(_LAYOUT.search(key)) and not _OF_MLPS.search(key)


def trial(raw: Mapping[str, Any], model_type: str, family: Family) -> Trial | None:
    """This level of a config read as a type; ``None`` if the type cannot read it."""
    config = Config(raw, model_type)
    try:
        reading = family.read(config)
    except (ConfigError, UsageError, ValueError):
        return None
    return judge(config, config, family, reading) if reading.layers else None


def judge(config: Config, top: Config, family: Family, reading: Reading, *, weighed: bool = True) -> Trial:
    """What a reading leaves out of account and adds. Without ``weighed`` nobody counts the weights."""
    unread = (*config.unread(), *config.unread_inside(), *_unused(config, reading.layers))
    level, filled = reading.config, _filled(config, reading.layers)
    if weighed:
        with suppress(ConfigError, UsageError, ValueError):
            family.weigh(level, top, reading)
    passed_over = [key for key in _passed_over(config) if key not in unread]
    layout = [key for key in passed_over if is_layout(key)]
    found = Trial(
        kinds=family_of(reading.layers),
        unread=tuple(dict.fromkeys((*unread, *layout))),
        unweighed=(),
        filled=filled,
        filled_weights={},
        passed_over=len(passed_over) - len(layout) + _is_odd(level, reading.layers),
        layout_given=(len(set(reading.layers)) == 1 and (len(reading.layers[0]) == 1 or not filled))
        or any(is_layout(key) and key in config.read for key, value in config.raw.items() if value is not None),
    )
    if not weighed:
        return found
    added = {
        key: value
        for key, value in level.assumed_defaults().items()
        if key not in filled and not isinstance(value, bool) and weighs(key, value)
    }
    unweighed = [key for key in _unweighed(level) if key not in found.unread]
    return replace(found, unweighed=tuple(unweighed), filled_weights=added)


def _unweighed(level: Config) -> Iterator[str]:
    """The keys of the file that bear on the weights and that nobody read, but for those that say again what was read."""
    counted = {key: value for key, value in level.raw.items() if key in level.read and weighs(key, value)}
    has_experts = any("experts" in key for key in counted)
    for key, value in level.raw.items():
        if key in level.read or not weighs(key, value) or _LAYOUT.search(key) or value in list(counted.values()):
            continue
        # A model of experts alone has no use for the width of a dense MLP.
        same = has_experts if "intermediate" in key else "shared" in key and any("shared" in other for other in counted)
        if not same:
            yield str(key)


def _filled(config: Config, layers: Sequence[Layer]) -> Mapping[str, Any]:
    """What the class filled in and the cache follows from."""
    dims = {name for layer in layers for kind in layer for name in kind.dims()}
    given = {
        key: value
        for key, value in config.assumed_defaults().items()
        if not isinstance(value, bool) and bears_on_memory(key, value)
    }
    found = {**filled_in(config), **given}
    without_effect = [word for word, dim in _SPANS.items() if dim not in dims]
    return {key: value for key, value in found.items() if not any(word in key for word in without_effect)}


def _passed_over(config: Config) -> list[str]:
    """The keys of the file that bear on the cache and that the type is known to pass over."""
    asked = {name for key in config.asked for name in config.names(key)} | config.asked
    return [
        f"{config.where}.{key}" if config.where else str(key)
        for key, value in config.raw.items()
        if key not in asked and key in config.read and bears_on_memory(key, value) and not _OF_HEADS.search(str(key))
    ]


def _unused(config: Config, layers: Sequence[Layer]) -> list[str]:
    """The keys of the file that give a dimension of the layers with another value than every layer has."""
    dims: dict[str, set[Any]] = {}
    for layer in layers:
        for kind in layer:
            for name, size in kind.dims().items():
                dims.setdefault(name, set()).add(size)
    found = []
    for fact, names in _DIMENSIONS.items():
        own = (*config.names(fact), fact, *ALIASES.get(fact, ()))
        given = next((name for name in own if name in config.raw), None)
        value = None if given is None else config.raw[given]
        if not isinstance(value, int) or isinstance(value, bool) or value == 0:
            continue
        built = set[Any]().union(*(dims.get(name, set()) for name in names))
        window = fact == "sliding_window"
        if value not in built and (_slides(config) if window else bool(built)):
            found.append(f"{config.where}.{given}" if config.where else str(given))
    return found


def _is_odd(config: Config, layers: Sequence[Layer]) -> bool:
    """Whether heads are not as wide as most models have them where the file does not say how wide they are."""
    hidden = config.raw.get("hidden_size")
    if not isinstance(hidden, int) or any(name in config.raw for name in ("head_dim", *ALIASES["head_dim"])):
        return False
    dims = [kind.dims() for layer in layers for kind in layer]
    return any("num_key_value_heads" in each and each["head_dim"] * each["num_attention_heads"] != hidden for each in dims)


def _slides(config: Config) -> bool:
    """Whether nothing in the file says that its window is not used."""
    off = "use_sliding_window" in config.raw and not config.raw["use_sliding_window"]
    return not off and not isinstance(config.raw.get("layer_types"), list)

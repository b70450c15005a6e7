"""What a converter reads: the level of a config that describes the language model, and the layers that a parser has read from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from hwcalc import formulas
from hwcalc.errors import ConfigError
from hwcalc.formulas import AttentionKind, LayerKind, SharedCache, SlidingAttention
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers.config import Config

__all__ = ["Heads", "Keys", "Source", "source_of"]

K = TypeVar("K", bound=LayerKind)

_LARGEST = 2**40


class Heads(Record):
    """The heads of one layer: of queries, of keys, and the elements of one key and one value."""

    queries: int
    keys: int
    key_length: int
    value_length: int
    slides: bool = False


Keys = dict[str, Any]
"""Metadata by key, without the name of the architecture in front."""


class Source(Record):
    """A model to convert. The getters look into the language level first, then at the top, as the converter's merged dict does."""

    model: ModelSpec
    config: Config

    @cached_property
    def top(self) -> Mapping[str, Any]:
        """The whole file."""
        return self.model.config

    def get(self, *keys: str) -> Any:
        """The first of these keys that is there and not null, class defaults included."""
        for key in keys:
            value = self.config.get(key)
            value = self.top.get(key) if value is None else value
            if value is not None:
                return value
        return None

    def number(self, *keys: str, minimum: int = 0) -> int | None:
        """The first of these keys as a whole number."""
        for key in keys:
            value = self.get(key)
            if value is not None:
                return self.config.checked_integer(key, value, minimum=minimum, maximum=_LARGEST)
        return None

    def wanted(self, *keys: str) -> int:
        """The same for a number that must be there."""
        value = self.number(*keys)
        if value is None:
            raise self.config.missing(keys[0])
        return value

    def fraction(self, *keys: str) -> float | None:
        """The first of these keys as a share, from the level itself or from its rotary embedding."""
        for key in keys:
            value = self.get(key)
            value = self.rope.get(key) if value is None else value
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                    raise self.config.error(key, value, "a number from 0 to 1")
                return float(value)
        return None

    def words(self, key: str) -> list[str] | None:
        """A list of strings, or ``None``."""
        return self.config.strings(key)

    def section(self, key: str) -> Source:
        """The values inside an object, which may be missing."""
        inner = self.get(key)
        inner = {} if inner is None else inner
        if not isinstance(inner, Mapping):
            raise self.config.error(key, inner, "an object")
        return Source(model=self.model, config=Config(inner, where=key))

    @cached_property
    def rope(self) -> Mapping[str, Any]:
        """How positions are rotated; of full layers, where kinds of layers differ."""
        found = self.get("rope_parameters", "rope_scaling")
        rope = found if isinstance(found, Mapping) else {}
        full = rope.get("full_attention")
        return full if isinstance(full, Mapping) else rope

    @cached_property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.wanted("hidden_size")

    @cached_property
    def layers(self) -> int:
        """Layers of the model, without those for multi-token prediction."""
        return len(self.model.stack)

    def kinds(self, kind: type[K]) -> list[K | None]:
        """For each layer its part of this kind."""
        return [next((part for part in layer if isinstance(part, kind)), None) for layer in self.model.stack]

    def first(self, kind: type[K]) -> K | None:
        """The first part of this kind."""
        return next((part for part in self.kinds(kind) if part is not None), None)

    @cached_property
    def heads(self) -> tuple[Heads | None, ...]:
        """The heads of each layer, ``None`` for a layer without attention of its own."""
        # Equal layers are read once.
        read = {
            layer: next((heads for part in layer if (heads := _heads(part))), None) for layer in dict.fromkeys(self.model.stack)
        }
        return tuple(read[layer] for layer in self.model.stack)

    @cached_property
    def shares(self) -> bool:
        """Whether layers read the cache of others. Their heads are those of the layers before them."""
        return any(isinstance(part, SharedCache) for layer in self.model.stack for part in layer)

    def alike(self, values: Sequence[int]) -> int | list[int]:
        """One number if all layers have the same, else one per layer."""
        return values[0] if len(set(values)) == 1 else list(values)


def _of(queries: int, keys: int, key_length: int, value_length: int, *, slides: bool = False) -> Heads:
    return Heads(queries=queries, keys=keys, key_length=key_length, value_length=value_length, slides=slides)


def _heads(part: LayerKind) -> Heads | None:
    if isinstance(part, AttentionKind):
        slides = isinstance(part, SlidingAttention)
        return _of(part.num_attention_heads, part.num_key_value_heads, part.head_dim, part.v_head_dim, slides=slides)
    if isinstance(part, formulas.LatentAttention):
        length = part.kv_lora_rank + part.qk_rope_head_dim
        return _of(part.num_attention_heads, 1, length, part.kv_lora_rank, slides=part.window is not None)
    if isinstance(part, formulas.CompressedAttention):
        return _of(part.num_attention_heads, 1, part.head_dim, part.head_dim)
    return None


def source_of(model: ModelSpec) -> Source:
    """The model with the level of its config that the layers were read from."""
    from hwcalc.parsers.understood import language_config

    raw = RawModel(id=model.id, config=model.config, source=model.source, weights=model.weights)
    try:
        level = language_config(raw, model.assumption)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{model.id} does not make sense: {error}.") from error
    return Source(model=model, config=level)

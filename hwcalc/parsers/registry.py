"""The level of a document that describes the language model, and the module that reads its type.

``index.json`` has a row for each model type. A module is imported when a model needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from hwcalc.data import json_data
from hwcalc.errors import UnknownArchitectureError
from hwcalc.parsers.config import Config, architecture_of, defaults_table
from hwcalc.parsers.reading import Family
from hwcalc.text import quoted

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block


@lru_cache(maxsize=1)
def _index() -> Mapping[str, Mapping[str, Any]]:
    index: dict[str, Mapping[str, Any]] = json_data(__file__, "index.json")
    return index


@lru_cache(maxsize=4)
def _rows(section: str) -> Mapping[str, tuple[str, str]]:
    """Model type -> the room that reads it, and the name in that room."""
    rows: dict[str, tuple[str, str]] = {}
    for room, types in _index()[section].items():
        for model_type, name in types.items():
            if rows.setdefault(model_type, (room, name)) != (room, name):
                raise ValueError(f"two rooms claim {model_type!r}: {rows[model_type][0]} and {room}")
    return rows


def _named(section: str, model_type: str | None) -> Any:
    room, name = _rows(section).get(model_type or "", ("", ""))
    return getattr(import_module(f"hwcalc.parsers.{room}"), name) if room else None


def find_family(model_type: str | None) -> Family | None:
    """The family of a model type, ``None`` for a type that no row has."""
    return cast("Family | None", _named("language", model_type))


def known_family(model_type: str | None) -> Family:
    """The family of a model type. Raises :class:`~hwcalc.errors.UnknownArchitectureError` for a type that no row has."""
    family = find_family(model_type)
    if family is None:
        raise UnknownArchitectureError(
            f"No parser knows model_type {quoted(model_type)}.", hint="All that are known: kvplan models --types"
        )
    return family


def known_families() -> Iterator[str]:
    """The model types that rows have."""
    yield from _rows("language")


def find_wrapper(model_type: str | None) -> Callable[[Config, Config], Sequence[Block] | None] | None:
    """The function that weighs what stands around the language model of a document of this type: ``wrapper(top, language)``.

    ``None`` for a type that no row has. The function itself returns ``None`` where a tower is of a type that nobody weighs.
    """
    return cast("Callable[[Config, Config], Sequence[Block] | None] | None", _named("wrappers", model_type))


def find_tower(model_type: str | None) -> Callable[[Config, str], tuple[Block, ...]] | None:
    """The function that weighs a tower of this type: ``tower(config, path)``. ``None`` for a type that no row has."""
    return cast("Callable[[Config, str], tuple[Block, ...]] | None", _named("towers", model_type))


def model_type_of_architecture(name: str) -> str | None:
    """The model type whose class has this name."""
    named: Mapping[str, str] = _index()["architectures"]
    return named.get(name) or defaults_table("architectures").get(name)


NESTED: Final = (
    "text_config", "llm_config", "language_config", "thinker_config", "decoder", "generator", "vlm_config", "decoder_config",
)  # fmt: skip
"""Keys under which models of several parts keep the config of their language model, most specific first."""

MAX_NESTING: Final = 4


def find_language_model(top: Config) -> tuple[Family, Config] | None:
    """The family and the config level that it reads: by model type from the top down, then by architecture."""
    config: Config | None = top
    for _ in range(MAX_NESTING):
        if config is None:
            break
        family = find_family(config.model_type)
        if family is not None:
            return family, config
        config = _descend(config)
    architecture = architecture_of(top.raw)
    if architecture is not None:
        model_type = model_type_of_architecture(architecture)
        family = find_family(model_type)
        if family is not None and top.model_type != model_type:
            return family, top.retyped(model_type)
    return None


def _descend(config: Config) -> Config | None:
    """The nested config of the language model. Old files keep its keys at the top: they are read as the nested type."""
    for key in NESTED:
        if isinstance(config.raw.get(key), Mapping):
            return config.sub(key)
    for key in NESTED:
        nested = config.nested_type(key)
        if nested is not None and nested != config.model_type:
            return config.retyped(nested, key)
    return None

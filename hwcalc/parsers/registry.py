"""Find the module that reads a model type. ``index.json`` has a row for each type. A module is imported when a model needs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwcalc.errors import UnknownArchitectureError
from hwcalc.parsers.class_table import architecture_types
from hwcalc.parsers.config import Config
from hwcalc.text import quoted

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block
    from hwcalc.parsers.reading import Family

__all__ = [
    "find_family",
    "find_tower",
    "find_wrapper",
    "known_families",
    "known_family",
    "model_type_of_architecture",
    "room_of",
]


@lru_cache(maxsize=1)
def _index() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("index.json").read_text("utf-8"))
    return found


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
    found: Family | None = _named("language", model_type)
    return found


def known_family(model_type: str | None) -> Family:
    """The same, or :class:`~hwcalc.errors.UnknownArchitectureError`."""
    family = find_family(model_type)
    if family is None:
        raise UnknownArchitectureError(
            f"No parser knows model_type {quoted(model_type)}.", hint="All that are known: kvplan models --types"
        )
    return family


def known_families() -> Iterator[str]:
    """The model types that rows have."""
    yield from _rows("language")


def room_of(model_type: str | None) -> str:
    """The room that reads a model type, by name."""
    return _rows("language").get(model_type or "", ("", ""))[0]


def find_wrapper(model_type: str | None) -> Callable[[Config, Config], Sequence[Block] | None] | None:
    """The function that weighs what stands around the language model of a document of this type: ``wrapper(top, language)``.

    ``None`` for a type that no row has. The function itself returns ``None`` where a tower is of a type that nobody weighs.
    """
    found: Callable[[Config, Config], Sequence[Block] | None] | None = _named("wrappers", model_type)
    return found


def find_tower(model_type: str | None) -> Callable[[Config, str], tuple[Block, ...]] | None:
    """The function that weighs a tower of this type: ``tower(config, path)``. ``None`` for a type that no row has."""
    found: Callable[[Config, str], tuple[Block, ...]] | None = _named("towers", model_type)
    return found


def model_type_of_architecture(name: str) -> str | None:
    """The model type whose class has this name."""
    own: Mapping[str, str] = _index()["architectures"]
    return own.get(name) or architecture_types().get(name)

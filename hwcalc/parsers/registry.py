"""Which room reads which model type: ``index.json`` says it, one row a type. A room is imported when it is needed.

Order of claim: ``model_type``, then the first known name in ``architectures``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwcalc.parsers.config import Config, architecture_types
from hwcalc.parsers.reading import Family, Readers, Reading

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block

__all__ = [
    "DIALECTS",
    "dialect_for",
    "find_family",
    "find_tower",
    "find_wrapper",
    "has_family",
    "model_type_of_architecture",
    "read_with",
    "room_of",
]

# Module name -> the model types it claims. A nested language config counts under its own type.
DIALECTS: Mapping[str, tuple[str, ...]] = {
    "standard": ("laguna",),
}


@lru_cache(maxsize=1)
def _index() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("index.json").read_text(encoding="utf-8"))
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
    return found or _old_family(model_type)


def has_family(model_type: str | None) -> bool:
    """Whether a row has this model type."""
    return model_type in _rows("language") or dialect_for(model_type) is not None


def room_of(model_type: str | None) -> str:
    """The room that reads a model type, by name."""
    return _rows("language").get(model_type or "", (dialect_for(model_type) or "", ""))[0]


def find_wrapper(model_type: str | None) -> Callable[[Config, Config], Sequence[Block] | None] | None:
    """What weighs the parts around the language model of a document of this type: ``wrapper(top, language)``.

    ``None`` for a type that no row has; the function itself gives ``None`` where a tower is of a type that nobody weighs.
    """
    found: Callable[[Config, Config], Sequence[Block] | None] | None = _named("wrappers", model_type)
    return found


def find_tower(model_type: str | None) -> Callable[[Config, str], tuple[Block, ...]] | None:
    """What weighs a tower of this type: ``tower(config, path)``; ``None`` for a type that no row has."""
    found: Callable[[Config, str], tuple[Block, ...]] | None = _named("towers", model_type)
    return found


def model_type_of_architecture(name: str) -> str | None:
    """The model type whose class has this name."""
    own: Mapping[str, str] = _index()["architectures"]
    return own.get(name) or architecture_types().get(name)


# The tables that the rooms replace, one after the other.


def _old_family(model_type: str | None) -> Family | None:
    dialect = dialect_for(model_type)
    if dialect is None:
        return None
    read: Callable[[Config], Reading] = import_module(f"hwcalc.parsers.{dialect}").read

    def weigh(config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        from hwcalc.parsers.weights import language_blocks

        return language_blocks(config, top)

    return Readers(layers=read, weights=weigh)


@lru_cache(maxsize=1)
def _by_type() -> Mapping[str, str]:
    table: dict[str, str] = {}
    for module, types in DIALECTS.items():
        for model_type in types:
            if table.setdefault(model_type, module) != module:
                raise ValueError(f"two dialects claim {model_type!r}: {table[model_type]} and {module}")
    return table


def dialect_for(model_type: str | None) -> str | None:
    """The dialect module that claims a model type."""
    row = _rows("language").get(model_type or "")
    return (row[0] if row else _by_type().get(model_type)) if model_type else None


def read_with(dialect: str, config: Config) -> Reading:
    """Read a config by a dialect: its module's ``read(config) -> Reading``."""
    family = find_family(config.model_type)
    if family is not None:
        return family.read(config)
    read: Callable[[Config], Reading] = import_module(f"hwcalc.parsers.{dialect}").read
    return read(config)

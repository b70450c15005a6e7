"""What the config classes of transformers fill in: aliases, defaults, and the types of nested configs, read from the data files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

__all__ = ["ClassDefaults", "architecture_types", "class_defaults", "defaults_version", "tower_defaults", "tower_parts"]

_CLASSES: Final = "class_defaults.json"
_TOWERS: Final = "tower_defaults.json"
"""The defaults of towers. They have their own file, which a plan without towers does not read."""


class ClassDefaults:
    """What transformers' config class of one model type fills in: aliases, defaults, and the types of nested configs."""

    __slots__ = ("aliases", "defaults", "nested")

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.aliases: Mapping[str, str] = entry.get("aliases", {})
        self.defaults: Mapping[str, Any] = entry.get("defaults", {})
        self.nested: Mapping[str, str] = entry.get("nested", {})


@lru_cache(maxsize=2)
def _table(file: str) -> bytes:
    return Path(__file__).with_name(file).read_bytes()


def _row(file: str, start: str) -> Any:
    """The value on the line of a file that starts so: each model type has a line, and the whole takes as long to read as a config.

    ``None`` if there is no such line.
    """
    table, key = _table(file), f"\n{start}: ".encode()
    found = table.find(key)
    if found < 0:
        return None
    return json.loads(table[found + len(key) : table.index(b"\n", found + 1)].strip().removesuffix(b","))


def defaults_version() -> str:
    """The transformers version that the class defaults come from."""
    return str(_row(_CLASSES, '"version"'))


@lru_cache(maxsize=1)
def architecture_types() -> Mapping[str, str]:
    """Model type of each model class that transformers has, by class name."""
    types: Mapping[str, str] = _row(_CLASSES, '"architectures"')
    return types


@lru_cache(maxsize=512)
def class_defaults(model_type: str | None) -> ClassDefaults | None:
    """The defaults of one model type; ``None`` if transformers has no class for it."""
    return _defaults(_CLASSES, model_type)


@lru_cache(maxsize=1)
def tower_parts() -> Mapping[str, Any]:
    """How a class builds each nested config but its language model, by model type."""
    parts: Mapping[str, Any] = _row(_TOWERS, '"parts"')
    return parts


@lru_cache(maxsize=512)
def tower_defaults(model_type: str | None) -> ClassDefaults | None:
    """The defaults of a tower, or of a language model that stands in a tower's place."""
    return _defaults(_TOWERS, model_type) or class_defaults(model_type)


def _defaults(file: str, model_type: str | None) -> ClassDefaults | None:
    entry = None if model_type is None else _row(file, f" {json.dumps(model_type)}")
    return None if entry is None else ClassDefaults(entry)

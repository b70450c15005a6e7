"""What the config classes of transformers fill in: aliases, defaults, and the types of nested configs, read from the data files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hwcalc.beside import json_beside

__all__ = ["ClassDefaults", "architecture_types", "class_defaults", "defaults_version", "tower_defaults", "towers"]


class ClassDefaults:
    """What transformers' config class of one model type fills in: aliases, defaults, and the types of nested configs."""

    __slots__ = ("aliases", "defaults", "nested")

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.aliases: Mapping[str, str] = entry.get("aliases", {})
        self.defaults: Mapping[str, Any] = entry.get("defaults", {})
        self.nested: Mapping[str, str] = entry.get("nested", {})


@lru_cache(maxsize=2)
def _table(name: str = "class_defaults.json") -> Mapping[str, Any]:
    table: dict[str, Any] = json_beside(__file__, name)
    return table


def defaults_version() -> str:
    """The transformers version that the class defaults come from."""
    return str(_table()["version"])


def architecture_types() -> Mapping[str, str]:
    """Model type of each model class that transformers has, by class name."""
    types: Mapping[str, str] = _table()["architectures"]
    return types


@lru_cache(maxsize=512)
def class_defaults(model_type: str | None) -> ClassDefaults | None:
    """The defaults of one model type; ``None`` if transformers has no class for it."""
    entry = _table()["model_types"].get(model_type)
    return None if entry is None else ClassDefaults(entry)


def towers() -> Mapping[str, Any]:
    """The defaults of towers. They have their own file, which a plan without towers does not read."""
    return _table("tower_defaults.json")


@lru_cache(maxsize=512)
def tower_defaults(model_type: str | None) -> ClassDefaults | None:
    """The defaults of a tower, or of a language model that stands in a tower's place."""
    entry = towers()["model_types"].get(model_type)
    return class_defaults(model_type) if entry is None else ClassDefaults(entry)

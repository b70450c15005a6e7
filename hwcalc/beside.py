"""Data files that lie beside a module. Their paths are text: the import of pathlib is a twentieth of a plan."""

from __future__ import annotations

import json
import os

from hwcalc.formulas.hints import Any

__all__ = ["json_beside", "path_beside"]


def path_beside(module_file: str, *names: str) -> str:
    """The path of a file in the folder of a module, which gives its ``__file__``."""
    return os.path.join(os.path.dirname(module_file), *names)


def json_beside(module_file: str, name: str) -> Any:
    """The document in a JSON file in the folder of a module."""
    with open(path_beside(module_file, name), encoding="utf-8") as file:
        return json.load(file)

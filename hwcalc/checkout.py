"""The two folders of the package that lie beside it in a checkout. An installation has them inside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["find_folders_beside"]

_ROOT: Final = Path(__file__).parents[1]
_BESIDE: Final = {"hwcalc.formulas": _ROOT / "formulas", "hwcalc.profiles": _ROOT / "profiles"}


class _Finder:
    """An import finder that knows these two packages and no others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a package lies, ``None`` for any other name."""
        folder = _BESIDE.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])


def find_folders_beside() -> None:
    """Make ``hwcalc.formulas`` and ``hwcalc.profiles`` importable from beside this package."""
    sys.meta_path.insert(0, _Finder())

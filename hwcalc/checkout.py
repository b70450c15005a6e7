"""The two folders of the package that lie beside it in a checkout. An installation has them inside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["find_folders_beside"]


class _Finder:
    """An import finder that knows the packages ``hwcalc.formulas`` and ``hwcalc.profiles``, and no others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a package lies, ``None`` for any other name."""
        if name not in {"hwcalc.formulas", "hwcalc.profiles"}:
            return None
        from importlib.util import spec_from_file_location
        from os.path import abspath, dirname, join

        folder = join(dirname(dirname(abspath(__file__))), name.rpartition(".")[2])
        return spec_from_file_location(name, join(folder, "__init__.py"), submodule_search_locations=[folder])


def find_folders_beside() -> None:
    """Make ``hwcalc.formulas`` and ``hwcalc.profiles`` importable from beside this package."""
    sys.meta_path.insert(0, _Finder())

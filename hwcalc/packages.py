"""Packages that are functions as well: ``hwcalc.sweep(...)`` is called, and ``hwcalc.sweep.grid`` is a module in it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

__all__ = ["make_callable"]

_FUNCTION: Final = "_function"


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        module, name = getattr(self, _FUNCTION)
        return getattr(import_module(module), name)(*arguments, **keywords)


def make_callable(package: str, module: str, function: str) -> None:
    """Let a call of ``package`` be one of ``function``, whose module is imported then and not before.

    A function and a package of one name cannot both be an attribute of ``hwcalc``: the import of the package takes the name.
    """
    found = sys.modules[package]
    setattr(found, _FUNCTION, (module, function))
    found.__class__ = _CallablePackage

"""Packages that are also functions: ``hwcalc.sweep(...)`` is a call, and ``hwcalc.sweep.grid`` is a module in the package."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_FUNCTION: Final = "_function"


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        module, name = getattr(self, _FUNCTION)
        return getattr(import_module(module), name)(*arguments, **keywords)


def make_callable(package: str, module: str, function: str) -> None:
    """Make ``package`` callable: a call runs ``function`` of ``module``, which is imported at the first call.

    A function and a package of the same name cannot both be an attribute of ``hwcalc``, because the import of the package
    replaces the function.
    """
    imported = sys.modules[package]
    setattr(imported, _FUNCTION, (module, function))
    imported.__class__ = _CallablePackage

"""Packages that are also functions: ``hwcalc.sweep(...)`` is a call, and ``hwcalc.sweep.grid`` is a module in the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import inspect

_FUNCTION: Final = "_function"


class _CallablePackage(ModuleType):
    @property
    def _called(self) -> Callable[..., Any]:
        module, name = getattr(self, _FUNCTION)
        called: Callable[..., Any] = getattr(import_module(module), name)
        return called

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._called(*arguments, **keywords)

    # What a notebook shows of ``sweep?`` and completes in ``sweep(``: what it would show of the function.
    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(self._called)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._called.__doc__

    # What ``help(sweep)`` lists of the package: the function, with its signature.
    @property
    def __all__(self) -> list[str]:
        return [getattr(self, _FUNCTION)[1]]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__all__]

    def __getattr__(self, name: str) -> Any:
        if name in self.__all__:
            return self._called
        message = f"module {self.__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


def make_callable(package: str, module: str, function: str) -> None:
    """Make ``package`` callable: a call runs ``function`` of ``module``, which is imported at the first call.

    A function and a package of the same name cannot both be an attribute of ``hwcalc``, because the import of the package
    replaces the function.
    """
    imported = sys.modules[package]
    setattr(imported, _FUNCTION, (module, function))
    imported.__class__ = _CallablePackage

"""Modules by their names."""

from __future__ import annotations

from _frozen_importlib import _gcd_import  # type: ignore[attr-defined]

from hwcalc.formulas.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["import_module"]


def import_module(name: str) -> ModuleType:
    """As :func:`importlib.import_module` for a whole name: to import ``importlib`` takes longer than most modules that are asked for."""
    found: ModuleType = _gcd_import(name)
    return found

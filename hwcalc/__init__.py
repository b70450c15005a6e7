"""kvplan: how much memory a language model's cache takes, exactly and by engine."""

from os.path import isdir, join

if not isdir(join(__path__[0], "formulas")):
    from hwcalc.checkout import find_folders_beside

    find_folders_beside()

from typing import TYPE_CHECKING

from hwcalc._version import __version__
from hwcalc.errors import KvplanError
from hwcalc.library.load import load_model
from hwcalc.library.plan import plan
from hwcalc.library.recommend import recommend
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    from hwcalc.check.run import check
    from hwcalc.library.compare import compare
    from hwcalc.library.explain import explain
    from hwcalc.sweep.rows import sweep

__all__ = [
    "KvplanError",
    "ModelSpec",
    "Plan",
    "__version__",
    "check",
    "compare",
    "explain",
    "load_model",
    "plan",
    "recommend",
    "sweep",
]


def __getattr__(name: str) -> object:
    """What a plan does not need is imported when it is asked for."""
    from importlib import import_module

    if name in {"compare", "explain"}:
        return getattr(import_module(f"hwcalc.library.{name}"), name)
    if name in {"check", "sweep"}:
        return import_module(f"hwcalc.{name}")
    message = f"module 'hwcalc' has no attribute {name!r}"
    raise AttributeError(message)

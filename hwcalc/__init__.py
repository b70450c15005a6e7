"""kvplan: how much memory a language model's cache takes, exactly and by engine."""

from os.path import dirname, isdir, join
from typing import TYPE_CHECKING

if isdir(join(dirname(__path__[0]), "formulas")) and not isdir(join(__path__[0], "formulas")):
    # In a checkout two folders of the package lie beside it; an installation has them inside.
    __path__.append(dirname(__path__[0]))

# Names are imported when they are first used: so the command can prepare for Ctrl-C before it imports anything else.
if TYPE_CHECKING:
    from hwcalc._version import __version__
    from hwcalc.check.command import check
    from hwcalc.errors import KvplanError
    from hwcalc.explore.build import explore
    from hwcalc.fleet.run import fleet
    from hwcalc.launch.read import read_launch
    from hwcalc.library.blocks import free_blocks
    from hwcalc.library.compare import compare
    from hwcalc.library.explain import explain
    from hwcalc.library.fit import fit
    from hwcalc.library.keep import keep
    from hwcalc.library.load import load_model
    from hwcalc.library.plan import plan
    from hwcalc.library.recommend import recommend
    from hwcalc.library.speed import speed
    from hwcalc.library.strategies import strategies
    from hwcalc.library.swap import swap
    from hwcalc.model import ModelSpec
    from hwcalc.planner.result import Plan
    from hwcalc.plot.build import plot
    from hwcalc.replay.simulate import simulate
    from hwcalc.replay.tune import tune
    from hwcalc.sweep.rows import sweep
    from hwcalc.workload.opening import workload

__all__ = [
    "KvplanError",
    "ModelSpec",
    "Plan",
    "__version__",
    "check",
    "compare",
    "explain",
    "explore",
    "fit",
    "fleet",
    "free_blocks",
    "keep",
    "load_model",
    "plan",
    "plot",
    "read_launch",
    "recommend",
    "simulate",
    "speed",
    "strategies",
    "swap",
    "sweep",
    "tune",
    "workload",
]


def __getattr__(name: str) -> object:
    """A name of the library, from its module; else a part of the package, such as ``hwcalc.errors``."""
    from importlib import import_module

    places = {
        "KvplanError": "errors",
        "ModelSpec": "model",
        "Plan": "planner.result",
        "__version__": "_version",
        "compare": "library.compare",
        "explain": "library.explain",
        "fit": "library.fit",
        "free_blocks": "library.blocks",
        "keep": "library.keep",
        "load_model": "library.load",
        "plan": "library.plan",
        "read_launch": "launch.read",
        "recommend": "library.recommend",
        "simulate": "replay.simulate",
        "speed": "library.speed",
        "strategies": "library.strategies",
        "swap": "library.swap",
        "tune": "replay.tune",
    }
    if name in places:
        return getattr(import_module(f"hwcalc.{places[name]}"), name)
    if not name.startswith("_"):
        try:
            # check, explore, fleet, plot, sweep and workload are parts that can be called.
            return import_module(f"hwcalc.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"hwcalc.{name}":
                raise
    message = f"module 'hwcalc' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """The names of the library, imported or not."""
    return sorted(__all__)

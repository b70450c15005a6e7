"""kvplan: how much memory a language model's cache takes, exactly and by engine."""

from os.path import dirname, isdir, join

if not isdir(join(__path__[0], "formulas")):
    # In a checkout, formulas/ and profiles/ lie beside this folder; an installation has them inside it.
    __path__.append(dirname(__path__[0]))

from hwcalc._version import __version__
from hwcalc.errors import KvplanError
from hwcalc.library.plan import load_model, plan
from hwcalc.library.recommend import recommend
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan

__all__ = ["KvplanError", "ModelSpec", "Plan", "__version__", "load_model", "plan", "recommend"]

"""kvplan: how much memory a language model's cache takes, exactly and by engine."""

from hwcalc._version import __version__
from hwcalc.api import load_model, plan
from hwcalc.errors import KvplanError
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan
from hwcalc.recommending import recommend

__all__ = ["KvplanError", "ModelSpec", "Plan", "__version__", "load_model", "plan", "recommend"]

"""The public functions tell their types to programs that ask at run time."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pydantic
import pytest

import hwcalc
from hwcalc.explore.build import explore
from hwcalc.plot.build import plot
from hwcalc.reconcile.core import reconcile
from hwcalc.sweep.rows import sweep

FUNCTIONS = [
    name for name in hwcalc.__all__ if inspect.isroutine(getattr(hwcalc, name)) or inspect.isclass(getattr(hwcalc, name))
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_can_be_evaluated(name: str) -> None:
    """Every name in them is there when the program runs."""
    public = getattr(hwcalc, name)
    assert typing.get_type_hints(public) or inspect.isclass(public)
    assert inspect.signature(public, eval_str=True).parameters is not None


def test_pydantic_checks_the_arguments_of_a_plan() -> None:
    """A model may be an id, a path, a config, an open file or a model that was read."""
    plan = pydantic.validate_call(hwcalc.plan)
    model = hwcalc.load_model("Qwen/Qwen3-8B")
    assert plan(model, seq=1024) == plan("Qwen/Qwen3-8B", seq=1024)
    with pytest.raises(pydantic.ValidationError):
        plan(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "function", [hwcalc.compare, hwcalc.explain, hwcalc.fit, hwcalc.recommend, hwcalc.strategies, sweep, explore, plot, reconcile]
)
def test_pydantic_checks_the_arguments_of_other_functions(function: typing.Any) -> None:
    """Their options are keywords with types of their own, and another one is refused."""
    # An executor is a class that pydantic has no schema of.
    checked = pydantic.validate_call(config={"arbitrary_types_allowed": True})(function)
    with pytest.raises(pydantic.ValidationError, match="nonsense"):
        checked("Qwen/Qwen3-8B", nonsense=1)


def test_a_plan_can_be_copied_and_sent() -> None:
    """It is made of plain values."""
    plan = hwcalc.plan("Qwen/Qwen3-8B", engine="vllm", gpu="l4", seq=4096)
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
    assert copy.deepcopy(plan) == plan

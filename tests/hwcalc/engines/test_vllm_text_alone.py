"""``--language-model-only``: vLLM loads no towers (``models/interfaces.py`` _mark_tower_model, ``config/multimodal.py``, 0.33)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError
from hwcalc.planner.result import Plan
from hwcalc.units import GIB
from tests.hwcalc.command import Capture, run

ONLY: Final = {"language_model_only": "true"}
QWEN: Final = "Qwen/Qwen3.6-35B-A3B"
GEMMA: Final = "google/gemma-3-12b-it"


def planned(model: str = QWEN, version: str = "0.33", **options: str) -> Plan:
    """On a GPU that holds it."""
    return plan(model, engine=f"vllm@{version}", gpu="h200", seq="32k", offline=True, engine_options=options)


def parts(made: Plan) -> dict[str, Any]:
    """The expected bytes of each part of the memory."""
    assert made.fit is not None
    assert made.fit.budget is not None
    return {part.name: part.expected for part in made.fit.budget.parts}


def test_towers_are_left_out() -> None:
    """A public log of Qwen3.6-35B-A3B without images says 64.69 GiB where the whole model takes 65.52: 0.83 less."""
    whole, text = parts(planned()), parts(planned(**ONLY))
    assert round((whole["weights"] - text["weights"]) / GIB, 2) == 0.83
    assert {"encoder cache", "encoder profile"} <= whole.keys()
    assert not {"encoder cache", "encoder profile"} & text.keys()


def test_a_model_without_towers_is_as_before() -> None:
    """And so is false."""
    assert parts(planned("Qwen/Qwen3-8B", **ONLY)) == parts(planned("Qwen/Qwen3-8B"))
    assert parts(planned(language_model_only="false")) == parts(planned())


def test_releases_before_the_flag() -> None:
    """0.16 has no such flag (engine/arg_utils.py of 0.16.0 and 0.17.0)."""
    with pytest.raises(UnsupportedError, match=r"came with 0\.17"):
        planned(GEMMA, "0.16", **ONLY)
    assert parts(planned(GEMMA, "0.17", **ONLY))["weights"] < parts(planned(GEMMA, "0.17"))["weights"]


def test_the_flag_is_read_and_written(capsys: Capture) -> None:
    """As vLLM spells it."""
    asked = (QWEN, "--engine", "vllm", "--gpu", "h200", "--seq", "32k", "--language-model-only", "--emit", "vllm")
    assert "--language-model-only" in run(capsys, *asked)[1]

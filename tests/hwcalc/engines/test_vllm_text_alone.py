"""``--language-model-only``: vLLM loads no towers (``models/interfaces.py`` _mark_tower_model, ``config/multimodal.py``, 0.33)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.planner.result import Plan
from hwcalc.reconcile.dialects.vllm import read_arguments
from hwcalc.reconcile.facts import Facts
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


@pytest.mark.parametrize(
    ("model", "limits", "alone"),
    [
        # Gemma 3's tower is marked for images, Qwen3.6's for images and videos (models/gemma3_mm.py, models/qwen3_5.py).
        (GEMMA, "image=0", True),
        (GEMMA, '{"image": 0, "video": 0}', True),
        (GEMMA, "image=1", False),
        (QWEN, '{"image": 0}', False),
        (QWEN, "{'image': 0, 'video': 0}", True),
        ("Qwen/Qwen3-8B", "image=0", False),
    ],
)
def test_limits_of_nothing(model: str, limits: str, alone: bool) -> None:
    """A tower is left out where nothing of what it reads is taken."""
    made = parts(planned(model, limit_mm_per_prompt=limits))
    assert made == (parts(planned(model, **ONLY)) if alone else parts(planned(model)))


@pytest.mark.parametrize("limits", ["", "1", "image", "image=0;video=0", '{"image": -1}', '{"image": 0, "x"}', "{}"])
def test_limits_that_are_none(limits: str) -> None:
    """Kinds without numbers are wrong usage."""
    with pytest.raises(UsageError, match="names no kinds"):
        planned(GEMMA, limit_mm_per_prompt=limits)


def test_some_of_several_towers() -> None:
    """Gemma 4 E2B reads images by one tower and sound by another: both or none; its 26B has none for sound. 0.14 is not known to leave any out."""
    with pytest.raises(UnsupportedError, match="towers for audio and image/video"):
        planned("google/gemma-4-E2B-it", limit_mm_per_prompt="image=0,video=0")
    for model, limits in (("google/gemma-4-E2B-it", "image=0,video=0,audio=0"), ("google/gemma-4-26B-A4B-it", "image=0,video=0")):
        assert parts(planned(model, limit_mm_per_prompt=limits)) == parts(planned(model, **ONLY))
    with pytest.raises(UnsupportedError, match=r"since 0\.15"):
        planned(GEMMA, "0.14", limit_mm_per_prompt="image=0")


def test_limits_are_read_and_written(capsys: Capture) -> None:
    """As vLLM spells them."""
    asked = (GEMMA, "--engine", "vllm", "--gpu", "h200", "--seq", "32k", "--limit-mm-per-prompt", '{"image":0}', "--emit", "vllm")
    assert """--limit-mm-per-prompt '{"image": 0}'""" in run(capsys, *asked)[1]


def test_limits_of_a_log() -> None:
    """Those of zero count; a log that takes images states none."""
    facts = Facts()
    read_arguments(facts, "non-default args: {'model': 'a/b', 'limit_mm_per_prompt': {'image': 0, 'audio': 0}, 'seed': 1}")
    assert facts.word("limit_mm_per_prompt") == "{'image': 0, 'audio': 0}"
    facts = Facts()
    read_arguments(facts, "non-default args: {'model': 'a/b', 'limit_mm_per_prompt': {'image': 2}}")
    assert facts.word("limit_mm_per_prompt") is None

"""Lengths beyond a model's own: vLLM refuses them unless a variable is set, and a plan says so wherever it says that vLLM starts.

The expected lengths are what ``_get_and_verify_max_len`` of the releases returns for these configs.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import ModelSpec, plan
from hwcalc.engines.vllm.rules import rules_of
from hwcalc.engines.vllm.settings import longest_accepted
from hwcalc.library.load import load_model
from hwcalc.parsers.parse import model_facts
from tests.hwcalc.command import QWEN, Capture, run

VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = (QWEN, "--seq", "128k", "--engine", "vllm", "--gpu", "h100")


def test_the_verdict_names_the_variable(capsys: Capture) -> None:
    """The verdict says what vLLM needs, the warning why, and the planned length is not called the model's."""
    code, out, _ = run(capsys, *LONG, "--brief")

    assert code == 0
    assert f"vLLM will start only with {VARIABLE}\n" in out
    assert f"more than the model's maximum of 40,960. vLLM refuses that without {VARIABLE}." in out
    assert "131,072 tokens (limit: planned length)" in out
    assert "model length" not in out


def test_a_plan_within_the_models_length_names_none(capsys: Capture) -> None:
    """Up to the model's length nothing is said."""
    out = run(capsys, QWEN, "--seq", "40k", "--engine", "vllm", "--gpu", "h100", "--brief")[1]

    assert "vLLM will start\n" in out
    assert VARIABLE not in out
    assert "(limit: model length)" in out


def test_the_command_line_sets_the_variable(capsys: Capture) -> None:
    """As a line for a shell, and in the document."""
    out = run(capsys, *LONG, "--emit", "vllm")[1]
    document = json.loads(run(capsys, *LONG, "--emit", "vllm", "--json")[1])

    assert out == f"{VARIABLE} vllm serve {QWEN} --max-model-len 131072\n"
    assert document["command"] == out.strip()
    assert document["environment"] == [VARIABLE]
    assert document["arguments"][0] == "vllm"


def test_no_other_engine_asks_for_it() -> None:
    """The formulas have no such check."""
    assert plan(QWEN, seq=131072, gpu="h100").request.environment == ()


@pytest.mark.parametrize(
    ("release", "config", "longest"),
    [
        ((0, 33), {}, 40960),
        ((0, 24), {"rope_scaling": YARN}, 131072),
        ((0, 33), {"rope_scaling": YARN}, 40960),
        ((0, 24), {"rope_parameters": YARN}, 131072),
        ((0, 24), {"text_config": {"rope_scaling": YARN}}, 131072),
        ((0, 33), {"rope_scaling": {"type": "linear", "factor": 8.0}}, 327680),
        ((0, 33), {"rope_scaling": {"type": "dynamic", "factor": 2}}, 81920),
        ((0, 33), {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960),
        ((0, 33), {"rope_scaling": {"type": "longrope", "factor": 32}}, 40960),
        ((0, 33), {"rope_scaling": {"type": "mrope"}}, 40960),
        (
            (0, 33),
            {"rope_parameters": {"full": {"rope_type": "linear", "factor": 8}, "sliding": {"rope_type": "default"}}},
            327680,
        ),
        ((0, 33), {"rope_scaling": {"type": "linear", "factor": None}}, 40960),
        ((0, 33), {"model_max_length": 65536}, 65536),
        ((0, 33), {"model_max_length": 8192}, 8192),
    ],
)
def test_the_longest_that_a_release_accepts(release: tuple[int, ...], config: dict[str, Any], longest: int) -> None:
    """Rotary scaling stretches it, unless the config names the stretched length already."""
    assert longest_accepted(_with(config), rules_of(release)) == longest


def test_gemma_3_names_the_stretched_length() -> None:
    """Its linear scaling counts as done."""
    model = replace(_with({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}), model_type="gemma3")

    assert longest_accepted(model, rules_of((0, 33))) == 40960


@pytest.mark.parametrize(
    "rope", [3, "yarn", {"type": 7}, {"type": "linear", "factor": "8"}, {"type": "linear", "factor": -1}, []]
)
def test_a_strange_scaling_is_passed_over(rope: object) -> None:
    """What makes no sense stretches nothing."""
    assert longest_accepted(_with({"rope_scaling": rope}), rules_of((0, 33))) == 40960


def _with(config: dict[str, Any]) -> ModelSpec:
    return replace(load_model(QWEN), facts=model_facts(config))


@pytest.mark.parametrize("gpu", ["l40s", "l4"])
def test_what_does_not_fit_is_told_of_a_length_that_vllm_takes(gpu: str, tmp_path: Path, capsys: Capture) -> None:
    """VLLM reads the length before it measures memory: that comes first, and each change that is offered starts without the variable."""
    words = ("Qwen/Qwen3-14B", "--seq", "128k", "--engine", "vllm", "--gpu", gpu)
    code, out, _ = run(capsys, *words, "--brief")
    document = json.loads(run(capsys, *words, "--json")[1])
    reasons = [line for line in out.splitlines() if line.startswith("  error")]

    assert code == 1
    assert VARIABLE in reasons[0]
    assert out.count(VARIABLE) == 1
    offered = document["fit"]["suggestions"]
    assert offered
    for each in offered:
        again = json.loads(run(capsys, *shlex.split(each["command"])[1:], "--json")[1])
        assert VARIABLE not in again["request"]["environment"], each
        assert again["fit"]["fits"], each
        assert again["request"]["seq"] <= 40960

    # Who sets the variable wants the length.
    serve = tmp_path / "serve.sh"
    serve.write_text(f"export {VARIABLE}\nvllm serve Qwen/Qwen3-14B --max-model-len 131072\n", encoding="utf-8")
    told = run(capsys, str(serve), "--gpu", gpu, "--brief")[1]
    assert "vLLM refuses" not in told
    assert "--seq 128k" in told.partition("  try ")[2].splitlines()[0]

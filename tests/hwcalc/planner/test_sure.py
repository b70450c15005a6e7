"""How long and how many: the sure values hold at the high end of the estimates, the expected ones by the expected value."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import Verdict
from tests.hwcalc.command import Capture, run

LLAMA: Final = "meta-llama/Llama-3.1-8B"
CASES: Final = [
    (LLAMA, {"seq": 16_384, "batch": 2, "gpu": "l4"}),
    (LLAMA, {"seq": 16_384, "batch": 2, "gpu": "l4", "engine": "vllm"}),
    (LLAMA, {"seq": 9_000, "batch": 3, "gpu": "l4", "engine": "transformers"}),
    ("google/gemma-3-27b-it", {"seq": 32_768, "batch": 4, "gpu": "h100-sxm5-80gb", "engine": "transformers"}),
    ("google/gemma-3-27b-it", {"seq": 32_768, "batch": 4, "gpu": "a100-sxm4-80gb", "engine": "vllm"}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"seq": 32_768, "batch": 70, "gpu": "h100-sxm5-80gb", "tp": 4, "engine": "vllm"}),
    ("deepseek-ai/DeepSeek-V3", {"seq": 32_768, "batch": 32, "gpu": "h200-sxm-141gb", "tp": 8, "engine": "vllm"}),
    (LLAMA, {"seq": 40_000, "batch": 4, "gpu": "l4", "tp": 2, "pp": 2}),
]


def fit_of(model: str, options: dict[str, Any]) -> FitInfo:
    """The verdict, which must not be None."""
    made = plan(load_model(model), **options).fit
    assert made is not None
    return made


@pytest.mark.parametrize(("model", "options"), CASES, ids=[f"{model}-{options.get('engine')}" for model, options in CASES])
def test_the_sure_and_the_expected_values_are_limits(model: str, options: dict[str, Any]) -> None:
    """A plan of the sure length or number fits for sure, and of one more does not; the same of the expected one by the expected value."""
    fit = fit_of(model, options)
    longest = load_model(model).max_position_embeddings
    for name, sure, expected in (
        ("seq", fit.max_seq, fit.expected_max_seq),
        ("batch", fit.max_batch, fit.expected_max_batch),
    ):
        assert sure is not None
        assert expected is not None
        assert 0 <= sure <= expected
        if sure:
            assert fit_of(model, {**options, name: sure}).verdict is Verdict.FITS
        if expected:
            assert fit_of(model, {**options, name: expected}).fits
        if name == "batch" or longest is None or sure < longest:
            assert fit_of(model, {**options, name: sure + 1}).verdict is not Verdict.FITS
        if name == "batch" or longest is None or expected < longest:
            assert not fit_of(model, {**options, name: expected + 1}).fits


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_a_budget_by_hand_is_exact(engine: str) -> None:
    """There is nothing to estimate: both agree."""
    fit = fit_of(LLAMA, {"seq": 8192, "kv_memory": "3GiB", "engine": engine})

    # 131,072 bytes a token; vLLM keeps one block of 16 tokens for itself.
    assert fit.max_seq == fit.expected_max_seq == 3 * 2**30 // 131_072 - (16 if engine == "vllm" else 0)
    assert (fit.max_batch, fit.expected_max_batch) == ((3, 3) if engine == "reference" else (2, 2))
    assert fit.verdict is Verdict.FITS


def test_lines_say_the_sure_value_first(capsys: Capture) -> None:
    """The expected one stands beside it where it is another."""
    fit = fit_of("Qwen/Qwen3-8B", {"seq": 32_768, "batch": 4, "gpu": "rtx-4090"})
    out = run(capsys, "Qwen/Qwen3-8B", "--seq", "32k", "--users", "4", "--gpu", "rtx-4090")[1]

    assert fit.max_seq is not None
    assert fit.expected_max_seq is not None
    assert fit.max_seq < fit.expected_max_seq
    assert f"longest  {fit.max_seq:,} tokens for each of 4 sequences, {fit.expected_max_seq:,} expected (limit: cache)" in out
    assert "at once  1 sequence of 32,768 tokens (limit: cache)" in out


def test_what_limits_is_the_largest_part() -> None:
    """Weights nearly fill what may be used, and activations need the rest: it is the weights that leave nothing."""
    fit = fit_of("Qwen/Qwen3-8B", {"seq": 4096, "gpu": "l4", "engine": "vllm", "memory_utilization": 0.71})
    assert fit.budget is not None
    weights = sum(part.expected for part in fit.budget.parts if part.section == "weights")

    assert fit.budget.requested_bytes > weights
    assert fit.budget.expected < 0
    assert (fit.limiting, fit.limiting_seq) == ("weights", "weights")


def test_unlike_lengths_are_said_of_their_mix(capsys: Capture) -> None:
    """20 requests each of 2,048, 4,096 and 32,768 tokens: nothing is said of 60 sequences of the longest length."""
    asked = ("--engine", "vllm", "--gpu", "h100", "--lengths", "2k,4k,32k", "--users", "60", "--brief")
    out = run(capsys, "meta-llama/Llama-3.1-8B", *asked)[1]

    # 32,768 tokens of 131,072 B.
    assert "4.00 GiB a sequence of 32,768 tokens" in out
    assert "sequences of these lengths, as many of each" in out
    assert "for the longest of 60 sequences, shorter ones as they are" in out
    assert "for each of 60 sequences" not in out


def test_a_screen_compares_with_the_sure_number_alone(capsys: Capture) -> None:
    """The verdict, the limits and what helps begin with what is certain; a change that only probably fits is compared with nothing."""
    out = run(capsys, "Qwen/Qwen3-32B", "--engine", "vllm", "--gpu", "h100", "--seq", "32k", "--users", "8", "--brief")[1]

    assert "vLLM will probably start, but holds none of 8 sequences for certain" in out
    assert "at once  0 sequences of 32,768 tokens for certain, 1 expected" in out
    assert set(re.findall(r"instead of (\d+)", out)) == {"0"}


def test_what_only_probably_helps_has_one_number(capsys: Capture) -> None:
    """The change that probably fits is no second thing to compare with."""
    words = ("--engine", "vllm", "--gpu", "h100", "--gpus", "4", "--seq", "32k", "--concurrency", "20", "--brief")
    out = run(capsys, "meta-llama/Llama-3.3-70B-Instruct", *words)[1]

    assert re.search(r"fp8 weights; holds 20; [0-9]+ tokens/s each of 20; probably fits", " ".join(out.split()))
    assert set(re.findall(r"holds \d+ instead of (\d+)", out)) == {"13"}

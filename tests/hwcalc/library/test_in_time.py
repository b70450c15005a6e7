"""Limits of time in the functions that plan several things: compare, sweep, recommend, fit and check say what a plan says."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from hwcalc import ModelSpec, check, compare, fit, load_model, plan, recommend, sweep
from tests.hwcalc.command import Capture, run

LIMITS: dict[str, Any] = {"ttft": "1s", "min_rate": 40}


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    """The model, loaded once."""
    return load_model("meta-llama/Llama-3.1-8B", offline=True)


def test_compare_and_sweep_have_the_users_of_a_plan(llama: ModelSpec) -> None:
    """Each accelerator has the users of its own plan; without limits nobody counts them."""
    gpus = ("h100-sxm5-80gb", "h200-sxm-141gb")
    plans = [plan(llama, engine="vllm", seq=8192, gpu=gpu, **LIMITS).within for gpu in gpus]
    users = [(found.users, found.users_low, found.limiting) for found in plans if found is not None]
    variants = compare(llama, engine="vllm", seq=8192, gpu=gpus, **LIMITS).variants
    points = list(sweep(llama, engine="vllm", seq=8192, gpu=gpus, **LIMITS))

    assert [(one.users_within, one.users_within_low, one.limited_by) for one in variants] == users
    assert [(one.users_within, one.users_within_low, one.limited_by) for one in points] == users
    assert compare(llama, engine="vllm", seq=8192, gpu=gpus).variants[0].users_within is None


def test_compare_judges_as_a_plan_does(capsys: Capture) -> None:
    """What fits and is too slow is not said to fit alone: status 1, as of the plan. With a variant that is fast enough the status is 0."""
    words = ("Qwen/Qwen3-32B", "--engine", "vllm", "--seq", "24k", "--users", "20", "--ttft", "1s", "--itl", "40ms", "--offline")
    slow, fast = ("--gpu", "h100", "--gpus", "4"), ("--gpu", "4xh100,4xb200")
    planned, answer, _ = run(capsys, *words, *slow)
    told, out, _ = run(capsys, "compare", *words, *slow)
    line = out.partition("\ntry: ")[2].partition("\n\n")[0].replace("\\\n", "")

    assert (planned, told) == (1, 1)
    assert "; not within the limits of time" in answer
    assert "fits, not within limits" in out
    assert run(capsys, *shlex.split(line)[1:])[0] == 0
    assert run(capsys, "compare", *words, *fast)[0] == 0


def test_recommend_takes_more_than_memory_needs(llama: ModelSpec) -> None:
    """One H100 holds 40 sequences of 8,192 tokens, and does not give each 40 tokens per second: more of them are offered, which do."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": 8192, "batch": 40, "gpu": "h100-sxm5-80gb"}
    (held,) = recommend(llama, **asked).offers
    (timed,) = recommend(llama, **asked, **LIMITS).offers

    assert held.gpus == 1
    assert held.users is None
    assert timed.gpus > 1
    assert timed.users is not None
    assert timed.users >= 40
    assert timed.ttft_s is not None
    assert timed.ttft_s <= 1


def test_what_is_too_slow_is_not_said_to_be_too_small(capsys: Capture) -> None:
    """As many hold it as without limits, in memory: those offered within the limits and those counted as late. None answers in a microsecond."""
    words = ("recommend", "meta-llama/Llama-3.1-8B", "--engine", "vllm", "--seq", "8k", "--gpu", "l4,l40s,h100", "--offline")
    asked: dict[str, Any] = {"engine": "vllm", "seq": 8192, "batch": 100, "limit": 0}
    held, timed = recommend("meta-llama/Llama-3.1-8B", **asked), recommend("meta-llama/Llama-3.1-8B", **asked, **LIMITS)
    status, out, _ = run(capsys, *words, "--itl", "1us")

    assert held.late == 0
    assert timed.late > 0
    assert timed.too_small == held.too_small
    assert timed.refused == held.refused
    assert (
        len({one.gpu for one in timed.offers}) == timed.considered - timed.refused - timed.unknown - timed.too_small - timed.late
    )
    assert status == 1
    assert "None within the limits of time: 3 candidates with up to 8 GPUs each, of which 3 hold it by memory" in out
    assert "Nothing holds it" not in out
    assert "Nothing holds it: 3 candidates" in run(capsys, *words, "--batch", "100k")[1]


def test_fit_lists_what_keeps_the_limits() -> None:
    """A model that is too slow is left out, and counted."""
    asked: dict[str, Any] = {"gpu": "rtx-4090", "family": "olmo3", "seq": 8192}
    every, timed = fit(**asked), fit(**asked, min_rate=60)

    assert {one.id for one in timed.models} < {one.id for one in every.models}
    assert timed.slow > 0
    assert all(one.itl_s is not None and one.itl_s <= 1 / 60 for one in timed.models)


def test_check_judges_times(tmp_path: Path) -> None:
    """Each limit has a figure and a range; what only the expected value holds is a warning; users need a limit."""
    file = tmp_path / "checks.yaml"
    file.write_text(
        "schema_version: 1\n"
        "defaults: {model: meta-llama/Llama-3.1-8B, engine: vllm, gpu: h100-sxm5-80gb, seq: 8k}\n"
        "checks:\n"
        "  - {max_ttft: 5s, max_itl: 1s, max_e2e: 5min, min_rate: 1, min_users: 2}\n"
        "  - {concurrency: 40, max_itl: 1ms}\n"
        "  - {min_users: 40}\n",
        encoding="utf-8",
    )
    loose, tight, none = check(str(file), offline=True).checks

    assert loose.status == "pass"
    assert [(one.name, one.unit) for one in loose.requirements][-5:] == [
        ("max_ttft", "s"),
        ("max_itl", "s"),
        ("max_e2e", "s"),
        ("min_rate", "tokens/s"),
        ("min_users", "users"),
    ]
    assert tight.status == "fail"
    assert tight.requirements[-1].certain
    assert none.error is not None
    assert "max_ttft" in none.error.hint

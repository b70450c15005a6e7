"""Limits of time in the functions that plan several things: compare, sweep, recommend, fit and check say what a plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hwcalc import ModelSpec, check, compare, fit, load_model, plan, recommend, sweep

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

"""Plans of one model, in whatever order, are what each is by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.setup import Hardware, Request
from hwcalc.engines.vllm import Vllm
from hwcalc.errors import KvplanError
from hwcalc.model import ModelSpec
from hwcalc.profiles.calibration import Measured, Measurement, overheads_kind, save_reading
from hwcalc.profiles.gpus import find_gpu

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "state-spaces/mamba-2.8b-hf",
    "facebook/bart-large",
)
SIZES = ((1, 1), (40, 300), (8192, 64), (20_000, 3), (300, 2000), (131_072, 8))
"""Lengths and batches: below the tokens of a batch, more sequences than run at once, what fits and what does not."""


def planned(model: ModelSpec, size: tuple[int, int], **options: Any) -> dict[str, Any] | str:
    """The plan as a document, or the error."""
    seq, batch = size
    try:
        return plan(model, engine="vllm", gpu="h100", seq=seq, batch=batch, **options).to_dict()
    except KvplanError as error:
        return f"{error} {error.hint}"


@pytest.mark.parametrize("name", MODELS)
def test_earlier_plans_change_no_later_one(name: str) -> None:
    """Whatever was planned of a model before, a plan is that of a model of which nothing was planned."""
    model, options = load_model(name), {"tp": 2, "dtype": "fp8"}
    alone = {size: planned(replace(model), size, **options) for size in SIZES}
    for order in (SIZES, SIZES[::-1], (*SIZES[3:], *SIZES[:3])):
        together = replace(model)
        planned(together, SIZES[0], tp=3)

        assert {size: planned(together, size, **options) for size in order} == {size: alone[size] for size in order}
        assert planned(together, order[0], **options) == alone[order[0]]


def test_threads_plan_one_model_together() -> None:
    """Several threads that plan one model at once have the plans of one thread."""
    model = load_model(MODELS[0])
    one = [planned(replace(model), size) for size in SIZES * 4]
    with ThreadPoolExecutor(max_workers=8) as threads:
        several = list(threads.map(lambda size: planned(model, size), SIZES * 4))

    assert several == one


def test_a_measurement_counts_from_the_next_plan_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured between two plans is in the second one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model, size = load_model(MODELS[0]), (4096, 1)
    before = planned(model, size)
    measured = Measured(device="an accelerator", date="2026-11-20", source="a log")
    conditions = {"tp": 1, "pp": 1, "ep": 1}
    save_reading(
        "h100-sxm5-80gb",
        overheads_kind("vllm"),
        Measurement(values={"non_torch_bytes": 123_456_789}, measured=measured, conditions=conditions),
    )

    after = planned(model, size)
    assert after == planned(replace(model), size)
    assert after != before


def test_a_measurement_of_a_larger_gpu_counts_in_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice that names another accelerator takes what was measured on it since the plan before."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model, size = load_model(MODELS[0]), (131_072, 4)
    before = planned(model, size)
    measured = Measured(device="an accelerator", date="2026-11-20", source="a log")
    reading = Measurement(values={"non_torch_bytes": 20 * 2**30}, measured=measured, conditions={"tp": 1, "pp": 1, "ep": 1})
    save_reading("h200-sxm-141gb", overheads_kind("vllm"), reading)

    after = planned(model, size)
    assert after == planned(replace(model), size)
    assert after != before


CHANGES: tuple[dict[str, Any], ...] = (
    {"options": {"max_num_seqs": "3"}},
    {"options": {"cpu_offload_gb": "7"}},
    {"options": {"enforce_eager": "true"}},
    {"options": {"max_num_seqs": "3", "cpu_offload_gb": "7"}},
    {"options": {"enforce_eager": "true", "max_num_batched_tokens": "4096"}},
    {"options": {"dtype": "float16"}},
    {"options": {"dtype": "float32"}},
    {"dtype": "fp8"},
    {"weights": "fp8"},
    {"weights": "awq", "options": {"max_num_seqs": "3"}},
    {"tp": 2},
    {"pp": 2, "dtype": "fp8"},
    {"memory_utilization": 0.5},
)


def told(change: dict[str, Any]) -> str:
    """The name of a change."""
    return "+".join(f"{name} {'+'.join(value) if isinstance(value, dict) else value}" for name, value in change.items())


@pytest.mark.parametrize("name", MODELS[:4])
@pytest.mark.parametrize("change", CHANGES, ids=told)
def test_a_change_is_the_request_by_itself(name: str, change: dict[str, Any]) -> None:
    """A change that is opened from a plan has the answers of the same request by itself."""
    model, request = load_model(name), Request.of(seq=4096, batch=3, hardware=Hardware(gpu=find_gpu("h100")))
    first = Vllm().open(replace(model), request)
    assert first.budget is not None
    changed = first.changed(**change)
    alone = Vllm().open(replace(model), request.changed(**change))

    assert (changed.budget, changed.dtypes, changed.weights, changed.needed_bytes) == (
        alone.budget,
        alone.dtypes,
        alone.weights,
        alone.needed_bytes,
    )
    assert changed.notes == alone.notes

"""A machine without a GPU: everything lies in its memory, and that decides."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import Plan, fit, plan
from hwcalc.errors import UsageError
from hwcalc.hardware.named import host_named
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import Verdict
from hwcalc.report.emit import emitted
from tests.hwcalc.command import Capture, run

LLAMA = "meta-llama/Llama-3.1-8B"
COMMON: dict[str, Any] = {"engine": "llamacpp", "weights": "q4_k_m", "seq": 8192}


def fit_of(made: Plan) -> FitInfo:
    """The verdict, which every plan here has."""
    assert made.fit is not None
    return made.fit


def test_everything_lies_in_the_memory_of_the_host() -> None:
    """One device has all layers, the input and the output, and the cache of all."""
    made, alone = plan(LLAMA, gpu="cpu-16gb", **COMMON), plan(LLAMA, **COMMON)
    (host,) = made.memory.devices
    assert (host.device, host.layers.text, host.output) == ("host", "0-31", True)
    assert (host.weights, host.cache) == (alone.memory.weights.bytes, alone.cache.total_bytes)
    assert host.total_low <= host.total <= host.total_high
    assert (fit_of(made).gpu_layers, fit_of(made).all_layers) == (None, None)
    # Llama-3.1-8B in Q4_K_M, as its publishers' file says: 4.58 GiB of tensors.
    assert round(host.weights / 2**30, 2) == 4.58


@pytest.mark.parametrize("name", ["cpu", "none", "CPU", "no-gpu"])
def test_the_verdict_is_strict(name: str) -> None:
    """With what is needed at most it fits for certain, and with less than is needed at least it does not."""
    (host,) = plan(LLAMA, gpu="cpu-16gb", **COMMON).memory.devices

    def verdict(size: int) -> Verdict:
        return fit_of(plan(LLAMA, gpu=name, engine_options={"host_memory": str(size)}, **COMMON)).verdict

    assert verdict(host.total_high) is Verdict.FITS
    assert not verdict(host.total_low - 1).fits


def test_a_machine_keeps_what_llama_cpp_leaves_free() -> None:
    """common/fit.cpp without a device: the target is left free of the memory of the system."""
    assert fit_of(plan(LLAMA, gpu="cpu-16gb", **COMMON)).usable_bytes == 15 * 2**30
    asked = {"fit_target": "2048"}
    assert fit_of(plan(LLAMA, gpu="cpu-16gb", engine_options=asked, **COMMON)).usable_bytes == 14 * 2**30


def test_a_context_that_nobody_asked_for_shrinks() -> None:
    """As llama.cpp's --fit does it in the memory of the system."""
    made = plan(LLAMA, gpu="cpu-8gb", engine="llamacpp", weights="q4_k_m")
    assert fit_of(made).verdict is Verdict.FITS
    assert 4096 <= made.request.seq < 131_072
    assert made.request.seq % 256 == 0


def test_the_speed_is_bound_by_the_memory_of_the_host() -> None:
    """Twice the bandwidth is twice the speed, and nothing is said of an accelerator."""

    def made(gbps: str) -> Plan:
        return plan(LLAMA, gpu="cpu-16gb", engine_options={"host_bandwidth": gbps}, **COMMON)

    one, two = made("50"), made("100")
    assert one.speed is not None
    assert two.speed is not None
    assert one.speed.bound_by == "host memory bandwidth"
    assert one.speed.decode_tokens_per_s_bound is not None
    assert two.speed.decode_tokens_per_s_bound == pytest.approx(2 * one.speed.decode_tokens_per_s_bound)
    # 4.58 GiB of weights, less the embedding, and 1 GiB of cache at 50 GB/s.
    assert 8 < one.speed.decode_tokens_per_s_bound < 9
    assert "rate-unknown" not in {note.code for note in one.notes}
    assert not any("are not known" in note.message for note in one.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "llamacpp", "gpu": "cpu"}, "how much memory"),
        ({"engine": "llamacpp", "gpu": "cpu-16gb", "gpus": 2}, "without a GPU"),
        ({"engine": "vllm", "gpu": "cpu-16gb"}, "llama.cpp"),
        ({"engine": "llamacpp", "gpu": "cpu-16gb", "engine_options": {"override_tensor": ".*=CUDA0"}}, "no GPU"),
        ({"gpu": "cpu-16gb"}, "llama.cpp"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], words: str) -> None:
    """With what to type instead."""
    with pytest.raises(UsageError, match=words) as caught:
        plan(LLAMA, **options)
    assert caught.value.hint


def test_the_command_uses_no_device() -> None:
    """llama-server has a word for it, and Ollama a number."""
    assert "-dev none" in emitted(plan(LLAMA, gpu="cpu-16gb", **COMMON), "llamacpp")
    made = plan(LLAMA, gpu="cpu-16gb", **COMMON | {"engine": "ollama"})
    assert "PARAMETER num_gpu 0" in emitted(made, "ollama")


def test_ollama_takes_its_smallest_context() -> None:
    """There is no memory of GPUs (server/routes.go)."""
    assert plan(LLAMA, gpu="cpu-64gb", engine="ollama", weights="q4_k_m").request.seq == 4096


def test_the_first_screen_says_nothing_of_gpus(capsys: Capture) -> None:
    """Neither in the verdict nor in the figures."""
    words = [LLAMA, "--engine", "llamacpp", "--weights", "q4_k_m", "--seq", "8k", "--gpu"]
    for size in ("cpu-16gb", "cpu-6gb"):
        _, out, _ = run(capsys, *words, size)
        assert f"on 1 x {size}" in out
        assert "GPU" not in out


def test_names() -> None:
    """What names no machine without a GPU is left to the accelerators."""
    assert [host_named(name) for name in ("cpu-0gb", "cpus", "l4", "", "cpu-x", "cpu-32tb", "none of these")] == [None] * 7
    named = host_named("cpu 48 GB")
    assert named is not None
    assert (named.id, named.memory_marketing_gb) == ("cpu-48gb", 48)


def test_what_can_i_run() -> None:
    """Each row is what its plan says, in the format that --weights auto chooses."""
    found = fit("qwen3", gpu="cpu-16gb", limit=6)
    assert len(found.models) == 6
    for row in found.models:
        made = plan(row.id, engine="llamacpp", weights="auto", seq=row.seq, gpu="cpu-16gb")
        assert made.request.weights == row.weights
        assert (row.verdict, row.needed_bytes, row.max_seq) == (
            fit_of(made).verdict,
            fit_of(made).needed_bytes,
            fit_of(made).max_seq,
        )
        assert made.speed is not None
        assert row.decode_tokens_per_s_bound == made.speed.decode_tokens_per_s_bound


def test_models_that_nearly_fit_are_planned() -> None:
    """The index knows bounds alone: what lies between them is planned, and nothing is counted twice."""
    found = fit(family="qwen3,gemma-3", gpu="cpu-6gb", limit=0, every=True)
    listed = sum(1 + len(row.also) for row in found.models)
    assert found.considered == listed + found.filtered + found.refused + found.short + found.too_large + found.slow
    for row in found.models[::8]:
        made = plan(row.id, engine="llamacpp", weights="auto", seq=row.seq, gpu="cpu-6gb")
        assert (made.request.weights, fit_of(made).needed_bytes) == (row.weights, row.needed_bytes)

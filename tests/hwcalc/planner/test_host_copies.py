"""Prompts of models of which the host has a part: llama.cpp copies those weights to the card for each batch of tokens."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import plan, speed
from hwcalc.engines.pool import Try
from hwcalc.planner.result import Plan
from hwcalc.planner.speed_result import Expected
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.gpus import find_gpu
from hwcalc.profiles.links import host_link
from hwcalc.units import few_digits
from tests.hwcalc.command import read_plan

MIXTURE: Final = "openai/gpt-oss-120b"
DENSE: Final = "Qwen/Qwen3-8B"
MEASURED: Final = [
    # Batches swept on an RTX 3090 with llama-bench, May 2026 (coder543, r/LocalLLaMA, "Drastically improve prompt processing speed for
    # --n-cpu-moe partially offloaded models"): tokens of a batch, layers whose experts lie on the host, tokens of the prompt and a second.
    *(
        ("rtx-3090", {"n_ubatch": batch, "n_batch": batch, "n_cpu_moe": layers}, tokens, value)
        for batch, layers, tokens, value in (
            ("256", "25", 4096, 240.03),
            ("512", "26", 4096, 380.27),
            ("2048", "25", 4096, 1112.54),
            ("4096", "26", 4096, 1682.47),
            ("8192", "28", 8192, 2090.68),
        )
    ),
    # An RTX 3090 beside an EPYC 7343 with 64 GB, batches of 512, November 2025 (hardware-corner.net, gpt-oss-offloading-moe-layers). It
    # decoded no more than 1.8 tokens a second, so that its memory may have been too small.
    *(
        ("rtx-3090", {"n_cpu_moe": "27"}, tokens, value)
        for tokens, value in ((85, 48.49), (500, 173.6), (1400, 229.07), (5500, 246.18))
    ),
]
"""gpt-oss-120b with experts in host memory."""


def planned(model: str = MIXTURE, seq: int = 4096, gpu: str = "rtx-3090", **options: str) -> Plan:
    """A plan with these options of llama.cpp."""
    weights = None if model == MIXTURE else "q4_k_m"
    return plan(model, engine="llamacpp", gpu=gpu, weights=weights, seq=seq, engine_options=options)


def rate(found: Plan) -> Expected:
    """Tokens of a prompt a second."""
    assert found.speed is not None
    assert found.speed.prefill_tokens_per_s is not None
    return found.speed.prefill_tokens_per_s


def seconds(found: Plan) -> Expected:
    """Seconds of a prompt."""
    assert found.speed is not None
    assert found.speed.prefill_s is not None
    return found.speed.prefill_s


def moved(found: Plan) -> int:
    """Bytes of weights in host memory, of which the embedding is looked up there."""
    devices: list[dict[str, Any]] = found.to_dict()["memory"]["devices"]
    return int(devices[-1]["weights"])


@pytest.mark.parametrize(("gpu", "options", "tokens", "value"), MEASURED)
def test_what_was_measured_lies_in_the_range(gpu: str, options: dict[str, str], tokens: int, value: float) -> None:
    """And nobody measured more than the bound."""
    found = rate(planned(seq=tokens, gpu=gpu, n_gpu_layers="all", **options))
    assert found.low is not None
    assert found.high is not None
    assert found.bound is not None
    assert found.low <= value <= found.high <= found.bound


@pytest.mark.parametrize("gpu", ["rtx-4070", "rtx-3090", "rx-7900-xtx", "rtx-5090"])
@pytest.mark.parametrize(("seq", "batch"), [(512, "512"), (16384, "512"), (16384, "2048"), (5000, "4096")])
def test_no_prompt_is_faster_than_its_link(gpu: str, seq: int, batch: str) -> None:
    """Weights that every token uses cross the link for each batch, but for the last layer of all batches but one: 5 of 36 layers of a dense model.

    PCI Express 4 with 16 lanes carries 31.5 GB/s, and twice that of generation 5.
    """
    link = host_link(find_gpu(gpu))
    assert link is not None
    options = {"n_gpu_layers": "32", "n_ubatch": batch, "n_batch": batch}
    found, whole = planned(DENSE, seq=seq, gpu=gpu, **options), planned(DENSE, seq=seq, gpu=gpu, n_gpu_layers="all")
    least = (moved(found) - moved(whole)) * -(-seq // int(batch)) / (link.gbps * 1e9)
    short, answer = (
        seconds(found),
        speed(DENSE, engine="llamacpp", gpu=gpu, weights="q4_k_m", prompt=seq, output=1, engine_options=options),
    )
    assert short.bound is not None
    assert short.low is not None
    assert least <= short.bound * (1 + 1e-9) <= short.low * (1 + 1e-9)
    assert least <= float(answer.ttft_s.low) * (1 + 1e-9)
    assert found.speed is not None
    assert found.speed.prefill_bound_by in ("host link", "compute")


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_larger_batches_copy_less(model: str) -> None:
    """No end of the time is longer with a larger batch; what lies on the card alone does not tell batches apart by much."""
    options = {"n_gpu_layers": "20"} if model == DENSE else {"n_gpu_layers": "all", "cpu_moe": "true"}
    found = [
        seconds(planned(model, seq=16384, **options, n_ubatch=str(size), n_batch=str(size)))
        for size in (64, 128, 256, 512, 1024, 2048, 4096)
    ]
    for end in ("bound", "low", "expected", "high"):
        times = [getattr(one, end) for one in found]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_a_longer_prompt_takes_longer(model: str) -> None:
    """Also at lengths at which another batch begins, and at which a GPU begins to copy."""
    options = {"n_gpu_layers": "20"} if model == DENSE else {"n_gpu_layers": "all", "cpu_moe": "true"}
    found = [seconds(planned(model, seq=size, **options)) for size in (1, 31, 32, 100, 511, 512, 513, 544, 1024, 1025, 8192)]
    for end in ("bound", "low", "expected", "high"):
        times = [getattr(one, end) for one in found]
        assert times == sorted(times)


def test_a_part_of_the_tokens_is_a_prompt() -> None:
    """A prompt of 1,000 of 16,384 tokens is bound as a prompt of 1,000, and the rest of them is not computed before its first token."""
    whole = planned(seq=1000, n_cpu_moe="30", n_gpu_layers="all")
    part = plan(
        MIXTURE,
        engine="llamacpp",
        gpu="rtx-3090",
        seq=16384,
        prompt=1000,
        engine_options={"n_cpu_moe": "30", "n_gpu_layers": "all"},
    )
    assert seconds(part).bound == pytest.approx(seconds(whole).bound)


def test_few_tokens_are_computed_on_the_host() -> None:
    """llama.cpp copies for 32 tokens and more (GGML_OP_OFFLOAD_MIN_BATCH): with fewer, only the memory of the host counts."""
    for size, differs in (("16", True), ("31", True), ("32", False), ("512", False)):
        slow, fast = (
            seconds(planned(DENSE, n_gpu_layers="10", n_ubatch=size, host_bandwidth=gbps)).bound for gbps in ("60", "600")
        )
        assert (slow != fast) is differs, size


def test_a_slow_memory_is_no_faster_than_its_link() -> None:
    """What the memory of the host does not deliver, no link carries."""
    slow, fast = (seconds(planned(DENSE, n_gpu_layers="10", host_bandwidth=gbps)) for gbps in ("15", "60"))
    assert slow.bound is not None
    assert fast.bound is not None
    assert slow.bound > 1.9 * fast.bound


def test_one_memory_copies_nothing() -> None:
    """A machine whose GPU uses the memory of the host takes as long wherever a layer is counted."""
    whole, partly = (planned(DENSE, gpu="m4-24gb", n_gpu_layers=layers) for layers in ("all", "10"))
    assert seconds(partly).bound == pytest.approx(seconds(whole).bound, rel=0.05)


def batches_offered(found: Plan) -> list[Try]:
    """The lines to try that change nothing but the batch."""
    assert found.fit is not None
    return [one for one in found.fit.suggestions if set(one.settings) == {"engine_options.n_ubatch"}]


@pytest.mark.parametrize("gpu", ["rtx-4070", "rtx-3090", "rx-7900-xtx"])
@pytest.mark.parametrize("engine", ["llamacpp", "ollama"])
def test_larger_batches_that_are_offered_do_what_is_said(engine: str, gpu: str) -> None:
    """The offered line fits for certain, and its prompt takes the time that the line names, at most two thirds of that before."""
    found = plan(MIXTURE, engine=engine, gpu=gpu, ram="64", seq=16384)
    (one,) = batches_offered(found)
    model, options = read_plan(one.command)
    changed = plan(model, **options)
    assert changed.fit is not None
    assert changed.fit.verdict is Verdict.FITS
    before, after = (seconds(each).expected or 0.0 for each in (found, changed))
    assert f"takes {few_digits(after)} s instead of {few_digits(before)}; " in one.effect
    assert changed.places in one.effect
    assert 1.5 * after <= before
    assert batches_offered(changed) == []


def test_other_batches_are_not_offered_for_nothing() -> None:
    """Not where all lies on the GPU, not to who names a batch, and not for a prompt that is one batch with either."""
    whole = plan(MIXTURE, engine="llamacpp", gpu="rtx-pro-6000-ws", seq=16384)
    named = planned(gpu="rtx-4070", seq=16384, n_ubatch="256", host_memory="64GiB")
    short = planned(gpu="rtx-4070", seq=400, host_memory="64GiB")
    assert [batches_offered(found) for found in (whole, named, short)] == [[], [], []]

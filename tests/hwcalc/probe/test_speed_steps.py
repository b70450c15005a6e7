"""``kvplan probe --speed``: a prompt and a decode step of a small model next to the bound of their bytes and operations."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.probe import live_model
from hwcalc.probe.devices import Device
from hwcalc.probe.live_model import NotRun
from hwcalc.probe.run import More
from hwcalc.probe.speed import HERE, SpeedResult, run_speed
from hwcalc.profiles.hardware_file import Gpu

CONFIG: Final = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}  # fmt: skip
SLOW: Final = Gpu(id="slow", name="slow", vendor="", memory_bandwidth_gbps=1.0, tflops_dense={"tf32": 0.001, "bf16": 0.001})
"""A gigabyte and as many operations a second."""
LAYER: Final = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
"""Parameters of a layer: queries and output, keys and values, the feed-forward network, two norms."""
HEAD: Final = 256 * 64


def on_cpu(gpu: Gpu | None = None, **limits: Any) -> SpeedResult:
    """The speed of the small model on this processor."""
    return run_speed(load_model(CONFIG), Device(torch, "cpu"), gpu, **limits)


def test_bounds_by_hand() -> None:
    """A step reads its weights, a row of the embedding and the cache; a prompt of 128 tokens multiplies and attends."""
    found = on_cpu(SLOW)
    prefill, decode = found.steps
    read = 4 * (2 * LAYER + 64 + HEAD + 64) + 4 * 2 * 2 * 32 * 129
    multiplied = 2 * 128 * (2 * LAYER + 64) + 2 * HEAD + 2 * 4 * 64 * (128 * 129 // 2)

    assert (found.reason, found.rates, found.layers, found.model_layers, found.factor) == ("", "slow", 2, 2, 1)
    assert found.weight_bytes >= 4 * (2 * LAYER + 64 + 2 * HEAD)
    assert decode.bound_s == pytest.approx(read / 1e9)
    assert decode.bound_by == "memory bandwidth"
    assert prefill.bound_s == pytest.approx(multiplied / 1e9)
    assert prefill.bound_by == "compute"
    for step in found.steps:
        assert step.bound_s is not None
        assert step.share == step.bound_s / step.seconds > 0


def test_a_processor_is_its_own_measure() -> None:
    """Without a profile the bound goes by what plain kernels reach here; a limit leaves out layers."""
    found = on_cpu(most_bytes=4 * (LAYER + 64 + 2 * HEAD) + 4096)

    assert (found.rates, found.layers) == (HERE, 1)
    assert found.bandwidth_gbps is not None
    assert found.tflops is not None
    assert found.bandwidth_gbps > 0 < found.tflops


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers there is nothing to time, and that is no success."""

    def missing() -> tuple[str, str]:
        raise NotRun("transformers is not installed; type: pip install torch transformers")

    monkeypatch.setattr(live_model, "library", missing)
    found = on_cpu()

    assert found.reason.startswith("transformers is not installed")
    assert found.steps == ()
    more = More(live=None, maximum=None, bandwidth=None, notes=(), speed=found)
    assert not more.agrees
    assert replace(more, speed=replace(found, reason="")).agrees

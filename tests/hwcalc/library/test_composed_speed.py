"""The mean of the expected speed with what aiconfigurator says: a package that is asked by name alone. Here another stands in its place."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from hwcalc import load_model, plan, speed
from hwcalc.errors import UsageError
from hwcalc.library.speed import Speed
from hwcalc.planner import aiconfigurator

LLAMA: Final = load_model("meta-llama/Llama-3.1-8B", offline=True)
LOAD: Final[dict[str, Any]] = {"gpu": "h100-sxm5-80gb", "prompt": 1000, "output": 500, "concurrency": 16}


def on_vllm(**keywords: Any) -> Speed:
    """The speed of Llama 3.1 8B on one H100."""
    return speed(LLAMA, **{"engine": "vllm", **LOAD, **keywords})


class Stand:
    """What the package is asked, and what it says: so many times our times."""

    def __init__(self, prompt_times: float, itl_times: float) -> None:
        ours = on_vllm()
        self.ttft = 1e3 * prompt_times * 1000 / ours.prefill_tokens_per_s.expected
        self.tpot = 1e3 * itl_times * ours.itl_s.expected
        self.given: list[dict[str, Any]] = []
        self.fails = False

    def estimate(self, **given: Any) -> Any:
        """The place of ``cli_estimate``."""
        assert Path(given["model_path"], "config.json").is_file()
        self.given.append(given)
        if self.fails:
            raise RuntimeError("OOM: it does not fit.")
        return SimpleNamespace(ttft=self.ttft, tpot=self.tpot, raw={"tokens/s": 1.0})


def installed(monkeypatch: pytest.MonkeyPatch, stand: Stand) -> None:
    """Let the package be there."""
    api: Any = ModuleType("aiconfigurator.cli.api")
    api.cli_estimate = stand.estimate
    for name in ("aiconfigurator", "aiconfigurator.cli"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "aiconfigurator.cli.api", api)
    monkeypatch.setattr(aiconfigurator, "_version", lambda *_: "0.24.0")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.12.0")


def test_the_mean_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it says four times our times, ours double: the geometric mean. The source names it."""
    stand = Stand(4, 4)
    installed(monkeypatch, stand)
    ours, both = on_vllm(), on_vllm(measured="aiconfigurator")

    assert both.itl_s.expected == pytest.approx(2 * ours.itl_s.expected)
    assert both.prefill_tokens_per_s.expected == pytest.approx(ours.prefill_tokens_per_s.expected / 2)
    assert both.itl_s.bound == ours.itl_s.bound
    assert both.itl_s.source.startswith("mean of step model and aiconfigurator 0.12.0, kernels of vLLM 0.24.0; ")
    assert "aiconfigurator" not in ours.itl_s.source
    loaded, alone = stand.given
    assert (loaded["system_name"], loaded["backend_name"], loaded["tp_size"], loaded["batch_size"]) == ("h100_sxm", "vllm", 1, 16)
    assert (loaded["isl"], loaded["osl"], loaded["kvcache_quant_mode"]) == (1000, 500, "bfloat16")
    assert (alone["mode"], alone["batch_size"]) == ("static_ctx", 1)


def test_decoding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of our time and a token of 1.21 times ours: tokens take 1.1 times as long, and the sum of the terms stays the step."""
    installed(monkeypatch, Stand(1, 1.21))
    ours, both = on_vllm(), on_vllm(measured="aiconfigurator")

    assert both.itl_s.expected == pytest.approx(1.1 * ours.itl_s.expected)
    assert 16 / both.decode_tokens_per_s.expected == pytest.approx(sum(both.step_terms.values()))


def test_no_faster_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of nothing at all takes no term below the range."""
    installed(monkeypatch, Stand(1e-9, 1e-9))
    both = on_vllm(measured="aiconfigurator")

    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s"):
        assert getattr(both, name).expected <= getattr(both, name).bound


def test_no_answer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no tables of, or says does not fit, is expected without it."""
    stand = Stand(4, 4)
    installed(monkeypatch, stand)
    stand.fails = True
    for keywords in ({}, {"engine": "llamacpp", "gpu": "rtx-4090", "weights": "q4_k_m"}, {"weights": "fp32"}):
        found = on_vllm(**keywords, measured="aiconfigurator")
        assert [note.code for note in found.notes if note.code == "not-composed"]
        assert found.itl_s == on_vllm(**keywords).itl_s


def test_the_command_takes_the_mean_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of the same load expects what the call does. Without the lengths of prompt and answer there is nothing to ask."""
    installed(monkeypatch, Stand(4, 4))
    keywords: dict[str, Any] = {"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 1500, "batch": 16, "measured": "aiconfigurator"}
    found = plan(LLAMA, prompt=1000, **keywords).speed

    assert found is not None
    assert found.itl_s is not None
    assert found.itl_s.expected == pytest.approx(on_vllm(measured="aiconfigurator").itl_s.expected)
    assert (found.expected_source or "").startswith("mean of step model and aiconfigurator 0.12.0")
    with pytest.raises(UsageError, match="needs the tokens of the prompt"):
        plan(LLAMA, **keywords)


def test_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, its name, and one load."""
    monkeypatch.setitem(sys.modules, "aiconfigurator", None)
    with pytest.raises(UsageError, match="needs the package aiconfigurator") as missing:
        on_vllm(measured="aiconfigurator")
    assert missing.value.hint == "Install it: pip install 'hwcalc[aiconfigurator]'"
    with pytest.raises(UsageError, match="measured is 'tables'"):
        on_vllm(measured="tables")
    with pytest.raises(UsageError, match="there are arrays"):
        on_vllm(measured="aiconfigurator", concurrency=np.array([1, 8]))

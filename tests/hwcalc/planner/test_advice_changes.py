"""Advice: what moves to the host, what a release runs, which limits are taken back, and what another accelerator holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.gpus import find_gpu, list_gpus
from tests.hwcalc.command import QWEN, read_plan
from tests.hwcalc.planner.test_advice import LLAMA_70B, advice, fit_of, options


def test_one_memory_for_processor_and_accelerator() -> None:
    """Boards and machines with one memory have it, and so has an APU in a server; a Grace host has memory of its own."""
    shared = ("dgx-spark-gb10", "jetson-agx-orin-64gb", "mi300a", "apple-m4-pro", "strix-halo-128gb")
    assert all(find_gpu(name).shares_host_memory for name in shared)
    assert not any(find_gpu(name).shares_host_memory for name in ("gh200-96gb", "l4", "mi300x", "rtx-4090-laptop"))
    for name in list_gpus():
        text = Path(built_in("gpus", f"{name}.yaml")).read_text(encoding="utf-8")
        assert ("\nhost_memory: " in text) is ("\n  memory: " in text)


@pytest.mark.parametrize("gpu", ["dgx-spark", "jetson-agx-orin-64gb", "mi300a"])
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_nothing_moves_to_a_host_that_has_the_same_memory(gpu: str, engine: str) -> None:
    """Weights and caches that lie in the one memory take it wherever they are counted."""
    for seq in ("32k", "100k"):
        assert not any("host memory" in one.effect for one in advice(LLAMA_70B, gpu=gpu, engine=engine, seq=seq, batch=4))


def test_the_host_takes_what_a_host_has() -> None:
    """It is offered 10 GiB beside 24, and not hundreds of them."""
    assert any("host memory" in one.effect for one in advice("Qwen/Qwen3-14B", gpu="l4", engine="vllm", seq=4096))
    assert not any("host memory" in one.effect for one in advice("Qwen/Qwen3-235B-A22B", gpu="l4", engine="vllm", seq=4096))


def test_a_larger_gpu_is_planned_as_its_line_will_be() -> None:
    """Where more or fewer of the larger one make a node, so many GPUs are another layout than of the planned one."""
    model, asked = "Qwen/Qwen3-235B-A22B", {"seq": "128k", "batch": 64, "gpu": "mi300a", "gpus": 16}
    line = next(one for one in advice(model, **asked) if re.match(r"16 x (?!mi300a)", one.effect))
    held = re.search(r"holds ([0-9,]+) instead", line.effect)
    assert held is not None
    assert find_gpu(options(line.command)["--gpu"]).node != find_gpu("mi300a").node
    named, given = read_plan(line.command)
    assert fit_of(named, **given).max_batch == int(held[1].replace(",", ""))


@pytest.mark.parametrize(
    ("version", "gpu", "few"),
    [
        ("0.6.0", "rtx-4090", "awq"),
        ("0.7.3", "rtx-4090", "awq"),
        ("0.9.2", "rtx-5090", "nvfp4"),
        ("0.33", "rtx-5090", "nvfp4"),
        ("0.33", "rtx-4090", "awq"),
        ("0.19", "v100-sxm2-32gb", "gptq"),
    ],
)
def test_checkpoints_that_the_release_reads(version: str, gpu: str, few: str) -> None:
    """VLLM has a class for NVFP4 since 0.8 (layers/quantization/modelopt.py); AWQ needs compute capability 7.5, GPTQ 6.0."""
    found = [one.effect for one in advice("Qwen/Qwen2.5-32B", engine=f"vllm@{version}", gpu=gpu, seq=4096)]
    assert any(f"a checkpoint in {few}" in effect for effect in found), found
    assert not any("a checkpoint in nvfp4" in effect for effect in found) or few == "nvfp4"


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("openai/gpt-oss-120b", {"gpu": "h100", "gpus": 2, "seq": "64k", "batch": 40}),
        ("meta-llama/Llama-3.2-1B", {"gpu": "h100", "seq": "128k", "batch": 30}),
        ("google/gemma-3-12b-it", {"gpu": "h100", "seq": "64k", "batch": 8}),
    ],
)
def test_no_cache_is_advised_that_vllm_refuses(model: str, asked: dict[str, Any]) -> None:
    """FlashInfer alone keeps nvfp4: on Hopper without sinks, without heads of 64, and never for Gemma 3's images (vLLM 0.33)."""
    found = [one.effect for one in advice(model, engine="vllm@0.33", **asked)]
    assert any("fp8 cache" in effect for effect in found)
    assert not any("nvfp4 cache" in effect for effect in found)


def test_a_size_of_the_cache_is_taken_back() -> None:
    """Alone where the GPU has room for the plan without it, and else together with what gives it room."""
    asked: dict[str, Any] = {"engine": "vllm", "kv_memory": "2GiB", "seq": "32k"}
    assert advice(QWEN, gpu="a100-sxm4-40gb", **asked)[0].effect.startswith("without --kv-memory; up to ")
    first = advice(QWEN, gpu="l4", **asked)[0]
    assert first.effect.startswith("without --kv-memory, fp8 weights; up to ")
    assert "--kv-memory" not in first.command
    assert fit_of(QWEN, gpu="l4", engine="vllm", seq="32k").verdict != Verdict.FITS


def test_a_share_is_taken_back_with_another_change() -> None:
    """Neither the usual margin nor eight bits alone give this plan its room on one GPU."""
    first = advice("Qwen/Qwen3-32B", gpu="h100", seq="32k", batch=6, margin=0.4)[0]
    assert first.effect.startswith("the default of --margin, fp8 cache, fp8 weights; ")
    assert options(first.command).get("--margin") is None


def test_nothing_is_added_that_gains_nothing() -> None:
    """The server's limit is 256 sequences, with weights of any format."""
    found = advice("state-spaces/mamba-2.8b-hf", engine="vllm", gpu="t4", batch=1000)
    fewer = [one.effect.rpartition("; ")[0] for one in found if " at once" in one.effect]
    assert fewer == ["256 at once instead of 1,000"]


@pytest.mark.parametrize(("gpu", "model"), [("m3-pro-18gb", "openai/gpt-oss-20b"), ("rtx-4070", "openai/gpt-oss-20b")])
def test_no_other_machine_is_slower_than_a_plan_that_runs(gpu: str, model: str) -> None:
    """With experts in host memory it decodes 35 tokens/s on an M3 Pro; an M3 with more memory would have 24."""
    options: dict[str, Any] = {"engine": "llamacpp", "gpu": gpu, "seq": "16k"}
    made = plan(model, **options)
    assert made.fit is not None
    assert made.fit.fits
    others = [one.settings["gpu"] for one in made.fit.suggestions if "gpu" in one.settings]
    rates = [plan(model, **{**options, "gpu": other}).speed for other in others]
    own = made.speed
    assert own is not None
    assert own.tokens_per_s_each is not None
    for rate in rates:
        assert rate is not None
        assert rate.tokens_per_s_each is not None
        assert (rate.tokens_per_s_each.expected or 0) >= (own.tokens_per_s_each.expected or 0)

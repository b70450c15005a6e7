"""What a log says of itself: its model, its accelerator, the format of its weights and of its cache; and what it does not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc.errors import LogError
from hwcalc.reconcile import reconcile
from hwcalc.reconcile.dialects.vllm import VllmLog
from tests.hwcalc.command import Capture, run
from tests.hwcalc.reconcile.logs import figures


def start(model: str, more: str = "", version: str = "0.19.0") -> str:
    """The line of a configuration."""
    config = f"model='{model}', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, kv_cache_dtype=auto"
    return f"(EngineCore pid=2) INFO [core.py:1] Initializing a V1 LLM engine (v{version}) with config: {config}{more}\n"


POOL = (
    "INFO [gpu_model_runner.py:1] Model loading took 15.27 GiB memory and 3 seconds\n"
    "INFO [gpu_worker.py:1] Available KV cache memory: 37.81 GiB\n"
    "INFO [kv_cache_utils.py:1] GPU KV cache size: 275,328 tokens\n"
)


@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/home/someone/models/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/home/someone/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/aa8e72537993", "Qwen/Qwen3-8B"),
        ("/models/qwen3-8b-w8a8", "Qwen/Qwen3-8B"),
        ("someone/Qwen3-8B-AWQ-4bit", "Qwen/Qwen3-8B"),
    ],
)
def test_the_model_of_a_log(named: str, model: str) -> None:
    """An id, a folder or a cache with its name, a copy in another format of a model of the catalog."""
    found = reconcile(None, start(named) + POOL, offline=True)
    assert found.model == model
    assert figures(found)["tokens"].within


@pytest.mark.parametrize("named", ["/models/target", "/kaggle/input/qwen-3/transformers/8b/1", ""])
def test_a_log_of_no_known_model(named: str) -> None:
    """The error says what to type."""
    with pytest.raises(LogError) as caught:
        reconcile(None, start(named) + POOL, offline=True)
    assert "kvplan reconcile MODEL --log FILE" in str(caught.value.hint)


def test_a_log_alone_on_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    """``kvplan reconcile LOG``; a description of a model is none."""
    path = tmp_path / "server.log"
    path.write_text(start("Qwen/Qwen3-8B") + POOL, encoding="utf-8")
    status, out, _ = run(capsys, "reconcile", str(path), "--offline")
    assert (status, "agrees" in out) == (0, True)
    status, _, error = run(capsys, "reconcile", str(tmp_path / "config.json"), "--offline")
    assert (status, "kvplan reconcile FILE" in error) == (2, True)


def test_the_accelerator_of_a_log() -> None:
    """The file name of a tuned kernel has the driver's name of it."""
    line = "INFO [fused_moe.py:1] Using default MoE config. Config file not found at configs/E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json\n"
    found = reconcile("Qwen/Qwen3-8B", start("Qwen/Qwen3-8B") + line + POOL)
    assert ("gpu", "h100-sxm5-80gb", "log") in {(one.name, one.value, one.source) for one in found.inputs}
    assert "available" in figures(found)


def test_a_figure_that_rests_on_an_assumed_gpu() -> None:
    """The batch of another GPU gives windows another size: without the GPU concurrency is not judged, with it it is exact."""
    text = start("openai/gpt-oss-20b", version="0.13.0").replace("32768", "8192") + (
        "INFO [gpu_worker.py:1] Available KV cache memory: 12.94 GiB\n"
        "INFO [kv_cache_utils.py:1] GPU KV cache size: 282,624 tokens\n"
        "INFO [kv_cache_utils.py:2] Maximum concurrency for 8,192 tokens per request: 54.44x\n"
    )
    without = reconcile("openai/gpt-oss-20b", text)
    row = figures(without)["concurrency"]
    assert (row.within, row.needs) == (None, "--gpu")
    assert without.within
    row = figures(reconcile("openai/gpt-oss-20b", text, gpu="gb10"))["concurrency"]
    assert (row.within, row.needs) == (True, None)


def test_a_cache_in_the_format_of_the_files() -> None:
    """Files in NVFP4 may state fp8 for the cache: blocks of 1,600 tokens, and not of 800, tell."""
    text = (
        start("unsloth/Qwen3.8-27B-NVFP4", ", quantization=compressed-tensors, enable_prefix_caching=False", "0.25.1").replace(
            "32768", "262144"
        )
        + "INFO [interface.py:1] Setting attention block size to 1600 tokens to ensure that attention page size is >= mamba page size.\n"
        "INFO [vllm.py:1] non-default: speculative_config={'method': 'mtp', 'num_speculative_tokens': 3}\n"
    )
    found = reconcile("Qwen/Qwen3.8-27B", text, engine_options={"speculative": "mtp:3"})
    assert figures(found)["attention block"].within
    assert "cache-of-files" in {note.code for note in found.notes}


def test_blocks_of_a_profile_are_no_override() -> None:
    """Of vLLM, which profiles CUDA graphs with few blocks; a number that replaces another is the user's."""
    for replaced, stated in (("0", None), ("35200", 512)):
        parser = VllmLog()
        parser.feed(
            1,
            f"(Worker_TP2 pid=8) INFO [kv_cache_utils.py:829] Overriding num_gpu_blocks={replaced} with num_gpu_blocks_override=512",
        )
        assert parser.facts.number("num_gpu_blocks_override") == stated


def test_a_line_for_each_rank() -> None:
    """The least tokens count, until the next start states its memory."""
    parser = VllmLog()
    for number, line in enumerate(("3,650,960 tokens", "3,644,816 tokens", "3,675,536 tokens")):
        parser.feed(number, f"INFO [kv_cache_utils.py:833] GPU KV cache size: {line}")
    assert parser.facts.number("tokens") == 3_644_816
    parser.feed(4, "INFO [gpu_worker.py:1] Available KV cache memory: 55.62 GiB")
    parser.feed(5, "INFO [kv_cache_utils.py:833] GPU KV cache size: 4,000,000 tokens")
    assert parser.facts.number("tokens") == 4_000_000


def test_a_log_in_a_notebook() -> None:
    """A document in JSON has its line ends written out."""
    notebook = json.dumps({"cells": [{"outputs": [{"text": start("Qwen/Qwen3-8B") + POOL}]}]})
    assert figures(reconcile(None, notebook, offline=True))["tokens"].within


def test_a_build_of_a_clone_without_tags() -> None:
    """It calls itself 0.1.dev1, which is no release: the newest rules are taken."""
    found = reconcile(None, start("Qwen/Qwen3-8B", version="0.1.dev1+gda1daf40b") + POOL)
    assert found.engine_version == "0.33"
    assert "version-unknown" in {note.code for note in found.notes}


def test_a_model_that_embeds() -> None:
    """It has neither head nor sampler, which a plan counts: only its pool is compared."""
    found = reconcile(
        "Qwen/Qwen3-8B", start("Qwen/Qwen3-Embedding-8B", ", pooler_config=PoolerConfig(pooling_type='LAST')") + POOL
    )
    assert "weights" not in figures(found)
    assert "other-task" in {note.code for note in found.notes}

"""Formats of weights: what a release of vLLM reads, and what it makes of the published weights. Plan and command line agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError, UsageError
from tests.hwcalc.command import QWEN, Capture, run
from tests.hwcalc.sources.gguf.given import gguf_bytes

ON_ONE: dict[str, Any] = {"gpu": "h100", "seq": 8192}


@pytest.mark.parametrize(
    ("release", "weights", "says"),
    [
        ("0.33", "q4_k_m", "GGUF left it with 0.24"),
        ("0.24", "q8_0", "GGUF left it with 0.24"),
        ("0.28", "bnb4", "bitsandbytes left it with 0.28"),
        ("0.23", "exl2 3.5bpw", "a format of ExLlamaV2"),
        ("0.33", "exl3 4bpw", "a format of ExLlamaV3"),
        ("0.33", "mlx-4bit", "a format of MLX"),
        ("0.9", "mxfp4", "vllm@0.10.1 or newer"),
    ],
)
def test_a_release_refuses_what_it_does_not_read(release: str, weights: str, says: str) -> None:
    """``QuantizationMethods`` of the release has no such method."""
    with pytest.raises(UnsupportedError) as caught:
        plan("meta-llama/Llama-3.1-8B", weights=weights, engine=f"vllm@{release}", **ON_ONE)

    assert says in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("engine", "weights", "owner"),
    [
        ("sglang", "mlx_4bit", "MLX"),
        ("transformers", "exl2 4bpw", "ExLlamaV2"),
        ("lmdeploy", "q4_k_m", "GGUF files"),
        ("lmdeploy", "bnb4", "bitsandbytes"),
        ("tensorrt-llm", "q8_0", "GGUF files"),
        ("tensorrt-llm", "bnb8", "bitsandbytes"),
        ("mlx", "exl3 4bpw", "ExLlamaV3"),
        ("mlx", "iq4_xs", "GGUF files"),
    ],
)
def test_other_engines_refuse_formats_of_other_programs(engine: str, weights: str, owner: str) -> None:
    """LMDeploy's ``QuantizationConfig``, the ``QuantAlgo`` of TensorRT-LLM and ``load_model`` of mlx-lm know none of them."""
    with pytest.raises(UnsupportedError, match=f"does not read weights in .*, a format of {owner}"):
        plan(QWEN, weights=weights, engine=engine, seq=8192)


@pytest.mark.parametrize(
    ("engine", "weights"), [("sglang", "q4_k_m"), ("transformers", "bnb4"), ("mlx", "awq"), ("lmdeploy", "awq")]
)
def test_other_engines_read_these(engine: str, weights: str) -> None:
    """A plan in them is made: by the file of GGUF, by bitsandbytes, and AWQ's own layout."""
    assert plan(QWEN, weights=weights, engine=engine, seq=8192).memory.weights.format == weights


@pytest.mark.parametrize(("release", "weights"), [("0.23", "q4_k_m"), ("0.27", "bnb8"), ("0.33", "awq"), ("0.33", "nvfp4")])
def test_a_checkpoint_that_is_needed_is_told(capsys: Capture, release: str, weights: str) -> None:
    """The plan says so in a note, the command line refuses."""
    words = (QWEN, "--seq", "8k", "--gpu", "h100", "--weights", weights, "--engine", f"vllm@{release}")
    planned = plan(QWEN, weights=weights, engine=f"vllm@{release}", **ON_ONE)
    status, _, err = run(capsys, *words, "--emit", "vllm")

    assert [note.code for note in planned.notes if note.code == "needs-checkpoint"] == ["needs-checkpoint"]
    assert f"as if a checkpoint in {weights} were loaded" in run(capsys, *words)[1]
    assert status == 2
    assert f"does not make {weights} weights" in err


@pytest.mark.parametrize(
    ("release", "weights", "flag"),
    [
        ("0.6.6", "fp8", "--quantization fp8"),
        ("0.33", "bf16", "--dtype bfloat16"),
        ("0.20", "int8", "--quantization int8_per_channel_weight_only"),
        ("0.27", "bnb4", "--quantization bitsandbytes"),
        ("0.33", "mxfp8", "--quantization mxfp8"),
    ],
)
def test_what_is_made_of_the_published_weights(capsys: Capture, release: str, weights: str, flag: str) -> None:
    """No note, and the flag in the command line."""
    model = "meta-llama/Llama-3.1-8B"
    words = (model, "--seq", "8k", "--gpu", "h100", "--weights", weights, "--engine", f"vllm@{release}")
    planned = plan(model, weights=weights, engine=f"vllm@{release}", **ON_ONE)

    assert all(note.code != "needs-checkpoint" for note in planned.notes)
    assert flag in run(capsys, *words, "--emit", "vllm")[1]


def test_a_model_that_is_published_so_needs_no_other() -> None:
    """The plan is of the checkpoint itself."""
    planned = plan("openai/gpt-oss-20b", weights="mxfp4", engine="vllm", **ON_ONE)

    assert all(note.code != "needs-checkpoint" for note in planned.notes)


def test_gguf_files_have_left_vllm(tmp_path: Path) -> None:
    """As with ``--weights q4_k_m``, whose error this is: the loader is gone since 0.24."""
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_bytes())
    with pytest.raises(UnsupportedError, match="does not read GGUF files"):
        plan(path, engine="vllm", seq=128)
    assert plan(path, engine="vllm@0.23", seq=128).memory.weights.bytes


def test_the_cache_has_the_dtype_that_makes_the_weights() -> None:
    """``--dtype float32`` makes 32-bit weights, and ``cache_dtype="auto"`` is the model's dtype: 8 heads x 128 x 2 x 36 layers x 4 bytes a token."""
    assert plan(QWEN, weights="fp32", engine="vllm", **ON_ONE).cache.bytes_per_token == 8 * 128 * 2 * 36 * 4
    with pytest.raises(UsageError, match="only the dtype that the model runs in, fp16"):
        plan(QWEN, weights="fp16", dtype="bf16", engine="vllm", **ON_ONE)
    with pytest.raises(UsageError, match="vLLM makes bf16 weights by running the model in bfloat16"):
        plan(QWEN, weights="bf16", engine_options={"dtype": "float32"}, engine="vllm", **ON_ONE)

"""``--dtype auto`` for every engine and every command that takes it, and fp8 of models whose fp8 format is not one byte each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import check, compare, plan, sweep
from hwcalc.errors import UnknownNameError
from tests.hwcalc.command import QWEN, Capture, run

ENGINES: Final = ("reference", "transformers", "vllm")
LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "torch_dtype": "float16",
}
V32: Final = "deepseek-ai/DeepSeek-V3.2"
V3: Final = "deepseek-ai/DeepSeek-V3"
LAYERS: Final = 61


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spelling", ["auto", "AUTO"])
def test_auto_is_the_default_of_each_engine(engine: str, spelling: str) -> None:
    """The same bytes as without ``dtype``, the dtype that it became in ``kv_dtype``, and a note that says so."""
    default = plan(LLAMA, seq=1000, engine=engine)
    auto = plan(LLAMA, seq=1000, engine=engine, dtype=spelling)

    assert auto.cache == default.cache
    assert auto.request.kv_dtype == default.request.kv_dtype == "fp16"
    said = next(note.message for note in auto.notes if note.code == "default-dtype")
    assert said.startswith("KV dtype auto: ")
    assert "fp16" in said


def test_auto_of_a_config_without_dtype() -> None:
    """A config that names no dtype: bf16, and the note says that it is assumed."""
    bare = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    notes = plan(bare, seq=10, dtype="auto").notes

    assert [note.message for note in notes if note.code == "default-dtype"] == [
        "KV dtype auto: bf16, assumed, since the config names none that a cache has. Set it with --dtype."
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_auto_in_every_command(engine: str, tmp_path: Path, capsys: Capture) -> None:
    """Command line, check files, comparisons and sweeps."""
    file = tmp_path / "checks.yaml"
    file.write_text(
        f"schema_version: 1\nchecks:\n  - {{model: {QWEN}, engine: {engine}, seq: 1k, dtype: auto, max_cache: 1GiB}}\n",
        encoding="utf-8",
    )
    status, out, _ = run(capsys, QWEN, "--engine", engine, "--seq", "1k", "--dtype", "auto")

    assert status == 0
    assert "KV dtype auto: " in out
    assert check(str(file)).summary.exit_code == 0
    variants = compare(QWEN, engine=engine, seq="1k", dtype="auto,bf16").variants
    assert [variant.cache_total_bytes for variant in variants] == [1024 * 36 * 8 * 256 * 2] * 2
    assert [point.dtype for point in sweep(QWEN, seq="1k", engine=engine, dtype="auto,bf16")] == ["bf16", "bf16"]


def test_auto_is_not_half_of_a_pair() -> None:
    """``auto:fp8`` names no dtype; the message lists ``auto`` first among the known ones."""
    with pytest.raises(UnknownNameError) as raised:
        plan(LLAMA, seq=10, dtype="auto:fp8")

    assert (raised.value.hint or "").startswith("Known: auto, fp32, ")


def test_fp8_of_sparse_latent_attention_is_its_own_format() -> None:
    """656 bytes per token and layer: 512 in fp8, 4 scales of fp32, 64 x 2 for the rotary key; the indexer's 128 + 4 besides."""
    planned = plan(V32, seq=1000, dtype="fp8")
    rows = {tensor.name: tensor.bytes for tensor in planned.cache.tensors}

    assert planned.request.kv_dtype == "fp8_ds_mla"
    assert 512 + 4 * 4 + 64 * 2 == 656
    assert planned.cache.total_bytes == 1000 * LAYERS * (656 + 128 + 4)
    assert sum(size for name, size in rows.items() if "index" not in name) == 1000 * LAYERS * 656
    assert planned.cache == plan(V32, seq=1000, dtype="fp8_ds_mla").cache
    assert [note.message for note in planned.notes if note.code == "own-fp8"] == [
        (
            "KV dtype fp8: this model's own format, fp8_ds_mla, which keeps its rotary keys in bf16 and a scale for each 128 numbers. "
            "For one byte each: --dtype fp8_e4m3."
        )
    ]


def test_plain_fp8_says_that_it_is_not_the_models_own() -> None:
    """One byte each, 576 per token and layer, on request; a note names the model's own format."""
    planned = plan(V32, seq=1000, dtype="fp8_e4m3")

    assert planned.cache.total_bytes == 1000 * LAYERS * (512 + 64 + 128 + 4)
    assert [note.message for note in planned.notes if note.code == "own-fp8"] == [
        "KV dtype fp8_e4m3: one byte each. This model's own fp8 format is fp8_ds_mla: --dtype fp8."
    ]


def test_fp8_of_dense_latent_attention_stays() -> None:
    """DeepSeek-V3 has no indexer: vLLM keeps its 576 numbers in one byte each, and so do the formulas."""
    planned = plan(V3, seq=1000, dtype="fp8")

    assert planned.cache.total_bytes == 1000 * LAYERS * 576
    assert not [note for note in planned.notes if note.code == "own-fp8"]


@pytest.mark.parametrize("dtype", ["fp8", "fp8_ds_mla"])
def test_a_packed_layout_on_a_gpu(dtype: str) -> None:
    """The bound on speed has no keys to ask; it takes the latents."""
    planned = plan(V32, seq=1000, dtype=dtype, gpu="h200-sxm-141gb", tp=8)

    assert planned.fit is not None
    assert planned.speed is not None

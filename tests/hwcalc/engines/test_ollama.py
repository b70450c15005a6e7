"""Ollama as an engine: its defaults, its names, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from tests.hwcalc.command import Capture, run
from tests.hwcalc.sources.gguf.given import gguf_bytes
from tests.hwcalc.sources.gguf.test_ollama import put

MIB = 2**20
LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.context_length": 131_072,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14_336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.vocab_size": 128_256,
}
GEMMA: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 12,
    "gemma3.context_length": 131_072,
    "gemma3.embedding_length": 2560,
    "gemma3.feed_forward_length": 10_240,
    "gemma3.attention.head_count": 8,
    "gemma3.attention.head_count_kv": 4,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.attention.sliding_window": 1024,
    "gemma3.vocab_size": 262_144,
}


@pytest.mark.parametrize(("gpu", "tokens"), [(None, 4096), ("rtx-4060-ti", 4096), ("rtx-4090", 32_768), ("h100", 131_072)])
def test_the_context_that_ollama_takes(gpu: str | None, tokens: int) -> None:
    """By the memory of all GPUs, and not more than the model was trained for; a given one counts."""
    assert plan(LLAMA, engine="ollama", gpu=gpu).request.seq == tokens
    assert plan(LLAMA, engine="ollama", gpu=gpu, seq=8192).request.seq == 8192


def test_two_cards_are_one_size() -> None:
    """Twice 12 GiB is the second tier."""
    assert plan(LLAMA, engine="ollama", gpu="rtx-3060").request.seq == 4096
    assert plan(LLAMA, engine="ollama", gpu="rtx-3060", gpus=2, pp=2).request.seq == 32_768


def test_the_bytes_are_llama_cpps() -> None:
    """32 layers x 2 x 1,024 numbers of 16 bits x 8,192 tokens, for each of two slots; a longer context than trained is cut."""
    cache = plan(LLAMA, engine="ollama", seq=8192, batch=2).cache

    assert cache.total_bytes == 2 * 1024 * MIB
    assert (
        plan(LLAMA, engine="ollama", seq=200_000).cache.total_bytes == plan(LLAMA, engine="ollama", seq=131_072).cache.total_bytes
    )


def test_the_batch_sizes_windows() -> None:
    """-ub 1024 above 4,096 tokens: a window of 1,024 has 2,048 cells in 10 of 12 layers, of 2 x 4 x 256 numbers of 16 bits."""
    row = 2 * 4 * 256 * 2
    told = {tokens: plan(GEMMA, engine="ollama", seq=tokens).cache.total_bytes for tokens in (4096, 8192)}

    assert told == {4096: row * (2 * 4096 + 10 * 1536), 8192: row * (2 * 8192 + 10 * 2048)}
    assert plan(GEMMA, engine="ollama", seq=8192, engine_options={"num_batch": 512}).cache.total_bytes == row * (
        2 * 8192 + 10 * 1536
    )


def test_the_batch_of_embeddings() -> None:
    """``WithDefaultEmbeddingNumBatch``: 2,048 tokens, or as many as a slot has."""
    embedding = {key.replace("gemma3", "gemma-embedding"): value for key, value in GEMMA.items()}
    model = load_model(embedding | {"general.architecture": "gemma-embedding"})

    told: list[Any] = [open_request(model, engine="ollama", seq=tokens) for tokens in (8192, 512)]
    assert [one.settings.n_ubatch for one in told] == [2048, 512]


def test_ollamas_own_names() -> None:
    """Each stands for llama.cpp's, which are taken too; the option of llama.cpp is the same engine."""
    options = {"num_ctx": 8192, "num_parallel": 2, "num_gpu": 20, "kv_cache_type": "q8_0", "flash_attention": 1, "num_batch": 256}
    one = plan(LLAMA, engine="ollama", engine_options=options)

    assert (one.request.seq, one.request.batch, one.request.kv_dtype) == (8192, 2, "q8_0")
    assert one.request.options == {
        "n_gpu_layers": "20", "type_k": "q8_0", "type_v": "q8_0", "flash_attn": "1", "n_batch": "256", "n_ubatch": "256",
    }  # fmt: skip
    assert one.cache.total_bytes == plan(LLAMA, engine="ollama", seq=8192, batch=2, dtype="q8_0").cache.total_bytes
    other = plan(LLAMA, engine="llamacpp", engine_options={"ollama": True})
    assert (other.request.engine, other.request.seq) == ("ollama", 4096)


def test_what_one_plan_keeps_the_next_has() -> None:
    """Changing a request does not lose Ollama's defaults."""
    opened = open_request(load_model(LLAMA), engine="ollama", engine_options={"num_ctx": "8192"})

    assert opened.changed(seq=4096).tokens == 4096
    assert opened.changed(options={"n_ubatch": "256"}).setup.options == {"n_ubatch": "256"}


def test_one_slot_for_some(capsys: Capture) -> None:
    """``qwen35`` and others are served one after another."""
    hybrid = {key.replace("llama", "qwen3vl"): value for key, value in LLAMA.items()} | {"general.architecture": "qwen3vl"}

    assert plan(hybrid, engine="ollama", seq=4096).request.batch == 1
    with pytest.raises(UnsupportedError, match="one slot"):
        plan(hybrid, engine="ollama", seq=4096, batch=2)


def test_what_is_refused() -> None:
    """Two formats, and releases that ran models in another way."""
    with pytest.raises(UnsupportedError, match="one format"):
        plan(LLAMA, engine="ollama", dtype="q8_0:f16")
    with pytest.raises(UnknownNameError, match="no rules"):
        plan(LLAMA, engine="ollama@0.12")
    assert plan(LLAMA, engine="ollama@0.31.2").request.engine_version == "0.31"


def test_the_modelfile_of_a_plan(capsys: Capture, tmp_path: Path) -> None:
    """A file with what to type as comments; in JSON the parts."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    words = [str(path), "--engine", "ollama", "--seq", "16k", "--dtype", "q8_0", "--emit", "ollama"]
    _, out, _ = run(capsys, *words)
    told = json.loads(run(capsys, *words, "--json")[1])

    assert out.splitlines()[0] == "# For the server: OLLAMA_KV_CACHE_TYPE=q8_0"
    assert "PARAMETER num_ctx 16384" in out.splitlines()
    assert told["environment"] == ["OLLAMA_KV_CACHE_TYPE=q8_0"]
    assert told["file"].startswith("FROM ")
    assert shlex.split(told["command"])[:2] == ["ollama", "create"]
    assert run(capsys, *words[:-1], "llamacpp")[0] == 2


# --- its store, and commands for files --------------------------------------------------------------------------------


def test_a_model_of_the_store(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned as Ollama runs it, with the model's own parameters; both commands name it."""
    store = tmp_path / "models"
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    put(store, "registry.ollama.ai/library/tiny/1b", params=json.dumps({"num_ctx": 2048, "num_batch": 128}).encode())
    one = plan("ollama:tiny:1b")

    assert (one.request.engine, one.request.seq, one.request.options) == ("ollama", 2048, {"n_batch": "128", "n_ubatch": "128"})
    assert plan("ollama:tiny:1b", seq=1024, engine_options={"num_batch": 256}).request.options["n_ubatch"] == "256"
    assert run(capsys, "ollama:tiny:1b", "--emit", "ollama")[1].splitlines()[:3] == [
        "# ollama create tiny-1b-2k -f Modelfile",
        "# ollama run tiny-1b-2k",
        "FROM tiny:1b",
    ]
    words = shlex.split(run(capsys, "ollama:tiny:1b", "--engine", "llamacpp", "--seq", "1k", "--emit", "llamacpp")[1])
    assert words[:2] == ["llama-server", "-m"]
    assert Path(words[2]).is_file()


@pytest.mark.parametrize(
    ("words", "first", "file"),
    [
        ([], "-m ./tiny-Q4_K_M.gguf", "./tiny-Q4_K_M.gguf"),
        (["--weights", "q8_0"], "-m ./tiny-Q8_0.gguf", "./tiny-Q8_0.gguf"),
    ],
)
def test_a_file_here(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], first: str, file: str
) -> None:
    """Its path, or in another format the file that would have to be made; a remark says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-Q4_K_M.gguf").write_bytes(gguf_bytes())
    line = ["tiny-Q4_K_M.gguf", "--seq", "1k", *words]
    _, out, err = run(capsys, *line, "--emit", "llamacpp")

    assert out == f"llama-server {first} -c 1024 -np 1\n"
    made = "llama-quantize --allow-requantize ./tiny-Q4_K_M.gguf ./tiny-Q8_0.gguf Q8_0 makes the file."
    assert (made in " ".join(err.split())) is bool(words)
    assert f"FROM {file}" in run(capsys, *line, "--engine", "ollama", "--emit", "ollama")[1]
    shown = run(capsys, *line, "--gpu", "rtx-3060")[1]
    assert f"start    llama-server {first}" in shown


def test_the_engine_of_a_file(capsys: Capture, tmp_path: Path) -> None:
    """llama.cpp by default, said in a note; the formulas if they are named, and for a dict of metadata."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes())

    one = plan(path, seq=1024)
    assert one.request.engine == "llamacpp"
    assert any("--engine reference" in note.message for note in one.notes)
    assert plan(path, seq=1024, engine="reference").request.engine == "reference"
    assert plan(LLAMA, seq=1024).request.engine == "reference"
    _, out, _ = run(capsys, "sweep", str(path), "--seq", "256,512", "--format", "jsonl")
    assert [json.loads(line)["engine"] for line in out.splitlines()] == ["llamacpp"] * 2


def test_the_written_command_is_the_plan(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back as llama-server's line, it plans the same bytes with the same settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes())
    for words in (
        ["--seq", "1k"],
        ["--seq", "512", "--users", "3", "--dtype", "q8_0"],
        ["-ub", "64", "-ngl", "2", "-kvu", "-c", "1024", "-np", "2"],
        ["-c", "1000", "-np", "3", "-ctk", "q8_0", "-fa", "on", "--swa-full"],
    ):
        line = ["tiny.gguf", "--engine", "llamacpp", *words]
        emitted = shlex.split(run(capsys, *line, "--emit", "llamacpp")[1])
        first, again = (json.loads(run(capsys, *one, "--json")[1]) for one in (line, [*emitted[1:], "--engine", "llamacpp"]))
        assert first["cache"] == again["cache"], words
        assert first["pool"] == again["pool"]

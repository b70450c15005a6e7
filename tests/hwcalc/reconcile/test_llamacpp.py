"""llama.cpp's log beside the plan: figures that people have published, and that its developers printed."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.reconcile import reconcile
from hwcalc.reconcile.result import Reconciliation
from tests.hwcalc.reconcile.logs import LOGS

LLAMA_8B: Final = (LOGS / "llamacpp" / "llama-3.1-8b-q4_k_m.log").read_text(encoding="utf-8")


def figures(result: Reconciliation) -> dict[str, bool | None]:
    """Whether each figure agrees."""
    return {row.name: row.within for row in result.rows}


OWN: Final = """
build: 6700 (3df2244) with cc (Ubuntu 13.3.0) 13.3.0 for x86_64-linux-gnu
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4070) (0000:01:00.0) - 11000 MiB free
llama_model_loader: loaded meta data with 28 key-value pairs and 399 tensors from ./Qwen3-8B-Q4_K_M.gguf (version GGUF V3 (latest))
llama_model_loader: - kv   2:                               general.name str              = Qwen3-8B
print_info: file format = GGUF V3 (latest)
print_info: file type   = Q4_K - Medium
print_info: file size   = 4.68 GiB (4.91 BPW)
print_info: general.name     = Qwen3-8B
load_tensors: offloaded 37/37 layers to GPU
llama_context: constructing llama_context
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 4096
llama_context: n_ctx_seq     = 4096
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: kv_unified    = false
llama_kv_cache:      CUDA0 KV buffer size =   576.00 MiB
llama_kv_cache: size =  576.00 MiB (  4096 cells,  36 layers,  1/1 seqs), K (f16):  288.00 MiB, V (f16):  288.00 MiB
"""
"""Lines of src/llama.cpp, llama-model-loader.cpp and llama-model.cpp. The file of ``Qwen/Qwen3-8B-GGUF`` has 4.68 GiB."""


def stated(result: Reconciliation) -> dict[str, str]:
    """What the log stated for the plan."""
    return {one.name: one.value for one in result.inputs if one.source == "log"}


def test_a_log_names_its_model_its_format_and_its_device() -> None:
    """As llama.cpp prints them; nothing more is asked for, and no line about memory is left."""
    result = reconcile(None, OWN)
    assert (result.model, result.within, result.unread_lines) == ("Qwen/Qwen3-8B", True, 0)
    assert stated(result).items() >= {("weights", "q4_k_m"), ("gpu", "rtx-4070")}
    assert figures(result) == {"cells": True, "cells of a slot": True, "cache": True, "weights": True, "layers": True}
    assert not {"other-model", "lines-unread", "no-gpu"} & {note.code for note in result.notes}

    # The name within the file is enough, as of a blob of Ollama.
    blob = OWN.replace("./Qwen3-8B-Q4_K_M.gguf", "./blobs/sha256-a3de86cd1c13")
    assert (reconcile(None, blob).model, stated(reconcile(None, blob))["weights"]) == ("Qwen/Qwen3-8B", "q4_k_m")


@pytest.mark.parametrize(
    ("words", "file", "format_"),
    [
        ("Q4_K - Medium", "x-Q4_K_M", "q4_k_m"),
        ("Q8_0", "x", "q8_0"),
        ("IQ4_XS - 4.25 bpw", "x", "iq4_xs"),
        ("(guessed) Q6_K", "x", "q6_k"),
        ("BF16", "x", "bf16"),
        ("all F32", "x", "fp32"),
        ("unknown, may not work", "x", None),
        # Unsloth's own mix states the type of another one.
        ("Q4_K - Medium", "x-UD-Q4_K_XL", None),
    ],
)
def test_the_format_of_a_file(words: str, file: str, format_: str | None) -> None:
    """llama_model_ftype_name's words are read; where no known mix is stated, the weights are not judged."""
    log = OWN.replace("Q4_K - Medium", words).replace("Qwen3-8B-Q4_K_M.gguf", f"{file}.gguf")
    result = reconcile("Qwen/Qwen3-8B", log)
    assert stated(result).get("weights") == format_
    row = next(row for row in result.rows if row.name == "weights")
    assert (row.needs, row.within is None) == (("--weights", True) if format_ is None else (None, False))


def test_a_log_without_a_format_is_not_judged_by_its_weights() -> None:
    """A plan in the format of the config would be a guess: a GGUF file may have any."""
    log = "\n".join(line for line in LLAMA_8B.splitlines() if "file type" not in line)
    result = reconcile("meta-llama/Llama-3.1-8B", log, gpu="rtx-4090")
    assert result.within
    assert {row.name for row in result.rows if row.needs == "--weights"} == {"weights", "weights on GPUs"}
    assert reconcile("meta-llama/Llama-3.1-8B", LLAMA_8B).within


def test_two_devices_are_two_gpus() -> None:
    """Each has a line of its own; of unlike ones none is planned."""
    line = OWN.splitlines()[2]
    second = line.replace("CUDA0", "CUDA1").replace("01:00", "02:00")
    result = reconcile(None, OWN.replace(line, f"{line}\n{second}"))
    assert stated(result)["gpu"] == "rtx-4070"
    assert (result.within, figures(result)["layers"]) == (True, True)
    unlike = reconcile(None, OWN.replace(line, f"{line}\n{second.replace('4070', '3090')}"))
    assert "gpu" not in stated(unlike)


def test_everything_on_one_gpu() -> None:
    """Cells, caches and layers are exact, and model and compute buffers agree."""
    result = reconcile("meta-llama/Llama-3.1-8B", LLAMA_8B, gpu="rtx-4090", weights="q4_k_m", engine_options={"defaults": "api"})
    assert result.dialect == "llamacpp"
    assert figures(result) == {
        "cells": True,
        "cells of a slot": True,
        "cache": True,
        "weights": True,
        "layers": True,
        "weights on GPUs": True,
        "compute on GPUs": True,
        "compute on the host": True,
        "output buffer": True,
    }
    assert result.within
    cache = next(row for row in result.rows if row.name == "cache")
    assert (cache.reported, cache.tolerance) == (2**30, 0.0)


def test_without_a_gpu_only_the_context_is_compared() -> None:
    """What a GPU holds needs its name."""
    unnamed = LLAMA_8B.replace("NVIDIA GeForce RTX 4090", "CUDA device")
    result = reconcile("meta-llama/Llama-3.1-8B", unnamed, weights="q4_k_m", engine_options={"defaults": "api"})
    assert figures(result) == {"cells": True, "cells of a slot": True, "cache": True, "weights": True}
    assert "no-gpu" in {note.code for note in result.notes}


def test_a_cache_of_another_size_differs() -> None:
    """One cell too many is a difference, whatever the tolerance."""
    wrong = LLAMA_8B.replace("size = 1024.00 MiB", "size = 1024.13 MiB")
    result = reconcile("meta-llama/Llama-3.1-8B", wrong, weights="q4_k_m", tolerance="5%", engine_options={"defaults": "api"})
    assert figures(result)["cache"] is False
    assert not result.within


def test_several_gpus_are_compared_together() -> None:
    """A published log of Command R 35B on two cards: the cache lies on both (github.com/ggml-org/llama.cpp/pull/6122)."""
    log = """
    llm_load_tensors: offloaded 41/41 layers to GPU
    llm_load_tensors:        CPU buffer size =  1640.62 MiB
    llm_load_tensors:      CUDA0 buffer size =  5434.38 MiB
    llm_load_tensors:      CUDA1 buffer size = 13989.53 MiB
    llama_new_context_with_model: n_ctx      = 4096
    llama_new_context_with_model: n_batch    = 2048
    llama_new_context_with_model: n_ubatch   = 512
    llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB
    llama_kv_cache_init:      CUDA1 KV buffer size =  3584.00 MiB
    llama_new_context_with_model: KV self size  = 5120.00 MiB, K (f16): 2560.00 MiB, V (f16): 2560.00 MiB
    """
    result = reconcile("CohereForAI/c4ai-command-r-v01", log)
    assert figures(result)["cache"] is True
    assert next(row for row in result.rows if row.name == "cache").reported == 5120 * 2**20


@pytest.mark.parametrize("cells", [240_000, 32])
def test_an_older_build_rounds_otherwise(cells: int) -> None:
    """Builds before November 2025 rounded cells to 32 without flash attention, which is said."""
    log = LLAMA_8B.replace("build: 6700 (3df2244)", "build: 0 (unknown)").replace(
        "n_ctx         = 8192", f"n_ctx         = {cells}"
    )
    result = reconcile("meta-llama/Llama-3.1-8B", log, weights="q4_k_m")
    assert figures(result)["cells"] is False
    assert "older-build" in {note.code for note in result.notes}


def planned_by(result: Reconciliation) -> str | None:
    """The build whose rules were taken."""
    return result.engine_version


def test_the_build_that_the_log_prints_is_planned() -> None:
    """``build: 6700``, ``build_info: b9459-...``, Ollama's release for the build in it; the nearest known one for another."""
    without = LLAMA_8B.partition("\n")[2]
    lines = {
        "build: 6700 (3df2244) with cc": "b6700",
        "build_info: b9459-0123abc": "b9459",
        "build: 20000 (0123abc) with cc": "v0.5.0",
        "build: 4000 (0123abc) with cc": "b4400",
        'time=2025-11-20T10:00:00Z level=INFO source=routes.go:1 msg="Listening on 127.0.0.1:11434 (version 0.12.6)"': "b6752",
    }
    for line, build in lines.items():
        result = reconcile("meta-llama/Llama-3.1-8B", f"{line}\n{without}", weights="q4_k_m")
        assert planned_by(result) == build
    unknown = reconcile("meta-llama/Llama-3.1-8B", without, weights="q4_k_m")
    assert planned_by(unknown) == "v0.5.0"
    assert "version-unknown" in {note.code for note in unknown.notes}


def test_a_log_agrees_with_its_build_alone() -> None:
    """258.50 MiB are the logits of a batch: llama-server's until b9459, and not the 116 MiB of builds since."""
    for build, agrees in ((9459, True), (9460, False)):
        log = LLAMA_8B.replace("build: 6700", f"build: {build}")
        result = reconcile("meta-llama/Llama-3.1-8B", log, gpu="rtx-4090", weights="q4_k_m")
        assert figures(result)["compute on GPUs"] is agrees


def test_the_log_of_an_ollama_is_read_as_that_of_the_server_it_started() -> None:
    """``--engine ollama`` means the same log."""
    started = 'time=2026-11-20T10:00:00.000Z level=INFO source=llama_server.go:1 msg="starting llama-server"\n'
    result = reconcile("meta-llama/Llama-3.1-8B", started + LLAMA_8B, weights="q4_k_m", engine="ollama")
    assert result.within
    assert figures(result)["cache"] is True


def test_the_heading_of_the_breakdown_is_no_line_that_was_missed() -> None:
    """It has no figure (common/fit.cpp)."""
    heading = "llama_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |"
    before = reconcile("meta-llama/Llama-3.1-8B", LLAMA_8B, weights="q4_k_m").unread_lines
    assert reconcile("meta-llama/Llama-3.1-8B", f"{LLAMA_8B}\n{heading}\n", weights="q4_k_m").unread_lines == before

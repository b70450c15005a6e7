"""llama.cpp's log beside the plan: figures that people have published, and that its developers printed."""

from __future__ import annotations

import pytest

from hwcalc.reconcile import reconcile
from hwcalc.reconcile.result import Reconciliation

LLAMA_8B = """
build: 6700 (3df2244) with cc
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) - 23500 MiB free
print_info: file type   = Q4_K - Medium
print_info: file size   = 4.58 GiB (4.89 BPW)
load_tensors: offloading 32 repeating layers to GPU
load_tensors: offloading output layer to GPU
load_tensors: offloaded 33/33 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_context: constructing llama_context
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 8192
llama_context: n_ctx_seq     = 8192
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = auto
llama_context: kv_unified    = false
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB
llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_context:      CUDA0 compute buffer size =   258.50 MiB
llama_context:  CUDA_Host compute buffer size =    24.01 MiB
"""
"""Llama 3.1 8B in Q4_K_M: model buffers as in many published logs; cache and compute buffers as 0c1e57098 reserves them for a program
that takes all logits of a batch."""


def figures(result: Reconciliation) -> dict[str, bool]:
    """Whether each figure agrees."""
    return {row.name: row.within for row in result.rows}


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
    result = reconcile("meta-llama/Llama-3.1-8B", LLAMA_8B, weights="q4_k_m", engine_options={"defaults": "api"})
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
    log = LLAMA_8B.replace("n_ctx         = 8192", f"n_ctx         = {cells}")
    result = reconcile("meta-llama/Llama-3.1-8B", log, weights="q4_k_m")
    assert figures(result)["cells"] is False
    assert "older-build" in {note.code for note in result.notes}

"""llama.cpp and Ollama under a cache policy: fewer cells from the start, and context shift."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan
from hwcalc.planner.result import Plan

QWEN = "Qwen/Qwen3-8B"
CELL = 36 * 2 * 8 * 128 * 2
"""Bytes of a cell of Qwen3-8B in 16 bits."""


def planned(policy: str | None, model: str = QWEN, **request: Any) -> Plan:
    """A plan of llama.cpp."""
    values: dict[str, Any] = {"seq": 32768, "engine": "llamacpp", "offline": True, "weights": "q4_k_m"} | request
    return plan(model, policy=policy, **values)


@pytest.mark.parametrize(
    ("policy", "prompt", "cells"),
    [
        # 2,049 within a step, in steps of 256.
        ("h2o:budget=2048", 1000, 2304),
        ("triattention", 1000, 2304),
        # The whole prompt lies in cells before it is cut.
        ("snapkv:compression_ratio=0.9", 30_000, 30_208),
        # 199 and 30,768 that follow.
        ("snapkv:compression_ratio=0.9", 2000, 30_976),
        ("adakv:press=(knorm:compression_ratio=0.9)", 30_000, 32_768),
        # The first layers of a pyramid need as many, and all have the same.
        ("pyramidkv:compression_ratio=0.5", 30_000, 32_256),
        ("streamingllm:budget=4096", 1000, 4096),
    ],
)
def test_cells(policy: str, prompt: int, cells: int) -> None:
    """As many as the longest layer needs at any time, padded as a context is."""
    found = planned(policy, prompt=prompt)

    assert found.cache.total_bytes == cells * CELL
    assert planned(policy, prompt=prompt, batch=3).cache.total_bytes == 3 * cells * CELL


def test_cells_that_the_user_names_stay() -> None:
    """A context has the cells that it is told to have."""
    found = planned("h2o:budget=2048", prompt=1000, engine_options={"n_ctx": "32768"})

    assert found.cache.total_bytes == 32_768 * CELL


def test_one_buffer_has_room_for_the_prompts_of_a_batch() -> None:
    """Of four sequences with 3,000 tokens each at the end, a batch of 2,048 reads one prompt of 20,000 at a time."""
    found = planned("snapkv:compression_ratio=0.9", seq=21_000, prompt=20_000, batch=4, engine_options={"kv_unified": "true"})

    # 1,999 + 1,000, four times, and 17,001 more of one prompt: 28,997 in steps of 256.
    assert found.cache.total_bytes == 29_184 * CELL


@pytest.mark.parametrize(
    ("model", "request_", "why"),
    [
        (QWEN, {}, None),
        (QWEN, {"dtype": "q8_0"}, None),
        (QWEN, {"engine": "ollama", "prompt": 32_000}, None),
        (QWEN, {"prompt": 32_000}, "refuses a prompt"),
        ("google/gemma-3-12b-it", {}, "layers with a window"),
        ("google/gemma-3-12b-it", {"engine_options": {"swa_full": "true"}}, None),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {}, "several positions a token"),
    ],
)
def test_context_shift(model: str, request_: dict[str, Any], why: str | None) -> None:
    """It is offered where keys can be turned back."""
    values: dict[str, Any] = {"prompt": 1000} | request_
    found = planned("streamingllm:budget=4096,n_sink=8", model, **values).policy

    assert found is not None
    assert found.offered is (why is None)
    assert (why or "context shift") in found.support


def test_a_shifted_context_is_a_smaller_one() -> None:
    """The same as with fewer tokens, buffers of the graph too."""
    shifted = planned("streamingllm:budget=4096", gpu="rtx-4090", prompt=1000)
    shorter = planned(None, gpu="rtx-4090", seq=4096)

    assert shifted.cache.total_bytes == shorter.cache.total_bytes
    assert shifted.memory.activations == shorter.memory.activations
    assert shifted.fit is not None
    assert shifted.fit.max_seq == 40_960


def test_windows_keep_their_cells() -> None:
    """A policy acts on layers that keep everything."""
    model = "google/gemma-3-12b-it"
    cut, whole = planned("h2o:budget=2048", model, prompt=1000), planned(None, model)
    windows = {tensor.bytes for tensor in whole.cache.tensors} & {tensor.bytes for tensor in cut.cache.tensors}

    assert len(windows) == 1
    assert cut.cache.total_bytes < whole.cache.total_bytes


@pytest.mark.parametrize(
    "policy", ["h2o:budget=64", "quest", "snapkv:compression_ratio=0.5", "adakv:press=(knorm:compression_ratio=0.5)"]
)
def test_what_it_would_take(policy: str) -> None:
    """No other policy is offered."""
    found = planned(policy, seq=1024).policy

    assert found is not None
    assert (found.offered, found.definition) == (False, "assumed")
    assert "only context shift drops tokens" in found.support

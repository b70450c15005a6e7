"""What Ollama tells the llama-server that it starts. The expected values are those of Ollama's own tests and source (0.32.15)."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.engines.llamacpp.ollama import (
    auto_batch,
    default_context,
    has_flash_attention,
    predicted_bytes,
)
from hwcalc.parsers.gguf.hparams import read_hparams
from hwcalc.profiles.gpus import find_gpu

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("vram", "tokens"),
    [(0, 4096), (16 * GIB, 4096), (23 * GIB - 1, 4096), (23 * GIB, 32_768), (47 * GIB - 1, 32_768), (47 * GIB, 262_144)],
)
def test_the_context_by_memory(vram: int, tokens: int) -> None:
    """``server/routes.go``: the thresholds are one GiB below the sizes on the box."""
    assert default_context(vram, None) == tokens
    assert default_context(vram, 8192) == min(tokens, 8192)


@pytest.mark.parametrize(
    ("tokens", "predicted", "available", "batch"),
    [
        (4096, 0, 0, 512),
        (32_768, 0, 0, 1024),
        (131_072, 8 * GIB, 14 * GIB, 2048),
        (131_072, 9 * GIB, 14 * GIB, 1024),
        (131_072, 8 * GIB, 11 * GIB, 1024),
        (32_768, 8500 * MIB, 11 * GIB, 512),
    ],
)
def test_the_batch_by_context_and_room(tokens: int, predicted: int, available: int, batch: int) -> None:
    """``TestAutomaticGenerationBatch`` in ``server/sched_test.go``."""
    assert auto_batch(tokens, predicted, available) == batch


def test_the_batch_without_flash_attention() -> None:
    """On CUDA it stays at 512, and at 256 on a card of up to 8 GiB with more than 4,096 tokens."""
    assert auto_batch(131_072, 8 * GIB, 14 * GIB, cuda_without_flash=True, card_bytes=14 * GIB) == 512
    assert auto_batch(131_072, 2 * GIB, 8 * GIB, cuda_without_flash=True, card_bytes=8 * GIB) == 256
    assert auto_batch(4096, 2 * GIB, 8 * GIB, cuda_without_flash=True, card_bytes=8 * GIB) == 512


def test_the_guess_of_the_memory() -> None:
    """``PredictServerVRAM``: 32 layers x 8 heads x 128 x 2 x 2 B for each token of Llama-3.1-8B; the least of heads that differ."""
    llama: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 32,
        "llama.context_length": 131_072,
        "llama.embedding_length": 4096,
        "llama.feed_forward_length": 14_336,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.vocab_size": 128_256,
    }
    assert predicted_bytes(5 * GIB, read_hparams(llama), 8192) == 5 * GIB + 131_072 * 8192
    some = {**llama, "llama.attention.head_count_kv": [0] + [8] * 31}
    assert predicted_bytes(0, read_hparams(some), 1) == 131_072 // 8


@pytest.mark.parametrize(("gpu", "auto"), [("rtx-4090", True), ("t4", True), ("m4-max-48gb", True)])
def test_flash_attention(gpu: str, auto: bool) -> None:
    """Cards before compute capability 6.0 and of 7.2 get ``--flash-attn off`` (``ml/device.go``)."""
    assert has_flash_attention(find_gpu(gpu)) is auto

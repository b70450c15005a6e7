"""Formulas that others publish and that are wrong, each with the arithmetic that is right; and well-known models."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import plan

TOKENS: Final = 32_768

DEEPSEEK_V3: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
MAMBA2: Final[dict[str, Any]] = {
    "model_type": "mamba2",
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "expand": 2,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "torch_dtype": "bfloat16",
}
QWEN3_0_6B: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}
LIGHTNING: Final[dict[str, Any]] = {
    "model_type": "minimax",
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "layer_types": ["linear_attention", "linear_attention"],
    "torch_dtype": "bfloat16",
}


def test_latent_attention_counts_every_layer() -> None:
    """DeepSeek-V3 keeps 61 layers x (512 + 64) x 2 bytes for a token. The 1,152 bytes often quoted are of one layer."""
    assert plan(DEEPSEEK_V3, seq=TOKENS).cache.bytes_per_token == 61 * (512 + 64) * 2 == 70_272


def test_a_mamba_state_is_not_d_state() -> None:
    """It is heads x head_dim x d_state and a convolution, per layer; not d_state numbers, and nothing per token."""
    cache = plan(MAMBA2, seq=TOKENS).cache

    assert cache.total_bytes == 64 * (128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 3 * 2) == 64 * 4_255_744
    assert cache.state_bytes_per_sequence == cache.total_bytes
    assert cache.bytes_per_token == 0


def test_linear_attention_is_not_free() -> None:
    """Each layer of each sequence has a head_dim x head_dim matrix per head, long or short."""
    assert plan(LIGHTNING, seq=1, batch=3).cache.total_bytes == 3 * 2 * 8 * 128 * 128 * 4
    assert plan(LIGHTNING, seq=TOKENS, batch=3).cache.total_bytes == 3 * 2 * 8 * 128 * 128 * 4


def test_head_dim_is_not_hidden_size_by_heads() -> None:
    """Qwen3-0.6B has heads of 128, where 1,024 / 16 would be 64."""
    assert plan(QWEN3_0_6B, seq=TOKENS).cache.bytes_per_token == 28 * 8 * (128 + 128) * 2


def test_a_window_closes() -> None:
    """Mistral-7B-v0.1 holds 4,096 tokens of 32,768, and a token more costs nothing."""
    cache = plan("mistralai/Mistral-7B-v0.1", seq=TOKENS).cache

    assert cache.total_bytes == 32 * 4096 * 8 * (128 + 128) * 2
    assert cache.bytes_per_token == 0


WELL_KNOWN: Final = (
    # layers x tokens x key/value heads x (key + value) x 2
    ("meta-llama/Llama-3.1-8B", 32 * TOKENS * 8 * (128 + 128) * 2, 4_294_967_296),
    ("meta-llama/Llama-2-7b-hf", 32 * TOKENS * 32 * (128 + 128) * 2, 17_179_869_184),
    # multi_query: one head of 4,544 / 71
    ("tiiuae/falcon-7b", 32 * TOKENS * 1 * (64 + 64) * 2, 268_435_456),
    ("Qwen/Qwen3-8B", 36 * TOKENS * 8 * (128 + 128) * 2, 4_831_838_208),
    ("mistralai/Mistral-7B-v0.1", 32 * 4096 * 8 * (128 + 128) * 2, 536_870_912),
    # every second of 42 layers has a window of 4,096
    ("google/gemma-2-9b-it", (21 * TOKENS + 21 * 4096) * 8 * (256 + 256) * 2, 6_341_787_648),
    # every sixth of 62 layers is full, the others have a window of 1,024
    ("google/gemma-3-27b-it", (10 * TOKENS + 52 * 1024) * 16 * (128 + 128) * 2, 3_120_562_176),
    # every second layer has a window of 128; the learned sinks are weights
    ("openai/gpt-oss-20b", (12 * TOKENS + 12 * 128) * 8 * (64 + 64) * 2, 808_452_096),
    ("openai/gpt-oss-120b", (18 * TOKENS + 18 * 128) * 8 * (64 + 64) * 2, 1_212_678_144),
    # one latent of 512 and one rotary key of 64
    ("deepseek-ai/DeepSeek-V3", 61 * TOKENS * (512 + 64) * 2, 2_302_672_896),
    # and an indexer key of 128 in fp8 with one fp32 scale
    ("deepseek-ai/DeepSeek-V3.2", 61 * TOKENS * ((512 + 64) * 2 + 128 + 4), 2_566_520_832),
    # every fourth of 48 layers is full, the others have chunks of 8,192
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", (12 * TOKENS + 36 * 8192) * 8 * (128 + 128) * 2, 2_818_572_288),
)


@pytest.mark.parametrize(("model", "arithmetic", "expected"), WELL_KNOWN, ids=[row[0] for row in WELL_KNOWN])
def test_well_known_models(model: str, arithmetic: int, expected: int) -> None:
    """At 32,768 tokens in bf16, from the built-in catalog."""
    assert plan(model, seq=TOKENS, dtype="bf16").cache.total_bytes == arithmetic == expected

"""The models of the tests' page: nine that differ in their kinds of caches, and two whose names and configs try to be more than text."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["HOSTILE", "MODELS", "hostile_config"]

MODELS: Final = (
    "Qwen/Qwen3-8B",
    "google/gemma-3-12b-it",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Coder-Next",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "google/gemma-4-E2B-it",
    "microsoft/Phi-4-mini-flash-reasoning",
    "facebook/bart-large",
)
"""Full attention, windows, layers that keep nothing, latents, states beside attention, caches that layers share, and an encoder."""
HOSTILE: Final = "<img src=x onerror=alert(1)>"
"""A name that would run a script if anything read it as markup."""


def hostile_config() -> dict[str, Any]:
    """A config that works, with scripts in its strings and keys."""
    script = "</script><script>alert(1)</script>"
    return {
        "_name_or_path": HOSTILE,
        "model_type": "llama",
        "architectures": [f"LlamaForCausalLM{script}", "LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "_attn_implementation": f"'\"><svg onload=alert(1)>{script}",
        script: script,
    }

"""The models of the tests' page: 20 of all kinds of caches, and two whose names and configs try to be more than text."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["HOSTILE", "MODELS", "hostile_config"]

MODELS: Final = (
    "Qwen/Qwen3-8B",
    "google/gemma-3-12b-it",
    "openai/gpt-oss-20b",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "mistralai/Mistral-7B-v0.1",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Coder-Next",
    "ai21labs/AI21-Jamba2-3B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "state-spaces/mamba-130m-hf",
    "google/gemma-4-E2B-it",
    "LiquidAI/LFM2-1.2B",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "microsoft/Phi-4-mini-flash-reasoning",
    "MiniMaxAI/MiniMax-Text-01",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "tiiuae/Falcon-H1-0.5B-Base",
    "facebook/bart-large",
)
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

"""The tiny models of the golden rows, as configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["tiny"]


def tiny(model: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The config of a row's ``model``: 4 layers, 4 heads, 2 key/value heads and 64 hidden, unless it says otherwise."""
    hidden, heads = model.get("hidden", 64), model.get("heads", 4)
    return {
        "model_type": model.get("kind", "llama"),
        "num_hidden_layers": model.get("layers", 4),
        "num_attention_heads": heads,
        "num_key_value_heads": model.get("kv", 2),
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "intermediate_size": 2 * hidden,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "dtype": model.get("dtype", "float32"),
    }

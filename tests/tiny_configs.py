"""The smallest configs that are whole."""

from __future__ import annotations

from typing import Any, Final

TINY_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 100,
}

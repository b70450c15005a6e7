"""The mixes of llama.cpp that publishers of GGUF files offer, from the largest to the smallest of three bits."""

from __future__ import annotations

from typing import Final

__all__ = ["PUBLISHED_MIXES"]

PUBLISHED_MIXES: Final = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_xs", "q3_k_l", "q3_k_m", "iq3_m", "q3_k_s", "iq3_xxs",
)  # fmt: skip
"""What a model's page on the Hub usually has (bartowski's and unsloth's, 2025 and 2026). Files of fewer bits are there too, for who asks
for them by name: their answers suffer. More than eight bits gain nothing."""

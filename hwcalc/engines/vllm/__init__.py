"""vLLM: block pools shared by groups of layers, as 0.33 plans them."""

from __future__ import annotations

from hwcalc.engines.vllm.engine import Vllm

__all__ = ["Vllm"]

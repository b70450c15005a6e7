"""vLLM 0.33: pools of blocks that groups of layers share."""

from __future__ import annotations

from hwcalc.engines.vllm.engine import Vllm

__all__ = ["Vllm"]

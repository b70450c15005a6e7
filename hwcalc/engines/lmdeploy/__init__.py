"""LMDeploy as an engine: its PyTorch back end, and TurboMind."""

from __future__ import annotations

from hwcalc.engines.lmdeploy.engine import Lmdeploy

__all__ = ["Lmdeploy"]

"""LMDeploy as an engine: its PyTorch back end, and TurboMind.

``engine`` has the facts and the command line. ``deployment`` says what is made of a model and of settings, what the pool holds, and what is
left for it. ``layout`` has the settings with every default filled in, and what a block, a state slot and the weights take on one rank.
"""

from __future__ import annotations

from hwcalc.engines.lmdeploy.engine import Lmdeploy

__all__ = ["Lmdeploy"]

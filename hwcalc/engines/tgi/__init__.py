"""Text Generation Inference as an engine."""

from hwcalc.engines.tgi.engine import Tgi

__all__ = ["Tgi"]

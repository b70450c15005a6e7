"""Hugging Face transformers as an engine."""

from hwcalc.engines.transformers.engine import Transformers

__all__ = ["Transformers"]

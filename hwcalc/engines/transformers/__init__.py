"""Hugging Face transformers as an engine.

``engine`` has the cache classes, the options and the differences between versions. It asks ``layers`` (what each cache class keeps of a
layer) and ``weights`` (what one rank holds of the weights by the library's own tensor-parallel plans, which are in ``plans.json``).
"""

from hwcalc.engines.transformers.engine import Transformers

__all__ = ["Transformers"]

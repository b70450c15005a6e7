"""mistral.rs as an engine.

``engine`` says what is made of a model and of options, and writes the command line. It asks ``layers`` (what a layer keeps, and how layers
and weights are divided) and ``pool`` (the pages of PagedAttention, the slots without pages, and what is left for either on a GPU).
"""

from hwcalc.engines.mistral_rs.engine import MistralRs

__all__ = ["MistralRs"]

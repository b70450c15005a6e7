"""mistral.rs as an engine."""

from hwcalc.engines.mistral_rs.engine import MistralRs

__all__ = ["MistralRs"]

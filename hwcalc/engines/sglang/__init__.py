"""SGLang: a pool of tokens whose size follows from a cost of each token, and a second pool of states."""

from hwcalc.engines.sglang.engine import Sglang

__all__ = ["Sglang"]

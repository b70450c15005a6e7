"""SGLang: a pool of tokens whose size follows from a cost of each token, and a second pool of states.

``engine`` deploys a model, says what a load takes of the pools, and writes the command line. It asks ``settings`` (every default filled
in), ``layout`` (what a token and a slot of states cost on each stage), ``pools`` (what a budget becomes, whether that holds a load, and the
least budget that does; ``deepseek_v4`` for the pools of that model) and ``memory`` (what is left for the pools).
"""

from hwcalc.engines.sglang.engine import Sglang

__all__ = ["Sglang"]

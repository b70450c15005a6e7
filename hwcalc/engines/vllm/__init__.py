"""vLLM: groups of layers share one pool of blocks.

``engine`` (facts, options and command line) deploys a model, ``deployment`` says what a server takes and holds. It asks ``settings`` (every
default filled in), ``layout`` (the layers in groups that share a block table; ``layer_specs`` for the rule of each kind of layer, ``specs``
for the rules, such as ``WindowSpec``, which rounds a window up to blocks), ``pool`` (what a budget holds, at one length and at all) and
``memory`` (what is left for the pool; ``weights`` and adapters). ``policies`` are loads of other shapes. ``rules`` says which release does
what, ``supported`` what it refuses, ``formats`` which formats it has.
"""

from hwcalc.engines.vllm.engine import Vllm

__all__ = ["Vllm"]

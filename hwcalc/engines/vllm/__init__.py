"""vLLM: groups of layers share one pool of blocks.

``engine`` (facts and options) deploys a model, ``deployment`` says what a server takes and holds. It asks ``settings`` (every default filled
in), ``layout`` (the layers in blocks; ``layer_specs`` for the rule of each kind of layer, ``specs`` for the rules, such as
``WindowSpec``, which rounds a window up to blocks; ``groups`` for layers that share a block table), ``pool`` (what a budget holds) and
``memory`` (what is left for the pool; ``weights`` and ``lora``). ``form`` is the same for all lengths at once, ``policies`` and ``sharing``
are loads of other shapes. ``rules`` says which release does what, ``supported`` and ``classes`` what it refuses.
"""

from hwcalc.engines.vllm.engine import Vllm

__all__ = ["Vllm"]

"""TensorRT-LLM, PyTorch back end: a pool of blocks from a share of what is left after loading.

``engine`` deploys a model, says what a load takes of the pools, and writes the command line. It asks ``settings`` (options, defaults, and
which models and setups are taken), ``layout`` (what a layer keeps on a rank, and how a budget is divided over layers; ``storage`` for the
pools of the V2 manager), ``pool`` (what sequences need, and whether a budget holds it) and ``memory`` (what is left for the cache).
"""

from hwcalc.engines.tensorrt_llm.engine import TensorrtLlm

__all__ = ["TensorrtLlm"]

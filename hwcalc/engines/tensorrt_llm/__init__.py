"""TensorRT-LLM, PyTorch back end: a pool of blocks from a share of what is left after loading."""

from hwcalc.engines.tensorrt_llm.engine import TensorrtLlm

__all__ = ["TensorrtLlm"]

"""What transformers can be told so that it takes less memory of a GPU, and how its Python interface spells that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.saving import Cost, Saving, computes_fp8, host_holds

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_BITSANDBYTES: Final = ("nvidia", "amd")
_ARGUMENTS: Final[Mapping[str, str]] = {
    "seq": "max_length={}",
    "dtype": "dtype={}",
    "max_cache_len": "max_cache_len={}",
    "cache": 'cache_implementation="{}"',
    "quant_backend": 'cache_config["backend"]="{}"',
    "nbits": 'cache_config["nbits"]={}',
}
"""Option of kvplan or engine option -> the argument of ``from_pretrained`` or ``generate``."""
_WEIGHTS: Final[Mapping[str, str]] = {
    "fp8": "FineGrainedFP8Config()",
    "bnb8": "BitsAndBytesConfig(load_in_8bit=True)",
    "bnb4": "BitsAndBytesConfig(load_in_4bit=True)",
}


def argument(name: str, value: object) -> str:
    """The argument for one option; empty where the caller's own code decides, as on the number of prompts."""
    if name == "weights":
        config = _WEIGHTS.get(str(value))
        return "" if config is None else f"quantization_config={config}"
    return _ARGUMENTS[name].format(value) if name in _ARGUMENTS else ""


def savings(opened: Occupancy) -> Iterator[Saving]:
    """The cache classes with fewer bits and the one in host memory; weights that are quantised while loading."""
    gpu, options = opened.request.hardware.gpu, opened.request.options
    if "cache" not in options:
        if computes_fp8(gpu):
            yield _quantized(Cost.CACHE, "fp8", "8")
        yield _quantized(Cost.CACHE, "hqq", "8")
        yield _quantized(Cost.FEW_CACHE_BITS, "quanto", "4")
        if host_holds(gpu, opened.needed_bytes):
            yield Saving(Cost.HOST, "a cache in host memory, slower", {"engine_options": {"cache": "offloaded"}})
    bitsandbytes = gpu is None or gpu.vendor.lower() in _BITSANDBYTES
    if computes_fp8(gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
    elif bitsandbytes:
        yield Saving(Cost.WEIGHTS, "int8 weights of bitsandbytes", {"weights": "bnb8"})
    if bitsandbytes:
        yield Saving(Cost.FEW_BITS, "4-bit weights of bitsandbytes", {"weights": "bnb4"})


def _quantized(cost: Cost, backend: str, bits: str) -> Saving:
    options = {"cache": "quantized", "quant_backend": backend, "nbits": bits}
    return Saving(cost, f"a cache of {bits} bits by {backend}", {"engine_options": options})

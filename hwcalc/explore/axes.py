"""The choices that the page offers: engines, formats, accelerators, layouts, lengths and numbers of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hwcalc.engines import find_engine
from hwcalc.engines.request import Parallel
from hwcalc.formulas.frozen import field, frozen
from hwcalc.model import ModelSpec

__all__ = ["AS_PUBLISHED", "ENGINES", "GPUS", "LEAST_TOKENS", "MOST_TOKENS", "PageAxes", "PageLayout", "options_of_engine"]

ENGINES: Final = ("reference", "transformers", "vllm", "llamacpp")
GPUS: Final = (
    "rtx-4090",
    "l4",
    "a100-sxm4-80gb",
    "h100-sxm5-80gb",
    "h200-sxm-141gb",
    "b200-180gb",
    "mi300x",
    "apple-m4-max-40c",
)
"""Accelerators where the user names none: from a desk to a rack, of three makers."""
LEAST_TOKENS: Final = 128
MOST_TOKENS: Final = 1 << 20
AS_PUBLISHED: Final = "as published"
"""The name of the weights as they are, for which a command line has no option."""
_COUNTS: Final = (1, 2, 4, 8)
_BATCHES: Final = tuple(1 << power for power in range(9))
"""Up to 256 sequences, which is the most that llama.cpp accepts."""
_DTYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "reference": ("fp8", "q8_0", "q4_0"),
    "vllm": ("fp8", "nvfp4", "fp8_ds_mla"),
    "llamacpp": ("q8_0", "q4_0"),
}
"""Formats of the cache that are tried beside the default: those with other bytes that people run."""
_WEIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    "reference": ("bf16", "fp8", "int4"),
    "transformers": ("bf16", "bnb8", "bnb4"),
    "vllm": ("bf16", "fp8", "awq", "nvfp4"),
    "llamacpp": ("bf16", "q8_0", "q6_k", "q4_k_m"),
}
_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"llamacpp": {"n_gpu_layers": "all"}}


def options_of_engine(name: str) -> Mapping[str, str]:
    """The engine options that every state of the page has."""
    return _OPTIONS.get(name, MappingProxyType({}))


@frozen
class PageLayout:
    """So many GPUs, of which ``tp`` share each layer."""

    count: int
    tp: int

    def parallel(self, engine: str) -> Parallel:
        """The sizes: the other GPUs are replicas, or hold further layers if the engine splits models by layers."""
        if find_engine(engine)[0].splits_layers:
            return Parallel(pp=self.count)
        return Parallel(tp=self.tp, dp=self.count // self.tp)


def _layouts(counts: tuple[int, ...]) -> tuple[PageLayout, ...]:
    return tuple(
        PageLayout(count=count, tp=tp) for count in counts for tp in range(1, count + 1) if not count % tp and tp & (tp - 1) == 0
    )


@frozen
class PageAxes:
    """What can be chosen on one page, for all its models."""

    gpus: tuple[str, ...] = GPUS
    engines: tuple[str, ...] = ENGINES
    layouts: tuple[PageLayout, ...] = _layouts(_COUNTS)
    batches: tuple[int, ...] = _BATCHES
    most_tokens: int = MOST_TOKENS
    dtypes: tuple[str, ...] = ()
    """Formats of the cache that the user named."""
    weights: tuple[str, ...] = ()
    """Formats of the weights that the user named."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options that every state has, parsed."""

    def dtypes_of(self, engine: str) -> tuple[str, ...]:
        """The formats of the cache to try beside the engine's default."""
        return tuple(dict.fromkeys((*self.dtypes, *_DTYPES.get(engine, ()))))

    def weights_of(self, engine: str, model: ModelSpec) -> tuple[str, ...]:
        """The formats of the weights to try beside the published ones."""
        plain = model.quantization is None and model.gguf is None
        tried = (
            name for name in _WEIGHTS.get(engine, ()) if not (plain and name == "bf16" and model.dtype in {"bfloat16", "bf16"})
        )
        return tuple(dict.fromkeys((*self.weights, *tried)))

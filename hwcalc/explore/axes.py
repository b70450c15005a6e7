"""The choices that the page offers: engines, formats, accelerators, layouts, lengths and numbers of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import field

from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.options import Choices
from hwcalc.engines.setup import Parallel
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

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


def page_engines() -> tuple[str, ...]:
    """The engines that offer something to choose, in their usual order."""
    return tuple(name for name in ENGINES if find_engine(name)[0].choices is not None)


def choices_of(engine: str) -> Choices:
    """What an engine offers."""
    return find_engine(engine)[0].choices or Choices()


def plan_options(engine: str) -> dict[str, Any]:
    """The engine, and the engine options that every state of the page has, as keywords of a plan."""
    return {"engine": engine, "engine_options": dict(choices_of(engine).options)}


class PageLayout(Record):
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


class PageAxes(Record):
    """What can be chosen on one page, for all its models."""

    gpus: tuple[str, ...] = GPUS
    engines: tuple[str, ...] = field(default_factory=page_engines)
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
        return tuple(dict.fromkeys((*self.dtypes, *choices_of(engine).dtypes)))

    def weights_of(self, engine: str, model: ModelSpec) -> tuple[str, ...]:
        """The formats of the weights to try beside the published ones."""
        plain = model.quantization is None and model.gguf is None
        tried = (
            name for name in choices_of(engine).weights if not (plain and name == "bf16" and model.dtype in {"bfloat16", "bf16"})
        )
        return tuple(dict.fromkeys((*self.weights, *tried)))

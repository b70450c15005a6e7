"""The values from which an engine writes its command line."""

from __future__ import annotations

from collections.abc import Mapping

from hwcalc.engines.pool import Try
from hwcalc.engines.request import Parallel
from hwcalc.formulas.frozen import frozen

__all__ = ["CommandInput"]


@frozen
class CommandInput:
    """A planned request, spelled as in a plan. ``requires`` lists further flags that the engine needs to start.

    ``kv_dtype_named`` says whether the request named the KV dtype, or left it to the engine.
    """

    version: str | None
    model: str
    revision: str | None
    seq: int
    kv_dtype: str
    kv_dtype_named: bool
    parallel: Parallel
    memory_utilization: float | None
    kv_memory: int | None
    weights: str | None
    lora: str | None
    draft: str | None
    options: Mapping[str, str]
    requires: tuple[Try, ...]

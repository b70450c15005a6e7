"""The values from which an engine writes its command line."""

from __future__ import annotations

from collections.abc import Mapping

from hwcalc.engines.pool import Try
from hwcalc.engines.request import Parallel
from hwcalc.formulas.frozen import frozen

__all__ = ["CommandInput", "EmittedFile"]


@frozen
class CommandInput:
    """A planned request, spelled as in a plan. ``requires`` lists further flags that the engine needs to start.

    ``kv_dtype_named`` says whether the request named the KV dtype, or left it to the engine. ``path`` is set for a model on this machine,
    and ``library`` for one of Ollama's. ``made`` says that an engine of GGUF files would run one that has to be made, or found, first.
    """

    version: str | None
    model: str
    revision: str | None
    seq: int
    batch: int
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
    path: str | None = None
    library: str | None = None
    made: bool = False
    on_host: bool = False
    """Whether everything lies in the memory of a machine without a GPU."""


@frozen
class EmittedFile:
    """A file for an engine that is not told all on its command line, with the variables that its server needs.

    ``command`` is what the user types once the file is there.
    """

    name: str
    text: str
    environment: tuple[str, ...]
    command: tuple[str, ...]

"""How an engine is started as planned: the values of which its command line is made, and the files that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.pool import Try
    from hwcalc.engines.setup import Parallel

OpenedT = TypeVar("OpenedT")
"""The occupancy class of an engine, whose module imports this module."""


class CommandInput(Record):
    """A planned request, spelled as in a plan. ``requires`` lists further flags that the engine needs to start.

    ``kv_dtype_named`` says whether the request named the KV dtype, or left it to the engine. ``path`` is set for a model on this machine,
    and ``library`` for one of Ollama's. ``made`` says that an engine of GGUF files needs a file that the user has to make or to download first.
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
    flags: tuple[str, ...] = ()
    """Further words, which a cache policy needs."""
    layers: int = 0
    """Layers of the model, for an engine that is told which of them each GPU has."""


def check_one_replica(planned: CommandInput, label: str) -> None:
    """Raise an error for replicas where a command line starts one."""
    if planned.parallel.dp > 1:
        raise UsageError(f"A command line of {label} starts one replica.", hint="Start one for each: leave out --dp.")


class EmittedFile(Record):
    """A file for an engine that is not told all on its command line, with the variables that its server needs.

    ``command`` is what the user types once the file is there, and ``as_is`` what does without it, if the engine's own context is planned.
    """

    name: str
    text: str
    environment: tuple[str, ...]
    command: tuple[str, ...]
    as_is: tuple[str, ...] | None = None

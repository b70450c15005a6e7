"""How an engine is started as planned: the values of its command line, and what it is asked about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from hwcalc.engines.pool import Try
from hwcalc.engines.request import Parallel
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record

__all__ = ["CommandInput", "Commands", "EmittedFile", "check_one_replica"]

OpenedT = TypeVar("OpenedT")
"""The opened request of an engine, whose module imports this one."""


class CommandInput(Record):
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


class Commands(Generic[OpenedT]):
    """What an engine is asked about its command line. The defaults are those of an engine without one."""

    label: ClassVar[str]
    """The name that people use for it."""
    has_command: ClassVar[bool] = False
    """Whether :meth:`command` can write a plan as the engine's command line."""
    file_remark: ClassVar[str] = ""
    """A sentence on the file that the engine runs, where it runs no model as published; empty for other engines."""

    def command(self, planned: CommandInput) -> list[str]:
        """The words of the engine's command line for a plan. Raises an error unless :attr:`has_command`."""
        raise UsageError(f"{self.label} has no command line.", hint="Leave out --emit.")

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        """The file that starts a plan, for an engine that has one in place of a command line."""
        return None

    def own_settings(self, opened: OpenedT, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings of a plan as this engine counts them, where several together are one of its own."""
        return settings

    def flag(self, name: str, value: object) -> str:
        """How the engine spells an option of kvplan; by default as kvplan does, such as ``--seq 4096``."""
        return f"--{name.replace('_', '-')} {value}"

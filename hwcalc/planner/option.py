"""What one option of a plan is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hwcalc.planner.values import TYPES

GROUPS: Final = ("model", "workload", "engine", "hardware")
"""What an option is about: the groups of the help, in their order."""


class PlanOption(NamedTuple):
    """One option of a plan.

    ``name`` is its keyword in Python and its key in a check file. ``type`` is a key of :data:`~hwcalc.planner.values.TYPES`.
    ``help`` is the help of the command line; ``helps`` has other texts for single commands. ``lists`` names the commands that
    take several values, separated by commas. ``check`` is the help in a check file: empty if it is the same text, ``None`` if
    check files lack the option. ``document`` is the key under ``request`` in the JSON document of a plan. ``complete`` names the
    command line's function that completes values, and ``completes`` another one for single commands.
    """

    name: str
    type: str
    metavar: str
    help: str
    flags: tuple[str, ...] = ()
    default: str | int | None = None
    complete: str | None = None
    completes: Mapping[str, str] = MappingProxyType({})
    helps: Mapping[str, str] = MappingProxyType({})
    lists: tuple[str, ...] = ()
    not_in: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()
    check: str | None = ""
    document: str | None = None
    in_receipt: bool = True
    in_reconciliation: bool = False
    """Whether reconcile shows it among the planned values."""
    of_budget: bool = False
    """Whether it changes only the memory that a GPU has left for the cache."""
    in_cache_if: str | None = None
    """The trait of an engine (:class:`~hwcalc.engines.traits.Traits`) with which it changes the cache as well."""
    reads_model: bool = False
    """Whether it says how models are read, and not what is planned."""
    group: str = "model"
    """One of :data:`GROUPS`."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags of the command line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """Parse a value from text or Python. Raises :class:`~hwcalc.errors.UsageError`."""
        return TYPES[self.type].read(value, self.name)

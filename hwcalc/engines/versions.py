"""Rules by version: a table says what held since which release of an engine, and :func:`rules_at` gives what holds in the planned one.

An engine keeps its rows beside its other rules, and says how its versions are spelled. This is the one place that reads such a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from hwcalc.errors import UnknownNameError
from hwcalc.profiles.engines import Version, since
from hwcalc.text import brief

R = TypeVar("R", bound=Struct)


class Rule(Struct, frozen=True):
    """A rule: what held since which version, newest first, and the place where the engine keeps it.

    The last entry is that of every older version: its version is ``0.0``, or ``0`` for numbers of builds.
    """

    name: str
    entries: tuple[tuple[str, Any], ...]
    source: str

    def at(self, version: Version) -> Any:
        """The value that holds in a version.

        >>> on("dcp", "0.10.2", "engine/arg_utils.py").at((0, 10, 1))
        False
        """
        return next(value for first, value in self.entries if since(first) <= version)


def on(name: str, first: str, source: str) -> Rule:
    """A rule that holds since ``first``, and did not before."""
    return Rule(name, ((first, True), ("0.0", False)), source)


def off(name: str, first: str, source: str) -> Rule:
    """A rule that held until ``first``, and no longer does."""
    return Rule(name, ((first, False), ("0.0", True)), source)


def rules_at(kind: type[R], table: Iterable[Rule], planned: Version, **fields: Any) -> R:
    """The record of what holds in the planned version, which has a field for each rule of the table; ``fields`` are its other ones."""
    return kind(**fields, **{rule.name: rule.at(planned) for rule in table})


def changed_in(table: Iterable[Rule], name: str) -> str:
    """The version in which a rule of the table took the value that it has today."""
    return next(rule.entries[0][0] for rule in table if rule.name == name)


def listed(versions: Sequence[str]) -> str:
    """The first and the last of some versions that go from the newest to the oldest, as a hint names them."""
    return f"Known: {versions[-1]} to {versions[0]}"


def unknown_version(engine: str, requested: str, hint: str) -> UnknownNameError:
    """The error for a version of an engine whose rules are not known. ``hint`` says which are."""
    return UnknownNameError(f"--engine {engine}@{brief(requested, 20)}: no rules for that version.", option="engine", hint=hint)

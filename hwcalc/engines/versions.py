"""Rules by version: the fields of a record, each annotated with what held since which release of an engine.

An engine keeps its record beside its other rules, and says how its versions are spelled. :func:`rules_at` gives what holds in a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from hwcalc.errors import UnknownNameError
from hwcalc.profiles.engines import Version, since
from hwcalc.text import brief

R = TypeVar("R", bound=Struct)


class Rule(Struct, frozen=True):
    """A rule: what held since which version, newest first, and the place where the engine keeps it.

    The last entry is that of every older version: its version is ``0.0``, or ``0`` for numbers of builds.
    """

    entries: tuple[tuple[str, Any], ...]
    source: str

    def at(self, version: Version) -> Any:
        """The value that holds in a version.

        >>> on("0.10.2", "engine/arg_utils.py").at((0, 10, 1))
        False
        """
        return next(value for first, value in self.entries if since(first) <= version)


OLDEST: Final = "0.0"
"""The version of the last entry of a rule, of releases."""


def on(first: str, source: str) -> Rule:
    """A rule that holds since ``first``, and did not before."""
    return Rule(((first, True), (OLDEST, False)), source)


def off(first: str, source: str) -> Rule:
    """A rule that held until ``first``, and no longer does."""
    return Rule(((first, False), (OLDEST, True)), source)


def rules_in(kind: type[Struct]) -> dict[str, Rule]:
    """The rules of a record by the names of its fields, which they annotate."""
    return {name: rule for name, hint in kind.__annotations__.items() for rule in getattr(hint, "__metadata__", ())}


def rules_at(kind: type[R], planned: Version, **fields: Any) -> R:
    """The record of what holds in the planned version. ``fields`` are those of its fields that are no rules."""
    return kind(**fields, **{name: rule.at(planned) for name, rule in rules_in(kind).items()})


def changed_in(kind: type[Struct], name: str) -> str:
    """The version in which a rule of the record took the value that it has today."""
    return rules_in(kind)[name].entries[0][0]


def listed(versions: Sequence[str]) -> str:
    """The first and the last of some versions that go from the newest to the oldest, as a hint names them."""
    return f"Known: {versions[-1]} to {versions[0]}"


def unknown_version(engine: str, requested: str, hint: str) -> UnknownNameError:
    """The error for a version of an engine whose rules are not known. ``hint`` says which are."""
    return UnknownNameError(f"--engine {engine}@{brief(requested, 20)}: no rules for that version.", option="engine", hint=hint)

"""``kvplan version``: the version of kvplan."""

from __future__ import annotations

from typing import Any

from hwcalc._version import __version__
from hwcalc.cli.options import Example, Option
from hwcalc.cli.output import Answer, answer

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (Option("json", ("--json",), "", "One JSON document on standard output, on errors too.", "flag"),)
EXAMPLES = (
    Example("The version", "kvplan version"),
    Example("The same, as an option", "kvplan --version"),
    Example("For a script", "kvplan version --json"),
)


def run(*, json: bool, **_others: Any) -> Answer:
    """Print the version."""
    if json:
        from hwcalc.documents import SCHEMA_VERSION

        return answer({"schema_version": SCHEMA_VERSION, "kvplan_version": __version__})
    return Answer(text=f"kvplan {__version__}\n")

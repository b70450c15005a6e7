"""Options that are lists, for the commands that plan many points: those of a plan, a few of them with commas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.cli.options import OUTPUT, PLANNING, Option, engine_options

__all__ = ["READING", "listed_options", "plan_options", "reading"]

READING: Final = ("revision", "offline", "token", "endpoint", "assume")
"""Options that say how a model is read, not how it is planned."""


def listed_options(helps: Mapping[str, str]) -> tuple[Option, ...]:
    """The options of a plan with a new help for those that ``helps`` names; model and output are left to the command."""
    apart = {option.name for option in OUTPUT} | {"model"}
    return tuple(
        option._replace(metavar=f"{option.metavar},...", help=helps[option.name], default=None)
        if option.name in helps
        else option
        for option in PLANNING
        if option.name not in apart
    )


def reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's values, those that :func:`~hwcalc.library.plan.load_model` takes."""
    return {name: options[name] for name in READING}


def plan_options(options: Mapping[str, Any], *, apart: tuple[str, ...]) -> dict[str, Any]:
    """Of a command's values, those given that :func:`~hwcalc.library.plan.plan` takes, as keywords; ``apart`` are the command's own."""
    skipped = {*READING, *apart}
    given = {name: value for name, value in options.items() if name not in skipped and value not in (None, [], False)}
    if "engine_option" in given:
        given["engine_options"] = engine_options(given.pop("engine_option"))
    return given

"""Read a simple command line without Typer, whose import takes longer than a plan.

Only correct lines are read here. Help, completion, and everything unusual or wrong is left to Typer, which can read every line and
gives the same values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from hwcalc.cli.options import COMMANDS, DEFAULT, Option

__all__ = ["read"]


def read(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The command and its values, or ``None`` if this line is for Typer.

    >>> name, values = read(["--seq", "32k", "gpt2", "--json"])
    >>> name, values["model"], values["seq"], values["json"]
    ('plan', 'gpt2', '32k', True)
    >>> read(["gpt2", "--help"]) is None
    True
    """
    if not words or "_KVPLAN_COMPLETE" in os.environ:
        return None
    name = words[0] if words[0] in COMMANDS else DEFAULT
    options: tuple[Option, ...] = import_module(COMMANDS[name]).OPTIONS
    by_flag = {flag: option for option in options for flag in option.flags}
    values: dict[str, Any] = {option.name: _initial(option) for option in options}
    single: set[str] = set()
    free: list[str] = []
    rest = iter(words[1:] if words[0] in COMMANDS else words)
    for word in rest:
        if word == "-" or not word.startswith("-"):
            free.append(word)
            continue
        flag, equals, value = word.partition("=")
        option = by_flag.get(flag)
        if option is None or (equals and (option.kind == "flag" or not flag.startswith("--"))):
            return None
        if option.kind == "flag":
            values[option.name] = True
            continue
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        if option.kind == "list":
            values[option.name] = [*values[option.name], value]
            continue
        if option.name in single:
            return None
        single.add(option.name)
        values[option.name] = value
    return (
        (name, values) if _place(free, options, values) and not (name != words[0] and free[:1] and free[0] in COMMANDS) else None
    )


def _initial(option: Option) -> Any:
    return {"flag": False, "list": []}.get(option.kind, option.default)


def _place(free: list[str], options: tuple[Option, ...], values: dict[str, Any]) -> bool:
    """Assign the free words to the command's argument. Returns whether it takes this many."""
    argument = next((option for option in options if not option.flags), None)
    if argument is None:
        return not free
    if argument.kind == "list":
        values[argument.name] = free
        return True
    if free:
        values[argument.name] = free[0]
    return len(free) == 1 or (not free and not argument.required)

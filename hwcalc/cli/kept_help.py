"""Help as it was written when kvplan was built, for the widths that most outputs have: Typer, which writes it, takes longer to import.

``scripts/build_help.py`` writes the texts; other widths, and every other line, are left to Typer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["PATH", "WIDTHS", "answered", "line_width"]

WIDTH: Final = 100
"""Columns of help where the output has no width of its own."""
WIDTHS: Final = (WIDTH, WIDTH - 2, 78)
"""Of a pipe, of a wide terminal, and of one of 80 columns."""
PATH: Final = os.path.join(os.path.dirname(__file__), "help_texts.json")
_NARROWEST: Final = 50
_HELP: Final = ("--help", "-h")
_VERSION: Final = ("--version", "-V")
_ROOT: Final = ""
"""The key of kvplan's own help."""


def answered(words: Sequence[str]) -> str | None:
    """The text for a line that asks for the version or for help and for nothing else; ``None`` if it is not kept.

    >>> answered(["-V"]) == answered(["--version"]), answered(["plan", "--help"]) == answered(["help", "plan"]), answered(["gpt2"])
    (True, True, None)
    """
    if "_KVPLAN_COMPLETE" in os.environ:
        return None
    match words:
        case [word] if word in _VERSION:
            from hwcalc._version import __version__

            return f"kvplan {__version__}\n"
        case [] | ["help"]:
            return _kept(_ROOT)
        case [word] if word in _HELP:
            return _kept(_ROOT)
        case [command, word] if word in _HELP and command:
            return _kept(command)
        case ["help", command] if command:
            return _kept(command)
    return None


def _kept(command: str) -> str | None:
    """The help of a command, or ``None`` if there is no such command or no text of this width."""
    import json

    try:
        with open(PATH, encoding="utf-8") as file:
            texts: dict[str, dict[str, list[str]]] = json.load(file)
    except OSError:
        return None
    lines = texts.get(str(line_width()), {}).get(command)
    return None if lines is None else "\n".join([*lines, ""])


def line_width() -> int:
    """Characters of a line of help, as Typer counts them."""
    columns = os.environ.get("COLUMNS", "")
    if not columns and (sys.stdout is None or not sys.stdout.isatty()):
        return WIDTH
    return max(min(_columns(columns), WIDTH) - 2, _NARROWEST)


def _columns(told: str) -> int:
    """Columns of the terminal, as :func:`shutil.get_terminal_size` has them, whose module takes as long to import as all of this."""
    try:
        columns = int(told)
    except ValueError:
        columns = 0
    if columns > 0:
        return columns
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80

"""The help of the command line: the six questions, the list of commands, and the options of a command by group, with examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final

from hwcalc.cli.options import COMMANDS, GROUPS, Example

__all__ = ["QUESTIONS", "summary", "write_command", "write_root"]

QUESTIONS: Final = (
    Example("How much memory does it take?", "kvplan Qwen/Qwen3-8B --seq 32k"),
    Example("Does it fit, how long, how many at once?", "kvplan Qwen/Qwen3-8B --engine vllm --gpu l4"),
    Example("Where does every byte come from?", "kvplan explain Qwen/Qwen3-8B"),
    Example("Which models run on my card?", "kvplan fit --gpu rtx-4060-ti --seq 16k"),
    Example("What should I buy or rent?", "kvplan recommend Qwen/Qwen3-8B --seq 32k --batch 8"),
    Example("Which model, format or GPU?", "kvplan compare Qwen/Qwen3-8B --dtype bf16,fp8 --gpu l4,l40s"),
    Example("Will the next commit still fit?", "kvplan check kvplan.yaml"),
)
"""What people ask most, each with its command."""
_HYPHEN: Final = "\N{NON-BREAKING HYPHEN}"
"""Stands for the hyphens of options while lines are broken, which would else end behind one."""
_OPTION: Final = r"(?<![\w-])--?[a-z][a-z-]+"
_WIDEST: Final = 26
"""The most columns of the options' names; longer ones have a line of their own."""


def summary(command: str) -> str:
    """What a command does, in a line: the first sentence of its ``run``."""
    first: str = (import_module(COMMANDS[command]).run.__doc__ or "").strip().partition("\n")[0]
    return first.partition(". ")[0].rstrip(".") + "."


def write_root(formatter: Any) -> None:
    """The questions and the commands, uncut."""
    _write_examples(formatter, "Questions", QUESTIONS)
    with formatter.section("Commands"):
        formatter.write_dl([(name, summary(name)) for name in COMMANDS])
    formatter.write_paragraph()
    formatter.write_text("All options of a command, with examples: kvplan help COMMAND")


def write_command(formatter: Any, module: Any, records: Sequence[tuple[str, tuple[str, str]]]) -> None:
    """The arguments, the options by group and the examples of a command. ``records`` are names of options with both columns."""
    groups = {option.name: option.group for option in module.OPTIONS if option.flags}
    arguments = {option.name for option in module.OPTIONS if not option.flags}
    width = max((len(first) for _, (first, _) in records if len(first) <= _WIDEST), default=0)
    for title in ("arguments", *GROUPS):
        rows = [
            record for name, record in records if ("arguments" if name in arguments else groups.get(name, GROUPS[-1])) == title
        ]
        if rows:
            with formatter.section(title.capitalize()):
                _write_columns(formatter, rows, width)
    _write_examples(formatter, "Examples", getattr(module, "EXAMPLES", ()))


def _write_columns(formatter: Any, rows: Sequence[tuple[str, str]], width: int) -> None:
    """Two columns, of the same widths in all groups."""
    (first, text), *others = [(name, re.sub(_OPTION, lambda match: match[0].replace("-", _HYPHEN), said)) for name, said in rows]
    formatter.write_dl([(first.ljust(width), text), *others], col_max=_WIDEST)
    formatter.buffer[:] = [piece.replace(_HYPHEN, "-") for piece in formatter.buffer]


def _write_examples(formatter: Any, title: str, examples: Iterable[Example]) -> None:
    listed = tuple(examples)
    if not listed:
        return
    with formatter.section(title):
        for example in listed:
            formatter.write(f"{'':{formatter.current_indent}}{example.says}\n")
            formatter.write(f"{'':{formatter.current_indent + 2}}{example.line}\n")

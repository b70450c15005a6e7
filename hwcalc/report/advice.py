"""The changes that would help, as lines: the command to paste, then what it gives and what the engine itself is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hwcalc.engines import find_engine
from hwcalc.engines.engine import Engine
from hwcalc.engines.pool import Try
from hwcalc.text import clean, printable

__all__ = ["advice_block", "advice_command", "advice_items", "advice_pair", "advice_pairs", "code"]


def advice_pairs(suggestions: Iterable[Try], engine: str) -> list[tuple[str, str]]:
    """The command of each change, which is one line however long, so that it can be pasted; and a line about it."""
    return [advice_pair(one, engine) for one in suggestions]


def advice_pair(one: Try, engine: str) -> tuple[str, str]:
    """The same of one change."""
    return advice_command(one), _about(one, engine)


def advice_command(one: Try) -> str:
    """The command of a change, or the engine's own flags where only the engine is told."""
    return one.command or clean(one.flag)


def advice_items(suggestions: Iterable[Try], engine: str, escaped: Callable[[str], str]) -> list[str]:
    """The same as items of a list in Markdown, whose special characters ``escaped`` takes care of."""
    return [f"- try: {code(command)}\\\n  {escaped(about)}\n" for command, about in advice_pairs(suggestions, engine)]


def advice_block(suggestions: Iterable[Try], engine: str) -> str:
    """The same as plain text; empty without a change."""
    return "".join(f"try {command}\n    {about}\n" for command, about in advice_pairs(suggestions, engine))


def _about(one: Try, engine: str) -> str:
    """What the change gives, and the engine's own flags where they are not the words of the command."""
    rules = find_engine(engine)[0]
    own = one.flag if one.command and type(rules).flag is not Engine.flag else ""
    again = "give the config again: < FILE" if one.command.startswith("kvplan - ") else ""
    return clean(" · ".join(filter(None, (one.effect, own and f"{rules.label}: {own}", again))))


def code(text: str) -> str:
    """``text`` as code in Markdown, whatever quotes it has."""
    fence = "`" * (1 + max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{printable(text)}{pad}{fence}"

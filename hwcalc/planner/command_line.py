"""The command line of a plan: the word for the model, and the options that are not the default, quoted for a shell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import Asked
from hwcalc.planner.options import OPTIONS, PlanOption
from hwcalc.planner.values import TYPES
from hwcalc.text import operand, shell_word

STANDARD_INPUT = "-"
"""The word for a config that has no address: it is read from standard input."""
_NO_ADDRESS = ("stdin", "python")


class CommandLine(Record):
    """The command line of a plan: the word for the model, ``None`` for the bare equation, and the options that are not the default."""

    model: str | None
    given: Mapping[str, Any]

    def changed(self, **settings: Any) -> CommandLine:
        """The command line with other settings; ``None`` restores the default of an option."""
        return CommandLine(model=self.model, given={**self.given, **settings})

    @property
    def words(self) -> tuple[str, ...]:
        """The options and their values."""
        return tuple(word for row in OPTIONS for word in _words(row, self.given.get(row.name)))

    @property
    def text(self) -> str:
        """The line, every word quoted for a shell."""
        words = map(shell_word, self.words)
        if self.model is None:
            return " ".join(("kvplan", *words))
        if self.model != STANDARD_INPUT and self.model.startswith("-"):
            return " ".join(("kvplan", *words, operand(self.model)))
        return " ".join(("kvplan", shell_word(self.model), *words))


def command_line(spec: ModelSpec, options: Mapping[str, Any], *, model: object = None, asked: Asked | None = None) -> CommandLine:
    """The command line of a plan with the parsed ``options``.

    ``model`` is what the caller gave for the model, and ``asked`` has all parsed options, those on how models are read too.
    """
    given = {**options, **({} if asked is None else asked.values)}
    if spec.source == "options":
        return CommandLine(model=None, given=given)
    if isinstance(model, (str, os.PathLike)):
        word = os.fsdecode(os.fspath(model))
    elif spec.source == "local":
        from pathlib import Path

        word = spec.address if Path(spec.address).exists() else STANDARD_INPUT
    else:
        word = STANDARD_INPUT if spec.source in _NO_ADDRESS else spec.address
    # A folder may have the name of a command.
    bare = spec.source == "local" and word != STANDARD_INPUT and not any(sign in word for sign in "./~")
    return CommandLine(model=f"./{word}" if bare else word, given=given)


def _words(row: PlanOption, value: Any) -> Iterator[str]:
    """An option and its value; nothing for the default, and never a secret."""
    if value is None or value == row.default or row.type == "secret":
        return
    flag, write = row.spellings[0], TYPES[row.type].write
    if row.type == "flag":
        yield from (flag,) if value else ()
    elif row.type == "pairs":
        for name, each in value.items():
            yield from (flag, f"{name}={each}")
    else:
        text = write(value)
        yield from (f"{flag}={text}",) if text.startswith("-") else (flag, text)

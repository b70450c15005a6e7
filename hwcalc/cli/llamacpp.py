"""llama-server's own flags on a line of kvplan, by the table of its flags (``profiles/engines/llamacpp/flags.yaml``).

They are taken where the line names the engine or a GGUF file. ``-c`` is the context of all slots together, and ``--seq`` that of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.model import OLLAMA
from hwcalc.profiles.engine_flags import SWITCH_VALUES, engine_flags
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.launch.arguments import Reading

_ENGINE: Final = re.compile(r"ollama|llama[._-]?(?:cpp|server|cli)", re.IGNORECASE)
_FLAGS: Final = engine_flags("llamacpp")
_REPOSITORY: Final = next(flag.spellings for flag in _FLAGS.flags if flag.key == "repository")
MODEL_FLAGS: Final = tuple(
    each for flag in _FLAGS.flags if flag.key in ("model", "repository", "file") for each in flag.spellings
)
"""Flags that name the model."""
_SIZES: Final = ("n_ctx", "n_seq_max")
_PLANNED: Final = {
    each
    for flag in _FLAGS.flags
    if flag.engine_option
    or flag.key in ("model", "repository", "file", "speculative.type", "speculative.n_max", "speculative.draft_model")
    for each in flag.spellings
}
_OFF: Final = {
    each for each, flag in _FLAGS.negations.items() if flag.off_engine_option or (flag.engine_option and each in flag.off)
}
_WITHOUT_EFFECT: Final = {each: flag.takes != "switch" for flag in _FLAGS.flags if not flag.bears for each in flag.spellings}
FOLLOWED: Final = frozenset(
    {each for each in _PLANNED if _FLAGS.spelled[each].takes != "switch"}
    | {each for each, value in _WITHOUT_EFFECT.items() if value}
)
"""Flags of llama-server that a value follows."""
SERVER_FLAGS: Final = frozenset(_PLANNED | _OFF | _WITHOUT_EFFECT.keys())
"""All flags of llama-server that are read."""


def runs_llamacpp(words: Sequence[str]) -> bool:
    """True if a line is about llama.cpp or Ollama: its engine is, or it names no engine and a GGUF file."""
    engines = [value for word, value in zip(words, [*words[1:], ""], strict=True) if word == "--engine"]
    engines += [word.partition("=")[2] for word in words if word.startswith("--engine=")]
    if engines:
        return any(_ENGINE.match(each.strip()) for each in engines)
    if any(word in _REPOSITORY for word in words):
        return True
    named = (word for word in words if not word.startswith("-"))
    return any(word.lower().endswith(".gguf") or "-gguf" in word.lower() or word.startswith(OLLAMA) for word in named)


class LlamacppWords:
    """The flags of llama-server on a line, and kvplan's own words for them."""

    def __init__(self) -> None:
        self.told: list[str] = []
        """The flags and their values."""
        self.dropped: list[str] = []

    def read(self, flag: str, value: str | None, words: list[str]) -> None:
        """Keep a flag, and its value from the words that follow. Raises :class:`~hwcalc.errors.UsageError` for a value that is missing."""
        if flag in _WITHOUT_EFFECT:
            self.dropped.append(flag)
            del words[: int(_WITHOUT_EFFECT[flag] and value is None)]
            return
        row = _FLAGS.spelled.get(flag)
        if row is None or row.takes == "switch":
            if value is not None:
                raise UsageError(f"{flag} takes no value.", hint=f"Write: {flag}")
            self.told.append(flag)
            return
        if value is None and row.takes == "optional" and (not words or words[0].lower() not in SWITCH_VALUES):
            # Until b6325 it was a switch.
            self.told.append(flag)
            return
        if value is None:
            if not words or (words[0].startswith("-") and not words[0][1:2].isdigit()):
                raise UsageError(f"{flag} has no value.", hint=f"Write: {flag} {'FILE' if flag in MODEL_FLAGS else 'N'}")
            value = words.pop(0)
        value = value.strip()
        if row.engine_option in _SIZES or row.key == "speculative.n_max":
            _check_number(flag, value, least=1 if row.engine_option == "n_seq_max" else 0)
        self.told += [flag, value]

    def _reading(self) -> Reading:
        from hwcalc.launch.arguments import Reading
        from hwcalc.launch.words import words_of

        reading = Reading(_FLAGS)
        reading.read(words_of(self.told))
        return reading

    def named(self) -> str:
        """The model that the flags name; empty if they name none."""
        said = self._reading().settings if self.told else {}
        if "repository" in said:
            repository = str(said["repository"])
            return f"{repository.partition(':')[0]}:{said['file']}" if "file" in said else repository
        return str(said.get("model", ""))

    def words(self, given: Iterable[str]) -> list[str]:
        """The words of kvplan's options for the flags.

        ``given`` are the names of options that the line has in kvplan's own words.
        """
        if not self.told:
            return []
        from hwcalc.launch.planned import options_told
        from hwcalc.launch.server import Server

        reading = self._reading()
        options = dict(options_told(_FLAGS, Server(settings=reading.settings, extra=reading.extra)))
        knobs = dict(options.pop("engine_options", {}))
        own, context = set(given), reading.settings.get("ctx")
        if "batch" in options and "batch" in own:
            raise UsageError("-np and --users are the same option, and it takes one value.", hint="Give one of them.")
        if context is not None and "seq" in own:
            # The server has a context of its own, and its users send sequences of the other length.
            options.pop("seq", None)
            knobs = {"n_ctx": str(context)} | {name: value for name, value in knobs.items() if name != "n_ctx"}
        names = {"seq": "--seq", "batch": "--users", "draft": "--draft"}
        out = [word for name, flag in names.items() if name in options for word in (flag, str(options[name]))]
        return out + [word for name, value in knobs.items() for word in ("--engine-option", f"{name}={value}")]

    def remarks(self) -> Iterable[str]:
        """The remarks on what llama-server does otherwise than the plan of this line."""
        said = self._reading().settings if self.told else {}
        context, slots = said.get("ctx"), said.get("slots", -1)
        if isinstance(context, int) and context and slots == -1:
            yield f"-c {context:,} is planned for one slot, -np 1; llama-server by itself opens four that share it: -np 4 -kvu."


def _check_number(flag: str, value: str, least: int) -> None:
    if flag in ("-np", "--parallel") and value == "-1":
        return
    if not (value.isascii() and value.isdigit() and len(value) < 13) or int(value) < least:
        message = f"{flag} {brief(value, 40)} is not a number as llama.cpp writes it."
        raise UsageError(message, hint=f"Write: {flag} 32768, or --seq 32k")

"""What an error or a hint of a plan says, in the words of the text that starts a server."""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import suppress
from copy import copy
from typing import Final

from hwcalc.engines import ENGINES, find_engine
from hwcalc.errors import KvplanError, UsageError
from hwcalc.launch.around import all_flags
from hwcalc.launch.planned import flags_of, flags_said, said_as, set_words
from hwcalc.launch.server import Server
from hwcalc.launch.told import written
from hwcalc.planner.options import ROWS
from hwcalc.text import shell_word

_KNOB: Final = re.compile(r"--engine-option (\w+)=([^\s,;]*[^\s,;.])")
_ENGINE: Final = re.compile(r"--engine ([a-z][a-z0-9-]*)(?:@([a-z0-9.]*[a-z0-9]))?(?![\w@-])")
_LINE: Final = re.compile(r" (?=This works: |The engine accepts this line)")


def in_flags(error: KvplanError, server: Server, given: Container[str], called: str | None = None) -> KvplanError:
    """A copy of the error with the flags of the text in place of kvplan's options, but for those that the user has ``given``.

    Where the server is ``called`` something, the command takes no ``--engine``, and ``--set`` gives the server of this name a release; an empty name is each server.
    """
    error = copy(error)
    hint = without_line(error.hint)
    line = error.hint.removeprefix(hint)
    with suppress(UsageError):
        flags = flags_of(server)
        if "engine_options" not in given:
            hint = _KNOB.sub(lambda knob: written(said_as(flags, server, knob[1], knob[2])) or knob[0], hint)
        error.message, hint = (spelled(text, server, given) for text in (error.message, hint))
    if called is not None:
        hint = _ENGINE.sub(lambda named: _of_engine(named[0], server, called), hint)
    error.hint = f"{hint}{line}"
    return error


def _of_engine(option: str, server: Server, called: str) -> str:
    """What to do in place of ``--engine NAME`` or ``--engine NAME@VERSION`` for the server of a text, which has an engine of its own."""
    name, _, version = option.removeprefix("--engine ").partition("@")
    flags = next((each for each in all_flags() if each.engine == name), None)
    if flags is None or name not in ENGINES:
        # No program: the formulas alone.
        model = server.settings.get("model")
        return f"kvplan {shell_word(model)} {option}" if name in ENGINES and isinstance(model, str) else option
    if flags.name != server.settings.get("engine"):
        return f"{find_engine(name)[0].label} in the file"
    return set_words("engine_version", version, called) if version else f"{find_engine(name)[0].label}'s newest release"


def spelled(text: str, server: Server, given: Container[str]) -> str:
    """The sentence with the flags of a server's text in place of kvplan's options, but for those that the user has ``given``."""
    for flag, _ in flags_said(flags_of(server), server):
        if flag.option in ROWS and flag.option not in given:
            text = re.sub(rf"{re.escape(ROWS[flag.option].spellings[0])}(?![\w-])", flag.spelled, text)
    return text


def remedies(error: KvplanError, server: Server) -> list[dict[str, str]]:
    """What the engine is told for each of its options that the hint of an error names, where it can be told."""
    flags = flags_of(server)
    return [told for knob in _KNOB.finditer(error.hint) if (told := said_as(flags, server, knob[1], knob[2]))]


def without_line(hint: str) -> str:
    """A hint without the command line of a plan at its end."""
    return _LINE.split(hint)[0]

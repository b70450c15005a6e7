"""Lines that hold another program's command, or name a file of commands: they are lines of ``kvplan launch``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Sequence
from itertools import chain
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.files import decoded
from hwcalc.text import brief, shell_word

LAUNCH: Final = "launch"
OWN: Final = ("--set", "--env-file")
"""Options of `kvplan launch` alone."""
_OF_MODEL: Final = r"(?m)^(?:layers|model_type|architectures|checks)\s*:"
"""Keys of a model that is written in YAML, and of a check file."""


def launch_line(words: Sequence[str], takes_value: Container[str]) -> list[str] | None:
    """The line of ``kvplan launch`` for one that holds another program's command or names a file of commands; else ``None``.

    ``takes_value`` are kvplan's options that a value follows. Options of kvplan's own may stand before the command, and behind it where its
    engine has no such flag. Raises :class:`~hwcalc.errors.UsageError` for one with a value behind ``--``.
    """
    if "--" in words:
        dashes = list(words).index("--")
        after = list(words[dashes + 1 :])
        before = [word for word in words[:dashes] if word != LAUNCH]
        if not after or not starts_server(after):
            return None
        own, rest = _parted(after)
        wrong = next((words for words in own if "=" in words[0] or len(words) > 1), None)
        if wrong is not None:
            line = " ".join(shell_word(word) for word in (*before, *wrong, "--", *rest[:3]))
            raise UsageError(
                f"{brief(wrong[0], 40)} is kvplan's, and stands behind --.", hint=f"Put it in front: kvplan {line} ..."
            )
        return [LAUNCH, *before, *chain(*own), "--", *rest]
    place = _first_free(words, takes_value)
    if place is None:
        return None
    word = words[place]
    if word == LAUNCH:
        others = [*words[:place], *words[place + 1 :]]
        return launch_line(others, takes_value) or [LAUNCH, *others]
    if is_launch_file(word) or (word == "-" and piped_launch()):
        return [LAUNCH, *words]
    if " " in word.strip() and starts_server(word.split()):
        return [LAUNCH, *words]
    if len(words) - place < 2 or _is_model(word) or not starts_server(words[place:]):
        return None
    own, rest = _parted(words[place:])
    return [LAUNCH, *words[:place], *chain(*own), "--", *rest]


def refuse_program(words: Sequence[str]) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for words that begin with the name of a server's program, or nearly so, and start none."""
    from difflib import get_close_matches

    from hwcalc.launch.around import all_flags
    from hwcalc.launch.commands import base_name

    programs = {
        each.words[0]: each.words
        for flags in reversed(all_flags())
        for each in reversed(flags.programs)
        if "-m" not in each.words
    }
    near = get_close_matches(base_name(words[0]), programs, n=1, cutoff=0.8)
    if near:
        said = brief(" ".join(words[:2]), 40)
        raise UsageError(
            f"{said} starts no server that kvplan knows.", hint=f"Write: kvplan -- {' '.join(programs[near[0]])} MODEL"
        )


def _first_free(words: Sequence[str], takes_value: Container[str]) -> int | None:
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            skip = word in takes_value
        else:
            return place
    return None


def _is_model(word: str) -> bool:
    """True if a word is the id of a model, which no program is: ``org/name``."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(?:[@:][\w./-]+)?", word)) and not os.path.exists(word)


def starts_server(words: Sequence[str]) -> bool:
    """True if these words begin with a server's program, or with one that starts another."""
    from hwcalc.launch.commands import base_name, program_at
    from hwcalc.launch.words import words_of
    from hwcalc.profiles.launch import launch_words

    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    if not words:
        return False
    if base_name(words[0]) in launch_words().starters:
        return len(words) > 1
    return program_at(words_of(words[:10])) is not None


def _parted(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The options of kvplan among the words of a server's command, each with its value, which its engine does not have; and the command."""
    from hwcalc.launch.commands import program_at
    from hwcalc.launch.words import words_of

    match = program_at(words_of(words[:10]))
    if match is None:
        return [], list(words)
    from hwcalc.cli.options import DETAIL, PLANNING

    flags, _, size, _ = match
    ours = {flag: option for option in (*PLANNING, *DETAIL) for flag in option.flags if flag.startswith("--")}
    own: list[list[str]] = []
    rest = list(words[:size])
    pending = list(words[size:])
    while pending:
        word = pending.pop(0)
        spelled, equals, _ = word.partition("=")
        option = ours.get(spelled)
        meant = flags.find(spelled)[0]
        # The beginning of an engine's flag is the engine's where it is the same option of a plan.
        theirs = spelled in flags.spelled or (meant is not None and option is not None and meant.option == option.name)
        if theirs or (option is None and spelled not in OWN):
            rest.append(word)
            continue
        own.append([word])
        if (option is None or option.kind != "flag") and not equals and pending:
            own[-1].append(pending.pop(0))
    return own, rest


def is_launch_file(word: str) -> bool:
    """True if a word names a file of commands or manifests: by its name, and, where that may be a model too, by what stands in it."""
    from hwcalc.launch.named import is_json_manifest, named_launch

    name = os.path.basename(word).lower()
    if not os.path.isfile(word) or not named_launch(word):
        return False
    if name.endswith((".yaml", ".yml", ".json", ".txt")):
        try:
            with open(word, "rb") as file:
                start = decoded(file.read(64 * 1024), "replace")
        except OSError:
            return False
        return is_json_manifest(start) if name.endswith(".json") else not re.search(_OF_MODEL, start)
    return True


def piped_launch() -> bool:
    """True if standard input begins with a command or a manifest, and not with a config or a GGUF file. Nothing of it is taken."""
    stream: Any = getattr(sys.stdin, "buffer", None)
    if stream is None or not hasattr(stream, "peek") or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    start = stream.peek(64 * 1024)[: 64 * 1024]
    text = decoded(start, "replace").lstrip()
    if text.startswith("GGUF") or "\0" in text[:1024]:
        return False
    if text.startswith("{"):
        from hwcalc.launch.named import is_json_manifest

        return is_json_manifest(text)
    return bool(text) and not re.search(_OF_MODEL, text)

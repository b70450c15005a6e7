"""Files of variables: what their lines say, the ``.env`` that lies beside a text, and those that services of Compose name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from hwcalc.files import decoded
from hwcalc.formulas.record import Record
from hwcalc.launch.words import MOST_VALUE
from hwcalc.masking import masked
from hwcalc.profiles.engine_flags import engine_flags, engines
from hwcalc.profiles.launch import launch_words

NAME: Final = ".env"
"""The file that Docker Compose reads by itself from the folder of a project."""
NOTED: Final = "env-file"
"""The code of a note on it."""
_LARGEST: Final = 256 * 1024
_LINE: Final = re.compile(
    r"""
    ^[ \t]*+ (?:export[ \t]++)? (?P<name>[A-Za-z_][\w.-]*+) [ \t]*+ [=:] [ \t]*+
    (?: '(?P<literal>(?:[^'\\]|\\.)*+)' | "(?P<text>(?:[^"\\]|\\.)*+)" | (?P<plain>[^\r\n]*+) )
    """,
    re.MULTILINE | re.VERBOSE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"\s#.*")
_INNER: Final = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
"""A variable in a value, with its default."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NAME_ALONE: Final = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*")
_RAW: Final = re.compile(r"[ \t]*([A-Za-z_][\w.-]*)=(.*)")
ALLOWS: Final = "_ALLOW_"
"""In the names of variables with which an engine takes what it would refuse."""
_SECRET: Final = ("key", "pass")
"""Ends of the names of secrets, beside those that :func:`~hwcalc.masking.masked` knows."""
MISSING: Final = "it is not there"
TOO_MANY: Final = "the text names too many"
"""Why a file is not read."""
_SIGNS: Final = {"n": "\n", "r": "\r", "t": "\t"}


class EnvFile(Record):
    """The ``variables`` of a file, or the ``fault`` for which it is not read."""

    path: str
    variables: Mapping[str, str] = MappingProxyType({})
    fault: str = ""


class Named(Record):
    """A file of variables that a service names: its ``path`` from the folder of the text, whether it must be there, and whether its values are ``raw``."""

    path: str
    required: bool = True
    raw: bool = False

    @property
    def name(self) -> str:
        """The path without ``./``."""
        return os.path.normpath(self.path)


def is_secret(name: str, value: str) -> bool:
    """True if a variable looks like a secret."""
    return masked(f"{name}={value}") != f"{name}={value}" or name.lower().endswith(_SECRET)


def variables_in(lines: str, outside: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    r"""The variables that the lines of a file set, as Docker Compose reads them. One that nobody sets is empty in another one's value.

    Those from ``outside`` count more in the values of others.

    >>> variables_in('A=1 # one\nexport B="${A}2"\nC=${X:-3}#4')
    {'A': '1', 'B': '12', 'C': '3#4'}
    """
    out: dict[str, str] = {}
    # Values of values would fill any memory.
    room = len(lines) + _LARGEST
    for match in _LINE.finditer(lines):
        if match["literal"] is not None:
            value = match["literal"].replace("\\'", "'")
        elif match["text"] is not None:
            value = _ESCAPED.sub(lambda sign: _SIGNS.get(sign[1], sign[1]), _filled(match["text"], out, outside))
        else:
            value = _filled(_COMMENT.sub("", match["plain"]).strip(), out, outside)
        out[match["name"]] = value[: min(MOST_VALUE, max(room, 0))]
        room -= len(out[match["name"]])
    return out


def _filled(value: str, known: Mapping[str, str], outside: Mapping[str, str]) -> str:
    """A value with the variables in it put in, as far as a value may be long."""
    out, behind, length = list[str](), 0, 0
    for match in _INNER.finditer(value):
        name = match[1] or match[2]
        inner = outside.get(name) or known.get(name) or match[3] or ""
        out += [value[behind : match.start()], inner]
        behind, length = match.end(), length + len(out[-2]) + len(inner)
        if length > MOST_VALUE:
            break
    return "".join((*out, value[behind:]))


def beside(path: str) -> EnvFile | None:
    """The file of variables in the folder of a text; ``None`` where there is none, or the text has no folder."""
    folder = os.path.dirname(path)
    file = os.path.join(folder, NAME)
    if path == "-" or not os.path.lexists(file):
        return None
    lines, fault = _read(file, folder)
    return EnvFile(path=file, variables=variables_in(lines), fault=fault)


def of_service(path: str, named: Named, outside: Mapping[str, str], used: Collection[str]) -> EnvFile:
    """The file that a service in the text of this path names, with the variables that may bear on a plan, or that the text has ``used``.

    Whatever else it has is not kept, and no secret is.
    """
    folder = os.path.dirname(path)
    file = os.path.join(folder, named.name)
    lines, fault = _read(file, folder)
    found = dict[str, str]()
    if named.raw:
        found = {match[1]: match[2][:MOST_VALUE] for line in lines.splitlines() if (match := _RAW.fullmatch(line))}
    elif not fault:
        alone = (match[1] for line in lines.splitlines() if (match := _NAME_ALONE.fullmatch(line)))
        found = {name: outside[name] for name in alone if name in outside} | variables_in(lines, outside)
    kept = {name: value for name, value in found.items() if (name in used or _bears(name)) and not is_secret(name, value)}
    return EnvFile(path=file, variables=kept, fault=fault)


def _read(file: str, folder: str) -> tuple[str, str]:
    """The text of a file in or below a folder, or why it is not read.

    Somebody else's folder may have anything under that name: what is no small file of text in it is not read.
    """
    try:
        place, home = os.path.realpath(file), os.path.realpath(folder or os.curdir)
        if os.path.commonpath([home, place]) != home:
            above = os.path.abspath(folder or os.curdir)
            is_link = os.path.commonpath([above, os.path.abspath(file)]) == above
            return "", "it is a link that leads out of its folder" if is_link else "it lies outside the folder of the text"
        if not os.path.lexists(file):
            return "", MISSING
        mode = os.stat(file).st_mode
        if not stat.S_ISREG(mode):  # opening anything else may block for ever
            return "", "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device"
        with open(file, "rb") as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            return "", f"it is larger than {_LARGEST // 1024} KiB"
        text = decoded(data)
    except UnicodeDecodeError as error:
        return "", f"it is not {error.encoding.upper()} text"
    except (OSError, ValueError) as error:
        return "", f"it cannot be read: {getattr(error, 'strerror', None) or 'no name of a file'}"
    return ("", "it is no text") if "\0" in text else (text, "")


def _bears(name: str) -> bool:
    """True if some engine reads a variable of this name in a way that may bear on a plan."""
    return name in _read_by_engines() or ALLOWS in name


@cache
def _read_by_engines() -> frozenset[str]:
    """The names of variables that engines read."""
    names = set(launch_words().visible_devices)
    for flags in map(engine_flags, engines()):
        names |= {row.name for row in flags.environment} | {flag.variable for flag in flags.flags if flag.variable}
        if flags.variables is not None:
            spelled = (each for flag in flags.flags for each in flag.spellings if each.startswith("--"))
            names |= {flags.variables + each[2:].replace("-", "_").upper() for each in spelled}
    return frozenset(names)

"""Files of variables: what their lines say, and the ``.env`` that lies beside a text."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.files import decoded
from hwcalc.formulas.record import Record
from hwcalc.launch.words import MOST_VALUE

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
_SIGNS: Final = {"n": "\n", "r": "\r", "t": "\t"}


class EnvFile(Record):
    """The ``variables`` of a file, or the ``fault`` for which it is not read."""

    path: str
    variables: Mapping[str, str] = MappingProxyType({})
    fault: str = ""


def variables_in(lines: str) -> dict[str, str]:
    r"""The variables that the lines of a file set, as Docker Compose reads them. One that it sets nowhere is empty in another one's value.

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
            value = _ESCAPED.sub(lambda sign: _SIGNS.get(sign[1], sign[1]), _filled(match["text"], out))
        else:
            value = _filled(_COMMENT.sub("", match["plain"]).strip(), out)
        out[match["name"]] = value[: min(MOST_VALUE, max(room, 0))]
        room -= len(out[match["name"]])
    return out


def _filled(value: str, known: Mapping[str, str]) -> str:
    """A value with the variables in it put in, as far as a value may be long."""
    out, behind, length = list[str](), 0, 0
    for match in _INNER.finditer(value):
        inner = known.get(match[1] or match[2]) or match[3] or ""
        out += [value[behind : match.start()], inner]
        behind, length = match.end(), length + len(out[-2]) + len(inner)
        if length > MOST_VALUE:
            break
    return "".join((*out, value[behind:]))


def beside(path: str) -> EnvFile | None:
    """The file of variables in the folder of a text; ``None`` where there is none, or the text has no folder.

    Somebody else's folder may have anything under that name: what is no small file of text in it is not read.
    """
    folder = os.path.dirname(path)
    file = os.path.join(folder, NAME)
    if path == "-" or not os.path.lexists(file):
        return None
    try:
        place, home = os.path.realpath(file), os.path.realpath(folder or os.curdir)
        if os.path.commonpath([home, place]) != home:
            return EnvFile(path=file, fault="it is a link that leads out of its folder")
        mode = os.stat(file).st_mode
        if not stat.S_ISREG(mode):  # opening anything else may block for ever
            return EnvFile(path=file, fault="it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device")
        with open(file, "rb") as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            return EnvFile(path=file, fault=f"it is larger than {_LARGEST // 1024} KiB")
        text = decoded(data)
    except UnicodeDecodeError as error:
        return EnvFile(path=file, fault=f"it is not {error.encoding.upper()} text")
    except (OSError, ValueError) as error:
        return EnvFile(path=file, fault=f"it cannot be read: {getattr(error, 'strerror', None) or 'no name of a file'}")
    return EnvFile(path=file, fault="it is no text") if "\0" in text else EnvFile(path=file, variables=variables_in(text))

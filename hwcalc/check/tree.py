"""The tree of a check file, with errors that name the file and the place."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import Final

from hwcalc.check.errors import CheckFileError
from hwcalc.text import operand, printable
from hwcalc.yaml_tree import LARGEST_FILE, Node, TreeError, read_tree

__all__ = ["parse_tree", "read_text"]

_HOW: Final = "Write plain YAML or JSON. An example: kvplan check --example"


def read_text(path: str) -> str:
    """The text of a regular file, or of standard input for ``-``. Raises :class:`~hwcalc.check.errors.CheckFileError`."""
    name = "standard input" if path == "-" else printable(path)
    try:
        data = _bytes(path, name)
    except FileNotFoundError as error:
        beside = _beside(path)
        hint = (
            f"There is: kvplan check {operand(beside)}" if beside else "Give a check file, or start with: kvplan check --example"
        )
        raise CheckFileError(f"there is no file {name}.", hint=hint) from error
    except CheckFileError:
        raise
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise CheckFileError(f"{name} cannot be read: {reason}.", hint="Give a check file in YAML.") from error
    if len(data) > LARGEST_FILE:
        raise CheckFileError(f"{name} is larger than {LARGEST_FILE // 1024**2} MiB.", hint="Split it into several check files.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckFileError(
            f"{name} is not UTF-8 text (byte {error.start:,}).",
            hint="Save it as UTF-8.",
            line=data.count(b"\n", 0, error.start) + 1,
        ) from error


def _beside(path: str) -> str:
    """The file of the same name with another suffix, if there is one."""
    from pathlib import Path

    file = Path(path)
    for suffix in (".yaml", ".yml", ".json"):
        with suppress(OSError, ValueError):
            if file.suffix and file.with_suffix(suffix).is_file():
                return str(file.with_suffix(suffix))
    return ""


def _bytes(path: str, name: str) -> bytes:
    if path == "-":
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise CheckFileError("there is nothing on standard input.", hint="Pipe a check file in: kvplan check - < checks.yaml")
        data = getattr(sys.stdin, "buffer", sys.stdin).read(LARGEST_FILE + 1)
        return data.encode() if isinstance(data, str) else bytes(data)
    mode = os.stat(path or os.curdir).st_mode
    if not stat.S_ISREG(mode):  # opening anything else may block for ever
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise CheckFileError(f"{name} is {what}, not a file.", hint="Give a check file, or - for standard input.")
    with open(path, "rb") as stream:
        return stream.read(LARGEST_FILE + 1)


def parse_tree(text: str, name: str) -> Node:
    """The tree of a text. Messages name its places as ``name:line:column``.

    Raises :class:`~hwcalc.check.errors.CheckFileError`.
    """
    try:
        return read_tree(text)
    except TreeError as error:
        line, column = error.line or 1, error.column or 1
        if error.line is not None:
            message = f"{name}:{line}:{column}: {error.problem}."
        else:
            message = f"{name}{':' if error.problem.startswith('not') else ''} {error.problem}."
        raise CheckFileError(message, hint=error.hint or _HOW, line=line, column=column) from error

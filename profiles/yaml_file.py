"""Fact files in YAML, with line numbers for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError
from hwcalc.yaml_tree import LARGEST_FILE, Node, TreeError, plain_value, read_tree

__all__ = ["YamlFile", "parse_yaml", "read_yaml"]


class YamlFile(Record):
    """A document whose top level is a mapping, and the line of each key."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[str, int]

    def line(self, key: str) -> int | None:
        """The line of a key or of an item of a list. The name of a nested key has dots."""
        return self.lines.get(key)


def read_yaml(path: Path) -> YamlFile:
    """Read a file of up to 1 MiB. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path and line."""
    try:
        if not path.is_file():
            raise ProfileError(path, "is not a regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ProfileError(path, f"is larger than {LARGEST_FILE // 1024**2} MiB")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ProfileError(path, "is not UTF-8 text") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """Read YAML text. Duplicate keys, anchors, aliases and tags are errors. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    try:
        root = read_tree(text)
    except TreeError as error:
        said = error.problem if error.problem.startswith(("is ", "has ")) else f"is no plain YAML: {error.problem}"
        raise ProfileError(path, said, line=error.line, key=error.key) from error
    if not isinstance(root.value, dict):
        raise ProfileError(path, "must be a mapping of keys and values", line=1)
    return YamlFile(path=path, data=plain_value(root), lines=_lines(root))


def _lines(root: Node) -> dict[str, int]:
    """Dotted key -> its line, counted from 1."""
    lines: dict[str, int] = {}
    waiting: list[tuple[str, Node]] = [("", root)]
    while waiting:
        prefix, node = waiting.pop()
        for key, place in (node.keys or {}).items():
            lines[f"{prefix}{key}"] = place.line
            waiting.append((f"{prefix}{key}.", node.value[key]))
        if isinstance(node.value, list):
            for index, item in enumerate(node.value):
                lines[f"{prefix}{index}"] = item.line
                waiting.append((f"{prefix}{index}.", item))
    return lines

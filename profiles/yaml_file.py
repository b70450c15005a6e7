"""Fact files in YAML, with line numbers for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.catalog import ProfileError

__all__ = ["YamlFile", "parse_yaml", "read_yaml"]

_LARGEST_FILE = 1024**2


@frozen
class YamlFile:
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
        if path.stat().st_size > _LARGEST_FILE:
            raise ProfileError(path, f"is larger than {_LARGEST_FILE // 1024**2} MiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ProfileError(path, "is not UTF-8 text") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """Read YAML text. A duplicate key is an error, and so is an alias. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
        lines = _lines(node, path)
        data = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are the safe ones
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ProfileError(path, f"is not YAML: {error.problem or error}", line=line) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, ProfileError):
            raise
        raise ProfileError(path, "is not YAML that can be read") from error
    if not isinstance(data, dict):
        raise ProfileError(path, "must be a mapping of keys and values", line=1)
    return YamlFile(path=path, data=data, lines=lines)


def _lines(root: Any, path: Path) -> dict[str, int]:
    """Dotted key -> its line, counted from 1."""
    import yaml

    lines: dict[str, int] = {}
    waiting: list[tuple[str, Any]] = [("", root)]
    seen: set[int] = set()
    while waiting:
        prefix, node = waiting.pop()
        if id(node) in seen:
            raise ProfileError(path, "an alias (*name) is not allowed here", line=node.start_mark.line + 1)
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = f"{prefix}{key.value}"
                if name in lines:
                    raise ProfileError(path, "stands twice", line=key.start_mark.line + 1, key=name)
                lines[name] = key.start_mark.line + 1
                waiting.append((f"{name}.", value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[f"{prefix}{index}"] = item.start_mark.line + 1
                waiting.append((f"{prefix}{index}.", item))
    return lines

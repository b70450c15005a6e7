"""The keys of a fact file as a table: a check for each value, and the words for its error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.yaml_file import YamlFile

__all__ = ["Field", "check", "date", "number", "sources", "text", "version", "whole"]

_DATE: Final = re.compile(r"(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_LARGEST: Final = 2**40

Field = tuple[str, Callable[[Any], bool], str, bool]
"""A key, its check, what is allowed, and whether it may be absent or null."""


def text(value: Any) -> bool:
    """A text that is not empty."""
    return isinstance(value, str) and bool(value.strip())


def whole(value: Any) -> bool:
    """A positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST


def number(value: Any) -> bool:
    """A positive number."""
    return whole(value) or (isinstance(value, float) and math.isfinite(value) and 0 < value < _LARGEST)


def date(value: Any) -> bool:
    """A date as text, such as ``2026-11-20``. YAML needs quotes for it."""
    return isinstance(value, str) and _DATE.fullmatch(value) is not None


def version(allowed: int) -> Callable[[Any], bool]:
    """Exactly this version of the file format. ``True`` does not count as 1."""
    return lambda value: value == allowed and not isinstance(value, bool)


def sources(value: Any) -> bool:
    """A mapping with a short name and a text for each source."""
    return isinstance(value, dict) and bool(value) and all(text(key) and text(words) for key, words in value.items())


def check(file: YamlFile, fields: Sequence[Field]) -> None:
    """Raise :class:`~hwcalc.profiles.catalog.ProfileError` with line and key for the first unknown, missing or wrong key."""
    names = [name for name, *_ in fields]
    for key in file.data:
        if key not in names:
            problem = f"is not known. Allowed: {', '.join(names)}"
            raise ProfileError(file.path, problem, line=file.line(str(key)), key=str(key))
    for key, good, allowed, optional in fields:
        if optional and file.data.get(key) is None:
            continue
        if key not in file.data:
            raise ProfileError(file.path, f"is missing: it must be {allowed}", key=key)
        if not good(file.data[key]):
            raise ProfileError(file.path, f"must be {allowed}", line=file.line(key), key=key)

"""Estimates and shares in fact files. Each is checked and has a source."""

from __future__ import annotations

import math
import re
from typing import Any

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.yaml_file import YamlFile

__all__ = ["Estimate", "parse_estimate", "parse_share", "parse_source", "wrong"]

_SHARE = re.compile(r"([1-9][0-9]{0,4})/([1-9][0-9]{0,4})")


@frozen
class Estimate:
    """A number that is not exact: low, expected and high value, and the source."""

    low: float
    expected: float
    high: float
    source: str


def wrong(file: YamlFile, key: str, problem: str) -> ProfileError:
    """An error that names path, line and key."""
    return ProfileError(file.path, problem, line=file.line(key), key=key)


def parse_estimate(file: YamlFile, key: str, content: Any) -> Estimate:
    """Read ``{low, expected, high, source}``. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    if not isinstance(content, dict) or set(content) != {"low", "expected", "high", "source"}:
        raise wrong(file, key, "must have low, expected, high and source")
    numbers = [content[name] for name in ("low", "expected", "high")]
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) and math.isfinite(item) for item in numbers):
        raise wrong(file, key, "low, expected and high must be numbers")
    if numbers[0] < 0 or numbers != sorted(numbers):
        raise wrong(file, key, "must have 0 <= low <= expected <= high")
    return Estimate(low=numbers[0], expected=numbers[1], high=numbers[2], source=parse_source(file, key, content))


def parse_source(file: YamlFile, key: str, content: dict[str, Any]) -> str:
    """Read the text of ``source``. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    source = content.get("source")
    if not isinstance(source, str) or not source.strip():
        raise wrong(file, key, "must have a source in words")
    return source


def parse_share(file: YamlFile, key: str, content: Any) -> tuple[int, int]:
    """Read a share of at most 1, such as ``2/3``, as two whole numbers, so that arithmetic stays exact."""
    match = _SHARE.fullmatch(content) if isinstance(content, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise wrong(file, key, "must be a share of at most 1, written 2/3")
    return int(match[1]), int(match[2])

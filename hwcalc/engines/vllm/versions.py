"""Releases of vLLM, and how they are spelled.

The rules that changed between releases are in :mod:`hwcalc.engines.vllm.rules`, the models that they run in
:mod:`hwcalc.engines.vllm.classes`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from hwcalc.errors import UnknownNameError
from hwcalc.profiles.engines import Version, planned_version
from hwcalc.text import brief

_OLDEST: Final = 6
VERSIONS: Final = tuple(f"0.{number}" for number in range(33, _OLDEST - 1, -1))
NEWEST: Final = VERSIONS[0]
RELEASES: Final = (
    *("0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4", "0.6.5", "0.6.6", "0.7.0", "0.7.1", "0.7.2", "0.7.3"),
    *("0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.9.0", "0.9.0.1", "0.9.1", "0.9.2"),
    *("0.10.0", "0.10.1", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1"),
    *("0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2"),
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0"),
    *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
"""The releases whose code was read for the rules, oldest first."""
_UNRELEASED: Final = r"v?(0\.[0-9]{1,3}\.[0-9]{1,3})(?:\.?(?:rc|a|b|dev)[0-9]*)?(?:\+[\w.]+)?"
"""A candidate, a development version or a build with a local label."""


@lru_cache(maxsize=256)
def since(text: str) -> Version:
    """The first release that a version of two numbers means: ``(0, 20)`` comes before every 0.20.x."""
    return tuple(int(part) for part in text.split("."))


@lru_cache(maxsize=256)
def resolve(requested: str) -> str:
    """The release that a spelling names: ``0.20.1`` for ``v0.20.1``, and ``0.20``, its last patch, for ``0.20``."""
    parts = requested.removeprefix("v").split(".")
    if parts[-1].startswith("post"):
        parts.pop()
    if 2 <= len(parts) <= 4 and all(part.isdecimal() and len(part) < 4 for part in parts):
        version = [int(part) for part in parts]
        if f"{version[0]}.{version[1]}" in VERSIONS:
            return ".".join(map(str, version))
    unreleased = re.fullmatch(_UNRELEASED, requested)
    released = unreleased[1] if unreleased and unreleased[1].rpartition(".")[0] in VERSIONS else None
    raise UnknownNameError(
        f"--engine vllm@{brief(requested, 20)}: no rules for that version.",
        option="engine",
        hint=f"{f'Use: --engine vllm@{released}. ' if released else ''}Known: {VERSIONS[-1]} to {VERSIONS[0]}.",
    )


@lru_cache(maxsize=256)
def nearest_release(version: str) -> str | None:
    """The release whose rules hold for a version that was not read; ``None`` for one that was, and for one without a patch.

    >>> nearest_release("0.20.99"), nearest_release("0.15.0"), nearest_release("0.20.1"), nearest_release("0.20")
    ('0.20.2', '0.15.1', None, None)
    """
    if version in RELEASES or version in VERSIONS:
        return None
    planned = planned_version(version)
    same_line = [release for release in RELEASES if planned_version(release)[:2] == planned[:2]]
    return next((release for release in reversed(same_line) if planned_version(release) <= planned), same_line[0])

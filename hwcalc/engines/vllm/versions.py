"""Releases of vLLM, and how they are spelled.

The rules that changed between releases are in :mod:`hwcalc.engines.vllm.rules`, the models that they run in
:mod:`hwcalc.engines.vllm.classes`.
"""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UnknownNameError
from hwcalc.profiles.engines import Version

__all__ = ["NEWEST", "VERSIONS", "resolve", "since"]

_OLDEST: Final = 6
VERSIONS: Final = tuple(f"0.{number}" for number in range(33, _OLDEST - 1, -1))
NEWEST: Final = VERSIONS[0]


def since(text: str) -> Version:
    """The first release that a version of two numbers means: ``(0, 20)`` comes before every 0.20.x."""
    return tuple(int(part) for part in text.split("."))


def resolve(requested: str) -> str:
    """The release that a spelling names: ``0.20.1`` for ``v0.20.1``, and ``0.20``, its last patch, for ``0.20``."""
    parts = requested.removeprefix("v").split(".")
    if parts[-1].startswith("post"):
        parts.pop()
    if 2 <= len(parts) <= 4 and all(part.isdecimal() and len(part) < 4 for part in parts):
        version = [int(part) for part in parts]
        if f"{version[0]}.{version[1]}" in VERSIONS:
            return ".".join(map(str, version))
    raise UnknownNameError(
        f"--engine vllm@{requested[:20]}: no rules for that version.",
        option="engine",
        hint=f"Known: {VERSIONS[-1]} to {VERSIONS[0]}.",
    )

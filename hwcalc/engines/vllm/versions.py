"""Releases of vLLM, and how they are spelled.

The rules that changed between releases are in :mod:`hwcalc.engines.vllm.rules`, the models that they run in
:mod:`hwcalc.engines.vllm.classes`.
"""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UnknownNameError

__all__ = ["NEWEST", "VERSIONS", "Version", "numbers", "resolve"]

_OLDEST: Final = 6
VERSIONS: Final = tuple(f"0.{number}" for number in range(33, _OLDEST - 1, -1))
NEWEST: Final = VERSIONS[0]

Version = tuple[int, ...]
_LAST_PATCH: Final = 999


def numbers(version: str, *, first: bool = False) -> Version:
    """The numbers of a version, for comparison. A version without a patch is its last patch, or its first one.

    >>> numbers("0.20.1"), numbers("0.20"), numbers("0.20", first=True)
    ((0, 20, 1), (0, 20, 999), (0, 20, 0))
    """
    parts = tuple(int(part) for part in version.split("."))
    return parts if len(parts) > 2 else (*parts, 0 if first else _LAST_PATCH)


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

"""A glance at the files of built-in profiles: values that stand on one line, without the check that a profile gets when it is read.

To read all accelerators takes a tenth of a second, which is as long as a plan; to look for three keys in them takes a tenth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

__all__ = ["glance"]


@lru_cache(maxsize=8)
def glance(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """The keys and values of each file of a folder, by the stem of the file.

    >>> from hwcalc.profiles.gpus import BUILT_IN
    >>> glance(BUILT_IN)["l4"]["memory_marketing_gb"]
    '24'
    """
    return MappingProxyType({path.stem: MappingProxyType(_pairs(path)) for path in sorted(folder.glob("*.yaml"))})


def _pairs(path: Path) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, colon, value = line.partition(": ")
        if colon and not line.startswith((" ", "#")):
            pairs[key] = value.strip().strip("'\"")
    return pairs

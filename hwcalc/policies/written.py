"""How policies are written: ``NAME:key=value,key=value``, with a policy inside another in brackets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.text import shown

__all__ = ["LONGEST", "WRITE", "split_at"]

LONGEST: Final = 100_000
"""Characters of a policy, or of a list of them."""
WRITE: Final = "Write: snapkv:compression_ratio=0.5,window_size=32, with a policy inside in brackets: adakv:press=(knorm:compression_ratio=0.5)"


def split_at(text: str, sign: str) -> Iterator[str]:
    """``text`` cut at each sign that stands in no bracket. Raises an error where brackets do not close."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth < 0:
            break
        if letter == sign and depth == 0:
            yield text[start:place]
            start = place + 1
    if depth != 0:
        raise UsageError(f"brackets do not close: {shown(text, 60)}", hint=WRITE)
    yield text[start:]

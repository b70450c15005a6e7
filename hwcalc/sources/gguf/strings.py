"""Step over arrays of strings: the tokens and merges of a model are half a million of them."""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import Final

from hwcalc.sources.gguf.window import Window

__all__ = ["skip_strings"]

_SHORT: Final = 128
"""Strings of fewer bytes are matched by a pattern. Tokens are shorter, with few exceptions."""
_AT_ONCE: Final = 256
_LENGTH: Final = 8


def skip_strings(window: Window, count: int, order: str) -> None:
    """Step over ``count`` strings, each of which has its length before it. ``order`` is that of their bytes, ``<`` or ``>``.

    One at a time in Python takes twice as long as many at a time in a regular expression, so that is tried first.
    """
    window.must_have(_LENGTH * count)
    length = Struct(f"{order}Q").unpack_from
    match = _short_strings(order).match if count >= _AT_ONCE else None
    while count:
        if match is not None and count >= _AT_ONCE and (found := match(window.data, window.position)):
            window.position = found.end()
            count -= _AT_ONCE
            continue
        for _ in range(min(count, _AT_ONCE)):
            window.need(_LENGTH)
            data, position = window.data, window.position
            end = position + _LENGTH + int(length(data, position)[0])
            if end <= len(data):
                window.position = end
            else:
                window.skip(end - position)
        count -= min(count, _AT_ONCE)


@lru_cache(maxsize=2)
def _short_strings(order: str) -> re.Pattern[bytes]:
    """:data:`_AT_ONCE` strings of fewer than :data:`_SHORT` bytes."""
    small, zeros = rb"\x%02x", rb"\x00{7}"
    head = small + zeros if order == "<" else zeros + small
    each = b"|".join(head % number + b".{%d}" % number for number in range(_SHORT))
    return re.compile(b"(?s:%b){%d}+" % (each, _AT_ONCE))

"""Regular expressions that are compiled when they are first used: most commands use few of those that their modules have."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hwcalc.formulas.hints import Any, AnyStr, Final, cast

__all__ = ["LazyPattern", "late_patterns", "pattern"]

_compile: Final = re.compile


class LazyPattern:
    """Stands for a compiled expression. What is asked of it is asked of that, and kept."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(_compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As :func:`re.compile`, later. An expression that is wrong raises :class:`re.error` where it is used.

    >>> pattern("[0-9]+").sub("#", "8 x 80 GB")
    '# x # GB'
    """
    return cast("re.Pattern[AnyStr]", LazyPattern(text, flags))


@contextmanager
def late_patterns() -> Iterator[None]:
    """Expressions of the modules that are imported inside are compiled late too, but not where other threads could see it."""
    threading, compile_now = sys.modules.get("threading"), re.compile
    if threading is not None and threading.active_count() > 1:
        yield
        return
    re.compile = pattern  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = compile_now

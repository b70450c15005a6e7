"""How large the numbers of a rule become: the rule itself is asked, with a range in place of an array.

Arrays have 64 bits, and a number that needs more would be wrong without a word. So a rule is called once with the range of all lengths and
the range of all numbers of sequences, and every step that it takes is bounded, in Python's own integers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Final

_FAR: Final = 2**100
"""More than anybody asks about."""


class Reach:
    """A range of numbers, from ``low`` to ``high``. ``seen`` collects the largest magnitude of all steps that came of it."""

    shape = ()

    def __init__(self, low: Any, high: Any, seen: list[Any]) -> None:
        self.low, self.high, self.seen = low, high, seen
        seen[0] = max(seen[0], high)
        seen[0] = max(seen[0], -low)

    def __add__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(self.low + low, self.high + high, self.seen)

    def __sub__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(self.low - high, self.high - low, self.seen)

    def __rsub__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(low - self.high, high - self.low, self.seen)

    def __mul__(self, other: Any) -> Reach:
        low, high = _ends(other)
        if self.low >= 0 and low >= 0:
            return Reach(self.low * low, self.high * high, self.seen)
        products = (self.low * low, self.low * high, self.high * low, self.high * high)
        return Reach(min(products), max(products), self.seen)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Reach:
        return Reach(-self.high, -self.low, self.seen)

    def __floordiv__(self, other: Any) -> Reach:
        # Nothing is divided by a number below one.
        low, high = (max(end, 1) for end in _ends(other))
        return Reach(self.low // (low if self.low < 0 else high), self.high // (high if self.high < 0 else low), self.seen)

    def __truediv__(self, other: Any) -> Reach:
        low, high = (max(end, 1) for end in _ends(other))
        return Reach(self.low / (low if self.low < 0 else high), self.high / (high if self.high < 0 else low), self.seen)

    def _answer(self, other: Any) -> Reach:
        """The answer to a question: no or yes."""
        return Reach(0, 1, self.seen)

    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __rand__ = __ror__ = _answer
    __eq__ = __ne__ = _answer  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def clip(self, min: Any = None, max: Any = None) -> Reach:  # noqa: A002 - the names of NumPy
        """As an array has it."""
        if min is not None:
            low, high = _ends(min)
            return Reach(_larger(self.low, low), _larger(self.high, high), self.seen)
        low, high = _ends(max)
        return Reach(_smaller(self.low, low), _smaller(self.high, high), self.seen)

    def astype(self, kind: str) -> Reach:
        """As an array has it: all bounds are kept."""
        return self

    def ravel(self) -> Reach:
        """As an array has it."""
        return self

    def reshape(self, shape: Any) -> Reach:
        """As an array has it."""
        return self

    def tolist(self) -> list[Any]:
        """Both ends."""
        return [self.low, self.high]


_larger, _smaller = max, min


def _ends(other: Any) -> tuple[Any, Any]:
    if type(other) is Reach:
        return other.low, other.high
    return (min(other), max(other)) if type(other) is list else (other, other)


def reached(tokens: tuple[int, int], sequences: tuple[int, int], ask: Callable[[Any, Any], object]) -> int | None:
    """The largest magnitude of all steps of these answers, for lengths and numbers of sequences between these.

    ``None`` if something asks for more than a range can tell.
    """
    seen: list[Any] = [0]
    try:
        ask(Reach(*tokens, seen), Reach(*sequences, seen))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    largest: int = ceil(min(seen[0], _FAR))
    return largest

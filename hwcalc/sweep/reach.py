"""How large the numbers of a rule become: the rule itself is asked, with a range in place of an array.

Arrays have 64 bits, and a number that needs more would be wrong without a word. So a rule is called once with the range of all lengths and
the range of all numbers of sequences, and every step that it takes is bounded, in Python's own integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

__all__ = ["Reach", "reached"]


class Reach:
    """A range of numbers, from ``low`` to ``high``. ``seen`` collects the largest magnitude of all steps that came of it."""

    shape = ()

    def __init__(self, low: Any, high: Any, seen: list[Any]) -> None:
        self.low, self.high, self.seen = low, high, seen
        seen[0] = max(seen[0], abs(low), abs(high))

    def _with(self, other: Any, step: Callable[[Any, Any], Any]) -> Reach:
        ends = [step(one, two) for one, two in product((self.low, self.high), _ends(other))]
        return Reach(min(ends), max(ends), self.seen)

    def __add__(self, other: Any) -> Reach:
        return self._with(other, lambda one, two: one + two)

    def __sub__(self, other: Any) -> Reach:
        return self._with(other, lambda one, two: one - two)

    def __rsub__(self, other: Any) -> Reach:
        return self._with(other, lambda one, two: two - one)

    def __mul__(self, other: Any) -> Reach:
        return self._with(other, lambda one, two: one * two)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Reach:
        return Reach(-self.high, -self.low, self.seen)

    def __floordiv__(self, other: Any) -> Reach:
        # Nothing is divided by a number below one.
        return self._with(other, lambda one, two: one // max(two, 1))

    def __truediv__(self, other: Any) -> Reach:
        return self._with(other, lambda one, two: one / max(two, 1))

    def _answer(self, other: Any) -> Reach:
        """The answer to a question: no or yes."""
        return Reach(0, 1, self.seen)

    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __rand__ = __ror__ = _answer
    __eq__ = __ne__ = _answer  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def clip(self, min: Any = None, max: Any = None) -> Reach:  # noqa: A002 - the names of NumPy
        """As an array has it."""
        if min is not None:
            return self._with(min, _larger)
        return self._with(max, _smaller)

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


def _ends(other: Any) -> tuple[Any, ...]:
    if isinstance(other, Reach):
        return other.low, other.high
    return tuple(other) if isinstance(other, list) else (other,)


def reached(tokens: tuple[int, int], sequences: tuple[int, int], rules: Iterable[Callable[[Any, Any], Any]]) -> int | None:
    """The largest magnitude of all steps of these rules, for lengths and numbers of sequences between these.

    ``None`` if a rule asks for more than a range can tell.
    """
    seen: list[Any] = [0]
    try:
        for rule in rules:
            rule(Reach(*tokens, seen), Reach(*sequences, seen))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    return int(min(seen[0], 2**1023))

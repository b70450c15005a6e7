"""Arithmetic that takes whole numbers and arrays of them alike, so that a rule is written once.

A rule of a plan is called with one length and one number of sequences; a sweep calls the same rule with arrays of them (NumPy's, int64,
which broadcast). Operators work on both as they are. What Python writes with ``max``, ``min``, ``int`` and ``if`` is here. Nothing is
imported: an array brings its own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import ceil, floor
from typing import Any


def larger(one: Any, other: Any) -> Any:
    """The larger of two, place by place."""
    if isinstance(one, (int, float)):
        return max(one, other) if isinstance(other, (int, float)) else other.clip(min=one)
    return one.clip(min=other)


def smaller(one: Any, other: Any) -> Any:
    """The smaller of two, place by place."""
    if isinstance(one, (int, float)):
        return min(one, other) if isinstance(other, (int, float)) else other.clip(max=one)
    return one.clip(max=other)


def largest(numbers: Iterable[Any]) -> Any:
    """The largest of one or more, place by place."""
    return reduce(larger, numbers)


def either(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds and ``no`` elsewhere, place by place; both are whole numbers."""
    return (yes if condition else no) if isinstance(condition, bool) else no + condition * (yes - no)


def floored(number: Any) -> Any:
    """Rounded down to whole numbers."""
    return floor(number) if isinstance(number, (int, float)) else (number // 1).astype("int64")


def ceiled(number: Any) -> Any:
    """Rounded up to whole numbers."""
    return ceil(number) if isinstance(number, (int, float)) else -(-number // 1).astype("int64")


def ceil_div(number: int, by: int) -> int:
    """Divide and round up; of arrays too."""
    return -(-number // by)


def mapped(function: Callable[[int], int], numbers: Any) -> Any:
    """A function of one whole number, place by place: it is called once for each number that differs."""
    if isinstance(numbers, int):
        return function(numbers)
    kept = {number: function(number) for number in set(numbers.ravel().tolist())}
    flat = numbers.ravel()
    return (flat * 0 + [kept[number] for number in flat.tolist()]).reshape(numbers.shape)


def nearest(number: Any) -> Any:
    """Rounded to the nearest whole number, halves to the even one."""
    return round(number) if isinstance(number, float) else number.round().astype("int64")


def every(condition: Any) -> bool:
    """True if it holds at every place."""
    return condition if isinstance(condition, bool) else bool(condition.all())


def some(condition: Any) -> bool:
    """True if it holds at any place."""
    return condition if isinstance(condition, bool) else bool(condition.any())


def picked(condition: Any, yes: Any, no: Any) -> Any:
    """As :func:`either`, of numbers of any kind."""
    return (yes if condition else no) if isinstance(condition, bool) else (condition * 1).choose([no, yes])


def last_good(bound: Any, good: Callable[[Any], Any]) -> Any:
    """The largest number from 0 to ``bound`` that is good, by bisection; every smaller one is, and 0 counts as good.

    >>> last_good(100, lambda number: number * number <= 50)
    7
    """
    low, high = 0 * bound, bound
    while some(between := low < high):
        middle = (low + high) // 2 + 1
        found = good(smaller(middle, bound))
        low, high = either(between & found, middle, low), either(between & (found ^ True), middle - 1, high)
    return low


class Table:
    """Numbers by their place, from 0: of an array of places, an array of numbers.

    >>> Table((5, 7)).at(1)
    7
    """

    __slots__ = ("_array", "numbers")

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = tuple(numbers)
        self._array: Any = None

    def at(self, place: Any) -> Any:
        """The number at a place."""
        if isinstance(place, int):
            return self.numbers[place]
        if self._array is None:
            self._array = place.ravel()[:1] * 0 + list(self.numbers)
        return self._array[place]

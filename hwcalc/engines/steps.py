"""How a figure comes about: a formula in symbols, the numbers of its symbols, and the result.

The function that computes a figure returns its steps with it, so that an explanation shows the same numbers and need not compute them again.
"""

from __future__ import annotations

from typing import TypeVar

from hwcalc.formulas.record import Record

Number = int | float
NumberT = TypeVar("NumberT", int, float)
Ends = Number | tuple[Number, Number, Number]
"""A number, or its low, expected and high value."""


class Term(Record):
    """A symbol of a formula and its number, at the low and the high end of an estimate too."""

    name: str
    low: int | float
    expected: int | float
    high: int | float


def _term(name: str, value: Ends) -> Term:
    low, expected, high = value if isinstance(value, tuple) else (value, value, value)
    return Term(name=name, low=low, expected=expected, high=high)


class Step(Record):
    """One figure. ``formula`` is arithmetic on the names of ``terms``; ``x`` multiplies, and it may have floor, ceil, max and min.

    A term may be the result of an earlier step of the same name. ``unit`` is that of the result; bytes are whole, rounded down.
    """

    name: str
    unit: str
    formula: str
    terms: tuple[Term, ...]
    low: int | float
    expected: int | float
    high: int | float


def step(name: str, formula: str, result: Ends, /, *, unit: str = "bytes", **terms: Ends) -> Step:
    """A step from plain numbers or from their three values.

    >>> one = step("table", "rows x width", 12, rows=4, width=3)
    >>> one.expected, [(term.name, term.expected) for term in one.terms]
    (12, [('rows', 4), ('width', 3)])
    """
    low, expected, high = result if isinstance(result, tuple) else (result, result, result)
    return Step(
        name=name,
        unit=unit,
        formula=formula,
        terms=tuple([_term(name, value) for name, value in terms.items()]),
        low=low,
        expected=expected,
        high=high,
    )


def figure(
    steps: list[Step] | None, name: str, formula: str, value: NumberT, /, *, unit: str = "bytes", **terms: Ends
) -> NumberT:
    """The value; its step is added to ``steps``, where steps are kept. Whoever asks for many values or for arrays keeps none.

    >>> kept: list[Step] = []
    >>> figure(kept, "table", "rows x width", 4 * 3, rows=4, width=3), kept[0].formula
    (12, 'rows x width')
    """
    if steps is not None:
        steps.append(step(name, formula, value, unit=unit, **terms))
    return value

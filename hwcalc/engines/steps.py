"""How a figure comes about: a formula in symbols, the numbers of its symbols, and the result.

Whoever computes a figure writes its steps beside it, so that an explanation shows the same numbers and need not compute them again.
"""

from __future__ import annotations

from hwcalc.formulas.frozen import frozen

__all__ = ["Ends", "Number", "Step", "Term", "step"]

Number = int | float
Ends = Number | tuple[Number, Number, Number]
"""A number, or its low, expected and high value."""


@frozen
class Term:
    """A symbol of a formula and its number, at the low and the high end of an estimate too."""

    name: str
    low: int | float
    expected: int | float
    high: int | float


@frozen
class Step:
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
    made = Step.__new__(Step)
    # A plan has about twenty of them, which nothing checks: their fields are written at once.
    made.__dict__.update(
        name=name,
        unit=unit,
        formula=formula,
        terms=tuple([_term(symbol, value) for symbol, value in terms.items()]),
        low=low,
        expected=expected,
        high=high,
    )
    return made


def _term(name: str, value: Ends) -> Term:
    low, expected, high = value if isinstance(value, tuple) else (value, value, value)
    made = Term.__new__(Term)
    made.__dict__.update(name=name, low=low, expected=expected, high=high)
    return made

"""How a figure comes about: a formula in symbols, the numbers of its symbols, and the result.

Whoever computes a figure writes its steps beside it, so that an explanation shows the same numbers and need not compute them again.
"""

from __future__ import annotations

from typing import Any, Final

from hwcalc.formulas.frozen import field, frozen, record

__all__ = ["LATE_STEPS", "Ends", "Number", "Step", "Term", "late_steps", "step"]

Number = int | float
Ends = Number | tuple[Number, Number, Number]
"""A number, or its low, expected and high value."""
LATE_STEPS: Final = "_steps"
"""Under this name a record keeps the call that writes its steps, until somebody reads them."""


@frozen
class Term:
    """A symbol of a formula and its number, at the low and the high end of an estimate too."""

    name: str
    low: int | float
    expected: int | float
    high: int | float


def _terms_of(made: Any) -> tuple[Term, ...]:
    """The terms of a step from :func:`step`. A plan has about twenty steps, and most of those that a program asks for are never read."""
    return tuple([_term(name, value) for name, value in vars(made)["_terms"].items()])


def _term(name: str, value: Ends) -> Term:
    low, expected, high = value if isinstance(value, tuple) else (value, value, value)
    return record(Term, {"name": name, "low": low, "expected": expected, "high": high})


@frozen
class Step:
    """One figure. ``formula`` is arithmetic on the names of ``terms``; ``x`` multiplies, and it may have floor, ceil, max and min.

    A term may be the result of an earlier step of the same name. ``unit`` is that of the result; bytes are whole, rounded down.
    """

    name: str
    unit: str
    formula: str
    terms: tuple[Term, ...] = field(late=_terms_of)
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
    return record(
        Step, {"name": name, "unit": unit, "formula": formula, "_terms": terms, "low": low, "expected": expected, "high": high}
    )


def late_steps(made: Any) -> tuple[Step, ...]:
    """The steps of a record that keeps the call of :data:`LATE_STEPS` in their place."""
    steps: tuple[Step, ...] = vars(made)[LATE_STEPS]()
    return steps

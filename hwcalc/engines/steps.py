"""How a figure comes about: a formula in symbols, the numbers of its symbols, and the result.

A figure is computed by its formula (:func:`figure`), and the function that computes it keeps its step, so that an explanation shows the
numbers that the plan used and need not compute them again.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Any, Final

from hwcalc.formulas.arithmetic import ceiled, floored, larger, smaller
from hwcalc.formulas.record import Record

Number = int | float
Ends = Number | tuple[Number, Number, Number]
"""A number, or its low, expected and high value."""


class Term(Record):
    """A symbol of a formula and its number, at the low and the high end of an estimate too."""

    name: str
    low: int | float
    expected: int | float
    high: int | float


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


def step(name: str, formula: str, result: Ends | None = None, /, *, unit: str = "bytes", **terms: Ends) -> Step:
    """A step from plain numbers or from their three values. Without a result the formula gives it, at each end.

    >>> one = step("table", "rows x width", rows=(4, 4, 5), width=3)
    >>> one.expected, one.high, [(term.name, term.expected) for term in one.terms]
    (12, 15, [('rows', 4), ('width', 3)])
    """
    listed = [
        Term(name=name, low=value[0], expected=value[1], high=value[2])
        if isinstance(value, tuple)
        else Term(name=name, low=value, expected=value, high=value)
        for name, value in terms.items()
    ]
    if result is None:
        rule = _rule(formula)
        result = tuple([rule({term.name: getattr(term, end) for term in listed}) for end in ("low", "expected", "high")])
    low, expected, high = result if isinstance(result, tuple) else (result, result, result)
    return Step(name=name, unit=unit, formula=formula, terms=tuple(listed), low=low, expected=expected, high=high)


def figure(
    steps: list[Step] | None, name: str, formula: str, value: int | None = None, /, *, unit: str = "bytes", **terms: Any
) -> int:
    """The value of the formula; its step is added to ``steps``, where steps are kept. Whoever asks for many values or for arrays keeps none.

    What an engine computes in floating point, in an order of its own, gives its ``value``.

    >>> kept: list[Step] = []
    >>> figure(kept, "blocks", "floor(budget / bytes_per_block)", budget=100, bytes_per_block=30), kept[0].formula
    (3, 'floor(budget / bytes_per_block)')
    """
    result: int = _rule(formula)(terms) if value is None else value
    if steps is not None:
        steps.append(step(name, formula, result, unit=unit, **terms))
    return result


def value_of(formula: str, values: Mapping[str, Number]) -> Number | None:
    """The value of a formula in which ``x`` multiplies, with these numbers, in integers and doubles as engines count.

    ``None`` where it is no arithmetic, or a number is missing.

    >>> value_of("max(1, floor(n x (1 - compression_ratio)))", {"n": 1000, "compression_ratio": 0.9})
    99
    >>> value_of("kept of kept of", {})
    """
    try:
        value: Number = _rule(formula)(values)
    except (SyntaxError, KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return value


_Rule = Callable[[Mapping[str, Any]], Any]
_SIGNS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "floor": floored,
    "ceil": ceiled,
    "max": lambda *numbers: reduce(larger, numbers),
    "min": lambda *numbers: reduce(smaller, numbers),
    "round": round,
}


@cache
def _rule(formula: str) -> _Rule:
    """The formula as a function of the numbers of its symbols, and of arrays of them."""
    return _built(ast.parse(formula.replace(" x ", " * "), mode="eval").body)


def _built(node: ast.AST) -> _Rule:
    match node:
        case ast.Constant(value=int() | float() as number):
            return lambda _: number
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(op=op):
            sign, left, right = _SIGNS[type(op)], _built(node.left), _built(node.right)
            return lambda values: sign(left(values), right(values))
        case ast.Call(func=ast.Name(id="floor" | "ceil" as name), args=[ast.BinOp(op=ast.Div()) as quotient], keywords=[]):
            up, over, under = name == "ceil", _built(quotient.left), _built(quotient.right)
            return lambda values: _quotient(over(values), under(values), up=up)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            function, parts = _FUNCTIONS[name], [_built(part) for part in node.args]
            return lambda values: function(*[part(values) for part in parts])
    raise ValueError


def _quotient(over: Any, under: Any, *, up: bool) -> Any:
    """A quotient rounded down or up: whole numbers are divided exactly, others as doubles."""
    whole = -(-over // under) if up else over // under
    if isinstance(whole, float) or getattr(whole, "dtype", None) == "float64":
        return ceiled(over / under) if up else floored(over / under)
    return whole

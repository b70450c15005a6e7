"""The value of a formula that is shown: what is printed is computed once more before it is printed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from hwcalc.engines.steps import Number

__all__ = ["value_of"]

_SIGNS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "max": max,
    "min": min,
    "round": round,
}


def value_of(formula: str, values: Mapping[str, Number]) -> Number | None:
    """What a formula in which ``x`` multiplies gives with these numbers, in integers and doubles as engines count.

    ``None`` where it is no arithmetic, or a number is missing.

    >>> value_of("max(1, floor(n x (1 - compression_ratio)))", {"n": 1000, "compression_ratio": 0.9})
    99
    >>> value_of("kept of kept of", {})
    """
    try:
        return _value(ast.parse(formula.replace(" x ", " * "), mode="eval").body, values)
    except (SyntaxError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _value(node: ast.AST, values: Mapping[str, Number]) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        found: Number = _SIGNS[type(node.op)](_value(node.left, values), _value(node.right, values))
        return found
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        result: Number = _FUNCTIONS[node.func.id](*(_value(one, values) for one in node.args))
        return result
    raise ValueError

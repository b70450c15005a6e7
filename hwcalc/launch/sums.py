"""Sums of whole numbers, as a shell has them in ``$((...))``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import add, floordiv, mod, mul, sub
from typing import Final

_DEEPEST: Final = 12
"""Levels of parentheses."""
_MOST_BITS: Final = 63
"""Bits of a whole number of a shell, but for its sign."""


def value_of_sum(text: str) -> str | None:
    """The value of a sum of whole numbers, as a shell has it."""
    tokens = re.findall(r"\d{1,18}|<<?|>>?|[+\-*/%()]", text)[::-1]

    def operand(depth: int) -> int:
        if depth > _DEEPEST:
            raise ValueError
        token = tokens.pop()
        if token == "(":
            value = of_level(0, depth + 1)
            tokens.pop()
            return value
        return -operand(depth + 1) if token == "-" else int(token)

    def of_level(level: int, depth: int) -> int:
        """The value of the expression here, up to an operator that binds less than those of this level."""
        if level == len(_OPERATORS):
            return operand(depth)
        value = of_level(level + 1, depth)
        while tokens and tokens[-1] in _OPERATORS[level]:
            operate = _OPERATORS[level][tokens.pop()]
            value = operate(value, of_level(level + 1, depth))
        return value

    try:
        value = of_level(0, 0)
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return None if tokens or abs(value) >= 10**18 else str(value)


def _bits(value: int, bits: int) -> int:
    """The bits by which a number is shifted. Raises :class:`ValueError` for more than a shell's numbers have."""
    if not 0 <= bits < _MOST_BITS or abs(value) >= 1 << _MOST_BITS:
        raise ValueError
    return bits


_OPERATORS: Final[tuple[Mapping[str, Callable[[int, int], int]], ...]] = (
    {"<<": lambda value, bits: value << _bits(value, bits), ">>": lambda value, bits: value >> _bits(value, bits)},
    {"+": add, "-": sub},
    {"*": mul, "/": floordiv, "%": mod},
)
"""From those that bind least."""

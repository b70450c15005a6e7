"""Numbers of a form as polynomials in the dimensions of a model, found from the forms at some dimensions, and exact at all of them.

A weight of a layer is a product such as ``layers x heads x head_dim``, so few monomials are enough; every further form is a check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = ["DIMENSIONS", "Dimensions", "Fit", "Irregular", "merged", "on_rank"]

Dimensions: TypeAlias = Mapping[str, int]
Polynomial: TypeAlias = tuple[tuple[int | float, tuple[str, ...]], ...]

DIMENSIONS: Final = ("layers", "heads", "kv_heads", "head_dim")
_OF_A_LAYER: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("head_dim",),
    ("heads",),
    ("kv_heads",),
    ("heads", "head_dim"),
    ("kv_heads", "head_dim"),
)
_LAYERS: Final[tuple[tuple[str, ...], ...]] = ((), ("layers",))
_OF_ALL: Final = ((), ("head_dim",), *(("layers", *names) for names in _OF_A_LAYER))
_WIDTHS: Final[tuple[tuple[tuple[str, ...], ...], ...]] = (
    ((), ("qkv", "head_dim")),
    ((), ("kv_heads", "head_dim")),
    ((), ("heads", "head_dim")),
    ((), ("heads", "head_dim"), ("kv_heads", "head_dim")),
    ((), ("heads",), ("heads", "head_dim"), ("kv_heads", "head_dim")),
)
"""What the width of attention may follow from: the fewest that are enough."""
_COUNTS: Final = frozenset({"count", "unit_bytes", "block_bytes", "once_bytes", "total_once_bytes", "low", "expected", "high"})
"""Numbers that may be polynomials (``Count`` in ``page/types.d.ts``), by their name; of a pass it is width and logits."""
_LISTS: Final = {
    ("pass", 1): "count",
    ("pass", 3): "count",
    ("moment", 1): "products",
    ("product", 0): "count",
}
"""What stands at a place of a list that is no row of alike things."""
_ROWS: Final = {"moments": "moment", "products": "product", "gpus": "gpus", "total": "total", "parts": "parts"}


class Irregular(Exception):  # noqa: N818 - not an error that anybody sees: it becomes a sentence
    """The forms are not alike, or a number is no such polynomial."""


def on_rank(dimensions: Dimensions, tp: int) -> dict[str, int]:
    """The dimensions as one of ``tp`` ranks has them.

    >>> on_rank({"layers": 2, "heads": 32, "kv_heads": 8, "head_dim": 64}, 8)
    {'layers': 2, 'heads': 4, 'kv_heads': 1, 'head_dim': 64}
    """
    return {**dimensions, "heads": dimensions["heads"] // tp, "kv_heads": dimensions["kv_heads"] // tp}


def _written(names: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """A monomial; rows of queries, keys and values together are two of them."""
    if names[:1] != ("qkv",):
        return ((1, names),)
    return (1, ("heads", *names[1:])), (2, ("kv_heads", *names[1:]))


class Fit:
    """Finds polynomials through values at these points. Those out of reach help to find what grows, and need not be met by a constant."""

    def __init__(self, points: Sequence[Dimensions], reached: Sequence[bool]) -> None:
        self._points, self._reached = tuple(points), tuple(reached)
        self._bases = tuple(_Basis(points, names) for names in (_LAYERS, _OF_A_LAYER, _OF_ALL))
        self._widths = tuple(_Basis(points, names) for names in _WIDTHS)
        self._known: dict[tuple[int | float, ...], Any] = {}

    def count(self, values: Sequence[int | float]) -> Any:
        """The polynomial as JSON (``Count`` in ``page/types.d.ts``); raises :class:`Irregular`."""
        key = tuple(values)
        if key not in self._known:
            self._known[key] = self._found(key)
        if self._known[key] is None:
            raise Irregular(f"no polynomial: {key[:3]}")
        return self._known[key]

    def _found(self, values: tuple[int | float, ...]) -> Any:
        within = {value for value, reached in zip(values, self._reached, strict=True) if reached}
        if len(within) == 1:
            return within.pop()
        for basis in self._bases:
            found = basis.through(dict(enumerate(values)))
            if found is not None:
                return _json(found)
        # A constant, as that of an MLP, until something that grows is larger.
        least = min(values)
        larger = {place: value for place, value in enumerate(values) if value > least}
        for basis in self._widths:
            found = basis.through(larger)
            if found is not None and self._largest(least, found) == values:
                return {"max": [[[least, []]], _json(found)]}
        return None

    def _largest(self, least: float, polynomial: Polynomial) -> tuple[int | float, ...]:
        return tuple(max(least, _value(polynomial, point)) for point in self._points)


class _Basis:
    """Monomials with their values at all points."""

    def __init__(self, points: Sequence[Dimensions], names: Sequence[tuple[str, ...]]) -> None:
        fixed = len({point["layers"] for point in points}) == 1
        self._names = [one for one in names if not (fixed and "layers" in one)]
        self._written = [_written(names) for names in self._names]
        self._rows = [[int(_value(written, point)) for written in self._written] for point in points]
        self._solvers: dict[tuple[int, ...], _Solver | None] = {}

    def through(self, values: Mapping[int, int | float]) -> Polynomial | None:
        """The polynomial with these values at these points; ``None`` if there is none, or if they are too few to say."""
        solver = self._solver(tuple(values))
        if solver is None:
            return None
        exact = [int(value) if value == int(value) else Fraction(value) for value in values.values()]
        if any(_sum(row, exact) for row in solver.checks):
            return None
        solved = [Fraction(_sum(row, exact)) / solver.divisor for row in solver.rows]
        found: list[tuple[int | float, tuple[str, ...]]] = []
        for written, coefficient in zip(self._written, solved, strict=True):
            number = int(coefficient) if coefficient.denominator == 1 else float(coefficient)
            if number != coefficient:
                return None
            if number:
                found += [(number * times, names) for times, names in written]
        return tuple(found)

    def _solver(self, places: tuple[int, ...]) -> _Solver | None:
        if places not in self._solvers:
            self._solvers[places] = _solver([self._rows[place] for place in places], len(self._names))
        return self._solvers[places]


class _Solver(NamedTuple):
    """Products of the values with ``rows`` are the coefficients times ``divisor``; those with ``checks`` are nothing if a polynomial fits."""

    rows: list[list[int]]
    checks: list[list[int]]
    divisor: int


def _solver(points: Sequence[Sequence[int]], width: int) -> _Solver | None:
    """Solve for all values at once, in integers; ``None`` if the points are too few or too much alike.

    >>> _solver([[1, 2], [1, 5], [1, 7]], 2)
    _Solver(rows=[[5, -2, 0], [-1, 1, 0]], checks=[[2, -5, 3]], divisor=3)
    """
    size = len(points)
    rows = [[*point, *(int(place == own) for place in range(size))] for own, point in enumerate(points)]
    divisor = 1
    for column in range(width):
        pivot = next((place for place in range(column, size) if rows[place][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        times = head[column]
        for place, row in enumerate(rows):
            if place != column:
                share = row[column]
                # Every such quotient is a whole number: it is a determinant.
                rows[place] = [(times * left - share * right) // divisor for left, right in zip(row, head, strict=True)]
        divisor = times
    if size <= width:
        return None
    return _Solver([row[width:] for row in rows[:width]], [row[width:] for row in rows[width:]], divisor)


def _sum(row: Sequence[int], values: Sequence[int | Fraction]) -> int | Fraction:
    return sum(share * value for share, value in zip(row, values, strict=True) if share)


def _value(polynomial: Polynomial, point: Dimensions) -> int | float:
    return sum(coefficient * prod(point[name] for name in names) for coefficient, names in polynomial)


def _json(polynomial: Polynomial) -> list[Any]:
    return [[coefficient, list(names)] for coefficient, names in polynomial]


def _inside(key: str, place: int) -> str:
    return _LISTS.get((key, place)) or _ROWS.get(key, "")


def merged(trees: Sequence[Any], fit: Fit, key: str = "") -> Any:
    """Forms as one, where numbers that differ are polynomials. Raises :class:`Irregular` if anything else differs."""
    first = trees[0]
    if all(tree == first for tree in trees):
        return first
    if all(isinstance(tree, dict) and tree.keys() == first.keys() for tree in trees):
        return {name: merged([tree[name] for tree in trees], fit, name) for name in first}
    if all(isinstance(tree, list) and len(tree) == len(first) for tree in trees):
        return [merged([tree[place] for tree in trees], fit, _inside(key, place)) for place in range(len(first))]
    if key == "layers":
        # Which layers these are is said for the model's own number of them.
        return first
    if key in _COUNTS and all(isinstance(tree, (int, float)) for tree in trees):
        return fit.count(trees)
    raise Irregular(f"{key}: {first} is not alike")

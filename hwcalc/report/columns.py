"""Columns of a table of which those that matter least are left out where a line has no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.units import GIB

GAP: Final = 2
"""Blanks between two columns."""


class Column(Record):
    """A column: a cell for each row, and how soon it is left out where there is no room, the highest rank first; 0 never is."""

    title: str
    cells: tuple[str, ...]
    rank: int = 0
    right: bool = True


def width_of(columns: Sequence[Column]) -> int:
    """Characters of these columns, with the blanks behind each."""
    return sum(max(map(len, (column.title, *column.cells))) + GAP for column in columns)


def that_fit(columns: Sequence[Column], room: int) -> tuple[list[Column], list[str]]:
    """The columns that so many characters hold, and the titles of those that are left out.

    >>> wide = [Column(title="a", cells=("xx",)), Column(title="b", cells=("yyyy",), rank=1), Column(title="c", cells=("z",), rank=2)]
    >>> [column.title for column in that_fit(wide, 8)[0]], that_fit(wide, 8)[1]
    (['a', 'b'], ['c'])
    """
    kept, dropped = list(columns), list[str]()
    while width_of(kept) > room + GAP and any(column.rank for column in kept):
        least = max(kept, key=lambda column: column.rank)
        kept.remove(least)
        dropped.insert(0, least.title)
    return kept, dropped


def left_out(titles: Sequence[str]) -> str:
    """A sentence that names what is left out."""
    return f"Left out at this width: {', '.join(titles)}. All: --format csv."


def gib(count: int | None) -> str:
    """A number of GiB without its unit; ``unknown`` if nobody can say."""
    return "unknown" if count is None else f"{count / GIB:,.2f}"

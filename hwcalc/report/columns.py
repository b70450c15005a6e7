"""Columns of text for the terminal: how wide they are, and where their cells are wrapped. rich is imported only when they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["BETWEEN", "BOUND", "columns", "fitted", "hanging", "indented", "longest_word", "over"]

BOUND: Final = "\ue000"
"""Stands for the blank between an option and its value until lines are broken. Names never have it: it is no character of any script."""
_OPTION: Final = re.compile(r"(?<=\s)(--[a-z][a-z0-9-]*) (?=[^\s-])")
BETWEEN: Final = 2
"""Blanks between two columns."""


def columns(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = ()) -> RenderableType:
    """Rows in columns; those in ``right`` are aligned right.

    Cells are wrapped at blanks only; names, which are in the first column, and numbers are not wrapped at all.
    """
    numbers = frozenset(right)
    table = _grid(rows, width, numbers)
    for row in rows:
        table.add_row(*row)
    return table


def over(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = ()) -> list[RenderableType]:
    """As :func:`columns`, but the last cell of each row is a paragraph below the others."""
    numbers = frozenset(right)
    parts: list[RenderableType] = []
    others = [row[:-1] for row in rows]
    for row in rows:
        table = _grid(others, width, numbers)
        table.add_row(*row[:-1])
        parts += [table, indented(row[-1])]
    return parts


def _grid(rows: Sequence[Sequence[Text]], width: int, numbers: frozenset[int]) -> Table:
    """A table without rows, its columns as wide as these rows need."""
    from rich.table import Table

    cells = list(zip(*rows, strict=True))
    natural = [max(cell.cell_len for cell in column) for column in cells]
    least = [
        natural[place] if place == 0 or place in numbers else max(longest_word(cell) for cell in column)
        for place, column in enumerate(cells)
    ]
    table = Table.grid(padding=(0, BETWEEN, 0, 0))
    for place, size in enumerate(fitted(natural, least, width - BETWEEN * (len(natural) - 1))):
        table.add_column(justify="right" if place in numbers else "left", width=size, overflow="fold")
    return table


def longest_word(text: Text) -> int:
    """Columns of the longest word, with the indent of the text."""
    from rich.cells import cell_len

    indent = len(text.plain) - len(text.plain.lstrip(" "))
    return indent + max(map(cell_len, text.plain.split()), default=0)


def fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns that together take no more than ``room``: the widest is narrowed first, none below its least.

    >>> fitted([50, 12, 40], [50, 12, 8], 90), fitted([50, 12, 40], [50, 12, 8], 40)
    ([50, 12, 28], [50, 12, 8])
    """
    widths = list(natural)
    excess = sum(widths) - room
    while excess > 0:
        loose = [place for place, size in enumerate(widths) if size > least[place]]
        if not loose:
            break
        widest = max(loose, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return widths


def indented(text: Text) -> RenderableType:
    """A paragraph indented by two columns."""
    from rich.table import Table
    from rich.text import Text as Plain

    table = Table.grid()
    table.add_column(width=2)
    table.add_column(overflow="fold", min_width=longest_word(text))
    table.add_row(Plain(), text)
    return table


def hanging(rows: Sequence[tuple[str, str, str]]) -> list[RenderableType]:
    """Rows of label, text and style in one grid; long texts wrap with a hanging indent."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return []
    # An option and its value are on one line.
    texts = [Text(_OPTION.sub(rf"\1{BOUND}", message), style=style) for _, message, style in rows]
    labels = [Text("\n".join(_in_lines(label)), style=style) for label, _, style in rows]
    table = Table.grid(padding=(0, BETWEEN, 0, 0))
    table.add_column(width=max(line.cell_len for label in labels for line in label.split()))
    table.add_column(overflow="fold", min_width=max(map(longest_word, texts)))
    for label, text in zip(labels, texts, strict=True):
        table.add_row(label, text)
    return [table]


_LABEL: Final = 36
"""Characters of a label; a longer one takes several lines, so that there is room for its text."""


def _in_lines(label: str) -> list[str]:
    from textwrap import wrap

    if len(label) + 2 <= _LABEL:
        return ["  " + label]
    return wrap(label, _LABEL, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

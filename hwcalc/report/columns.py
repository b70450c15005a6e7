"""Columns of text for the terminal: how wide they are, and where their cells are wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from hwcalc.report.pieces import BOUND, Column, Grid, Piece, Text, cell_len, longest_word

__all__ = ["BETWEEN", "columns", "fitted", "hanging", "indented", "over"]

_OPTION: Final = r"(?<=\s)(--[a-z][a-z0-9-]*) (?=[^\s-])"
BETWEEN: Final = 2
"""Blanks between two columns."""


def columns(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = ()) -> Grid:
    """Rows in columns; those in ``right`` are aligned right.

    Cells are wrapped at blanks only; names, which are in the first column, and numbers are not wrapped at all.
    """
    return Grid(columns=_sized(rows, width, frozenset(right)), rows=tuple(map(tuple, rows)), gap=BETWEEN)


def over(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = ()) -> list[Piece]:
    """As :func:`columns`, but the last cell of each row is a paragraph below the others."""
    sized = _sized([row[:-1] for row in rows], width, frozenset(right))
    parts: list[Piece] = []
    for row in rows:
        parts += [Grid(columns=sized, rows=(tuple(row[:-1]),), gap=BETWEEN), indented(row[-1])]
    return parts


def _sized(rows: Sequence[Sequence[Text]], width: int, numbers: frozenset[int]) -> tuple[Column, ...]:
    """Columns as wide as these rows need, and no wider than there is room."""
    cells = list(zip(*rows, strict=True))
    natural = [max(cell.cell_len for cell in column) for column in cells]
    room = width - BETWEEN * (len(natural) - 1)
    widths = natural
    if sum(natural) > room:
        least = [
            natural[place] if place == 0 or place in numbers else max(longest_word(cell) for cell in column)
            for place, column in enumerate(cells)
        ]
        widths = fitted(natural, least, room)
    return tuple(Column(width=size, right=place in numbers) for place, size in enumerate(widths))


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


def indented(text: Text) -> Grid:
    """A paragraph indented by two columns."""
    return Grid(columns=(Column(width=2, folds=False), Column(least=longest_word(text))), rows=((Text(), text),))


def hanging(rows: Sequence[tuple[str, str, str]]) -> list[Piece]:
    """Rows of label, text and style in one grid; long texts wrap with a hanging indent."""
    if not rows:
        return []
    # An option and its value are on one line.
    texts = [Text(_bound(message), style=style) for _, message, style in rows]
    labels = [_in_lines(label) for label, _, _ in rows]
    widest = max(cell_len(line) for lines in labels for line in lines)
    names = [Text("\n".join(lines), style=style) for lines, (_, _, style) in zip(labels, rows, strict=True)]
    columns = (Column(width=widest, folds=False), Column(least=max(map(longest_word, texts))))
    return [Grid(columns=columns, rows=tuple(zip(names, texts, strict=True)), gap=BETWEEN)]


def _bound(message: str) -> str:
    return re.sub(_OPTION, rf"\1{BOUND}", message) if "--" in message else message


_LABEL: Final = 36
"""Characters of a label; a longer one takes several lines, so that there is room for its text."""


def _in_lines(label: str) -> list[str]:
    if len(label) + 2 <= _LABEL:
        return ["  " + label]
    from textwrap import wrap

    return wrap(label, _LABEL, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

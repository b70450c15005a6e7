"""Pieces as plain text: what rich writes of them without colours, in a fraction of the time that its import takes.

Widths, breaks and cuts are those of ``rich.table.Table.grid`` and ``rich.text.Text``, for text whose characters take one column each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from hwcalc.report.pieces import Column, Grid, Piece, Text

__all__ = ["written"]


def written(pieces: Iterable[tuple[Piece, int]]) -> list[str]:
    """The lines of the pieces, each drawn in its number of columns, without trailing blanks."""
    lines: list[str] = []
    for piece, room in pieces:
        lines += _wrapped(piece.plain, room, Column()) if isinstance(piece, Text) else _grid_lines(piece, room)
    return [line.rstrip(" ") for line in lines]


def _grid_lines(grid: Grid, room: int) -> Iterator[str]:
    if not grid.columns:
        yield ""
        return
    widths = _widths(grid, room)
    last = len(widths) - 1
    inner = [width if place == last else width - grid.gap for place, width in enumerate(widths)]
    for row in grid.rows:
        cells = [
            [f"{line:>{width}}" if column.right else line for line in _wrapped(text.plain, width, column)] if width > 0 else []
            for text, width, column in zip(row, inner, grid.columns, strict=True)
        ]
        for lines in list(zip_longest(*cells, fillvalue="")) or [("",) * len(widths)]:
            yield "".join(f"{line:<{width}}" for line, width in zip(lines, widths, strict=True))


def _widths(grid: Grid, room: int) -> list[int]:
    """The widths of the columns with the blanks behind them. What is too wide gives way, then every column, to what it has at least."""
    measured = [_Measured(grid, place) for place in range(len(grid.columns))]
    widths = [one.width(room) or 1 for one in measured]
    excess = sum(widths) - room
    if excess <= 0:
        return widths
    for place, column in enumerate(grid.columns):
        if column.width is None and not column.whole:
            given = min(excess, widths[place])
            widths[place] -= given
            excess -= given
    if excess > 0:
        widths = _reduced(widths, excess)
    return [one.width(width) for one, width in zip(measured, widths, strict=True)]


class _Measured:
    """What a column needs for its cells and the blanks behind it."""

    def __init__(self, grid: Grid, place: int) -> None:
        self.column = grid.columns[place]
        self.gap = grid.gap if place < len(grid.columns) - 1 else 0
        self.longest = 0
        if self.column.width is None:
            self.longest = max((len(line) for row in grid.rows for line in row[place].plain.split("\n")), default=0)

    def width(self, room: int) -> int:
        """Its width where there are ``room`` columns, the blanks included."""
        if room < 1:
            return 0
        if self.column.width is not None:
            return min(self.column.width + self.gap, room)
        least = 0 if self.column.least is None else self.column.least + self.gap
        return max(least, min(self.longest + self.gap, room))


def _reduced(widths: Sequence[int], excess: int) -> list[int]:
    """The widths with the excess taken from all of them alike, as far as each has it."""
    out = []
    sharing = sum(1 for width in widths if width)
    for width in widths:
        taken = 0
        if width and sharing:
            taken = min(width, round(excess / sharing))
            sharing -= 1
        excess -= taken
        out.append(width - taken)
    return out


def _wrapped(text: str, width: int, column: Column) -> Iterator[str]:
    """The lines of a cell, none wider than ``width``."""
    for line in text.split("\n"):
        # Most cells fit, and need nothing of what follows.
        if len(line) <= width:
            yield line.rstrip() if column.right else line
            continue
        for piece in [line] if column.whole else _divided(line, width, folds=column.folds):
            stripped = piece.rstrip() if column.right else piece
            if len(stripped) > width:
                stripped = stripped[:width] if column.folds else f"{stripped[: width - 1]}…"
            yield stripped


def _divided(line: str, width: int, *, folds: bool) -> Iterator[str]:
    """A line in pieces that end behind a blank, or, if a word is too long, where the width does."""
    starts: list[int] = []
    used = 0
    for start, word in _words(line):
        size = len(word.rstrip())
        if size <= width - used:
            used += len(word)
            continue
        if size <= width and not (used and start):
            continue
        if start:
            starts.append(start)
        if size > width and folds:
            starts += range(start + width, start + len(word), width)
            used = (len(word) - 1) % width + 1
        else:
            used = len(word)
    for start, end in zip([0, *starts], [*starts, len(line)], strict=True):
        piece = line[start:end]
        # Blanks beyond the width are left out.
        yield piece[: max(width, len(piece.rstrip()))]


def _words(line: str) -> Iterator[tuple[int, str]]:
    """Where each word begins, and the word with the blanks behind it, the first with those before it."""
    starts, at = list[int](), 0
    for word in line.split():
        at = line.index(word, at)
        starts.append(at)
        at += len(word)
    starts[:1] = [0] if starts else []
    for start, end in zip(starts, [*starts[1:], len(line)], strict=False):
        yield start, line[start:end]

"""Pieces as rich draws them: in colours, and text whose characters take no column or two. Only this module imports rich's console."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from hwcalc.report.pieces import PIPED_WIDTH, Piece, Text

__all__ = ["drawn"]


# rich pads a cell up to the column's width before it ends the cell's style.
_PADDING: Final = re.compile(r"[ ]+((?:\x1b\[[0-9;]*m)*)$")


def drawn(pieces: Iterable[tuple[Piece, int]], *, color: bool) -> list[str]:
    """The lines of the pieces, each drawn in its number of columns, without trailing blanks."""
    console = Console(
        file=io.StringIO(),
        width=PIPED_WIDTH,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        for piece, room in pieces:
            console.print(_renderable(piece), width=room, crop=False)
    return [_PADDING.sub(r"\1", line) for line in captured.get().splitlines()]


def _renderable(piece: Piece) -> RenderableType:
    if isinstance(piece, Text):
        return _styled(piece)
    table = Table.grid(padding=(0, piece.gap, 0, 0))
    for column in piece.columns:
        table.add_column(
            justify="right" if column.right else "left",
            width=column.width,
            min_width=column.least,
            no_wrap=column.whole,
            overflow="fold" if column.folds else "ellipsis",
        )
    for row in piece.rows:
        table.add_row(*map(_styled, row))
    return table


def _styled(text: Text) -> Styled:
    return Styled.assemble(*text.parts, style=text.style)

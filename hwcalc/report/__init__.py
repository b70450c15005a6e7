"""Reports: results as text. This room computes nothing but sums, and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from hwcalc.formulas.record import Record

PIPED_WIDTH: Final = 100_000
"""Columns of piped output. No line is that long: what reads a pipe has no width."""
Detail = Literal["brief", "usual", "full"]
"""How much of an answer is printed: its first lines, those and what they come from, or everything."""


class View(Record):
    """The look of an answer that the user has chosen: format, width, colours. ``quiet`` leaves out notes and hints."""

    format: str = "table"
    quiet: bool = False
    color: bool = False
    width: int = PIPED_WIDTH
    detail: Detail = "usual"

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), last: int = 0) -> str:
        """Rows in the chosen format; the columns in ``right`` are aligned right, and no word is cut, whatever the width.

        In a table the last column goes below its row where it would have fewer than ``last`` characters, and needs more.
        """
        from hwcalc.report.drawing import table

        return table(self, header, rows, right, last)

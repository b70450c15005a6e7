"""Rows of words in every text format: the lists (models, engines, dtypes), and the tables of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hwcalc.report.drawing import PIPED_WIDTH, VERDICT_COLORS, Text, columns, over, rendered
from hwcalc.text import LONGEST_MESSAGE, clean, csv_cell, cut


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values with a header line, as every command writes them.

    An empty cell is unknown, ``true`` and ``false`` are those of JSON, and text that a spreadsheet would run as a formula stands behind an
    apostrophe.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_value(cell) for cell in row] for row in rows)
    return out.getvalue()


def _csv_value(cell: object) -> object:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return csv_cell(cell) if isinstance(cell, str) else cell


def listing(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    format_: str,
    right: Iterable[int] = (),
    color: bool = False,
    width: int = PIPED_WIDTH,
    last: int = 0,
) -> str:
    """Rows as a table, Markdown or CSV; the columns in ``right`` are aligned right, and no word is cut, whatever the width.

    In a table the last column goes below its row where it would have fewer than ``last`` characters, and needs more.
    """
    numbers = frozenset(right)
    if format_ == "csv":
        return csv_text(header, rows)
    if format_ == "markdown":
        from hwcalc.report.markdown import markdown_table

        return markdown_table(header, rows, right=numbers)
    cells = [[Text(clean(cut(cell, LONGEST_MESSAGE)), style=VERDICT_COLORS.get(cell, "")) for cell in row] for row in rows]
    lines = [[Text(title, style="bold") for title in header], *cells]
    if last and min(last, _longest(lines, -1)) > width - sum(_longest(lines, place) + 2 for place in range(len(header) - 1)):
        return rendered(over(lines, width=width, right=numbers), color=color, width=width)
    return rendered([columns(lines, width=width, right=numbers)], color=color, width=width)


def _longest(lines: Sequence[Sequence[Text]], place: int) -> int:
    """Characters of the longest cell of a column."""
    return max(line[place].cell_len for line in lines)

"""Means to draw reports: lines in styles, grids of them, and rich, which draws both with colours or without."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style
from rich.text import Span
from rich.text import Text as RichText

from hwcalc.formulas.record import Record
from hwcalc.report.columns import GAP
from hwcalc.report.styles import OF_VERDICT
from hwcalc.report.text import BOUND, PIPED_WIDTH, bound, broken
from hwcalc.text import LONGEST_MESSAGE, clean, cut

SCREEN: Final = (24, 80)
"""Lines and columns of the smallest usual terminal: the answer and what to change fit it."""
_LABEL: Final = 36
"""Characters of a label; a longer one takes several lines, so that there is room for its text."""
_WORDS: Final = 24
"""Characters that a column of words has beside others; longer texts are wrapped in it."""
# rich pads a cell up to the column's width before it ends the cell's style, and behind it.
_PADDING: Final = r"(?<! ) +(?=(?:\x1b\[[0-9;]*m| )*$)"


class Text(RichText):
    """Text in a style. Parts may have styles of their own: ``Text("model ", ("name", "bold"), style="dim")``.

    Lines are broken between neither an option and its value nor a number and its unit. A ``whole`` text stays on one line, whatever the
    width.
    """

    def __init__(self, *parts: str | tuple[str, str], style: str = "", whole: bool = False) -> None:
        plain = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else ""
        super().__init__(bound(plain), style=style)
        self.whole = whole
        for part in () if plain else parts:
            words, *own = (part,) if isinstance(part, str) else part
            self.append(bound(words), *own)


class Column(Record):
    """A column of a grid: as wide as its cells, or ``width`` columns of the terminal wide.

    Cells that are too long are wrapped at blanks. ``folds`` says that a word that is too long goes on in the next line; else it is cut.
    """

    width: int | None = None
    least: int | None = None
    """Columns of the terminal that it has at least, if the width is left to its cells."""
    right: bool = False
    whole: bool = False
    """True if its cells are never wrapped."""
    folds: bool = True


class Grid(Record):
    """Rows of cells, one for each column. At most one column may both be wrapped and be as wide as its cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]
    gap: int = 0
    """Blanks between two columns."""


Piece = Text | Grid


def longest_word(text: RichText) -> int:
    """Columns of the longest word, with the indent of the text."""
    indent = len(text.plain) - len(text.plain.lstrip(" "))
    return indent + max(map(cell_len, text.plain.split()), default=0)


def rendered(parts: Sequence[Piece], *, color: bool = False, width: int = PIPED_WIDTH) -> str:
    """The pieces as text, without trailing blanks. A word that is longer than a line is not cut."""
    pieces = []
    for whole in parts:
        for part in _apart(whole):
            room = _room(part, width)
            pieces.append((part, _unwrapped(part, room), room))
    if color or any(unwrapped is None for _, unwrapped, _ in pieces):
        text = _drawn(pieces, color=color)
    else:
        # Without colours, a text that needs no line breaks is its characters.
        text = "".join(f"{unwrapped}\n" for _, unwrapped, _ in pieces)
    lines = [re.sub(_PADDING, "", line) if color else line.rstrip(" ") for line in text.splitlines()]
    return "\n".join(lines).replace(BOUND, " ") + "\n"


def marked(text: str, style: str, *, color: bool, width: int = PIPED_WIDTH) -> str:
    """A paragraph in a style, such as a verdict among lines without."""
    return rendered([Text(text, style=style)], color=color, width=width)


def in_style(text: str, style: str) -> str:
    """The text with the codes of a style around it."""
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def height(parts: Iterable[Piece], width: int) -> int:
    """Lines of a screen that texts and paragraphs beside labels take; a terminal wraps a longer line by itself.

    They are counted without rich's console: a plan on a pipe draws nothing with it, and its import takes a tenth of the time of the command.
    """
    total = 0
    for part in parts:
        room = _room(part, width)
        if isinstance(part, Grid):
            room -= (part.columns[0].width or 0) + part.gap
            if max(longest_word(text) for _, text in part.rows) <= room:
                total += sum(max(label.plain.count("\n") + 1, len(_broken(text.plain, room))) for label, text in part.rows)
                continue
        lines = _broken(part.plain, room) if isinstance(part, Text) else rendered([part], width=width).splitlines()
        total += sum(max(1, -(-len(line) // width)) for line in lines)
    return total


def _broken(text: str, room: int) -> list[str]:
    """The lines of a text, broken at blanks alone."""
    return [line for part in text.split("\n") for line in broken(part, room)]


def _apart(part: Piece) -> Iterable[Piece]:
    """The rows of a grid whose columns have widths, those that need line breaks apart from others: a list has hundreds that need none."""
    if isinstance(part, Text) or not part.rows or any(column.width is None for column in part.columns):
        return [part]
    widths = [column.width or 0 for column in part.columns]
    runs = groupby(part.rows, lambda row: all(cell.cell_len <= width for cell, width in zip(row, widths, strict=True)))
    return [Grid(columns=part.columns, rows=tuple(rows), gap=part.gap) for _, rows in runs]


def _room(part: Piece, width: int) -> int:
    """The columns for one part: more than there are where it would be cut otherwise. The terminal wraps it then, and nothing is lost."""
    if isinstance(part, Text):
        return PIPED_WIDTH if part.whole else max(width, longest_word(part))
    return PIPED_WIDTH if all(column.width is not None for column in part.columns) else width


def _drawn(pieces: Iterable[tuple[Piece, RichText | None, int]], *, color: bool) -> str:
    """The pieces as rich draws them, each in its room: as they are, or wrapped where they need line breaks."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    console = Console(
        file=StringIO(),
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
        for part, unwrapped, room in pieces:
            if unwrapped is not None:
                console.print(unwrapped, soft_wrap=True)
                continue
            if isinstance(part, Text):
                console.print(part, width=room, crop=False)
                continue
            table = Table.grid(padding=(0, part.gap, 0, 0))
            for column in part.columns:
                table.add_column(
                    justify="right" if column.right else "left",
                    width=column.width,
                    min_width=column.least,
                    no_wrap=column.whole,
                    overflow="fold" if column.folds else "ellipsis",
                )
            for row in part.rows:
                table.add_row(*row)
            console.print(table, width=room, crop=False)
    return captured.get()


def _unwrapped(part: Piece, room: int) -> RichText | None:
    """The part as one text with its cells below each other; ``None`` where a line or a cell must be wrapped.

    A list has hundreds of rows, and rich measures every cell of a table several times.
    """
    if isinstance(part, Text):
        return part if part.cell_len <= room and "\n" not in part.plain and "\t" not in part.plain else None
    sizes = [[cell.cell_len for cell in row] for row in part.rows]
    widths = [
        max([column.least or 0, *(row[place] for row in sizes)]) if column.width is None else column.width
        for place, column in enumerate(part.columns)
    ]
    if sum(widths) + part.gap * (len(widths) - 1) > room:
        return None
    pieces: list[str] = []
    spans: list[Span] = []
    end = 0
    for row, taken in zip(part.rows, sizes, strict=True):
        for place, (cell, column) in enumerate(zip(row, part.columns, strict=True)):
            blanks = widths[place] - taken[place]
            plain = cell.plain
            if blanks < 0 or "\n" in plain or "\t" in plain:
                return None
            before = blanks if column.right else 0
            text = f"{' ' * before}{plain}{' ' * (blanks - before)}"
            start, end = end, end + len(text)
            if cell.style:
                spans.append(Span(start, end, cell.style))
            spans += (span.move(start + before) for span in cell.spans)
            pieces += (text, " " * part.gap if place < len(widths) - 1 else "\n")
            end += len(pieces[-1])
    return RichText("".join(pieces[:-1]), spans=spans)


def columns(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = (), headed: bool = True) -> list[Piece]:
    """Rows in columns; those in ``right`` are aligned right. The first row has the titles, if it is ``headed``.

    Words and titles are wrapped at blanks only; names, which are in the first column, and numbers are not wrapped at all. Where a line has
    no room for that, a last column of words is a paragraph below its row; else names of several words are wrapped; else each line is told
    in several tables that begin with its names.
    """
    numbers = frozenset(right)
    names = max((cell.cell_len for cell, *_ in rows), default=0)
    if not headed and not numbers and len(rows[0]) == _PAIR and names + GAP + _WORDS <= width:
        return [piece for name, text in rows for piece in _named(name, text, names, width)]
    measured = _widths(rows, width, numbers, headed=headed)
    if _goes_below(measured, width, numbers):
        return over(rows, width=width, right=numbers, headed=headed)
    wrapped = [(measured[0][0], max(longest_word(name) for name, *_ in rows)), *measured[1:]]
    for tried in (measured, wrapped):
        sized = _sized(tried, width, numbers)
        if _taken(sized) <= width:
            return [Grid(columns=sized, rows=tuple(map(tuple, rows)), gap=GAP)]
    parts: list[Piece] = []
    wanted = [least if place in numbers else max(least, min(_WORDS, natural)) for place, (natural, least) in enumerate(measured)]
    names = min(numbers, default=1)
    for places in _tables(wanted, width, names if sum(wanted[:names]) <= width // 2 else 1):
        some = tuple(tuple(row[place] for place in places) for row in rows)
        there = frozenset(at for at, place in enumerate(places) if place in numbers)
        sized = _sized([measured[place] for place in places], width, there)
        parts += [*([Text()] if parts else []), Grid(columns=sized, rows=some, gap=GAP)]
    return parts


_PAIR: Final = 2


def _named(name: Text, text: Text, names: int, width: int) -> list[Piece]:
    """A name and a text beside it, or below it where the line has no room for its longest word."""
    room = width - names - GAP
    if longest_word(text) > room:
        return [name, indented(text)]
    return [Grid(columns=(Column(width=names), Column(width=room)), rows=((name, text),), gap=GAP)]


def _goes_below(measured: Sequence[tuple[int, int]], width: int, numbers: frozenset[int]) -> bool:
    """True if the last column is of words that take more than two short lines or narrow the names, and the other columns have room without it."""
    last = len(measured) - 1
    others = _sized(measured[:-1], width, numbers)
    if last == 0 or last in numbers or _taken(others) > width:
        return False
    sized = _sized(measured, width, numbers)
    longest, _ = measured[-1]
    squeezed = sized[0].width != others[0].width
    return _taken(sized) > width or squeezed or (sized[-1].width or 0) < min(_WORDS, longest // 2)


def _tables(widths: Sequence[int], width: int, names: int) -> list[list[int]]:
    """The places of columns of these widths in tables that a line has room for, each with the first ones and at least one other.

    >>> _tables([10, 30, 30, 30], 80, names=1)
    [[0, 1, 2], [0, 3]]
    """
    tables: list[list[int]] = []
    left = 0
    for place, size in enumerate(widths[names:], names):
        if not tables or size + GAP > left:
            tables.append(list(range(names)))
            left = width - sum(widths[:names]) - GAP * (names - 1)
        tables[-1].append(place)
        left -= size + GAP
    return tables or [[0]]


def over(rows: Sequence[Sequence[Text]], *, width: int, right: Iterable[int] = (), headed: bool = True) -> list[Piece]:
    """As :func:`columns`, but the last cell of each row is a paragraph below the others. The last title stands beside the others, if it can."""
    numbers = frozenset(right)
    sized = _sized(_widths([row[:-1] for row in rows], width, numbers, headed=headed), width, numbers)
    parts: list[Piece] = []
    room = width - _taken(sized) - GAP
    for row in rows:
        if headed and row is rows[0] and row[-1].cell_len <= room:
            parts.append(Grid(columns=(*sized, Column(width=room)), rows=(tuple(row),), gap=GAP))
            continue
        parts.append(Grid(columns=sized, rows=(tuple(row[:-1]),), gap=GAP))
        parts += [indented(row[-1])] if row[-1].plain else []
    return parts


def _taken(sized: Sequence[Column]) -> int:
    """Columns of the terminal that columns take."""
    return sum((column.width or 0) + GAP for column in sized) - GAP


def _sized(measured: Sequence[tuple[int, int]], width: int, numbers: frozenset[int]) -> tuple[Column, ...]:
    """Columns as wide as :func:`_widths` measured them, and where there is room for their words no wider than that."""
    natural, least = zip(*measured, strict=True)
    widths = fitted(natural, least, width - GAP * (len(natural) - 1))
    return tuple(Column(width=size, right=place in numbers) for place, size in enumerate(widths))


def _widths(rows: Sequence[Sequence[Text]], width: int, numbers: frozenset[int], *, headed: bool) -> list[tuple[int, int]]:
    """For each column the width in which nothing is wrapped, and the least one: of its longest number or word, or of a name that is short."""
    measured = []
    for place, column in enumerate(zip(*rows, strict=True)):
        whole = [cell.cell_len for cell in column]
        words = [longest_word(cell) for cell in column]
        titles = 1 if headed and place else 0
        unbroken = place in numbers or (place == 0 and max(whole) <= width // 3)
        measured.append((max(whole), max(words[:titles] + whole[titles:] if unbroken else words)))
    return measured


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
    labels, texts = [], []
    for label, message, style in rows:
        lines = ["  " + label]
        if len(lines[0]) > _LABEL:
            lines = ["  " + line for line in broken(label, _LABEL - 2, 2)]
        labels.append(Text("\n".join(lines), style=style))
        texts.append(Text(message, style=style))
    widest = max(cell_len(line) for label in labels for line in label.plain.split("\n"))
    columns = (Column(width=widest, folds=False), Column(least=max(map(longest_word, texts))))
    return [Grid(columns=columns, rows=tuple(zip(labels, texts, strict=True)), gap=GAP)]


def _titled(lines: Sequence[Sequence[Text]], titles: Sequence[str], *, width: int, right: Iterable[int]) -> list[Piece]:
    """A header and rows below their titles; a last column of words without room is a paragraph below each row.

    Rows are indented, unless some of them have no title.
    """
    numbers = frozenset(right)
    every = all(titles)
    room = width - (GAP if every else 0)
    measured = _widths(lines, room, numbers, headed=True)
    below = _goes_below(measured, room, numbers)
    cells = [line[:-1] if below else line for line in lines]
    margin = [Column(width=0)] if every else []
    sized = (*margin, *_sized(measured[:-1] if below else measured, room, numbers))
    parts: list[Piece] = []
    before = ""
    for title, line, row in zip(("", *titles), lines, cells, strict=True):
        if title != before:
            parts += [Text(clean(cut(title, LONGEST_MESSAGE)), style="bold" if every else "")] if title else []
            before = title
        parts.append(Grid(columns=sized, rows=((*(Text() for _ in margin), *row),), gap=GAP))
        if below and line is not lines[0] and line[-1].plain:
            parts.append(
                Grid(
                    columns=(Column(width=2 * GAP, folds=False), Column(least=longest_word(line[-1]))),
                    rows=((Text(), line[-1]),),
                )
            )
    return parts


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    color: bool,
    width: int,
    right: Iterable[int],
    titles: Sequence[str] = (),
) -> str:
    """Rows as text, as :meth:`hwcalc.report.view.View.table` says it."""
    cells = [[Text(clean(cut(cell, LONGEST_MESSAGE)), style=OF_VERDICT.get(cell, "")) for cell in row] for row in rows]
    # A header without a word is a line without one.
    headed = any(header) or not cells
    lines = [[Text(title, style="bold") for title in header], *cells] if headed else cells
    if titles:
        parts = _titled(lines, titles, width=width, right=right)
    else:
        parts = columns(lines, width=width, right=right, headed=headed)
    return rendered(parts, color=color, width=width)

"""The pieces of which a table for the terminal consists: lines in styles, and grids of them.

They say what is to be seen. :mod:`hwcalc.report.unstyled` writes them without styles, :mod:`hwcalc.report.styled` has rich draw them; without
colours both write the same.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from hwcalc.formulas.record import Record

__all__ = ["BOUND", "PIPED_WIDTH", "SCREEN", "Column", "Grid", "Piece", "Text", "cell_len", "is_simple", "longest_word"]

PIPED_WIDTH: Final = 100_000
"""Columns of piped output: no line is that long."""
SCREEN: Final = (24, 80)
"""Lines and columns of the smallest usual terminal: the answer and what to change fit it."""
BOUND: Final = "\ue000"
"""Stands for the blank between an option and its value until lines are broken. Names never have it: it is no character of any script."""
_SIMPLE: Final = (
    (0xA0, 0xAC),
    (0xAE, 0x2FF),
    (0x370, 0x482),
    (0x2010, 0x2027),
    (0x2190, 0x22FF),
    (0x2500, 0x25FC),
    (ord(BOUND), ord(BOUND)),
)
"""First and last characters of ranges that take one column each, as the printable ones of ASCII do."""


class Text:
    """Text in a style. ``parts`` have styles of their own: ``Text("model ", ("name", "bold"), style="dim")``."""

    parts: tuple[tuple[str, str], ...]
    style: str
    whole: bool
    """Whether it stays on one line, whatever the width."""

    def __init__(self, *parts: str | tuple[str, str], style: str = "", whole: bool = False) -> None:
        self.parts = tuple((part, "") if isinstance(part, str) else part for part in parts)
        self.style = style
        self.whole = whole

    @cached_property
    def plain(self) -> str:
        """The text without its styles."""
        return "".join(words for words, _ in self.parts)

    @property
    def cell_len(self) -> int:
        """Columns of the terminal that it takes on one line."""
        return cell_len(self.plain)


class Column(Record):
    """A column of a grid: as wide as its cells, or ``width`` columns of the terminal wide.

    Cells that are too long are wrapped at blanks. ``folds`` says that a word that is too long goes on in the next line; else it is cut.
    """

    width: int | None = None
    least: int | None = None
    """Columns of the terminal that it has at least, if the width is left to its cells."""
    right: bool = False
    whole: bool = False
    """Whether its cells are never wrapped."""
    folds: bool = True


class Grid(Record):
    """Rows of cells, one for each column. At most one column may both be wrapped and be as wide as its cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]
    gap: int = 0
    """Blanks between two columns."""


Piece = Text | Grid


def is_simple(text: str) -> bool:
    r"""Whether each character takes one column, but for line ends. Others need tables of Unicode, which rich has.

    >>> is_simple("a · b │"), is_simple("日本"), is_simple("a\u0301"), is_simple("a\tb")
    (True, False, False, False)
    """
    if text.isascii():
        return text.isprintable() or text.replace("\n", "").isprintable()
    return all(
        any(first <= ord(letter) <= last for first, last in _SIMPLE)
        for letter in set(text)
        if not (letter.isascii() and (letter.isprintable() or letter == "\n"))
    )


def cell_len(text: str) -> int:
    """Columns of the terminal that a line takes."""
    if is_simple(text):
        return len(text) - text.count("\n")
    from rich.cells import cell_len as measured

    return measured(text)


def longest_word(text: Text) -> int:
    """Columns of the longest word, with the indent of the text."""
    plain = text.plain
    indent = len(plain) - len(plain.lstrip(" "))
    return indent + max(map(cell_len, plain.split()), default=0)

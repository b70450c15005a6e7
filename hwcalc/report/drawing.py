"""Pieces as text: by the short writer of :mod:`hwcalc.report.unstyled` where it can, else by rich, whose import takes as long as a plan."""

from __future__ import annotations

from collections.abc import Sequence

from hwcalc.report.pieces import BOUND, PIPED_WIDTH, Piece, Text, is_simple, longest_word

__all__ = ["marked", "rendered"]


def rendered(parts: Sequence[Piece], *, color: bool = False, width: int = PIPED_WIDTH) -> str:
    """The pieces as text, without trailing blanks. A word that is longer than a line is not cut."""
    roomy = [(part, _room(part, width)) for part in parts]
    if color or not all(map(_is_simple, parts)):
        from hwcalc.report.styled import drawn

        lines = drawn(roomy, color=color)
    else:
        from hwcalc.report.unstyled import written

        lines = written(roomy)
    return "\n".join(lines).replace(BOUND, " ") + "\n"


def marked(text: str, style: str, *, color: bool) -> str:
    """One line in a style, such as a verdict among lines without."""
    return rendered([Text(text, style=f"bold {style}")], color=color)


def _is_simple(part: Piece) -> bool:
    return is_simple(part.plain) if isinstance(part, Text) else all(is_simple(cell.plain) for row in part.rows for cell in row)


def _room(part: Piece, width: int) -> int:
    """The columns for one part: more than there are where it would be cut otherwise. The terminal wraps it then, and nothing is lost."""
    if isinstance(part, Text):
        return PIPED_WIDTH if part.whole else max(width, longest_word(part))
    return PIPED_WIDTH if all(column.width is not None for column in part.columns) else width

"""Lines about memory that no rule understood. Their number and length are bounded, and what looks like a secret is masked."""

from __future__ import annotations

import re
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.masking import masked
from hwcalc.text import printable

__all__ = ["MOST_UNREAD", "Unread", "UnreadLine"]

MOST_UNREAD: Final = 100
"""Lines that are kept. All are counted."""
_LONGEST: Final = 200
_SEARCHED: Final = 4096
_ABOUT_MEMORY: Final = re.compile(
    r"(?i)[KMG]i?B\b|\bmemory\b|kv.?cache|\bblocks?\b|graph|mamba|prefill kernel|max.model.len|max.seq.len|\boom\b"
)


@frozen
class UnreadLine:
    """A line that was not understood, cut and without secrets."""

    line: int
    text: str


class Unread:
    """Collects the lines about memory that were not understood."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[UnreadLine] = []

    def add(self, number: int, text: str) -> None:
        """Keep this line if it is about memory."""
        if _ABOUT_MEMORY.search(text, 0, _SEARCHED) is None:
            return
        self.count += 1
        if len(self._kept) < MOST_UNREAD:
            self._kept.append(UnreadLine(line=number, text=printable(masked(text))[:_LONGEST]))

    @property
    def lines(self) -> tuple[UnreadLine, ...]:
        """The first of them."""
        return tuple(self._kept)

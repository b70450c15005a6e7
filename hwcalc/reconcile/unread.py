"""Lines about memory that no rule understood. Their number and length are bounded, and what looks like a secret is masked."""

from __future__ import annotations

import re
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.text import printable

__all__ = ["MOST_UNREAD", "Unread", "UnreadLine", "masked"]

MOST_UNREAD: Final = 100
"""Lines that are kept. All are counted."""
_LONGEST: Final = 200
_SEARCHED: Final = 4096
_ABOUT_MEMORY: Final = re.compile(
    r"(?i)[KMG]i?B\b|\bmemory\b|kv.?cache|\bblocks?\b|graph|mamba|prefill kernel|max.model.len|max.seq.len|\boom\b"
)
# Words behind which a secret stands, and what tokens of well-known services look like. Each part has a bounded length.
_NAMED: Final = re.compile(
    r"(?i)([\w-]{0,40}(?:token(?!s|iz)|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|authorization|credential|bearer)[\w-]{0,20}"
    r"['\"]?(?:\s{0,4}[:=]\s{0,4}|\s{1,4})(?:bearer\s{1,4})?)(['\"]?)[^\s'\",)}\]]{6,400}"
)
_SHAPED: Final = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|eyJ)[\w.-]{8,400}|(?<=://)[^\s/@]{1,200}@"
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
            self._kept.append(UnreadLine(line=number, text=printable(masked(text[:_SEARCHED])).strip()[:_LONGEST]))

    @property
    def lines(self) -> tuple[UnreadLine, ...]:
        """The first of them."""
        return tuple(self._kept)


def masked(text: str) -> str:
    """The text with stars in place of what looks like a secret.

    >>> masked("api_key='abcdef123456' memory 4 GiB")
    "api_key='***' memory 4 GiB"
    >>> masked("Authorization: Bearer abc.def.ghi 3 GiB")
    'Authorization: Bearer *** 3 GiB'
    >>> masked("hf_abcdefghijkl at https://user:word@host/x")
    '*** at https://***host/x'
    """
    return _SHAPED.sub("***", _NAMED.sub(r"\1\2***", text))

"""Make text from outside safe for terminals and messages."""

from __future__ import annotations

from reprlib import Repr
from typing import Final

__all__ = ["TIMES", "clean", "printable", "quoted", "shown"]

TIMES = "×"  # noqa: RUF001 - a multiplication sign is what is meant


def printable(text: str) -> str:
    """``text`` with escapes for control characters and undecodable bytes, so that every UTF-8 stream accepts it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown(text: str, longest: int = 80) -> str:
    """``text`` in quotes for a message: cut to ``longest`` characters, with escapes for everything that controls a terminal."""
    return f"'{printable(text if len(text) <= longest else text[: longest - 3] + '...')}'"


class _Quoted(Repr):
    """The start of any value's ``repr``. It also ends for values that contain themselves, and for objects whose ``repr`` fails."""

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out an integer of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() <= _LONGEST_BITS else f"a whole number of {x.bit_length():,} bits"


_LONGEST_BITS: Final = 192


def quoted(value: object, longest: int = 60) -> str:
    """Any value for a message, as Python writes it, in at most ``longest`` characters.

    >>> quoted("32 k"), quoted([1, None]), quoted(10**5000)
    ("'32 k'", '[1, None]', 'a whole number of 16,610 bits')
    """
    if isinstance(value, str) and len(value) <= longest:
        return repr(value)
    short = _Quoted()
    short.maxstring = short.maxother = short.maxlong = longest
    text = short.repr(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def clean(text: str) -> str:
    r"""``text`` with ``?`` for every control or formatting character, so that it cannot move the cursor of a terminal.

    >>> clean("a\x1b[31mb")
    'a?[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else character for character in text)

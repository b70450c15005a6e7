"""Make text from outside safe for terminals and messages."""

from __future__ import annotations

__all__ = ["TIMES", "clean", "printable", "shown"]

TIMES = "×"  # noqa: RUF001 - a multiplication sign is what is meant


def printable(text: str) -> str:
    """``text`` with escapes for control characters and undecodable bytes, so that every UTF-8 stream accepts it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown(text: str, longest: int = 80) -> str:
    """``text`` in quotes for a message: cut to ``longest`` characters, with escapes for everything that controls a terminal."""
    return f"'{printable(text if len(text) <= longest else text[: longest - 3] + '...')}'"


def clean(text: str) -> str:
    r"""``text`` with ``?`` for every control or formatting character, so that it cannot move the cursor of a terminal.

    >>> clean("a\x1b[31mb")
    'a?[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else character for character in text)

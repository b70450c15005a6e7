"""Text from outside, made fit for a terminal and for messages."""

from __future__ import annotations

__all__ = ["TIMES", "clean", "printable", "shown"]

TIMES = "×"  # noqa: RUF001 - a multiplication sign is what is meant


def printable(text: str) -> str:
    """``text`` as it can be written to any UTF-8 stream: control characters and undecodable bytes escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown(text: str, longest: int = 80) -> str:
    """``text`` in quotes for a message: cut, and with everything escaped that a terminal might obey."""
    return f"'{printable(text if len(text) <= longest else text[: longest - 3] + '...')}'"


def clean(text: str) -> str:
    r"""Text from outside without what moves a terminal's cursor: control and formatting characters become ``?``.

    >>> clean("a\x1b[31mb")
    'a?[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else character for character in text)

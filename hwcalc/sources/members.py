"""Step through the members of a JSON object in bytes, without a tree of the whole document.

The tree that ``json.loads`` builds of a safetensors header takes up to thirty times the bytes of the header. Here one value at a time
becomes an object, and each value has a limit.
"""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from typing import Any, Final

__all__ = ["Members", "NotJsonError"]

_LARGEST_UNREAD: Final = 1024**2
"""Most bytes of a value that nobody reads, unless it is an object of strings."""

_S: Final = rb"[ \t\n\r]*+"
_STRING: Final = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_PAIR: Final = _STRING + _S + b":" + _S + _STRING + _S
_STRINGS: Final = re.compile(rb"\{" + _S + b"(?:" + _PAIR + b"(?:," + _S + _PAIR + rb")*+)?+\}")
_KEY: Final = re.compile(_S + b"(" + _STRING + b")" + _S + b":" + _S)
_SPACE: Final = re.compile(_S)
_DECODER: Final = json.JSONDecoder()


class NotJsonError(ValueError):
    """The document is not JSON here, or a value is larger than it may be."""


class Members:
    """A position in the bytes of a JSON object. ``enter`` and ``more`` say whether there is another member to read."""

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def enter(self) -> bool:
        """Step into an object."""
        if self._letter() != b"{":
            raise NotJsonError
        self.position += 1
        if self._letter() != b"}":
            return True
        self.position += 1
        return False

    def more(self) -> bool:
        """Step over what stands behind a member: a comma, or the end of the object."""
        letter = self._letter()
        if letter not in (b",", b"}"):
            raise NotJsonError
        self.position += 1
        self._letter()
        return letter == b","

    def key(self) -> bytes:
        """Step over the next key and its colon. The key is in UTF-8, without escapes."""
        match = _KEY.match(self.data, self.position, self.end)
        if match is None:
            raise NotJsonError
        self.position = match.end()
        try:
            text = match[1].decode()
            return (_DECODER.decode(text) if "\\" in text else text[1:-1]).encode("utf-8", "surrogatepass")
        except ValueError as error:
            raise NotJsonError from error

    def value(self, most: int) -> Any:
        """Step over the next value, which has at most ``most`` bytes, and give it back."""
        for size in (min(most, 1024), most):
            piece = self.data[self.position : min(self.position + size, self.end)]
            try:
                # A letter that the end of the piece cuts is left out.
                text = utf_8_decode(piece, "strict", False)[0]  # noqa: FBT003 - it has no names for its arguments
                value, length = _DECODER.raw_decode(text)
            except (ValueError, RecursionError) as error:
                if size == most:
                    raise NotJsonError from error
                continue
            if length < len(text) or size == most:  # a number that ends with the piece may be longer
                self.position += length if text.isascii() else len(text[:length].encode())
                return value
        raise NotJsonError

    def skip(self) -> None:
        """Step over the next value. It may be large only if it is an object of strings, as metadata are."""
        match = _STRINGS.match(self.data, self.position, self.end)
        if match is None:
            self.value(_LARGEST_UNREAD)
        else:
            self.position = match.end()

    def finish(self) -> None:
        """Check that nothing follows but white space."""
        if self._letter():
            raise NotJsonError

    def _letter(self) -> bytes:
        """Step over white space and look at the next letter."""
        match = _SPACE.match(self.data, self.position, self.end)
        self.position = self.position if match is None else match.end()
        return self.data[self.position : min(self.position + 1, self.end)]

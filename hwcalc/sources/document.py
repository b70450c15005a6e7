"""Read a config document in JSON. Everything else is an error with an explanation.

Some real files are not strict JSON. Therefore a byte-order mark, ``NaN``, ``Infinity`` and duplicate keys are accepted. Of
duplicate keys the last one counts, as in Python.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final

from hwcalc.errors import ConfigError, ModelNotFoundError
from hwcalc.text import printable

__all__ = [
    "GGUF_MAGIC",
    "LARGEST_DOCUMENT",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_VALUES",
    "check_document",
    "parse_document",
    "read_document",
    "read_start",
    "read_stream",
]

GGUF_MAGIC: Final = b"GGUF"
"""How a GGUF file begins."""

LARGEST_DOCUMENT: Final = 16 * 1024**2
"""Most bytes of a document. The largest published config is under one MiB (quantised models that list every module)."""

MAX_DEPTH: Final = 100
"""Most levels of nesting. Real configs have up to six."""

MAX_VALUES: Final = 1_000_000
"""Most values of a document, keys and the commas and brackets inside strings included. Published configs have up to 1,300 values; one
that listed each expert of the largest models by name would have some 100,000. Each value takes Python 8 to 250 bytes."""

MAX_DIGITS: Final = 4_300
"""Most digits of a whole number: Python reads no more from a text."""

_MAX_BITS: Final = int(MAX_DIGITS * 3.3219)
"""Bits of the largest number with so many digits."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WRONG_KIND = "Give the model's config.json or the folder that holds it."


def read_document(path: str | os.PathLike[str], name: str | None = None) -> dict[str, Any]:
    """The object in a regular file of at most :data:`LARGEST_DOCUMENT` bytes. Messages call the file ``name``.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if there is no such file, and :class:`~hwcalc.errors.ConfigError` for everything
    else.
    """
    name = name or printable(str(path))
    data = b""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):  # to open a pipe or a device may block for ever
            with open(path, "rb") as file:
                data = file.read(LARGEST_DOCUMENT + 1)
    except FileNotFoundError as error:
        broken = " (a link to a file that is gone)" if os.path.islink(path) else ""
        raise ModelNotFoundError(f"there is no file {name}{broken}.", hint=_WRONG_KIND) from error
    except PermissionError as error:
        raise ConfigError(f"{name} cannot be read: permission denied.", hint="Check who may read the file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name} cannot be read: {printable(reason)}.", hint=_WRONG_KIND) from error
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{name} is a folder, not a file.", hint=_WRONG_KIND)
    if not stat.S_ISREG(mode):
        raise ConfigError(
            f"{name} is a pipe or a device, not a regular file.", hint="Read from a pipe as standard input: kvplan -"
        )
    return parse_document(data, name)


def read_start(stream: IO[str] | IO[bytes], name: str) -> bytes:
    """The first bytes of an open file, enough to know a GGUF file by. The text of a text file is one letter or more."""
    start = b""
    with _reading(name):
        while len(start) < len(GGUF_MAGIC) and (part := _part(stream, len(GGUF_MAGIC) - len(start))):
            start += part
    return start


def read_stream(stream: IO[str] | IO[bytes], name: str, start: bytes = b"") -> dict[str, Any]:
    """The object in an open text or binary file or pipe, of which ``start`` is read already.

    At most :data:`LARGEST_DOCUMENT` + 1 bytes are read.
    """
    whole = bytearray(start)
    with _reading(name):
        while len(whole) <= LARGEST_DOCUMENT and (part := _part(stream, LARGEST_DOCUMENT + 1 - len(whole))):
            whole += part
    return parse_document(bytes(whole), name)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn what an open file raises into an error of the program."""
    try:
        yield
    except UnicodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text.", hint=_WRONG_KIND) from error
    except Exception as error:
        # The caller's object may raise anything in its read(). All of it means that the file cannot be read.
        raise ConfigError(f"{name} cannot be read: {printable(str(error))}.", hint="Give an open, readable file.") from error


def _part(stream: IO[str] | IO[bytes], size: int) -> bytes:
    part: object = stream.read(size)
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes):
        return part
    raise TypeError(f"it gives {type(part).__name__}, neither text nor bytes")


def parse_document(data: bytes, name: str) -> dict[str, Any]:
    """The object in ``data``. Messages call the document ``name`` and never repeat its content."""
    if len(data) > LARGEST_DOCUMENT:
        raise ConfigError(f"{name} is larger than {LARGEST_DOCUMENT // 1024**2} MiB: that is no config.", hint=_WRONG_KIND)
    text = _decode(data, name)
    # Counted before the document is read: a million empty lists are three megabytes of text and seventy in memory.
    if sum(data.count(sign) for sign in (b",", b":", b"[", b"{")) > MAX_VALUES:
        raise _too_many(name)
    if not text.strip():
        raise ConfigError(f"{name} is empty.", hint=_WRONG_KIND)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name} is not JSON: {error.msg} (line {error.lineno:,}, column {error.colno:,}).", hint=_hint(text)
        ) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise _too_long(name) from error
    if not isinstance(document, dict):
        kind = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(document), "a number")
        raise ConfigError(f"{name} must be a JSON object, but is {kind}.", hint=_WRONG_KIND)
    if text.count("[") + text.count("{") > MAX_DEPTH or _SURROGATE.search(text):
        check_document(document, name)
    return document


def check_document(document: object, name: str) -> None:
    """Raise :class:`ConfigError` for a document that is too deep or too large, or that contains half of a UTF-16 pair.

    The document may come from Python: it may hold one list many times, or itself, and whole numbers of any length.
    """
    level: list[Any] = [document]
    left = MAX_VALUES
    for _ in range(MAX_DEPTH):
        left -= sum(len(item) * (1 + isinstance(item, Mapping)) for item in level)
        if left < 0:
            raise _too_many(name)
        inner: list[Any] = [value for item in level for value in _values(item)]
        for value in inner:
            if isinstance(value, str):
                if not _encodable(value):
                    raise ConfigError(f"{name} holds half of a UTF-16 pair (\\ud8..), which is no character.", hint=_WRONG_KIND)
            elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
                raise _too_long(name)
        level = [value for value in inner if isinstance(value, (Mapping, list, tuple))]
        if not level:
            return
    raise _too_deep(name)


def _values(container: Any) -> Iterable[Any]:
    return (*container.keys(), *container.values()) if isinstance(container, Mapping) else container


def _decode(data: bytes, name: str) -> str:
    if data[:4] == GGUF_MAGIC:
        raise ConfigError(f"{name} is a GGUF file, and here a JSON document belongs.", hint="Give it a name that ends in .gguf.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "It looks like UTF-16, which some shells write on '>': save it as UTF-8." if utf16 else _WRONG_KIND
        raise ConfigError(f"{name} is not UTF-8 text (byte {error.start:,}).", hint=hint) from error


def _hint(text: str) -> str:
    start = text.lstrip()[:64]
    if start.startswith("<"):
        return "It looks like a web page. Download the raw file: on the Hub its address has /resolve/, not /blob/."
    if start.startswith("version https://git-lfs"):
        return "It is a Git LFS pointer, not the file itself: run git lfs pull."
    return _WRONG_KIND


def _too_many(name: str) -> ConfigError:
    return ConfigError(f"{name} has more than {MAX_VALUES:,} values: that is no config.", hint=_WRONG_KIND)


def _too_long(name: str) -> ConfigError:
    return ConfigError(f"{name} holds a number with too many digits: more than {MAX_DIGITS:,}.", hint=_WRONG_KIND)


def _too_deep(name: str) -> ConfigError:
    return ConfigError(f"{name} is nested more than {MAX_DEPTH} levels deep: that is no config.", hint=_WRONG_KIND)


def _encodable(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return True

"""The header of a GGUF file: metadata and the list of tensors. The numbers of the tensors themselves are never read.

The file is read from front to back, a piece at a time, and what is skipped is not read: the tokens and merges of a model are
half a million strings, of which only the number is kept. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What
llama.cpp refuses is refused here too (``gguf_init_from_reader`` in ggml/src/gguf.cpp of 0c1e57098), but for the order of the
bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NoReturn

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.model import GGUF_ARCHITECTURE, VOCABULARY, GgufTensor
from hwcalc.quantization.ggml import GGML_TYPES
from hwcalc.text import shown

FIRST: Final = 256 * 1024
"""Bytes of the first piece. Each piece is twice as long as the one before, up to :data:`_LONGEST`."""

LARGEST_HEADER: Final = 128 * 1024**2
"""Most bytes of a header. Those of models with 260,000 tokens have up to 16 MiB."""

_LONGEST: Final = 8 * 1024**2


class EndsError(Exception):
    """The file has too few bytes for what stands in it, or its header takes more than :data:`LARGEST_HEADER`."""

    def __init__(self, wanted: int, left: int) -> None:
        super().__init__("ends")
        self.wanted = wanted
        self.left = left


class Window:
    """A position in a file. ``data[position]`` is the next byte.

    ``read(first, end)`` gives the bytes from ``first`` up to ``end``, fewer where the file ends. ``size`` is that of the whole file, if
    it is known; ``start`` is what was read of it before.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int | None, first: int = FIRST, start: bytes = b"") -> None:
        self.data = start
        self.position = 0
        self.size = size
        self._read = read
        self._start = 0
        self._piece = first
        self._ended = False

    @property
    def offset(self) -> int:
        """The position in the file."""
        return self._start + self.position

    def ahead(self, count: int) -> int:
        """Read so many bytes ahead, as far as the file has them. Returns how many there are, which may be more."""
        while (there := len(self.data) - self.position) < count and not self._ended:
            end = self._start + len(self.data)
            if end + count > LARGEST_HEADER:
                raise EndsError(count, LARGEST_HEADER - self.offset)
            more = self._read(end, end + max(count - there, self._piece))
            self._piece = min(2 * self._piece, _LONGEST)
            self._start = self.offset
            self.data = self.data[self.position :] + more
            self.position = 0
            self._ended = not more
        return there

    def need(self, count: int) -> None:
        """Read so many bytes ahead. Raises :class:`EndsError` if the file ends before."""
        there = len(self.data) - self.position
        if there < count and (there := self.ahead(count)) < count:
            raise EndsError(count, there)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.need(count)
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def skip(self, count: int) -> None:
        """Step over bytes. Where the size of the file is not known, they are only missed at the next one that is read."""
        self.must_have(count)
        self.position += count
        beyond = self.position - len(self.data)
        if beyond > 0:
            self._start += self.position
            self.data = b""
            self.position = 0

    def must_have(self, count: int) -> None:
        """Raise :class:`EndsError` unless the file can hold so many more bytes."""
        most = LARGEST_HEADER if self.size is None else min(self.size, LARGEST_HEADER)
        if count > most - self.offset:
            raise EndsError(count, most - self.offset)


_SHORT: Final = 128
"""Strings of fewer bytes are matched by a pattern. Tokens are shorter, with few exceptions."""
_AT_ONCE: Final = 64
_LENGTH: Final = 8


@lru_cache(maxsize=64)
def _struct(form: str) -> Struct:
    return Struct(form)


def skip_strings(window: Window, count: int, order: str) -> None:
    """Step over ``count`` strings, each of which has its length before it. ``order`` is that of their bytes, ``<`` or ``>``.

    One at a time in Python takes twice as long as many at a time in a regular expression, so that is tried first.
    """
    window.must_have(_LENGTH * count)
    while count >= _AT_ONCE:
        if found := _short_strings(order).match(window.data, window.position):
            window.position = found.end()
        else:
            _skip_each(window, _AT_ONCE, order)
        count -= _AT_ONCE
    _skip_each(window, count, order)


def _skip_each(window: Window, count: int, order: str) -> None:
    """Step over strings one at a time."""
    length = _struct(f"{order}Q").unpack_from
    while count:
        data, position, size = window.data, window.position, len(window.data) - _LENGTH
        while count and position <= size:
            end = position + _LENGTH + length(data, position)[0]
            if end > len(data):
                break
            position = end
            count -= 1
        window.position = position
        if count:
            # What is read ends within this string.
            window.need(_LENGTH)
            window.skip(_LENGTH + length(window.data, window.position)[0])
            count -= 1


@lru_cache(maxsize=2)
def _short_strings(order: str) -> re.Pattern[bytes]:
    """:data:`_AT_ONCE` strings of fewer than :data:`_SHORT` bytes."""
    small, zeros = rb"\x%02x", rb"\x00{7}"
    head = small + zeros if order == "<" else zeros + small
    each = b"|".join(head % number + b".{%d}" % number for number in range(_SHORT))
    return re.compile(b"(?s:%b){%d}+" % (each, _AT_ONCE))


MAGIC: Final = b"GGUF"

MOST_KEYS: Final = 1_024
"""Most keys of a header. Published files have up to 100."""
MOST_TENSORS: Final = 8_192
"""Most tensors of a file. Published files have up to 2,000."""
MOST_STRINGS: Final = 4_000_000
"""Most strings in the arrays of a header. Those of models with 260,000 tokens have 800,000."""
MOST_ITEMS: Final = 10_000
"""Most values of an array that is kept, such as the heads of each layer."""

MOST_TEXTS: Final = 4_096
"""Most strings of arrays that are kept, in all. Files list a few tags and languages."""

MOST_KEPT: Final = 16 * 1024**2
"""Most bytes of memory for all metadata that are kept."""

_LONGEST_KEY: Final = 65_535
_LONGEST_TEXT: Final = 4_096
"""Bytes of a text that is kept. Templates of chats are longer."""
_LONGEST_TENSOR_NAME: Final = 63
_MOST_DIMS: Final = 4
_LONGEST_ROW: Final = 8 + _LONGEST_TENSOR_NAME + 4 + 8 * _MOST_DIMS + 4 + 8
"""Bytes of a tensor's row: the length of its name, the name, the number of sizes, these, a type and an offset."""
_MOST_ELEMENTS: Final = 2**63 - 1
_MOST_OFFSET: Final = 2**64
_DEFAULT_ALIGNMENT: Final = 32
_OF_A_KEY: Final = 200
"""Bytes that Python takes for a short text and its place."""
_OF_A_VALUE: Final = 40
_UNKEPT: Final = "tokenizer."
"""Keys whose arrays and long texts nobody needs here."""
_TOKENS: Final = "tokenizer.ggml.tokens"

_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> letter of :mod:`struct`."""
_STRING: Final = 8
_ARRAY: Final = 9
_UINT32: Final = 4

_AGAIN: Final = "The file is damaged, or not one: download it again."
_CUT: Final = "The download is not complete, or the file is damaged: download it again."


class Header(Record):
    """The part of a file before its tensors. ``file_bytes`` is the least size of the file with them."""

    keys: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    version: int
    big_endian: bool
    file_bytes: int


def read_header(window: Window, name: str) -> Header:
    """The header of the file that messages call ``name``.

    Raises :class:`~hwcalc.errors.ConfigError` for a file that llama.cpp would not load.
    """
    reader = _Reader(window, name)
    try:
        return reader.header()
    except EndsError as error:
        # The file, or the limit, cuts it off.
        offset, size = window.offset, window.size
        if offset + error.wanted > LARGEST_HEADER and (size is None or offset + error.wanted <= size):
            most = f"{LARGEST_HEADER // 1024**2} MiB"
            raise ConfigError(f"the header of {name} takes more than {most}, with {reader.where}.", hint=_AGAIN) from None
        left = max(0, error.left)
        message = f"{name} ends within its header: from byte {offset:,} on it has {left:,} more for {reader.where}."
        raise ConfigError(message, hint=_CUT) from None


class _Reader:
    """One reading. ``reading`` are a pattern and its values, which :attr:`where` puts into words: most are never told."""

    def __init__(self, window: Window, name: str) -> None:
        self.window = window
        self.name = name
        self.reading: tuple[str | int, ...] = ("its first bytes",)
        self.order = "<"
        self.strings = 0
        self.texts = 0
        self.tokens: int | None = None
        self.kept = 0

    @property
    def where(self) -> str:
        """The part now read, for messages."""
        pattern, *values = self.reading
        return str(pattern).format(*(shown(value) if isinstance(value, str) else value for value in values))

    def header(self) -> Header:
        """All of it, in the order of the file."""
        version = self._version()
        tensor_count, key_count = self._unpack("QQ")
        for count, most, least, what in ((key_count, MOST_KEYS, 13, "keys"), (tensor_count, MOST_TENSORS, 24, "tensors")):
            if count > most:
                self.fail(f"it says that it has {count:,} {what}, and the most are {most:,}")
            self.reading = (f"the {{:,}} {what} that it names", count)
            self.window.must_have(least * count)
        keys, types = self._keys(key_count)
        alignment, key = _DEFAULT_ALIGNMENT, "general.alignment"
        if key in types:
            given = keys.get(key)
            if types[key] != _UINT32 or not isinstance(given, int) or given <= 0 or given & (given - 1):
                self.fail(f"{shown(key)} is {shown(str(given))}, and it must be a power of two in 32 bits without a sign")
            alignment = given
        rows = self._tensors(tensor_count)
        begin = -(-self.window.offset // alignment) * alignment if rows else self.window.offset
        # Each tensor begins where the one before ends, rounded up.
        expected = end = 0
        for tensor, offset in rows:
            if offset != expected:
                reason = "overlaps another" if offset < expected else "leaves a gap"
                if offset % alignment:
                    reason = f"is not a multiple of {alignment:,}"
                self.fail(f"the tensor {shown(tensor.name)} has the offset {offset:,}, which {reason}; expected is {expected:,}")
            end = expected + tensor.bytes
            expected = -(-end // alignment) * alignment
            if expected >= _MOST_OFFSET:
                self.fail(f"the tensor {shown(tensor.name)} ends beyond 64 bits")
        file_bytes, size = begin + end, self.window.size
        if size is not None and size < file_bytes:
            raise ConfigError(
                f"{self.name} has {size:,} bytes, and its tensors end at byte {file_bytes:,}: a part of it is missing.",
                hint="Download it again. To plan it from its header all the same, give it as standard input: kvplan - < FILE",
            )
        tensors, big_endian = tuple(tensor for tensor, _ in rows), self.order == ">"
        return Header(keys=keys, tensors=tensors, version=version, big_endian=big_endian, file_bytes=file_bytes)

    def fail(self, reason: str, hint: str = _AGAIN) -> NoReturn:
        """Raise the error for what makes no sense."""
        raise ConfigError(f"{self.name} is no sound GGUF file: {reason}.", hint=hint)

    def _version(self) -> int:
        magic = self.window.take(4)
        if magic != MAGIC:
            hint = "Give a GGUF file, a config.json, or a folder with one."
            if magic in {b"ggml", b"ggjt", b"ggla", b"ggmf", b"lmgg", b"tjgg"}:
                hint = "It is of the time before GGUF: download a newer file of the model, or convert it again."
            elif magic == b"vers":
                hint = "It is a Git LFS pointer, not the file itself: run git lfs pull."
            elif magic.lstrip()[:1] == b"<":
                hint = "It looks like a web page: on the Hub the address of a file has /resolve/, not /blob/."
            raise ConfigError(
                f"{self.name} is no GGUF file: it begins with {shown(magic.decode('latin-1'))}, not with 'GGUF'.", hint=hint
            )
        (version,) = self._unpack("I")
        if version and not version & 0xFFFF:  # as llama.cpp and gguf-py tell the order of the bytes
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version == 1:
            raise UnsupportedError(
                f"{self.name} is a GGUF file of version 1, which llama.cpp reads no more.",
                hint="Download a newer file of the model, or convert it again.",
            )
        if version not in {2, 3}:
            self.fail(f"its version is {version:,}, and the known ones are 2 and 3", "It may need a newer release of kvplan.")
        return int(version)

    def _unpack(self, letters: str) -> tuple[Any, ...]:
        form, window = _struct(self.order + letters), self.window
        window.need(form.size)
        values = form.unpack_from(window.data, window.position)
        window.position += form.size
        return values

    def _keys(self, count: int) -> tuple[dict[str, Any], dict[str, int]]:
        """The metadata, and the types of their values."""
        keys: dict[str, Any] = {}
        types: dict[str, int] = {}
        long: list[str] = []
        for number in range(count):
            self.reading = ("key {:,} of {:,}", number + 1, count)
            (length,) = self._unpack("Q")
            if length > _LONGEST_KEY:
                self.window.must_have(length)
                self.fail(f"the name of {self.where} has {length:,} bytes, and the most are {_LONGEST_KEY:,}")
            key = self.window.take(length).decode("utf-8", "replace")
            self.reading = ("the value of {}", key)
            if not key:
                self.fail(f"key {number + 1:,} has no name")
            if key in types:
                self.fail(f"it has the key {shown(key)} twice")
            (types[key],) = self._unpack("I")
            value, whole = self._value(key, types[key])
            self._keep(_OF_A_KEY + len(key))
            if value is not None:
                keys[key] = value
            elif not whole:
                long.append(key)
        architecture = keys.get(GGUF_ARCHITECTURE)
        cut = next((key for key in long if key.startswith(f"{architecture}.")), None)
        if cut is not None:
            self.fail(f"{shown(cut)} has more than {MOST_ITEMS:,} values, which no model has layers for")
        keys.pop(VOCABULARY, None)
        if self.tokens is not None:
            keys[VOCABULARY] = self.tokens
        return keys, types

    def _keep(self, size: int) -> None:
        """Take memory for metadata."""
        self.kept += size
        if self.kept > MOST_KEPT:
            self.fail(f"its metadata take more than {MOST_KEPT // 1024**2} MiB of memory, with {self.where}")

    def _value(self, key: str, kind: int) -> tuple[Any, bool]:
        """A value, or ``None`` for one that is not kept; and whether that is so because nobody needs it."""
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            (length,) = self._unpack("Q")
            if length > _LONGEST_TEXT:
                self.window.skip(length)
                return None, True
            self._keep(length)
            return self.window.take(length).decode("utf-8", "replace"), True
        letter = _NUMBERS.get(kind)
        if letter is None:
            self.fail(f"the value of {shown(key)} is of type {kind:,}, which there is not")
        return self._unpack(letter)[0], True

    def _array(self, key: str) -> tuple[Any, bool]:
        kind, count = self._unpack("IQ")
        self.reading = ("the {:,} values of {}", count, key)
        if kind == _ARRAY:
            self.fail(f"{shown(key)} is an array of arrays, which llama.cpp does not read")
        kept = count <= MOST_ITEMS and not key.startswith(_UNKEPT)
        if kind == _STRING:
            self.strings += count
            if self.strings > MOST_STRINGS:
                self.window.must_have(8 * count)
                self.fail(f"its arrays have more than {MOST_STRINGS:,} strings")
            if kept and self.texts + count <= MOST_TEXTS:
                return self._texts(count), True
            skip_strings(self.window, count, self.order)
            if key == _TOKENS:
                self.tokens = count
            return None, kept or key.startswith(_UNKEPT)
        letter = _NUMBERS.get(kind)
        if letter is None:
            self.fail(f"{shown(key)} is an array of type {kind:,}, which there is not")
        size = count * _struct(f"<{letter}").size
        if not kept:
            self.window.skip(size)
            return None, key.startswith(_UNKEPT)
        self.window.must_have(size)
        self._keep(_OF_A_VALUE * count)
        return list(struct.unpack(f"{self.order}{count}{letter}", self.window.take(size))), True

    def _texts(self, count: int) -> list[str] | None:
        """The strings of an array; ``None`` if one of them is long."""
        self.texts += count
        texts = []
        for number in range(count):
            (length,) = self._unpack("Q")
            if length > _LONGEST_TEXT:
                self.window.skip(length)
                skip_strings(self.window, count - number - 1, self.order)
                return None
            self._keep(_OF_A_KEY + length)
            texts.append(self.window.take(length).decode("utf-8", "replace"))
        return texts

    def _tensors(self, count: int) -> list[tuple[GgufTensor, int]]:
        """The tensors and their offsets."""
        window, order = self.window, self.order
        length_at, dims_at = struct.Struct(f"{order}Q").unpack_from, struct.Struct(f"{order}I").unpack_from
        rest_at = [struct.Struct(f"{order}{dims}QIQ") for dims in range(_MOST_DIMS + 1)]
        seen: set[bytes] = set()
        rows: list[tuple[GgufTensor, int]] = []
        for number in range(count):
            self.reading = ("tensor {:,} of {:,}", number + 1, count)
            # Where the longest row is already read, no part of it need be asked for.
            ends = len(window.data) - window.position < _LONGEST_ROW
            if ends:
                window.need(8)
            (length,) = length_at(window.data, window.position)
            if length > _LONGEST_TENSOR_NAME:
                window.must_have(length)
                self.fail(f"the name of {self.where} has {length:,} bytes, and the most are {_LONGEST_TENSOR_NAME}")
            if ends:
                window.need(12 + length)
            data, start = window.data, window.position + 8
            name = data[start : start + length]
            if name in seen:
                self.fail(f"it has the tensor {_shown(name)} twice")
            seen.add(name)
            (dims,) = dims_at(data, start + length)
            if dims > _MOST_DIMS:
                self.fail(f"the tensor {_shown(name)} has {dims:,} dimensions, and the most are {_MOST_DIMS}")
            window.position = start + length + 4
            form = rest_at[dims]
            if ends:
                window.need(form.size)
            *shape, type_number, offset = form.unpack_from(window.data, window.position)
            window.position += form.size
            rows.append((self._tensor(name, tuple(shape) or (1,), type_number), offset))
        return rows

    def _tensor(self, name: bytes, shape: tuple[int, ...], type_number: int) -> GgufTensor:
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements <= _MOST_ELEMENTS:
            self.fail(f"the tensor {_shown(name)} has the shape {' x '.join(f'{size:,}' for size in shape)}")
        form = GGML_TYPES.get(type_number)
        if form is None:
            known = f"the known ones are up to {max(GGML_TYPES)}"
            self.fail(
                f"the tensor {_shown(name)} is of type {type_number:,}, which llama.cpp does not have ({known})",
                "A file of this type needs a program of its own, or a newer release of kvplan; most models have files of other types.",
            )
        if shape[0] % form.block:
            self.fail(
                f"the rows of the tensor {_shown(name)} have {shape[0]:,} numbers, and {form.name} packs {form.block} at a time"
            )
        size = elements // form.block * form.block_bytes
        return GgufTensor(name=name.decode("utf-8", "replace"), type=form.name, shape=shape, bytes=size)


def _shown(name: bytes) -> str:
    return shown(name.decode("utf-8", "replace"))

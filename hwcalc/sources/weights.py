"""Exact weight bytes of a model from the headers of its safetensors files. The tensors are never read.

A file consists of eight bytes with the length N of the header (little endian), N bytes of JSON, and the tensors without gaps.
This header describes four elements of BF16 in 8 bytes:

``{"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}``

Files are not trusted: every number is checked before it is used. The tree that ``json.loads`` builds of a header takes up to
thirty times its bytes: here one value at a time becomes an object, and each value has a limit. Several files are read at once,
in threads that never keep the program from ending. Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import operator
import os
import re
from array import array
from bisect import bisect_left
from codecs import BOM_UTF8, utf_8_decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from math import prod
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol, TypeVar

from hwcalc.errors import ConfigError
from hwcalc.formulas.record import Record
from hwcalc.model import WeightFacts
from hwcalc.sources.request import tell

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


PREFIX: Final = 8
"""Bytes before the header. They hold its length."""

LARGEST_HEADER: Final = 100_000_000
"""Most bytes of a header, as the format defines it."""

LARGEST_INDEX: Final = 128 * 1024**2
"""Most bytes of an index. The index of a model with a million tensors has less than 100 MB."""

MOST_FILES: Final = 4096
"""Most files that one index may name. The largest published models have some hundreds."""

_LARGEST_FILE: Final = 2**50
_LONGEST_ROW: Final = 64 * 1024
"""Most bytes of the description of one tensor. A shape of 64 axes takes a kilobyte."""
_MOST_DTYPES: Final = 64
_MOST_SHAPES: Final = 4096

# Bits of one element.
_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_DTYPE = re.compile(r"[A-Z][A-Z0-9_]{0,23}")
# A tensor and a place in the index as most programs write them. Everything else is read more slowly.
_ROW = re.compile(
    rb"""
    "(?!__metadata__")([\ !\#-\[\]-~]*+)":[\ \n\r\t]*+\{[\ \n\r\t]*+
    "dtype":[\ \n\r\t]*+"([A-Z][A-Z0-9_]{0,23})"[\ \n\r\t]*+,[\ \n\r\t]*+
    "shape":[\ \n\r\t]*+\[([0-9,\ ]{0,1200})\][\ \n\r\t]*+,[\ \n\r\t]*+
    "data_offsets":[\ \n\r\t]*+\[[\ \n\r\t]*+(0|[1-9][0-9]{0,15})[\ \n\r\t]*+,[\ \n\r\t]*+(0|[1-9][0-9]{0,15})[\ \n\r\t]*+\]
    [\ \n\r\t]*+\}[\ \n\r\t]*+([,}])[\ \n\r\t]*+""",
    re.VERBOSE,
)
_PLACE = re.compile(rb"""\"([\ !\#-\[\]-~]*+)":[\ \n\r\t]*+"([\ !\#-\[\]-~]*+)"[\ \n\r\t]*+([,}])[\ \n\r\t]*+""", re.VERBOSE)
_FILE = re.compile(rb"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}/){0,4}[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.safetensors")


class Header(Record):
    """The tensors of one file, added up per dtype. Both mappings have the same keys."""

    bytes_by_dtype: Mapping[str, int]
    elements_by_dtype: Mapping[str, int]
    tensors: int


def header_end(start: bytes, name: str) -> int:
    """The end of the header, in bytes from the start of the file. The first eight bytes of the file define it.

    >>> header_end((72).to_bytes(8, "little"), "model.safetensors")
    80

    Raises :class:`~hwcalc.errors.ConfigError` if ``start`` has fewer than eight bytes, or if the length of the header is not
    between 2 and :data:`LARGEST_HEADER`. Messages call the file ``name``.
    """
    if len(start) < PREFIX:
        raise _broken(name, f"it is {len(start)} bytes long")
    length = int.from_bytes(start[:PREFIX], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise _broken(name, f"its header would be {length:,} bytes long")
    return PREFIX + length


def read_header(data: bytes, name: str, file_bytes: int | None = None) -> Header:
    """The tensors of a file that begins with ``data``. Bytes after the header are ignored.

    ``file_bytes`` is the size of the whole file if it is known. Raises :class:`~hwcalc.errors.ConfigError` if the header is cut
    off, is not JSON, or contradicts itself: a negative or fractional number, a shape that does not match its bytes, tensors with
    overlaps or gaps, a tensor that is listed twice, a file that is shorter or longer than its tensors.

    Memory beside ``data`` is 24 bytes a tensor, and four times that for a moment.
    """
    end = header_end(data, name)
    if len(data) < end:
        raise _broken(name, f"its header is cut after {len(data):,} of {end:,} bytes")
    tally, members = _Tally(name), Members(data, PREFIX, end)
    try:
        more = members.enter()
        while more:
            match = _ROW.match(data, members.position, end)
            if match is not None:
                members.position = match.end()
                tensor, dtype, shape, first, last, separator = match.groups()
                tally.add(tensor, dtype.decode(), tally.count(shape), int(first), int(last))
                more = separator == b","
                continue
            # The keys of a tensor are in another order, or its name has an escape.
            tensor = members.key()
            if tensor == b"__metadata__":
                members.skip()
            else:
                tally.add(tensor, *_tensor(members.value(_LONGEST_ROW), name))
            more = members.more()
        members.finish()
    except NotJsonError as error:
        raise _not_json(data[PREFIX : PREFIX + 64], name) from error
    size = tally.tiled()
    if file_bytes is not None and end + size != file_bytes:
        raise _broken(name, f"it has {file_bytes:,} bytes, but its header and tensors take {end + size:,}")
    return Header(bytes_by_dtype=tally.sizes, elements_by_dtype=tally.elements, tensors=len(tally.names))


class _Tally:
    """The sums over the tensors of a header, and where each of them lies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sizes: dict[str, int] = {}
        self.elements: dict[str, int] = {}
        self.names = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._counts: dict[bytes, int] = {}

    def count(self, shape: bytes) -> int:
        """The elements of a shape as it is written: ``2, 2``."""
        count = self._counts.get(shape)
        if count is None:
            try:
                count = _elements(json.loads(b"[%b]" % shape), self.name)
            except ValueError as error:
                raise NotJsonError from error
            if len(self._counts) < _MOST_SHAPES:
                self._counts[shape] = count
        return count

    def add(self, tensor: bytes, dtype: str, count: int, first: int, last: int) -> None:
        """Add a tensor and check its numbers."""
        size = last - first
        if size < 0 or last > _LARGEST_FILE:
            raise _broken(self.name, "a tensor's data_offsets are no first and last byte")
        bits = _BITS.get(dtype)
        # For an unknown, newer dtype only the offsets give the number of bytes.
        if bits is not None and count * bits != 8 * size:
            raise _broken(self.name, f"a tensor's shape and dtype {dtype} do not take the bytes that its data_offsets claim")
        if bits is None and count > 8 * size:
            raise _broken(self.name, f"a tensor of dtype {dtype} has more elements than bits")
        if dtype not in self.sizes and len(self.sizes) == _MOST_DTYPES:
            raise _broken(self.name, f"its tensors have more than {_MOST_DTYPES} dtypes")
        self.sizes[dtype] = self.sizes.get(dtype, 0) + size
        self.elements[dtype] = self.elements.get(dtype, 0) + count
        self.names.append(hash(tensor))
        self._firsts.append(first)
        self._lasts.append(last)

    def tiled(self) -> int:
        """The bytes of all tensors, after the check that they lie end to end and that none is listed twice."""
        names = sorted(self.names)
        if any(map(operator.eq, names, islice(names, 1, None))):
            raise _broken(self.name, "it lists a tensor twice")
        del names
        if not self._firsts:
            return 0
        if self._firsts[0] == 0 and all(map(operator.eq, self._lasts, islice(self._firsts, 1, None))):
            return self._lasts[-1]
        # The header does not list them in the order of the file. Tensors with bytes lie end to end if each but the first begins where
        # another ends. A tensor without any lies between two.
        pairs = zip(self._firsts, self._lasts, strict=True)
        firsts = array("q", sorted(first for first, last in pairs if first < last))
        pairs = zip(self._firsts, self._lasts, strict=True)
        lasts = array("q", sorted(last for first, last in pairs if first < last))
        end = lasts[-1] if lasts else 0
        if firsts and firsts[0] != 0:
            raise _broken(self.name, "there is a gap between its tensors")
        for last, first in zip(lasts, islice(firsts, 1, None), strict=False):
            if first != last:
                raise _broken(self.name, "its tensors overlap" if first < last else "there is a gap between its tensors")
        for first, last in zip(self._firsts, self._lasts, strict=True):
            if first == last != end:
                place = bisect_left(firsts, first)
                if place == len(firsts) or firsts[place] != first:
                    raise _broken(self.name, "its tensors overlap" if first < end else "there is a gap between its tensors")
        return end


def read_index(data: bytes, name: str) -> dict[str, int]:
    """The files that an index (``model.safetensors.index.json``) names, in order, each with an estimate of its header's bytes.

    A header has one line per tensor: its name and about a hundred letters more. Therefore the names in the index tell how many
    bytes to request. Raises :class:`~hwcalc.errors.ConfigError` if it is no index, or if it names a file outside of its folder.
    """
    if len(data) > LARGEST_INDEX:
        raise _broken(name, f"it is larger than {LARGEST_INDEX // 1024**2} MiB")
    members = Members(data, len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0)
    files: dict[bytes, int] = {}
    try:
        more = members.enter()
        while more:
            if members.key() == b"weight_map":
                files = _weight_map(members, name)
            else:
                members.skip()
            more = members.more()
        members.finish()
    except NotJsonError as error:
        raise _not_json(data[:64], name) from error
    if not files:
        raise _broken(name, "it has no weight_map")
    return {file.decode(): size for file, size in sorted(files.items())}


def _weight_map(members: Members, name: str) -> dict[bytes, int]:
    """The files in the map from tensors to files."""
    files: dict[bytes, int] = {}
    data, end = members.data, members.end
    if data[members.position : members.position + 1] != b"{":
        raise _broken(name, "it has no weight_map")
    more = members.enter()
    while more:
        match = _PLACE.match(data, members.position, end)
        if match is not None:
            members.position = match.end()
            tensor, file, separator = match.groups()
            more = separator == b","
        else:
            tensor, value = members.key(), members.value(_LONGEST_ROW)
            if not isinstance(value, str):
                raise _broken(name, "its weight_map does not name files")
            file, more = value.encode("utf-8", "surrogatepass"), members.more()
        size = files.get(file)
        if size is None:
            size = PREFIX + 256
            if len(files) == MOST_FILES:
                raise _broken(name, f"it names more than {MOST_FILES:,} files")
            if _FILE.fullmatch(file) is None or b".." in file:
                raise _broken(name, "it names a file that is none of its own folder's safetensors files")
        files[file] = size + len(tensor) + _LINE
    return files


# The length of "name":{"dtype":"F8_E4M3","shape":[16384,16384],"data_offsets":[12345678901,12345678901]}, without the name.
_LINE: Final = 104


def add_up(headers: Iterable[Header], source: str) -> WeightFacts:
    """The facts about all files of a model together."""
    rows = tuple(headers)
    dtypes = sorted({dtype for row in rows for dtype in row.bytes_by_dtype})
    return WeightFacts(
        bytes_by_dtype={dtype: sum(row.bytes_by_dtype.get(dtype, 0) for row in rows) for dtype in dtypes},
        elements_by_dtype={dtype: sum(row.elements_by_dtype.get(dtype, 0) for row in rows) for dtype in dtypes},
        files=len(rows),
        tensors=sum(row.tensors for row in rows),
        source=source,
    )


def _tensor(row: object, name: str) -> tuple[str, int, int, int]:
    """Dtype, elements, first byte and end of one tensor."""
    if not isinstance(row, dict):
        raise _broken(name, "a tensor has no description")
    dtype, offsets = row.get("dtype"), row.get("data_offsets")
    if not isinstance(dtype, str) or _DTYPE.fullmatch(dtype) is None:
        raise _broken(name, "a tensor has no dtype")
    count = _elements(row.get("shape"), name)
    numbers: list[Any] = offsets if isinstance(offsets, list) and len(offsets) == 2 else [None]
    if any(type(offset) is not int or not 0 <= offset <= _LARGEST_FILE for offset in numbers):
        raise _broken(name, "a tensor's data_offsets are no first and last byte")
    return dtype, count, numbers[0], numbers[1]


def _elements(shape: object, name: str) -> int:
    axes = shape if isinstance(shape, list) and len(shape) <= 64 else [None]
    if any(type(axis) is not int or not 0 <= axis <= _LARGEST_FILE for axis in axes):
        raise _broken(name, "a tensor's shape is no list of whole numbers")
    return prod(axes)


def _not_json(start: bytes, name: str) -> ConfigError:
    kinds = {b"<": "a web page came instead of it", b"{": "it is not JSON of the form that it must have"}
    return _broken(name, kinds.get(start.lstrip()[:1], "it is not a JSON object"))


def _broken(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name} cannot be read: {reason}.", hint="The file is damaged or not a safetensors file: check it at its source."
    )


FIRST: Final = 128 * 1024
"""Bytes of the first request for a file with an unknown number of tensors. Unquantised 8B models have headers of 30 to 40 KiB."""

MOST_BYTES: Final = 512 * 1024**2
"""Most bytes of all headers of a model together. The largest published models have some 100 MB."""

LARGE: Final = 8 * 1024**2
"""Bytes above which only one header is in memory at a time. Published headers have at most some hundred KiB a file."""


class FilePart(Record):
    """Some bytes of a file, and the size of the whole file if it is known."""

    data: bytes
    file_bytes: int | None


class Files(Protocol):
    """A place with the files of one model, such as a folder or a repository. A missing file is ``None``.

    ``parallel`` is the number of files that may be read at the same time.
    """

    parallel: int

    def whole(self, name: str, most: int) -> bytes | None:
        """The content of a small file. If the file is larger than ``most``, the result has at least ``most`` + 1 bytes."""

    def part(self, name: str, first: int, end: int) -> FilePart | None:
        """The bytes from ``first`` up to ``end`` (exclusive). There are fewer if the file ends earlier."""


class Folder:
    """A folder on this machine."""

    parallel = 1

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def whole(self, name: str, most: int) -> bytes | None:
        part = self.part(name, 0, most + 1)
        return None if part is None else part.data

    def part(self, name: str, first: int, end: int) -> FilePart | None:
        path = os.path.join(self._folder, name)
        if not os.path.isfile(path):
            return None
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(first)
                return FilePart(data=file.read(max(0, min(end, size) - first)), file_bytes=size)
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}.", hint="Check who may read the file.") from error


def read_weights(files: Files, stems: Sequence[str]) -> WeightFacts | None:
    """The facts about the weight files, or ``None`` if there are no safetensors files.

    The weights are ``<stem>.safetensors``, or the files that ``<stem>.safetensors.index.json`` names. Raises
    :class:`~hwcalc.errors.ConfigError` if a header is damaged or a file is missing.
    """
    reader = _Reader(files)
    for stem in stems:
        single = f"{stem}.safetensors"
        start = files.part(single, 0, FIRST)
        if start is not None:
            return add_up([reader.rest(single, start)], "safetensors header")
        index = files.whole(f"{single}.index.json", LARGEST_INDEX)
        if index is not None:
            named = read_index(index, f"{single}.index.json")
            del index
            return add_up(reader.all(named), "safetensors headers")
    return None


class _Reader:
    """Reads headers, several at a time. Of those above :data:`LARGE` only one is in memory."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._one_large = Lock()
        self._bytes = 0

    def all(self, named: dict[str, int]) -> Iterator[Header]:
        """The headers of files, each with an estimate of its bytes."""
        if self._files.parallel < 2 or len(named) < 2:
            yield from (self._one(name, size) for name, size in named.items())
            return

        results = done_in_any_order(lambda item: self._one(*item), named.items(), self._files.parallel)
        for done, result in enumerate(results, 1):
            tell(f"weight headers: {done:,} of {len(named):,} files")
            yield result

    def _one(self, name: str, guess: int) -> Header:
        start = self._files.part(name, 0, min(-(-guess // 1024) * 1024, LARGE))
        if start is None:
            message = f"the index names {name}, which is not there."
            raise ConfigError(message, hint="The weights are incomplete: download or upload them again.")
        return self.rest(name, start)

    def rest(self, name: str, start: FilePart) -> Header:
        """The header of a file whose first part is known. If the header is longer than this part, the rest is read."""
        end = header_end(start.data, name)
        self._bytes += end  # a sum that is a little too low between two threads does no harm
        if self._bytes > MOST_BYTES:
            raise ConfigError(
                f"the headers of the weight files take more than {MOST_BYTES // 1024**2} MiB: that is no model.",
                hint="Check the repository: its safetensors files are not what they should be.",
            )
        if len(start.data) >= end or (start.file_bytes is not None and end > start.file_bytes):
            return read_header(start.data, name, start.file_bytes)
        with self._one_large if end > LARGE else nullcontext():
            more = self._files.part(name, len(start.data), end)
            data = start.data if more is None else start.data + more.data
            del more
            return read_header(data, name, start.file_bytes)


T = TypeVar("T")
R = TypeVar("R")


def done_in_any_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """The results of ``work`` for all items, each as soon as it is there. The first exception ends it."""
    waiting = deque(items)
    count = len(waiting)
    results: SimpleQueue[tuple[R] | BaseException] = SimpleQueue()
    stopped = Event()

    def run() -> None:
        while not stopped.is_set():
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                results.put((work(item),))
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                results.put(error)
                return

    try:
        # Not those of concurrent.futures: at the end of the program these would wait for the Hub.
        for _ in range(min(threads, count)):
            Thread(target=run, name="kvplan-header", daemon=True).start()
        for _ in range(count):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result[0]
    finally:
        stopped.set()

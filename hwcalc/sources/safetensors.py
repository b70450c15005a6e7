"""Read the header of a safetensors file: its tensors, their dtypes and their places. Pure functions without I/O.

A file consists of eight bytes with the length N of the header (little endian), N bytes of JSON, and the tensors without gaps.
This header describes four elements of BF16 in 8 bytes:

``{"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}``

Files are not trusted: every number is checked before it is used.
Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import WeightFacts

__all__ = ["LARGEST_HEADER", "PREFIX", "Header", "add_up", "header_end", "read_header", "read_index"]

PREFIX: Final = 8
"""Bytes before the header. They hold its length."""

LARGEST_HEADER: Final = 100_000_000
"""Most bytes of a header, as the format defines it."""

LARGEST_INDEX: Final = 128 * 1024**2
"""Most bytes of an index. The index of a model with a million tensors has less than 100 MB."""

MOST_FILES: Final = 4096
"""Most files that one index may name. The largest published models have some hundreds."""

_MOST_TENSORS: Final = 4_000_000
_LARGEST_FILE: Final = 2**50

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
_FILE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}/){0,4}[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.safetensors")


@frozen
class Header:
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
    overlaps or gaps, a file that is shorter or longer than its tensors.
    """
    end = header_end(data, name)
    if len(data) < end:
        raise _broken(name, f"its header is cut after {len(data):,} of {end:,} bytes")
    rows = _object(data[PREFIX:end], name)
    rows.pop("__metadata__", None)
    if len(rows) > _MOST_TENSORS:
        raise _broken(name, f"it lists {len(rows):,} tensors")
    sizes: dict[str, int] = {}
    elements: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for row in rows.values():
        dtype, count, first, last = _tensor(row, name)
        sizes[dtype] = sizes.get(dtype, 0) + last - first
        elements[dtype] = elements.get(dtype, 0) + count
        spans.append((first, last))
    spans.sort()
    position = 0
    for first, last in spans:
        if first != position:
            raise _broken(name, "its tensors overlap" if first < position else "there is a gap between its tensors")
        position = last
    if file_bytes is not None and end + position != file_bytes:
        raise _broken(name, f"it has {file_bytes:,} bytes, but its header and tensors take {end + position:,}")
    return Header(bytes_by_dtype=sizes, elements_by_dtype=elements, tensors=len(spans))


def read_index(data: bytes, name: str) -> dict[str, int]:
    """The files that an index (``model.safetensors.index.json``) names, in order, each with an estimate of its header's bytes.

    A header has one line per tensor: its name and about a hundred letters more. Therefore the names in the index tell how many
    bytes to request. Raises :class:`~hwcalc.errors.ConfigError` if it is no index, or if it names a file outside of its folder.
    """
    if len(data) > LARGEST_INDEX:
        raise _broken(name, f"it is larger than {LARGEST_INDEX // 1024**2} MiB")
    where = _object(data, name).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise _broken(name, "it has no weight_map")
    files: dict[str, int] = {}
    for tensor, file in where.items():
        if not isinstance(file, str):
            raise _broken(name, "its weight_map does not name files")
        files[file] = files.get(file, PREFIX + 256) + len(tensor) + _LINE
    if len(files) > MOST_FILES:
        raise _broken(name, f"it names {len(files):,} files")
    if any(_FILE.fullmatch(file) is None or ".." in file for file in files):
        raise _broken(name, "it names a file that is none of its own folder's safetensors files")
    return dict(sorted(files.items()))


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
    dtype, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(dtype, str) or _DTYPE.fullmatch(dtype) is None:
        raise _broken(name, "a tensor has no dtype")
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(axis) is int and 0 <= axis <= _LARGEST_FILE for axis in shape)
    ):
        raise _broken(name, "a tensor's shape is no list of whole numbers")
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(offset) is int for offset in offsets)
        and 0 <= offsets[0] <= offsets[1] <= _LARGEST_FILE
    ):
        raise _broken(name, "a tensor's data_offsets are no first and last byte")
    count = 1
    for axis in shape:
        count *= axis
    bits = _BITS.get(dtype)
    # For an unknown, newer dtype only the offsets give the number of bytes.
    if bits is not None and count * bits != 8 * (offsets[1] - offsets[0]):
        raise _broken(name, f"a tensor's shape and dtype {dtype} do not take the bytes that its data_offsets claim")
    if bits is None and count > 8 * (offsets[1] - offsets[0]):
        raise _broken(name, f"a tensor of dtype {dtype} has more elements than bits")
    return dtype, count, offsets[0], offsets[1]


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        page = data.lstrip()[:1] == b"<"
        raise _broken(name, "a web page came instead of it" if page else "it is not JSON") from error
    if not isinstance(document, dict):
        raise _broken(name, "it is not a JSON object")
    return document


def _broken(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name} cannot be read: {reason}.", hint="The file is damaged or not a safetensors file: check it at its source."
    )

"""The header of a safetensors file: which tensors it holds, of what dtype, and where. Pure: bytes in, counts out.

A file is eight bytes with the header's length N (little endian), N bytes of JSON, then the tensors without a gap:

``{"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}``

is four elements of BF16 in 8 bytes. The file comes from strangers: every number is checked before it is used.
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
"""Bytes before the header: its length."""

LARGEST_HEADER: Final = 100_000_000
"""Bytes. The format's own limit."""

LARGEST_INDEX: Final = 128 * 1024**2
"""Bytes of an index. A model with a million tensors stays under 100 MB."""

MOST_FILES: Final = 4096
"""Files that one index may name. The largest published models have some hundreds."""

_MOST_TENSORS: Final = 4_000_000
_LARGEST_FILE: Final = 2**50

# Bits of one element, sub-byte formats included.
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
    """One file's tensors, added up by dtype; both mappings have the same keys."""

    bytes_by_dtype: Mapping[str, int]
    elements_by_dtype: Mapping[str, int]
    tensors: int


def header_end(start: bytes, name: str) -> int:
    """Where the header ends, in bytes from the file's start, as its first eight bytes say.

    >>> header_end((72).to_bytes(8, "little"), "model.safetensors")
    80

    Raises :class:`~hwcalc.errors.ConfigError` if that cannot be: fewer than eight bytes, or a length of less than 2 or more
    than :data:`LARGEST_HEADER`. ``name`` stands for the file in messages.
    """
    if len(start) < PREFIX:
        raise _broken(name, f"it is {len(start)} bytes long")
    length = int.from_bytes(start[:PREFIX], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise _broken(name, f"its header would be {length:,} bytes long")
    return PREFIX + length


def read_header(data: bytes, name: str, file_bytes: int | None = None) -> Header:
    """The tensors of a file that begins with ``data``; what follows the header in it is ignored.

    ``file_bytes`` is the size of the whole file where it is known. Raises :class:`~hwcalc.errors.ConfigError` if the header is cut,
    is no JSON, or contradicts itself: a negative or fractional number, a shape that does not take the bytes that it claims, tensors
    that overlap or leave a gap, a file that is shorter or longer than its tensors.
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
    """The files that an index (``model.safetensors.index.json``) names, in order, each with about the bytes of its header.

    A header's line for a tensor is its name and some hundred letters, so the names of the index tell how much to ask for.
    Raises :class:`~hwcalc.errors.ConfigError` if it is no index, or names a file outside of its folder.
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


# "name":{"dtype":"F8_E4M3","shape":[16384,16384],"data_offsets":[12345678901,12345678901]}, less the name.
_LINE: Final = 104


def add_up(headers: Iterable[Header], source: str) -> WeightFacts:
    """All files of a model together."""
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
    # A dtype that came after this program was written: its bytes are what its offsets say.
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

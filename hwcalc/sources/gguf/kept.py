"""Headers of GGUF files on the Hub that were read before, so that the next plan of the model needs no network.

The files are ``$XDG_CACHE_HOME/kvplan/headers/<org>--<name>/gguf/<key>.json``. The key is made of the revision and of the name by which the
model was asked for. If a file is missing, broken or cannot be written, the Hub is asked again, without an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hwcalc.errors import KvplanError
from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record
from hwcalc.model import GgufTensor
from hwcalc.quantization.ggml import GGML_TYPES
from hwcalc.sources.document import LARGEST_DOCUMENT, parse_document
from hwcalc.sources.facts_cache import facts_folder
from hwcalc.sources.gguf.header import Header
from hwcalc.sources.wanted import Wanted

__all__ = ["KeptHeaders", "keep_headers", "kept_headers", "row_of", "tensor_of"]

_VERSION: Final = 1
_LONGEST: Final = 200
_BY_NAME: Final = {form.name: form for form in GGML_TYPES.values()}


class KeptHeaders(Record):
    """What was read: of which commit, of which file (the first of several), in how many files of how many bytes."""

    commit: str | None
    file: str
    files: int
    file_bytes: int
    header: Header
    """The metadata of the first file, and the tensors of all."""


def kept_headers(wanted: Wanted) -> KeptHeaders | None:
    """The result of an earlier reading, or ``None``."""
    path = _path(wanted)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            document = parse_document(file.read(LARGEST_DOCUMENT + 1), "")
        return _read(document)
    except (OSError, ValueError, KeyError, TypeError, KvplanError):
        return None


def keep_headers(wanted: Wanted, kept: KeptHeaders) -> None:
    """Store a reading. Nothing happens if the file cannot be written."""
    path = _path(wanted)
    if path is None:
        return
    document = {
        "schema_version": _VERSION,
        "commit": kept.commit,
        "file": kept.file,
        "files": kept.files,
        "file_bytes": kept.file_bytes,
        "version": kept.header.version,
        "big_endian": kept.header.big_endian,
        "keys": kept.header.keys,
        "tensors": list(map(row_of, kept.header.tensors)),
    }
    with suppress(OSError, ValueError):
        write_atomically(path, json.dumps(document).encode())


def _path(wanted: Wanted) -> Path | None:
    folder = facts_folder()
    if folder is None:
        return None
    asked = "\n".join((wanted.revision or "main", wanted.endpoint or "", (wanted.file or "").lower()))
    name = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return folder / wanted.id.replace("/", "--") / "gguf" / f"{name}.json"


def _read(document: Mapping[str, Any]) -> KeptHeaders | None:
    commit, file = document["commit"], document["file"]
    keys, rows = document["keys"], document["tensors"]
    numbers = [document[name] for name in ("files", "file_bytes", "version")]
    sound = (
        document["schema_version"] == _VERSION
        and (commit is None or _is_word(commit))
        and _is_word(file)
        and isinstance(keys, dict)
        and isinstance(rows, list)
        and all(type(number) is int and 0 < number < 2**63 for number in numbers)
    )
    if not sound:
        return None
    tensors = tuple(map(tensor_of, rows))
    files, file_bytes, version = numbers
    header = Header(
        keys=keys,
        tensors=tensors,
        version=version,
        big_endian=document["big_endian"] is True,
        data_offset=0,
        file_bytes=file_bytes,
    )
    return KeptHeaders(commit=commit, file=file, files=files, file_bytes=file_bytes, header=header)


def row_of(tensor: GgufTensor) -> list[str | int]:
    """A tensor as JSON: ``["output.weight", "q6_k", 4096, 128256]``."""
    return [tensor.name, tensor.type, *tensor.shape]


def tensor_of(row: Any) -> GgufTensor:
    """The tensor of :func:`row_of`. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for a row that is none."""
    name, kind, *shape = row
    form = _BY_NAME[kind]
    elements = 1
    for size in shape:
        if type(size) is not int or size <= 0:
            raise ValueError
        elements *= size
    if not isinstance(name, str) or not shape or shape[0] % form.block or elements >= 2**63:
        raise ValueError
    return GgufTensor(name=name, type=kind, shape=tuple(shape), bytes=elements // form.block * form.block_bytes)


def _is_word(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _LONGEST and text.isprintable()

"""A cache of weight facts per commit. The files of a commit never change, so it is enough to read their headers once.

The files are ``$XDG_CACHE_HOME/kvplan/headers/<org>--<name>/<commit>.json`` (``~/.cache`` if the variable is not set). If a file
is missing, broken or cannot be written, the headers are read again, without an error. The cache also remembers that a commit has
no weight files or damaged ones, and it keeps the notes of the reading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeGuard

from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record
from hwcalc.model import Note, WeightFacts

__all__ = ["Kept", "cached_weights", "facts_folder", "keep_weights"]

_VERSION: Final = 1
_LARGEST: Final = 64 * 1024
_MOST_NOTES: Final = 8
_LONGEST_NOTE: Final = 1000


class Kept(Record):
    """One reading of a commit. ``facts`` is ``None`` if the commit has no readable weight files."""

    facts: WeightFacts | None
    notes: tuple[Note, ...] = ()


def facts_folder() -> Path | None:
    """The folder of the cache, whether or not it exists; ``None`` without a home folder."""
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(base) / "kvplan" / "headers" if os.path.isabs(base) else None


def cached_weights(model_id: str, commit: str) -> Kept | None:
    """The result of an earlier reading of this commit, or ``None``."""
    path = _path(model_id, commit)
    try:
        with open(path or os.devnull, "rb") as file:
            return _read(json.loads(file.read(_LARGEST)))
    except (OSError, ValueError, RecursionError):
        return None


def keep_weights(model_id: str, commit: str, facts: WeightFacts | None, notes: Iterable[Note] = ()) -> None:
    """Store the result of a reading. Nothing happens if the file cannot be written."""
    path = _path(model_id, commit)
    if path is None:
        return
    document: dict[str, Any] = {"schema_version": _VERSION, "notes": [[note.code, note.message] for note in notes]}
    if facts is None:
        document["no_weights"] = True
    else:
        document |= {
            "bytes_by_dtype": dict(facts.bytes_by_dtype),
            "elements_by_dtype": dict(facts.elements_by_dtype),
            "files": facts.files,
            "tensors": facts.tensors,
            "source": facts.source,
        }
    with suppress(OSError):
        write_atomically(path, json.dumps(document).encode())


def _path(model_id: str, commit: str) -> Path | None:
    folder = facts_folder()
    return None if folder is None else folder / model_id.replace("/", "--") / f"{commit}.json"


def _read(document: Any) -> Kept | None:
    if not isinstance(document, dict) or document.get("schema_version") != _VERSION:
        return None
    notes = _notes(document.get("notes", []))
    if notes is None:
        return None
    if document.get("no_weights") is True:
        return Kept(facts=None, notes=notes)
    sizes, elements = document.get("bytes_by_dtype"), document.get("elements_by_dtype")
    files, tensors, source = document.get("files"), document.get("tensors"), document.get("source")
    if not (_counts(sizes) and _counts(elements) and set(sizes) == set(elements)):
        return None
    if not (_count(files) and _count(tensors) and isinstance(source, str) and source.isprintable()):
        return None
    facts = WeightFacts(bytes_by_dtype=sizes, elements_by_dtype=elements, files=files, tensors=tensors, source=source[:200])
    return Kept(facts=facts, notes=notes)


def _notes(rows: Any) -> tuple[Note, ...] | None:
    if not isinstance(rows, list) or len(rows) > _MOST_NOTES:
        return None
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(isinstance(text, str) and text.isprintable() for text in row)):
            return None
    return tuple(Note(code=code[:64], message=message[:_LONGEST_NOTE]) for code, message in rows)


def _counts(value: Any) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(key.isprintable() and len(key) < 32 and _count(size) for key, size in value.items())


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63

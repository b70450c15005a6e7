"""What weight headers said, kept on this machine by commit: a commit's files never change, so one reading is enough.

``$XDG_CACHE_HOME/kvplan/headers/<org>--<name>/<commit>.json`` (``~/.cache`` where the variable is not set). It is a cache: what is
missing, broken or not writable is read again, never an error.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeGuard

from hwcalc.model import WeightFacts

__all__ = ["cached_weights", "facts_folder", "keep_weights", "write_atomically"]

_VERSION: Final = 1
_LARGEST: Final = 64 * 1024


def facts_folder() -> Path | None:
    """Where the cache is, there or not; ``None`` where the system names no home."""
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(base) / "kvplan" / "headers" if os.path.isabs(base) else None


def cached_weights(model_id: str, commit: str) -> WeightFacts | None:
    """The facts of this commit, if they were kept."""
    path = _path(model_id, commit)
    try:
        with open(path or os.devnull, "rb") as file:
            return _read(json.loads(file.read(_LARGEST)))
    except (OSError, ValueError, RecursionError):
        return None


def keep_weights(model_id: str, commit: str, facts: WeightFacts) -> None:
    """Keep the facts of this commit, if that is possible."""
    path = _path(model_id, commit)
    if path is None:
        return
    document = {
        "schema_version": _VERSION,
        "bytes_by_dtype": dict(facts.bytes_by_dtype),
        "elements_by_dtype": dict(facts.elements_by_dtype),
        "files": facts.files,
        "tensors": facts.tensors,
        "source": facts.source,
    }
    with suppress(OSError):
        write_atomically(path, json.dumps(document).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that others only ever see whole: two writers at once are harmless. Raises :class:`OSError`."""
    os.makedirs(path.parent, exist_ok=True)
    temporary = path.parent / f".{os.urandom(8).hex()}.tmp"
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _path(model_id: str, commit: str) -> Path | None:
    folder = facts_folder()
    return None if folder is None else folder / model_id.replace("/", "--") / f"{commit}.json"


def _read(document: Any) -> WeightFacts | None:
    if not isinstance(document, dict) or document.get("schema_version") != _VERSION:
        return None
    sizes, elements = document.get("bytes_by_dtype"), document.get("elements_by_dtype")
    files, tensors, source = document.get("files"), document.get("tensors"), document.get("source")
    if not (_counts(sizes) and _counts(elements) and set(sizes) == set(elements)):
        return None
    if not (_count(files) and _count(tensors) and isinstance(source, str) and source.isprintable()):
        return None
    return WeightFacts(bytes_by_dtype=sizes, elements_by_dtype=elements, files=files, tensors=tensors, source=source[:200])


def _counts(value: Any) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(key.isprintable() and len(key) < 32 and _count(size) for key, size in value.items())


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63

"""The lock beside a check file: the facts about its models. With a lock, the gate needs no network and notices changed models.

``checks.yaml.lock`` is JSON with one entry for each model: its config as the source had it, its parameter counts, what the headers of
its weight files say, its source and its revision. The same facts give the same bytes, so the file can be committed. A digest over all
entries reveals edits by hand and bad merges. The keys of a config keep their order, because the order may carry meaning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc.check.errors import LockError
from hwcalc.errors import KvplanError
from hwcalc.model import Definition, GgufTensor, Note, Parameters, RawModel, WeightFacts
from hwcalc.sources.document import LARGEST_DOCUMENT, read_document
from hwcalc.text import brief, printable

__all__ = ["SCHEMA_VERSION", "SUFFIX", "lock_of", "read_lock", "write_lock"]

SCHEMA_VERSION: Final = 1
SUFFIX: Final = ".lock"
_SOURCES: Final = frozenset({"catalog", "hub", "hf-cache", "local", "gguf"})
_PASSING: Final = frozenset({"hub-unreachable", "source", "user-profile"})
"""Notes about how the source was read, not about the model."""
_ENTRY: Final = frozenset({"config", "id", "notes", "parameters", "revision", "source", "weights"})
_OF_SOME: Final = frozenset({"tensors", "weights_format"})
"""What only entries of GGUF files have: the tensors of a header, or the format of a file that was not read."""


def lock_of(path: str) -> str:
    """The path of the lock of a check file."""
    return path + SUFFIX


def write_lock(path: str, models: Mapping[str, RawModel], command: str) -> bool:
    """Write the facts atomically; returns whether the file changed. ``command`` is the command that repairs a lock."""
    entries = {key: _entry(models[key]) for key in sorted(models)}
    document = {"schema_version": SCHEMA_VERSION, "digest": _digest(entries), "models": entries}
    data = (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    name = printable(path)
    if len(data) > LARGEST_DOCUMENT:
        raise LockError(f"{name} would be larger than {LARGEST_DOCUMENT // 1024**2} MiB.", hint="Split the check file.")
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(data) + 1) == data:
            return False
    from hwcalc.files import write_file

    write_file(path, data, "--lock")
    return True


def read_lock(path: str, command: str) -> dict[str, RawModel] | None:
    """The models of a lock by their keys, or ``None`` if there is no such file.

    Raises :class:`~hwcalc.check.errors.LockError` if it is broken, has another version, or is not as kvplan wrote it.
    """
    if not os.path.lexists(path):
        return None
    name = printable(path)
    mend = f"Write it anew: {command}"
    try:
        document = read_document(path, name)
    except KvplanError as error:
        raise LockError(f"the lock cannot be read: {error.message}", hint=mend) from error
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        known = f"schema_version {brief(json.dumps(version), 20)} of {name} is not known: this kvplan reads {SCHEMA_VERSION}."
        raise LockError(known, hint=mend)
    models = document.get("models")
    if not isinstance(models, dict) or set(document) != {"schema_version", "digest", "models"}:
        raise LockError(f"{name} is not a lock of kvplan.", hint=mend)
    if document["digest"] != _digest(models):
        raise LockError(f"{name} does not match its digest: it was changed by hand or by a merge.", hint=mend)
    try:
        return {key: _raw(entry, name) for key, entry in models.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise LockError(f"{name} holds an entry that is not one of a lock.", hint=mend) from error


def _digest(entries: Mapping[str, Any]) -> str:
    from hashlib import sha256

    # Keys are not sorted: the order of a config's keys counts.
    return "sha256:" + sha256(json.dumps(entries, separators=(",", ":")).encode()).hexdigest()


def _entry(raw: RawModel) -> dict[str, Any]:
    from hwcalc.sources.refresh import finite

    weights = raw.weights
    more: dict[str, Any] = {} if raw.weights_format is None else {"weights_format": raw.weights_format}
    if raw.tensors:
        from hwcalc.sources.gguf.hub import row_of

        more["tensors"] = list(map(row_of, raw.tensors))
    return more | {
        "config": finite(raw.config),
        "id": raw.id,
        "notes": [[note.code, note.message] for note in raw.notes if note.code not in _PASSING],
        "parameters": None if raw.parameters is None else dict(sorted(asdict(raw.parameters).items())),
        "revision": raw.revision,
        "source": raw.source,
        "weights": None
        if weights is None
        else {
            "bytes_by_dtype": dict(sorted(weights.bytes_by_dtype.items())),
            "definition": weights.definition,
            "elements_by_dtype": dict(sorted(weights.elements_by_dtype.items())),
            "files": weights.files,
            "source": weights.source.partition(",")[0],
            "tensors": weights.tensors,
        },
    }


def _raw(entry: Any, name: str) -> RawModel:
    """One entry, with its types checked: anybody can write a valid digest."""
    if not isinstance(entry, dict) or {*entry} - _OF_SOME != _ENTRY or entry["source"] not in _SOURCES:
        raise TypeError
    if not isinstance(entry["config"], dict) or not isinstance(entry["id"], str) or not isinstance(entry["revision"], str | None):
        raise TypeError
    return RawModel(
        id=printable(entry["id"]),
        config=entry["config"],
        source=entry["source"],
        location=f"{name} ({entry['source']})",
        revision=entry["revision"],
        parameters=_parameters(entry["parameters"]),
        weights=_weights(entry["weights"]),
        notes=tuple(Note(code=_words(code), message=_words(message)) for code, message in entry["notes"]),
        tensors=_tensors(entry["tensors"]) if "tensors" in entry else (),
        weights_format=_words(entry["weights_format"]) if "weights_format" in entry else None,
    )


def _tensors(rows: Any) -> tuple[GgufTensor, ...]:
    from hwcalc.sources.gguf.hub import tensor_of

    if not isinstance(rows, list):
        raise TypeError
    return tuple(map(tensor_of, rows))


def _parameters(given: Any) -> Parameters | None:
    if given is None:
        return None
    found = Parameters(**given)
    for count in (found.total, found.active, found.mtp):
        if count is not None:
            _count(count)
    return replace(found, definition=_words(found.definition))


def _weights(given: Any) -> WeightFacts | None:
    if given is None:
        return None
    found = WeightFacts(**given)
    for sizes in (found.bytes_by_dtype, found.elements_by_dtype):
        for key, size in sizes.items():
            _words(key)
            _count(size)
    return replace(
        found,
        files=_count(found.files),
        tensors=_count(found.tensors),
        source=_words(found.source),
        definition=Definition(found.definition),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError
    return value


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value)[:1000]

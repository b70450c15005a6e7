"""The models of a check file, and the lock beside it with the facts about them.

Models come from the lock if there is one, else from their sources; each is read once. With a lock, the gate needs no network and notices
changed models. ``checks.yaml.lock`` is JSON with one entry for each model: its config as the source had it, its parameter counts, what the
headers of its weight files say, its source and its revision; and the keys of each check with their values, so that a check that fails later
says what was changed. The same facts give the same bytes, so the file can be committed. A digest over all entries reveals edits by hand and bad merges. The keys of a config keep their order, because the order may carry meaning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import field
from msgspec.structs import asdict, replace

from hwcalc.check.file import CheckUsageError, LockError
from hwcalc.check.result import Judged, count_of
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, ModelSpec, Note, Parameters, RawModel, WeightFacts
from hwcalc.parsers.parse import parse
from hwcalc.planner.asked import Access
from hwcalc.sources.document import LARGEST_DOCUMENT, read_document
from hwcalc.sources.local import has_path_syntax
from hwcalc.sources.request import Absent, Wanted, split_revision
from hwcalc.text import brief, cut_beside, printable

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

MOST_KINDS: Final = 10_000
"""Kinds of layers that all checks of a file plan. Each takes a quarter of a millisecond; most models have one or two."""

_MOST_KEYS: Final = 6
_LONGEST_VALUE: Final = 60
_CONFIGS: Final = ("config.json", "params.json")


def key_of(model: str, revision: str | None) -> str:
    """The key of a model in the lock: its name in the check file, with the revision."""
    return model if revision is None else f"{model}@{revision}"


class Lock(Record):
    """What a lock says: the models by their keys, and the keys and values of each check by its name."""

    models: Mapping[str, RawModel]
    checks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Models:
    """Reads the models of one check file. Each model is read once, even if reading it fails.

    Relative paths start at ``folder``, the folder of the check file. ``locked`` is the content of the lock, ``None`` without one;
    ``mend`` is the command that writes the lock again; ``access`` says how models are fetched. ``kept`` has what files of the same folder have
    read without a lock.
    """

    def __init__(
        self, folder: str, locked: Lock | None, *, mend: str, access: Access, kept: dict[tuple[str, ...], Any] | None = None
    ) -> None:
        self._folder = folder
        self._locked = None if locked is None else locked.models
        self._asked: Mapping[str, Mapping[str, str]] = {} if locked is None else locked.checks
        self._mend = mend
        self._access = access
        self._kept: dict[tuple[str, ...], Any] = {} if kept is None or locked is not None else kept
        self._kinds = 0

    def raw(self, model: str, revision: str | None) -> RawModel:
        """The description of a model. If there is a lock, only the lock is asked."""
        return self._once(("raw", key_of(model, revision)), lambda: self._find(model, revision))

    def spec(self, model: str, revision: str | None, assume: str | None) -> ModelSpec:
        """The model, parsed into layers."""
        key = key_of(model, revision)
        return self._once(("spec", key, assume or ""), lambda: parse(self.raw(model, revision), assume=assume))

    def asked_before(self, check: str) -> Mapping[str, str] | None:
        """The keys of the check of this name with their values when the lock was written; ``None`` if the lock does not have it."""
        return self._asked.get(check)

    def changed(self, model: str, revision: str | None, assume: str | None) -> Judged | None:
        """The verdict on this machine's copy of a locked model: equal to the lock or not; ``None`` without a lock."""
        if self._locked is None:
            return None
        key = key_of(model, revision)
        return self._once(("changed", key, assume or ""), lambda: self._compare(model, revision, assume))

    def plan(self, spec: ModelSpec) -> None:
        """Count a plan. Raises :class:`~hwcalc.check.file.CheckUsageError` if the checks of this file take too long in all."""
        self._kinds += len(spec.stack.groups)
        if self._kinds > MOST_KINDS:
            message = f"the checks up to here plan more than {MOST_KINDS:,} kinds of layers."
            raise CheckUsageError(message, hint="Split them into several check files.")

    def _once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        if key not in self._kept:
            try:
                self._kept[key] = make()
            except KvplanError as error:
                self._kept[key] = error
        found = self._kept[key]
        if isinstance(found, KvplanError):
            raise found
        kept: T = found
        return kept

    def _find(self, model: str, revision: str | None) -> RawModel:
        if self._locked is not None:
            found = self._locked.get(key_of(model, revision))
            if found is None:
                raise LockError(f"the lock does not have {brief(key_of(model, revision), 120)}.", hint=f"Add it: {self._mend}")
            return found
        from hwcalc.sources import resolve

        if model == "-":
            raise UsageError("a check's draft cannot be standard input.", hint="Give an id or a path.")
        path = self._path(model)
        if path is None:
            return resolve(model, revision=revision, weights=True, **asdict(self._access))
        found = resolve(path, revision=revision, weights=True, **asdict(self._access))
        return found if found.source not in {"local", "gguf"} else replace(found, location=printable(model))

    def _path(self, model: str) -> Path | None:
        """The path of a model, if its name is a path or names a model's folder or file beside the check file."""
        beside = os.path.join(self._folder, model)
        if not (has_path_syntax(model) or any(map(os.path.isfile, (beside, *(os.path.join(beside, name) for name in _CONFIGS))))):
            return None
        from pathlib import Path

        with suppress(OSError, RuntimeError, ValueError):  # the home folder is unknown
            return Path(self._folder) / Path(model).expanduser()
        return None

    def _local_copy(self, locked: RawModel, model: str, revision: str | None) -> RawModel | None:
        """This machine's copy of a locked model, from the same kind of source and without network; ``None`` if there is none."""
        from hwcalc.sources import find_cached, resolve
        from hwcalc.sources.built_in import find_in_catalog

        try:
            if locked.source in {"local", "gguf"}:
                path = self._path(model)
                if path is not None:
                    return resolve(path, offline=True, weights=True)
                # A GGUF file of the Hub or of Ollama: what is here of it.
                copy = None if locked.source == "local" else resolve(model, revision=revision, offline=True, weights=True)
                return copy if copy is not None and copy.source == locked.source else None
            if locked.source == "catalog":
                # A check may name it by a part of its id.
                found = find_in_catalog(Wanted(id=locked.id, offline=True, weights=True))
            else:
                model_id, asked = split_revision(model, revision)
                found = find_cached(Wanted(id=model_id, revision=asked, offline=True, weights=True))
        except ModelNotFoundError:
            return None
        return None if isinstance(found, Absent) else found

    def _compare(self, model: str, revision: str | None, assume: str | None) -> Judged:
        """The verdict on a locked model: nothing that bears on memory has changed on this machine, or what has."""
        locked, changes = self.raw(model, revision), []
        try:
            local = self._local_copy(locked, model, revision)
            if local is None:
                return _judged("not on this machine: taken from the lock")
            from hwcalc.planner.diff import key_changes
            from hwcalc.sources.refresh import finite

            if finite(local.config) != locked.config:
                now = parse(local, assume=assume)
                for change in key_changes(self.spec(model, revision, assume).bearing, now.bearing):
                    before, after = cut_beside(_value(change.in_a, change.a), _value(change.in_b, change.b), _LONGEST_VALUE)
                    changes.append(f"{printable(change.key)} {before} -> {after}")
        except UsageError:
            raise
        except KvplanError as error:
            return _judged(f"the model's config can no longer be used: {error.message}", mend=self._mend)
        if local.weights is not None and locked.weights is not None:
            sizes = [dict(weights.bytes_by_dtype) for weights in (locked.weights, local.weights)]
            if sizes[0] != sizes[1]:
                first, last = (sum(size.values()) for size in sizes)
                changes.append(f"weight files {first:,} B -> {last:,} B")
        if not changes:
            return _judged("the same as in the lock")
        shown = "; ".join(changes[:_MOST_KEYS])
        more = f"; and {len(changes) - _MOST_KEYS} more" if len(changes) > _MOST_KEYS else ""
        return _judged(f"model config changed since the lock: {shown}{more}", mend=self._mend)


def _value(present: bool, value: Any) -> str:
    return printable(json.dumps(value, default=str)) if present else "(absent)"


def _judged(message: str, *, mend: str = "") -> Judged:
    full = f"{message}. If that is right: {mend}" if mend else message
    return Judged(name="lock", unit="keys", limit=None, got=None, holds=not mend, certain=True, message=full)


SCHEMA_VERSION: Final = 2
"""Version 1 had no checks."""
SUFFIX: Final = ".lock"
"""What is added to the path of a check file for that of its lock."""
_SOURCES: Final = frozenset({"catalog", "hub", "hf-cache", "local", "gguf"})
_PASSING: Final = frozenset({"hub-unreachable", "source", "user-profile"})
"""Notes about how the source was read, not about the model."""
_ENTRY: Final = frozenset({"config", "id", "notes", "parameters", "revision", "source", "weights"})
_OF_SOME: Final = frozenset({"tensors", "weights_format"})
"""What only entries of GGUF files have: the tensors of a header, or the format of a file that was not read."""


def write_lock(path: str, lock: Lock, command: str) -> bool:
    """Write the facts atomically; returns whether the file changed. ``command`` is the command that repairs a lock.

    A lock repeats the configs of strangers. It is a file of its own beside the check file, never one that a link leads to, and a shell
    that reads it all the same finds nothing in quotes to run.
    """
    entries = {key: _entry(lock.models[key]) for key in sorted(lock.models)}
    checks = {name: dict(lock.checks[name]) for name in sorted(lock.checks)}
    digest = _digest({"models": entries, "checks": checks})
    document = {"schema_version": SCHEMA_VERSION, "digest": digest, "models": entries, "checks": checks}
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    data = text.replace("$", r"\u0024").replace("`", r"\u0060").encode()
    name = printable(path)
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        from hwcalc.errors import UnwritableFileError

        kind = "a link" if os.path.islink(path) else "a folder" if os.path.isdir(path) else "a pipe or a device"
        message = f"--lock {name} cannot be written: it is {kind}, and a lock is a file of its own."
        raise UnwritableFileError(message, hint=f"Delete it, then write it: {command}")
    if len(data) > LARGEST_DOCUMENT:
        raise LockError(f"{name} would be larger than {LARGEST_DOCUMENT // 1024**2} MiB.", hint="Split the check file.")
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(data) + 1) == data:
            return False
    from hwcalc.files import write_file

    write_file(path, data, "--lock")
    return True


def read_lock(path: str, command: str) -> Lock | None:
    """The content of a lock; ``None`` if there is no such file.

    Raises :class:`~hwcalc.check.file.LockError` if it is broken, has another version, or is not as kvplan wrote it.
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
    if version not in (1, SCHEMA_VERSION) or isinstance(version, bool):
        known = (
            f"schema_version {brief(json.dumps(version), 20)} of {name} is not known: this kvplan reads 1 and {SCHEMA_VERSION}."
        )
        raise LockError(known, hint=mend)
    models, checks = document.get("models"), document.get("checks", {})
    keys = {"schema_version", "digest", "models"} | ({"checks"} if version == SCHEMA_VERSION else set())
    if not isinstance(models, dict) or not isinstance(checks, dict) or set(document) != keys:
        raise LockError(f"{name} is not a lock of kvplan.", hint=mend)
    if document["digest"] != _digest(models if version == 1 else {"models": models, "checks": checks}):
        raise LockError(f"{name} does not match its digest: it was changed by hand or by a merge.", hint=mend)
    try:
        asked = {name: {_words(key): _words(text) for key, text in one.items()} for name, one in checks.items()}
        return Lock(models={key: _raw(entry, name) for key, entry in models.items()}, checks=asked)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
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
    facts = None
    if weights is not None:
        facts = {
            "bytes_by_dtype": dict(sorted(weights.bytes_by_dtype.items())),
            "definition": weights.definition,
            "elements_by_dtype": dict(sorted(weights.elements_by_dtype.items())),
            "files": weights.files,
            "source": weights.source.partition(",")[0],
            "tensors": weights.tensors,
        }
    return more | {
        "config": finite(raw.config),
        "id": raw.id,
        "notes": [[note.code, note.message] for note in raw.notes if note.code not in _PASSING],
        "parameters": None if raw.parameters is None else dict(sorted(asdict(raw.parameters).items())),
        "revision": raw.revision,
        "source": raw.source,
        "weights": facts,
    }


def _raw(entry: Any, name: str) -> RawModel:
    """One entry, with its types checked: anybody can write a valid digest."""
    if not isinstance(entry, dict) or {*entry} - _OF_SOME != _ENTRY or entry["source"] not in _SOURCES:
        raise TypeError
    if not isinstance(entry["config"], dict) or not isinstance(entry["id"], str) or not isinstance(entry["revision"], str | None):
        raise TypeError
    rows = entry.get("tensors", [])
    if not isinstance(rows, list):
        raise TypeError
    if rows:
        from hwcalc.sources.gguf.hub import tensor_of

        rows = list(map(tensor_of, rows))
    return RawModel(
        id=printable(entry["id"]),
        config=entry["config"],
        source=entry["source"],
        location=f"{name} ({entry['source']})",
        revision=entry["revision"],
        parameters=_parameters(entry["parameters"]),
        weights=_weights(entry["weights"]),
        notes=tuple(Note(code=_words(code), message=_words(message)) for code, message in entry["notes"]),
        tensors=tuple(rows),
        weights_format=_words(entry["weights_format"]) if "weights_format" in entry else None,
    )


def _parameters(given: Any) -> Parameters | None:
    if given is None:
        return None
    found = Parameters(**given)
    for count in (found.total, found.active, found.mtp):
        if count is not None:
            count_of(count)
    return replace(found, definition=_words(found.definition))


def _weights(given: Any) -> WeightFacts | None:
    if given is None:
        return None
    found = WeightFacts(**given)
    for sizes in (found.bytes_by_dtype, found.elements_by_dtype):
        for key, size in sizes.items():
            _words(key)
            count_of(size)
    return replace(
        found,
        files=count_of(found.files),
        tensors=count_of(found.tensors),
        source=_words(found.source),
        definition=Definition(found.definition),
    )


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value)[:1000]

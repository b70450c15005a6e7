"""The models of one check file: from its lock where there is one, else from the sources; each is read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from hwcalc.check.errors import LockError
from hwcalc.check.result import Judged
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.formulas.frozen import replace
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers import parse
from hwcalc.planner.asked import Access
from hwcalc.sources.local import has_path_syntax
from hwcalc.sources.wanted import Absent, Wanted, split_revision
from hwcalc.text import printable

__all__ = ["Models", "key_of"]

T = TypeVar("T")

_MOST_KEYS: Final = 6
_LONGEST_VALUE: Final = 60
_CONFIGS: Final = ("config.json", "params.json")


def key_of(model: str, revision: str | None) -> str:
    """A model's key in the lock: as the check file names it, with the revision."""
    return model if revision is None else f"{model}@{revision}"


class Models:
    """Reads models for one check file. What was read once, or failed once, is not asked for again.

    A relative path starts at ``folder``, the check file's own. ``locked`` is the content of the lock, ``None`` without one;
    ``mend`` the command that writes it anew. ``access`` is how they are fetched.
    """

    def __init__(self, folder: str, locked: Mapping[str, RawModel] | None, *, mend: str, access: Access) -> None:
        self._folder = folder
        self._locked = locked
        self._mend = mend
        self._access = access
        self._kept: dict[tuple[str, ...], Any] = {}

    def raw(self, model: str, revision: str | None) -> RawModel:
        """The description of a model: from the lock alone, if there is one."""
        return self._once(("raw", key_of(model, revision)), lambda: self._find(model, revision))

    def spec(self, model: str, revision: str | None, assume: str | None) -> ModelSpec:
        """The same, read into layers."""
        key = key_of(model, revision)
        return self._once(("spec", key, assume or ""), lambda: parse(self.raw(model, revision), assume=assume))

    def changed(self, model: str, revision: str | None, assume: str | None) -> Judged | None:
        """Whether what this machine has of a locked model still says the same; ``None`` without a lock."""
        if self._locked is None:
            return None
        key = key_of(model, revision)
        return self._once(("changed", key, assume or ""), lambda: self._compare(model, revision, assume))

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
                raise LockError(
                    f"the lock does not have {printable(key_of(model, revision))[:120]}.", hint=f"Add it: {self._mend}"
                )
            return found
        from hwcalc.sources import resolve

        path = self._path(model)
        if path is None:
            return resolve(model, revision=revision, weights=True, **vars(self._access))
        found = resolve(path, revision=revision, weights=True, **vars(self._access))
        return found if found.source != "local" else replace(found, location=printable(model))

    def _path(self, model: str) -> Path | None:
        """Where a model lies, if it is a path: written as one, or the name of a model's folder or file beside the check file."""
        with suppress(OSError, RuntimeError, ValueError):  # a name too long for the system, a home that nobody has
            path = Path(self._folder) / Path(model).expanduser()
            if has_path_syntax(model) or path.is_file() or any((path / name).is_file() for name in _CONFIGS):
                return path
        return None

    def _here(self, locked: RawModel, model: str, revision: str | None) -> RawModel | None:
        """What this machine has of a locked model in the same kind of place, without network; ``None`` if it has nothing."""
        from hwcalc.sources import resolve
        from hwcalc.sources.built_in import find_in_catalog
        from hwcalc.sources.hf_cache import find_cached

        try:
            if locked.source in {"local", "gguf"}:
                path = self._path(model)
                return None if path is None else resolve(path, offline=True, weights=True)
            model_id, asked = split_revision(model, revision)
            wanted = Wanted(id=model_id, revision=asked, offline=True, weights=True)
            found = find_in_catalog(replace(wanted, revision=None)) if locked.source == "catalog" else find_cached(wanted)
        except ModelNotFoundError:
            return None
        return None if isinstance(found, Absent) else found

    def _compare(self, model: str, revision: str | None, assume: str | None) -> Judged:
        locked = self.raw(model, revision)
        try:
            here = self._here(locked, model, revision)
            if here is None:
                return _judged("not on this machine: taken from the lock")
            changes = self._changes(locked, here, model, revision, assume)
        except UsageError:
            raise
        except KvplanError as error:
            return _judged(f"the model's config can no longer be used: {error.message}", mend=self._mend)
        if not changes:
            return _judged("the same as in the lock")
        shown = "; ".join(changes[:_MOST_KEYS])
        more = f"; and {len(changes) - _MOST_KEYS} more" if len(changes) > _MOST_KEYS else ""
        return _judged(f"model config changed since the lock: {shown}{more}", mend=self._mend)

    def _changes(self, locked: RawModel, here: RawModel, model: str, revision: str | None, assume: str | None) -> list[str]:
        """What differs, as far as memory depends on it."""
        from hwcalc.planner.diff import key_changes
        from hwcalc.sources.refresh import finite

        changes: list[str] = []
        if finite(here.config) != locked.config:
            now = parse(here, assume=assume)
            changes += [
                f"{printable(change.key)} {_value(change.in_a, change.a)} -> {_value(change.in_b, change.b)}"
                for change in key_changes(self.spec(model, revision, assume), now)
            ]
        if here.weights is not None and locked.weights is not None:
            before, after = dict(locked.weights.bytes_by_dtype), dict(here.weights.bytes_by_dtype)
            if before != after:
                changes.append(f"weight files {sum(before.values()):,} B -> {sum(after.values()):,} B")
        return changes


def _value(present: bool, value: Any) -> str:
    import json

    if not present:
        return "(absent)"
    text = printable(json.dumps(value, default=str))
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _judged(message: str, *, mend: str = "") -> Judged:
    said = f"{message}. If that is right: {mend}" if mend else message
    return Judged(name="lock", unit="keys", limit=None, got=None, holds=not mend, certain=True, message=said)

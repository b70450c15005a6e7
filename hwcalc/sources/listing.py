"""The models that this machine knows, and the one that a name means: an id in other capitals, a name without its org, or its
beginning.

They are in the catalog, the user's own files and the Hugging Face cache; and GGUF models by their names and sizes, no file of
which is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError, ModelNotFoundError
from hwcalc.formulas.record import Record
from hwcalc.model import OLLAMA
from hwcalc.profiles.catalog import find_entry, list_models, own_models
from hwcalc.profiles.compiled import built_in_models, listed_facts
from hwcalc.sources.built_in import profile_errors
from hwcalc.sources.caches import cached_config, cached_ids, snapshot
from hwcalc.sources.document import read_document
from hwcalc.sources.gguf.names import is_gguf, models_of, part_of
from hwcalc.sources.nearest import name_parts
from hwcalc.sources.ollama import model_file, ollama_models, ollama_stores
from hwcalc.text import printable, shown


class KnownModel(Record):
    """One model that can be planned by its id. ``None`` is unknown.

    ``source`` is where a plan would take it from: ``hf-cache``, ``user`` (the user's own folder) or ``catalog``. ``parameters``
    is the published count, ``released`` a date ``YYYY-MM-DD``, ``fidelity`` how sure the catalog's config is.
    """

    id: str
    source: str
    model_type: str | None = None
    released: str | None = None
    parameters: int | None = None
    fidelity: str | None = None


def known_ids() -> tuple[str, ...]:
    """All ids. Only folders are listed and no file is opened, so the cache may lack the config of some models."""
    with profile_errors():
        listed = list_models()
    return tuple(sorted({*listed, *cached_ids()}, key=lambda model_id: (model_id.lower(), model_id)))


def list_known_models(search: str | None = None) -> list[KnownModel]:
    """All known models in alphabetical order. With ``search``, each of its words must be in the id or the model type.

    Opens the files that are not of the built-in catalog. Raises :class:`~hwcalc.errors.ConfigError` for a broken file of the user's own. Other programs
    own the cache, so a model with a broken file in the cache is listed without a type.
    """
    words = (search or "").lower().split()
    cached, listed, rows = set(cached_ids()), built_in_models(), []
    with profile_errors():
        own = frozenset(own_models())
    for model_id in known_ids():
        facts, source = None if model_id in own else listed.get(model_id), "catalog"
        if facts is None:
            # Not of the built-in catalog: the model's own file says more, if it has one.
            with profile_errors():
                entry = find_entry(model_id)
            if entry is not None:
                facts, source = listed_facts(entry.data), "user" if entry.user else "catalog"
        path = cached_config(model_id) if model_id in cached else None
        if facts is None and path is None:
            continue
        model_type: Any = None if facts is None else facts.model_type
        if path is not None:
            source, model_type = "hf-cache", None
            with suppress(KvplanError):
                model_type = read_document(path).get("model_type")
        model_type = printable(model_type) if isinstance(model_type, str) and model_type else None
        row = KnownModel(id=printable(model_id), source=source, model_type=model_type)
        if facts is not None:
            row = replace(row, released=facts.released, parameters=facts.parameters, fidelity=facts.fidelity)
        if all(_together(word) in _together(row.id.lower()) or word in (row.model_type or "").lower() for word in words):
            rows.append(row)
    return rows


_LISTED = 6


def matching(text: str, ids: Iterable[str]) -> tuple[str, ...]:
    """The ids that ``text`` may mean. Capitals do not matter.

    With an org, the whole id must be equal. Without one, the name must be equal, or begin with ``text`` and a hyphen if no name is equal.
    A hyphen between a word and its number may be left out.

    >>> known = ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", "google/gemma-3-4b-it", "google/gemma-3-4b-pt"]
    >>> matching("qwen/qwen3-8b", known), matching("QWEN3-8B", known), matching("gemma-3-4b", known)
    (('Qwen/Qwen3-8B',), ('Qwen/Qwen3-8B',), ('google/gemma-3-4b-it', 'google/gemma-3-4b-pt'))
    >>> matching("someone/Qwen3-8B", known), matching("gemma-3-4", known), matching("gemma3-4b-it", known)
    ((), (), ('google/gemma-3-4b-it',))
    """
    query = text.lower()
    if "/" in query:
        return tuple(model_id for model_id in ids if model_id.lower() == query)
    names = {model_id: model_id.lower().rpartition("/")[2] for model_id in ids}
    found = _matching(query, names)
    if not found and any(letter.isdigit() for letter in query):
        found = _matching(_together(query), {model_id: _together(name) for model_id, name in names.items()})
    return found


def _matching(query: str, names: Mapping[str, str]) -> tuple[str, ...]:
    equal = tuple(model_id for model_id, name in names.items() if name == query)
    return equal or tuple(model_id for model_id, name in names.items() if name.startswith(f"{query}-"))


def _together(name: str) -> str:
    """The name with each number at its word: ``llama3.1-8b`` of ``llama-3.1-8b``."""
    return re.sub(r"(?<=[a-z])-(?=[0-9])", "", name)


def meant(text: str) -> tuple[str, str] | None:
    """The model of this machine's that ``text`` means, and what to say about it; ``None`` if there is none, or if the id is known.

    The beginning of a name counts only if it has a number, and if no other name begins with the same words and numbers: ``qwen`` is a
    family. Several models are one answer if the catalog has the same facts about all of them. Otherwise the name is ambiguous: raises
    :class:`~hwcalc.errors.ModelNotFoundError`, because a guess would be the plan of another model.
    """
    known = known_ids()
    ids = [model_id for model_id in matching(text, known) if _described(model_id)]
    if not ids or text in ids:
        return None
    whole = any(
        _together(text.lower()) in map(_together, (model_id.lower(), model_id.lower().rpartition("/")[2])) for model_id in ids
    )
    family = ids
    if not whole:
        # All models whose name begins with the same words and numbers.
        parts = name_parts(text)
        begun = (one for one in known if one not in ids and name_parts(one.rpartition("/")[2])[: len(parts)] == parts)
        family = [*ids, *filter(_described, begun)]
    clear = whole or (len(family) == len(ids) and any(letter.isdigit() for letter in text))
    if clear and len(ids) == 1:
        return ids[0], f"{shown(text, 100)} is read as {ids[0]}."
    if clear and (facts := _same_facts(ids)):
        # A copy of the published config needs no note about itself.
        published = [model_id for model_id, entry in facts.items() if str(entry.get("fidelity")).startswith("published")]
        first = (published or ids)[0]
        others = _listed([model_id for model_id in ids if model_id != first], "and")
        return first, f"{shown(text, 100)} is read as {first}; the plan of {others} would be the same."
    hint = f"Did you mean {_listed(family, 'or')}?"
    if len(family) > _LISTED:
        hint += f" All of them: kvplan models {text}"
    many = f"may mean {len(family):,} models" if len(family) > 1 else "is only the beginning of one"
    raise ModelNotFoundError(f"{shown(text)} is not an id, and {many}.", hint=hint)


def _described(model_id: str) -> bool:
    """True if a source on this machine can describe the model. The cache may have its folder alone."""
    with profile_errors():
        return find_entry(model_id) is not None or cached_config(model_id) is not None


def _same_facts(ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The catalog's facts about the models by id; nothing if the facts that a plan uses differ, or if the cache has one of them."""
    facts: dict[str, Mapping[str, Any]] = {}
    known = None
    for model_id in ids:
        with profile_errors():
            entry = find_entry(model_id)
        if entry is None or cached_config(model_id) is not None:
            return {}
        facts[model_id] = entry.data
        used = entry.data["config"], (entry.data.get("parameters") or {}).get("total"), entry.data.get("weight_bytes")
        if known not in (None, used):
            return {}
        known = used
    return facts


def _listed(ids: list[str], word: str) -> str:
    if len(ids) > _LISTED:
        return f"{', '.join(ids[:_LISTED])} {word} others"
    return f" {word} ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))


MOST_FILES: Final = 20_000
"""Most GGUF files of a folder that are looked at."""
_DEEPEST: Final = 6
_FOLDERS: Final = ("~/.lmstudio/models", "~/.cache/lm-studio/models", "~/.cache/llama.cpp")
"""Folders of LM Studio, its earlier releases and earlier releases of llama.cpp."""


class InstalledModel(Record):
    """A model in one file or several. ``name`` names it on a command line; ``path`` is its file, or the first of several.

    ``source`` is ``hf-cache``, ``ollama`` or ``folder``.
    """

    name: str
    path: Path
    bytes: int
    source: str


def installed_models(folders: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledModel]:
    """All GGUF models in the Hugging Face cache, in Ollama's store and in folders, each file once, in alphabetical order.

    Those of other programs' folders are listed too. Models in several files of which one is missing are left out.
    """
    models: list[InstalledModel] = []
    for model_id in cached_ids():
        found = snapshot(model_id, None)
        if found is None:
            continue
        for path, size in _models_below(found[0]):
            name = f"{model_id}:{path.relative_to(found[0]).as_posix()}"
            models.append(InstalledModel(name=printable(name), path=path, bytes=size, source="hf-cache"))
    for store in ollama_stores():
        for model, manifest in ollama_models(store):
            file = model_file(store, manifest)
            if file is not None:
                models.append(InstalledModel(name=OLLAMA + model.short, path=file, bytes=os.stat(file).st_size, source="ollama"))
    for folder in (*folders, *_FOLDERS):
        models += models_in_folder(Path(os.path.expanduser(os.fspath(folder))))
    by_file: dict[str, InstalledModel] = {}
    for installed in models:
        by_file.setdefault(os.path.realpath(installed.path), installed)
    return sorted(by_file.values(), key=lambda model: (model.name.lower(), model.name))


def models_in_folder(folder: Path) -> Iterator[InstalledModel]:
    """The models in a folder and in those below it."""
    for path, size in _models_below(folder):
        yield InstalledModel(name=printable(str(path)), path=path, bytes=size, source="folder")


def _models_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """The first files and the bytes of all models below a folder."""
    count = 0
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
        files = [name for name in names if is_gguf(name)]
        count += len(files)
        if count > MOST_FILES:
            return
        for name in models_of(files):
            part = part_of(name)
            try:
                size = sum(os.stat(os.path.join(place, one)).st_size for one in ((name,) if part is None else part.names))
            except OSError:
                continue
            yield Path(place, name), size

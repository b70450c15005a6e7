"""The models that this machine knows, for ``kvplan models``: the catalog, the user's own files and the Hugging Face cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import find_entry, list_models, own_models
from hwcalc.profiles.known_models import ListedModel, built_in_models, listed_facts
from hwcalc.sources.built_in import profile_errors
from hwcalc.sources.document import read_document
from hwcalc.sources.hf_cache import cached_config, cached_ids
from hwcalc.text import printable

__all__ = ["KnownModel", "known_ids", "list_known_models"]


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
    return [row for row in _rows() if all(word in row.id.lower() or word in (row.model_type or "").lower() for word in words)]


def _rows() -> Iterator[KnownModel]:
    cached, listed = set(cached_ids()), built_in_models()
    with profile_errors():
        own = frozenset(own_models())
    for model_id in known_ids():
        found = None if model_id in own else listed.get(model_id)
        source = "catalog"
        if found is None:
            found, source = _read(model_id)
        path = cached_config(model_id) if model_id in cached else None
        if found is None and path is None:
            continue
        model_type: Any = None if found is None else found.model_type
        if path is not None:
            source = "hf-cache"
            try:
                model_type = read_document(path).get("model_type")
            except KvplanError:
                model_type = None
        yield KnownModel(
            id=printable(model_id),
            source=source,
            model_type=printable(model_type) if isinstance(model_type, str) and model_type else None,
            released=None if found is None else found.released,
            parameters=None if found is None else found.parameters,
            fidelity=None if found is None else found.fidelity,
        )


def _read(model_id: str) -> tuple[ListedModel | None, str]:
    """The facts in the model's own file, if it has one, and whose file it is."""
    with profile_errors():
        entry = find_entry(model_id)
    if entry is None:
        return None, "catalog"
    return listed_facts(entry.data), "user" if entry.user else "catalog"

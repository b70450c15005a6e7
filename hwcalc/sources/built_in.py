"""The catalog as a source: entries of :mod:`hwcalc.profiles.catalog` as :class:`~hwcalc.model.RawModel`.

What a file of the catalog says of its model in few words: for lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas.record import Record
from hwcalc.model import FIDELITY, Note, Parameters, RawModel, WeightFacts
from hwcalc.profiles.catalog import ProfileError, find_entry, own_models
from hwcalc.sources.request import Absent, Wanted
from hwcalc.text import printable

_PLACE = "the built-in catalog"


@contextmanager
def profile_errors() -> Iterator[None]:
    """Turn the error of a broken catalog file into an error of the program."""
    try:
        yield
    except ProfileError as error:
        raise ConfigError(printable(str(error)), hint="Correct the file, or move it away.") from error


def find_in_catalog(wanted: Wanted) -> RawModel | Absent:
    """The model from the user's own folder or the catalog. The catalog has no revisions, so a revision is always absent."""
    with profile_errors():
        entry = find_entry(wanted.id)
    if entry is None:
        return Absent(place=_PLACE)
    if wanted.revision is not None:
        return Absent(place=_PLACE, remark=f"the catalog has {wanted.id}, but keeps no revisions")
    if entry.user:
        from hwcalc.sources.document import check_document

        check_document(entry.data, printable(str(entry.path)))
    data, notes = entry.data, []
    place, recorded = printable(str(entry.path)) if entry.user else "built-in catalog", data.get("recorded")
    location = f"{place}, recorded {recorded}" if recorded else place
    counts, sizes, fidelity, weights = data.get("parameters"), data.get("weight_bytes"), data.get("fidelity"), None
    if sizes:
        # The catalog does not keep the numbers of files and tensors.
        source = f"safetensors headers, {location}"
        weights = WeightFacts(bytes_by_dtype=sizes, elements_by_dtype={}, files=0, tensors=0, source=source)
    if entry.user:
        notes.append(Note(code="user-profile", message=f"The config is your own: {place}."))
    if fidelity and not fidelity.startswith("published"):
        message = f"The catalog's config of this model is not a copy of the published file: {printable(fidelity)}."
        notes.append(Note(code=FIDELITY, message=message))
    return RawModel(
        id=wanted.id,
        config=data["config"],
        source="catalog",
        location=location,
        parameters=None if counts is None else Parameters(**{key: value for key, value in counts.items() if key != "source"}),
        weights=weights,
        notes=tuple(notes),
    )


_SENSES: Final = {"vision": ("vision_config", "vision_tower", "vit_config", "visual"), "audio": ("audio_config", "sound_config")}
"""Inputs of a model beside text, by the parts that its config describes."""


class CatalogFacts(Record):
    """One model of the catalog. ``modality`` is ``text``, ``vision`` or ``audio``: what it takes beside text. ``None`` is unknown."""

    id: str
    model_type: str
    parameters: int | None
    active: int | None
    released: str | None
    modality: str


def own_facts() -> Iterator[CatalogFacts]:
    """The models of the user's own folder, in alphabetical order."""
    with profile_errors():
        for model_id in own_models():
            entry = find_entry(model_id)
            if entry is not None:
                yield facts_of(model_id, entry.data)


def facts_of(model_id: str, data: Mapping[str, Any]) -> CatalogFacts:
    """The facts in one file of the catalog."""
    counts, config = data.get("parameters") or {}, data["config"]
    return CatalogFacts(
        id=model_id,
        model_type=str(config.get("model_type") or ""),
        parameters=counts.get("total"),
        active=counts.get("active"),
        released=data.get("released"),
        modality=next((sense for sense, keys in _SENSES.items() if any(config.get(key) for key in keys)), "text"),
    )

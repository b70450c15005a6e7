"""What a file of the catalog says of its model in few words: for lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import find_entry, own_models
from hwcalc.sources.built_in import profile_errors

__all__ = ["CatalogFacts", "facts_of", "modality_of", "own_facts"]

_SENSES: Final = {"vision": ("vision_config", "vision_tower", "vit_config", "visual"), "audio": ("audio_config", "sound_config")}


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
    counts = data.get("parameters") or {}
    config = data["config"]
    return CatalogFacts(
        id=model_id,
        model_type=str(config.get("model_type") or ""),
        parameters=counts.get("total"),
        active=counts.get("active"),
        released=data.get("released"),
        modality=modality_of(config),
    )


def modality_of(config: Mapping[str, Any]) -> str:
    """What a model takes beside text, by the parts that its config describes."""
    return next((sense for sense, keys in _SENSES.items() if any(config.get(key) for key in keys)), "text")

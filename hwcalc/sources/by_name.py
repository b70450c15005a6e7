"""Find the one model that a name means: an id in other capitals, a name without its org, or the beginning of a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hwcalc.errors import ModelNotFoundError
from hwcalc.profiles.catalog import find_entry
from hwcalc.sources.built_in import profile_errors
from hwcalc.sources.hf_cache import cached_config
from hwcalc.sources.listing import known_ids
from hwcalc.sources.nearest import name_parts
from hwcalc.text import shown

__all__ = ["matching", "meant"]

_LISTED = 6


def matching(text: str, ids: Iterable[str]) -> tuple[str, ...]:
    """The ids that ``text`` may mean. Capitals do not matter.

    With an org, the whole id must be equal. Without one, the name must be equal, or begin with ``text`` and a hyphen if no name is equal.

    >>> known = ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", "google/gemma-3-4b-it", "google/gemma-3-4b-pt"]
    >>> matching("qwen/qwen3-8b", known), matching("QWEN3-8B", known), matching("gemma-3-4b", known)
    (('Qwen/Qwen3-8B',), ('Qwen/Qwen3-8B',), ('google/gemma-3-4b-it', 'google/gemma-3-4b-pt'))
    >>> matching("someone/Qwen3-8B", known), matching("gemma-3-4", known)
    ((), ())
    """
    query = text.lower()
    if "/" in query:
        return tuple(model_id for model_id in ids if model_id.lower() == query)
    names = [(model_id, model_id.lower().rpartition("/")[2]) for model_id in ids]
    equal = tuple(model_id for model_id, name in names if name == query)
    return equal or tuple(model_id for model_id, name in names if name.startswith(f"{query}-"))


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
    whole = any(text.lower() in (model_id.lower(), model_id.lower().rpartition("/")[2]) for model_id in ids)
    family = ids if whole else _family(text, ids, known)
    clear = whole or (len(family) == len(ids) and any(letter.isdigit() for letter in text))
    if clear and len(ids) == 1:
        return ids[0], f"{shown(text)} is not an id: {ids[0]} is taken."
    if clear and (facts := _same_facts(ids)):
        # A copy of the published config needs no note about itself.
        first = next(
            (model_id for model_id, entry in facts.items() if str(entry.get("fidelity")).startswith("published")), ids[0]
        )
        others = _listed([model_id for model_id in ids if model_id != first], "and")
        return first, f"{shown(text)} is not an id: {first} is taken; the plan of {others} would be the same."
    hint = f"Did you mean {_listed(family, 'or')}?"
    if len(family) > _LISTED:
        hint += f" All of them: kvplan models {text}"
    many = f"may mean {len(family):,} models" if len(family) > 1 else "is only the beginning of one"
    raise ModelNotFoundError(f"{shown(text)} is not an id, and {many}.", hint=hint)


def _family(text: str, ids: list[str], known: Iterable[str]) -> list[str]:
    """All models whose name begins with the same words and numbers, those of ``ids`` first."""
    parts = name_parts(text)
    others = [
        model_id for model_id in known if model_id not in ids and name_parts(model_id.rpartition("/")[2])[: len(parts)] == parts
    ]
    return [*ids, *(model_id for model_id in others if _described(model_id))]


def _described(model_id: str) -> bool:
    """Whether a source on this machine can describe the model. The cache may have its folder alone."""
    with profile_errors():
        return find_entry(model_id) is not None or cached_config(model_id) is not None


def _same_facts(ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The catalog's facts about the models by id; nothing if the facts that a plan uses differ, or if the cache has one of them."""
    facts: dict[str, Mapping[str, Any]] = {}
    for model_id in ids:
        with profile_errors():
            entry = find_entry(model_id)
        if entry is None or cached_config(model_id) is not None:
            return {}
        facts[model_id] = entry.data
    used = [
        (entry["config"], (entry.get("parameters") or {}).get("total"), entry.get("weight_bytes")) for entry in facts.values()
    ]
    return facts if all(one == used[0] for one in used) else {}


def _listed(ids: list[str], word: str) -> str:
    if len(ids) > _LISTED:
        return f"{', '.join(ids[:_LISTED])} {word} others"
    return f" {word} ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))

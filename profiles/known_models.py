"""What lists say of the models of the catalog, without reading the file of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hwcalc.profiles.compiled import TOP, record

__all__ = ["ListedModel", "built_in_models", "listed_facts"]


class ListedModel(NamedTuple):
    """A few facts of one model: ``parameters`` is the published count. ``None`` is unknown."""

    model_type: str | None
    released: str | None
    parameters: int | None
    fidelity: str | None


def listed_facts(data: Mapping[str, Any]) -> ListedModel:
    """The facts in one file of the catalog."""
    return ListedModel(
        model_type=data["config"].get("model_type"),
        released=data.get("released"),
        parameters=(data.get("parameters") or {}).get("total"),
        fidelity=data.get("fidelity"),
    )


@lru_cache(maxsize=1)
def built_in_models() -> Mapping[str, ListedModel]:
    """The models of the built-in catalog by id, in alphabetical order.

    >>> built_in_models()["Qwen/Qwen3-8B"].model_type
    'qwen3'
    """
    return MappingProxyType({model_id: ListedModel(*facts) for model_id, facts in record(TOP, "models").items()})

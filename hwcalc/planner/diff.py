"""Compares two models: the config keys that affect memory, and the bytes that follow from them."""

from __future__ import annotations

from typing import Any

from hwcalc.documents import SCHEMA_VERSION
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan


class KeyChange(Record):
    """One key of the config. ``None`` with ``in_a`` false is a key that the file does not have."""

    key: str
    in_a: bool
    in_b: bool
    a: Any
    b: Any


class Change(Record):
    """One figure of both plans, and B minus A; null is unknown."""

    name: str
    a: int | None
    b: int | None
    difference: int | None


class Difference(Record):
    """Two models side by side, planned the same way. A definition says what the figures of that model are, as in a plan."""

    schema_version: str
    a: str
    b: str
    definition_a: str
    definition_b: str
    keys: tuple[KeyChange, ...]
    figures: tuple[Change, ...]


_ABSENT = object()


def compare(model_a: ModelSpec, model_b: ModelSpec, plan_a: Plan, plan_b: Plan) -> Difference:
    """Compare the config keys that were read for either model, and the main figures of both plans."""
    return Difference(
        schema_version=SCHEMA_VERSION,
        a=model_a.id if model_a.revision is None else f"{model_a.id}@{model_a.revision}",
        b=model_b.id if model_b.revision is None else f"{model_b.id}@{model_b.revision}",
        definition_a=plan_a.cache.definition,
        definition_b=plan_b.cache.definition,
        keys=key_changes(model_a, model_b),
        figures=tuple(
            Change(name=name, a=a, b=b, difference=None if a is None or b is None else b - a)
            for (name, a), (_, b) in zip(_figures(plan_a), _figures(plan_b), strict=True)
        ),
    )


def key_changes(model_a: ModelSpec, model_b: ModelSpec) -> tuple[KeyChange, ...]:
    """The config keys that differ, of those from which the cache or weights of either model were read, in alphabetical order."""
    keys = []
    for key in sorted({*model_a.bearing, *model_b.bearing}):
        a, b = model_a.bearing.get(key, _ABSENT), model_b.bearing.get(key, _ABSENT)
        if a is b or (type(a) is type(b) and a == b):
            continue
        keys.append(KeyChange(key=key, in_a=a is not _ABSENT, in_b=b is not _ABSENT, a=_shown(a), b=_shown(b)))
    return tuple(keys)


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else value


def _figures(plan: Plan) -> list[tuple[str, int | None]]:
    parameters = plan.model.parameters
    return [
        ("parameters.total", parameters.total),
        ("parameters.active", parameters.active),
        ("cache.bytes_per_token", plan.cache.bytes_per_token),
        ("cache.state_bytes_per_sequence", plan.cache.state_bytes_per_sequence),
        ("cache.bytes_per_sequence", plan.cache.bytes_per_sequence),
        ("cache.total_bytes", plan.cache.total_bytes),
        ("memory.weights.bytes", plan.memory.weights.bytes),
        ("memory.total_bytes", plan.memory.total_bytes),
    ]

"""Compares two plans, of models or from JSON documents: the keys that affect memory, and the bytes that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import ConfigError, ModelNotFoundError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.parsers.registry import NESTED
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.sources.document import read_document
from hwcalc.text import printable


class KeyChange(Record):
    """One key of the config, or of the document of a plan. ``None`` with ``in_a`` false is a key that the file does not have."""

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
    """Two plans side by side: of models that are planned the same way, or as two documents have them.

    A definition says what the figures are, as in a plan. ``seq`` and ``verdict`` are those of the plans; there is no verdict without an
    accelerator. ``figures`` leaves out what neither plan knows.
    """

    schema_version: str
    a: str
    b: str
    definition_a: str
    definition_b: str
    seq_a: int
    seq_b: int
    verdict_a: Verdict | None
    verdict_b: Verdict | None
    keys: tuple[KeyChange, ...]
    figures: tuple[Change, ...]


_ABSENT: Final = object()
_FIGURES: Final = (
    "parameters.total",
    "parameters.active",
    "cache.bytes_per_token",
    "cache.state_bytes_per_sequence",
    "cache.bytes_per_sequence",
    "cache.total_bytes",
    "memory.weights.bytes",
    "memory.activations.bytes",
    "memory.overhead.bytes",
    "memory.total_bytes",
    "memory.per_gpu.total",
    "fit.max_batch",
    "fit.max_seq",
)
"""Figures by their keys in the document of a plan; those of parameters stand in its ``model``."""
_LAYERS: Final = "model.layers"
_RETOLD: Final = ("model.parameters", "model.source", "model.location", "request.settings")
"""Keys of a document that say what other keys or the figures do."""


def compare(model_a: ModelSpec, model_b: ModelSpec, plan_a: Plan, plan_b: Plan) -> Difference:
    """Two models by the config keys that were read for either of them, and by their plans."""
    a, b = (model.id if model.revision is None else f"{model.id}@{model.revision}" for model in (model_a, model_b))
    document_a, document_b = plan_a.to_dict(), plan_b.to_dict()
    keys_a, keys_b = model_a.bearing, model_b.bearing
    if any(map(_NESTED.match, keys_a)) != any(map(_NESTED.match, keys_b)):
        # One config keeps its language model in a part, the other is one: the places of their keys say nothing.
        keys_a, keys_b = (_of_language(keys_a, keys_b, document_a), _of_language(keys_b, keys_a, document_b))
    return _difference(a, b, key_changes(keys_a, keys_b), document_a, document_b)


_NESTED: Final = re.compile(rf"(?:(?:{'|'.join(NESTED)})\.)+")
"""The place of a language model inside a config of several parts."""
_SAID: Final = ("hidden_size", "vocab_size", "max_position_embeddings")
_SPELLED: Final = {"window": "sliding_window"}
"""The config key of a dimension of layers, where it has another name."""


def _of_language(keys: Mapping[str, Any], others: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without the place of the language model; one that only the other config has is as the model was read, where that is known."""
    model = document["model"]
    read = {name: {model[name]} for name in _SAID if model[name] is not None}
    for group in model["layers"]:
        for name, value in group["dims"].items():
            read.setdefault(_SPELLED.get(name, name), set()).add(value)
    own = {key: value for key, value in keys.items() if not _NESTED.match(key)}
    own |= {_NESTED.sub("", key, count=1): value for key, value in keys.items() if _NESTED.match(key)}
    lacking = {_NESTED.sub("", key, count=1) for key in others} - own.keys()
    return own | {name: value for name, (value, *more) in read.items() if name in lacking and not more}


def compare_documents(name_a: str, a: Mapping[str, Any], name_b: str, b: Mapping[str, Any]) -> Difference:
    """Two documents of plans by what was planned, and by its figures. Raises :class:`~hwcalc.errors.ConfigError`."""
    for name, document in ((name_a, a), (name_b, b)):
        _check(name, document)
    a_name, b_name = (f"{name}: {printable(document['model']['id'])}" for name, document in ((name_a, a), (name_b, b)))
    return _difference(a_name, b_name, key_changes(dict(_planned(a)), dict(_planned(b))), a, b)


def read_plan(path: str) -> dict[str, Any] | None:
    """The document that kvplan wrote to a file; ``None`` for a model, in a file or not."""
    try:
        document = read_document(path or os.curdir)
    except (ConfigError, ModelNotFoundError):
        return None
    return document if "kvplan_version" in document and "model_type" not in document else None


def _check(name: str, document: Mapping[str, Any]) -> None:
    """Refuse what is no plan of this version: a document may come from anywhere."""
    try:
        texts = (document["model"]["id"], document["cache"]["definition"])
        counts = (document["request"]["seq"], *(_figure(document, figure) or 0 for figure in _FIGURES))
        verdict = document["fit"] and document["fit"]["verdict"]
        right = verdict is None or verdict in {*Verdict}
        right = right and all(type(text) is str for text in texts) and all(type(count) is int for count in counts)
    except (KeyError, TypeError, AttributeError):
        right = False
    if not right:
        hint = "Write a plan: kvplan MODEL --json > a.json; since an earlier check: kvplan check --baseline FILE"
        checks = "of kvplan check " if "checks" in document else ""
        raise ConfigError(f"{name} is a JSON document {checks}that kvplan wrote, and no plan of this version.", hint=hint)


def _difference(name_a: str, name_b: str, keys: tuple[KeyChange, ...], a: Mapping[str, Any], b: Mapping[str, Any]) -> Difference:
    figures = []
    for name in _FIGURES:
        before, now = _figure(a, name), _figure(b, name)
        if before is not None or now is not None:
            apart = None if before is None or now is None else now - before
            figures.append(Change(name=name, a=before, b=now, difference=apart))
    verdicts = (None if document["fit"] is None else Verdict(document["fit"]["verdict"]) for document in (a, b))
    return Difference(
        schema_version=SCHEMA_VERSION,
        a=name_a,
        b=name_b,
        definition_a=a["cache"]["definition"],
        definition_b=b["cache"]["definition"],
        seq_a=a["request"]["seq"],
        seq_b=b["request"]["seq"],
        verdict_a=next(verdicts),
        verdict_b=next(verdicts),
        keys=keys,
        figures=tuple(figures),
    )


def _figure(document: Mapping[str, Any], name: str) -> int | None:
    """A figure of a document; ``None`` where it is unknown, or there is no accelerator."""
    inner: Any = document["model"] if name.startswith("parameters.") else document
    for key in name.split("."):
        inner = None if inner is None else inner[key]
    value: int | None = inner
    return value


def _planned(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The planned things, as dotted keys and plain values: the model, the request, the accelerator and the versions."""
    if not path:
        fit = document["fit"] or {}
        hardware = {name: fit[name] for name in ("gpu", "gpus") if name in fit}
        document = {
            "kvplan_version": document["kvplan_version"],
            "model": document["model"],
            "request": document["request"],
            "fit": hardware,
        }
    for key, value in document.items():
        name = f"{path}{key}"
        if name in _RETOLD:
            continue
        inner = _by_kind(value) if name == _LAYERS and isinstance(value, list) else value
        if isinstance(inner, Mapping):
            yield from _planned(inner, f"{name}.")
        elif value is not None:
            yield name, value


def _by_kind(layers: list[Any]) -> dict[str, Any]:
    """The number, places and dimensions of layers by their kind; of several groups of one kind the later have a number."""
    found: dict[str, Any] = {}
    for group in layers:
        if isinstance(group, Mapping) and isinstance(kind := group.get("kind"), str):
            same = sum(name.partition("[")[0] == kind for name in found)
            dims = group.get("dims")
            found[f"{kind}[{same + 1}]" if same else kind] = {
                "count": group.get("count"), "layers": group.get("layers"), **(dims if isinstance(dims, Mapping) else {}),
            }  # fmt: skip
    return found


def key_changes(keys_a: Mapping[str, Any], keys_b: Mapping[str, Any]) -> tuple[KeyChange, ...]:
    """The keys whose values differ, in alphabetical order."""
    keys = []
    for key in sorted({*keys_a, *keys_b}):
        a, b = keys_a.get(key, _ABSENT), keys_b.get(key, _ABSENT)
        if a is b or (type(a) is type(b) and a == b):
            continue
        keys.append(KeyChange(key=key, in_a=a is not _ABSENT, in_b=b is not _ABSENT, a=_shown(a), b=_shown(b)))
    return tuple(keys)


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else value

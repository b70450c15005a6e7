"""JSON Schemas of the documents, derived from their records by pydantic. ``scripts/build_schemas.py`` keeps them in a file."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT

from hwcalc.documents import SCHEMA_VERSION
from hwcalc.formulas.record import Record


def built_schema(document: str) -> dict[str, Any]:
    """The schema of a document, as :func:`hwcalc.report.schema.json_schema` has it."""
    if document == "check-file":
        from hwcalc.check.fields import check_file_schema

        return check_file_schema()
    if document == "fleet-file":
        from hwcalc.fleet.file import fleet_file_schema

        return fleet_file_schema()
    from hwcalc.check.result import CheckDocument
    from hwcalc.fleet.result import Fleet
    from hwcalc.library.compare import Comparison
    from hwcalc.library.keep import Kept
    from hwcalc.library.swap import Swapping
    from hwcalc.parsers.written import KindInfo
    from hwcalc.planner.apart import Apart
    from hwcalc.planner.diff import Difference
    from hwcalc.planner.recommend_result import Recommendation
    from hwcalc.planner.result import Plan
    from hwcalc.planner.runnables import Runnables
    from hwcalc.planner.strategies_result import Strategies
    from hwcalc.probe import receipt
    from hwcalc.reconcile.result import Reconciliation
    from hwcalc.reconcile.server import Serving
    from hwcalc.reconcile.speeds import BenchReconciliation
    from hwcalc.replay import compare
    from hwcalc.replay.traffic import Traffic
    from hwcalc.replay.tune import Tuning
    from hwcalc.report import probe, records
    from hwcalc.report.launch import LaunchDocument
    from hwcalc.sources.listing import KnownModel
    from hwcalc.sweep.grid import SweepDocument
    from hwcalc.workload.request import Summary

    classes: dict[str, type] = {
        "plan": Plan,
        "explain": Plan,
        "diff": Difference,
        "recommend": Recommendation,
        "fit": Runnables,
        "disaggregate": Apart,
        "swap": Swapping,
        "fleet": Fleet,
        "compare": Comparison,
        "sweep": SweepDocument,
        "check": CheckDocument,
        "reconcile": Reconciliation,
        "server": Serving,
        "bench": BenchReconciliation,
        "dtypes": records.DTypesDocument,
        "keep": Kept,
        "strategies": Strategies,
        "workload": Summary,
        "launch": LaunchDocument,
        "simulate": Traffic,
        "simulate-compare": compare.Comparison,
        "tune": Tuning,
        "probe": probe.ProbeDocument,
        "receipt": receipt.Receipt,
        "verify": receipt.Verified,
        "emit": records.EmittedDocument,
        "error": records.ErrorDocument,
    }
    rows: dict[str, type[Record]] = {
        "models": KnownModel,
        "types": records.TypeInfo,
        "kinds": KindInfo,
        "engines": records.EngineInfo,
        "gpus": records.GpuInfo,
        "instances": records.InstanceInfo,
        "policies": records.PolicyInfo,
    }
    if document in rows:
        listed = GenericAlias(tuple, (_as_dataclass(rows[document]), ...))
        schema = _of(make_dataclass("Listed", [("schema_version", str), (document, listed)]))
        schema["description"] = f"The {document} that are known, as --json lists them."
    else:
        schema = _of(_as_dataclass(classes[document]))
    if document == "explain":
        _add_explanation(schema)
    # The only numbers that may be negative: what one side has more than another.
    if document == "diff":
        for choice in schema["$defs"]["Change"]["properties"]["difference"]["anyOf"]:
            choice.pop("minimum", None)
    if document == "compare":
        del schema["$defs"]["Cause"]["properties"]["bytes"]["minimum"]
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvplan {document}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _add_explanation(schema: dict[str, Any]) -> None:
    """Add the keys of an explanation to the schema of a plan."""
    from hwcalc.library.explain import KindExplanation
    from hwcalc.library.explained import ExplainedLimit, ExplainedSection, QuotedFormula, Symbol

    lists: dict[str, type] = {
        "explain": KindExplanation,
        "sections": ExplainedSection,
        "limits": ExplainedLimit,
        "quoted": QuotedFormula,
        "symbols": Symbol,
    }
    for key, class_ in lists.items():
        part = _of(_as_dataclass(class_))
        schema["$defs"] |= part.pop("$defs", {}) | {class_.__name__: part}
        schema["properties"][key] = {"type": "array", "items": {"$ref": f"#/$defs/{class_.__name__}"}}
        schema["required"].append(key)
    # Not required: the documents of earlier versions have none.
    schema["properties"]["group_reasons"] = {"type": "array", "items": {"type": "string"}}


def _of(class_: type) -> dict[str, Any]:
    from pydantic import TypeAdapter

    schema: dict[str, Any] = TypeAdapter(class_).json_schema()
    _strict(schema)
    return schema


@cache
def _as_dataclass(record: type[Record]) -> type:
    """A dataclass with the fields and the docstring of a record: pydantic derives the schema of a dataclass field by field."""
    hints = get_type_hints(record)
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    given = [NODEFAULT] * (len(names) - len(defaults)) + list(defaults)
    fields = [
        (name, _with_dataclasses(hints[name]), field() if default is NODEFAULT else field(default=None))
        for name, default in zip(names, given, strict=True)
    ]
    return make_dataclass(
        record.__name__, fields, kw_only=True, namespace={"__doc__": record.__doc__, "__module__": record.__module__}
    )


def _with_dataclasses(hint: Any) -> Any:
    """A type in which dataclasses take the place of records."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return _as_dataclass(hint)
    arguments = tuple(map(_with_dataclasses, get_args(hint)))
    if not arguments or get_origin(hint) is Literal:
        return hint
    return Union[arguments] if isinstance(hint, UnionType) else get_origin(hint)[arguments]  # noqa: UP007 - of a number known when it runs


_SIGNED: Final = {
    "FitInfo": frozenset({"headroom_bytes"}),
    "Offer": frozenset({"headroom_bytes"}),
    "Runnable": frozenset({"headroom_bytes"}),
    "Fit": frozenset({"headroom_bytes"}),
    "Compared": frozenset({"difference_bytes"}),
    "HeadChoice": frozenset({"parameters_difference"}),
    "BudgetInfo": frozenset({"low", "expected", "high"}),
    "ExplainedFigure": frozenset({"result", "low", "high"}),
}
"""Class -> fields that may be negative, such as the headroom when the weights alone do not fit."""


def _strict(node: Any) -> None:
    """Require all keys, forbid others, drop titles and defaults, and set the minimum of unsigned integers to 0."""
    if isinstance(node, list):
        for item in node:
            _strict(item)
    elif isinstance(node, dict):
        properties = node.get("properties")
        if isinstance(properties, dict):
            node["additionalProperties"] = False
            node["required"] = list(properties)
            for field in properties.values():
                field.pop("title", None)
                field.pop("default", None)
            signed = _SIGNED.get(str(node.get("title")), frozenset())
            for name in signed:
                for choice in properties[name].get("anyOf", [properties[name]]):
                    if choice["type"] == "integer":
                        choice["type"] = "whole"
        if node.get("type") == "whole":
            node["type"] = "integer"
        elif node.get("type") == "integer":
            node["minimum"] = 0
        if isinstance(node.get("description"), str):
            node["description"] = " ".join(node["description"].replace("``", "`").split())
        for value in node.values():
            _strict(value)

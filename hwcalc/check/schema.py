"""The JSON Schema of a check file, from the same table that reads it. Editors use it to complete and check the file."""

from __future__ import annotations

from typing import Any

from hwcalc.check.fields import ALIASES, OPTIONS, REQUIREMENTS
from hwcalc.check.file import MOST_CHECKS, SCHEMA_VERSION

__all__ = ["check_file_schema"]


def check_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12). Rules between keys, such as ``headroom`` needs hardware, are left to :mod:`hwcalc.check.file`."""
    fields = {name: {**field.schema, "description": field.help} for name, field in {**OPTIONS, **REQUIREMENTS}.items()}
    fields |= {alias: {**OPTIONS[key].schema, "description": f"The same as {key}."} for alias, key in ALIASES.items()}
    # null undoes a default
    optional = {
        name: {"anyOf": [_without_description(schema), {"type": "null"}], **_description(schema)}
        for name, schema in fields.items()
    }
    model = {
        "type": "string",
        "minLength": 1,
        "description": "Hub id, or the path of a folder or config.json from this file's folder.",
    }
    name = {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
        "description": "What reports call the check. Default: model and request.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvplan check-file",
        "description": "What kvplan check reads, in YAML or JSON.",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema_version", "checks"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "defaults": {
                "type": ["object", "null"],
                "description": "Options and requirements of every check that does not say otherwise.",
                "additionalProperties": False,
                "properties": {"model": model, **optional},
            },
            "checks": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_CHECKS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"name": name, "model": model, **optional},
                },
            },
        },
    }


def _without_description(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "description"}


def _description(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": schema["description"]}

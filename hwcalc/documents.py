"""JSON documents: dataclasses as plain dicts and lists, one schema version, errors in the same form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hwcalc.formulas.frozen import fields, is_frozen
from hwcalc.formulas.shown import Shown

__all__ = ["SCHEMA_VERSION", "document_of", "dumps", "error_document", "escaped"]

SCHEMA_VERSION: Final = "1"
"""Of every JSON document that the program writes."""


def document_of(value: Any) -> Any:
    """A value as JSON has it: dataclasses as dicts of their fields, tuples as lists, what has words of its own as those."""
    if isinstance(value, Shown):
        return value.text
    if is_frozen(value):
        return {field.name: document_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: document_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [document_of(item) for item in value]
    return value


def dumps(document: Mapping[str, Any]) -> str:
    """One JSON document, ending in a newline. NaN is an error, not a value."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def error_document(*, code: int, type_: str, message: str, hint: str) -> dict[str, Any]:
    """The document that stands for an answer when there is none."""
    return {"schema_version": SCHEMA_VERSION, "error": {"code": code, "type": type_, "message": message, "hint": hint}}


def escaped(text: str) -> str:
    r"""The same JSON text in ASCII. Outside its strings JSON is ASCII anyway.

    >>> escaped('{"id": "é"}')
    '{"id": "\\u00e9"}'
    """
    return "".join(character if character.isascii() else json.dumps(character)[1:-1] for character in text)

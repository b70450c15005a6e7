"""Documents as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hwcalc.planner.result import SCHEMA_VERSION

__all__ = ["dumps", "error_document", "escaped"]


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

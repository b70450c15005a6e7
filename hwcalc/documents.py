"""JSON documents: records as dicts and lists, the schema version, and the document of an error."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Shown
from hwcalc.masking import without_tokens
from hwcalc.text import json_for

SCHEMA_VERSION: Final = "1"
"""The version of every JSON document that the program writes."""


def document_of(value: Any) -> Any:
    """A value for JSON: records become dicts, tuples become lists, a :class:`Shown` value its text, an enum its value.

    JSON has no infinity and no NaN, which configs may hold: they become text.

    >>> document_of({"num_experts_per_tok": (2, float("-inf"))})
    {'num_experts_per_tok': [2, '-Infinity']}
    """
    if isinstance(value, Shown):
        return value.text
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Record):
        return {name: document_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: document_of(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [document_of(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return json.dumps(value)
    return value


def dumps(document: Mapping[str, Any]) -> str:
    """The text of one JSON document, with a newline at its end. Raises ``ValueError`` for NaN and infinity.

    The values are kept, but for tokens; a terminal or a runner of CI jobs that shows the text finds nothing in it to obey.
    """
    text = _dumped(document)
    if without_tokens(text) != text:
        text = _dumped(_masked(document))
    return json_for(text) + "\n"


def _dumped(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return without_tokens(value)
    if isinstance(value, Mapping):
        return {_masked(key): _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, (list, tuple)) else value


def error_document(*, code: int, type_: str, message: str, hint: str) -> dict[str, Any]:
    """The document of an error, which replaces the answer."""
    return {"schema_version": SCHEMA_VERSION, "error": {"code": code, "type": type_, "message": message, "hint": hint}}


def escaped(text: str) -> str:
    r"""The same JSON text in ASCII, with escapes in its strings.

    >>> escaped('{"id": "é"}')
    '{"id": "\\u00e9"}'
    """
    return "".join(character if character.isascii() else json.dumps(character)[1:-1] for character in text)

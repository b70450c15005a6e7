"""JSON documents: records as dicts and lists, the schema version, and the document of an error.

And what the functions of the library return: one document, rows for a data frame, a line for a prompt, and a table for a notebook.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Shown
from hwcalc.masking import without_tokens
from hwcalc.text import clean, json_for

if TYPE_CHECKING:
    from hwcalc.errors import KvplanError

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


def dumps(document: Mapping[str, Any], indent: int | None = 2) -> str:
    """The text of one JSON document, with a newline at its end; on one line without ``indent``. Raises ``ValueError`` for NaN and infinity.

    The values are kept, but for tokens; a terminal or a runner of CI jobs that shows the text finds nothing in it to obey.
    """
    text = _dumped(document, indent)
    if without_tokens(text) != text:
        text = _dumped(_masked(document), indent)
    return json_for(text) + "\n"


def _dumped(document: Any, indent: int | None) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return without_tokens(value)
    if isinstance(value, Mapping):
        return {_masked(key): _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, (list, tuple)) else value


class ErrorInfo(Record):
    """An error. ``code`` is the command's exit status, ``hint`` what to try next (empty if there is nothing)."""

    code: int
    type: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: KvplanError) -> ErrorInfo:
        """An error of the program."""
        return cls(code=error.exit_code, type=error.type, message=error.message, hint=error.hint)


def error_document(error: ErrorInfo) -> dict[str, Any]:
    """The document of an error, which replaces the answer."""
    return {"schema_version": SCHEMA_VERSION, "error": document_of(error)}


def escaped(text: str) -> str:
    r"""The same JSON text in ASCII, with escapes in its strings.

    >>> escaped('{"id": "é"}')
    '{"id": "\\u00e9"}'
    """
    return "".join(character if character.isascii() else json.dumps(character)[1:-1] for character in text)


MOST_ROWS: Final = 60
"""As many rows as a notebook shows; :meth:`Answer.records` has all."""


_DEPTH: Final = 3
"""Records within records that a guessed attribute is looked for in."""


def _paths(value: Record, depth: int = _DEPTH) -> Iterator[tuple[str, str]]:
    """The names of the fields of a record and of the records in it, each with how it is written; of several alike the first."""
    inner: list[tuple[str, Record]] = []
    for name in value.__struct_fields__:
        yield name, name
        item = getattr(value, name)
        several = isinstance(item, tuple) and bool(item)
        if isinstance(first := item[0] if several else item, Record):
            inner.append((f"{name}[0]" if several else name, first))
    for path, record in inner if depth > 1 else ():
        yield from ((name, f"{path}.{more}") for name, more in _paths(record, depth - 1))


def no_attribute(value: Any, name: str) -> AttributeError:
    """The error of an attribute that a record does not have. It says where attributes of this name are, or of names that resemble it."""
    message = f"{type(value).__name__} has no attribute {name!r}."
    if name.startswith("_") or not isinstance(value, Record):
        return AttributeError(message)
    from difflib import get_close_matches

    paths = sorted(_paths(value), key=lambda each: each[1].count("."))
    names = [name] if any(name == each for each, _ in paths) else get_close_matches(name, dict(paths), 2)
    known = [path for near in names for each, path in paths if each == near][:4]
    return AttributeError(
        f"{message} Did you mean {' or '.join(known)}?"
        if known
        else f"{message} Its fields: {', '.join(value.__struct_fields__)}."
    )


class Answer:
    """A result. Its class says in :meth:`headline` what it is, and in :meth:`records` which rows it has."""

    __slots__ = ()

    if not TYPE_CHECKING:
        # A type checker would let every attribute pass.
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def headline(self) -> str:
        """The answer in one line."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """Flat rows of plain values with the same keys, as ``pandas.DataFrame`` and ``polars.DataFrame`` take them."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the command of the same name, as plain dicts and lists."""
        document: dict[str, Any] = document_of(self)
        return document

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {clean(self.headline())}>"

    def _repr_html_(self) -> str:
        """The table of a notebook: rows side by side, a single row as names and values."""
        return html_table(self.headline(), self.records())


def html_table(title: str, records: list[dict[str, Any]], more: int = 0) -> str:
    """A heading and a table. Columns that no row has a value for are left out; ``more`` rows are known and not given.

    >>> html_table("Cache", [{"model": "a<b", "bytes": 4096, "gpu": None}])
    '<div><strong>Cache</strong><table><tr><th>model</th><td>a&lt;b</td></tr><tr><th>bytes</th><td>4,096</td></tr></table></div>'
    """
    shown = records[:MOST_ROWS]
    names = [name for name in (records[0] if records else ()) if any(record.get(name) is not None for record in shown)]
    if len(records) == 1:
        rows = [f"<th>{_cell(name)}</th><td>{_cell(records[0][name])}</td>" for name in names]
    else:
        rows = ["".join(f"<th>{_cell(name)}</th>" for name in names)] if names else []
        rows += ["".join(f"<td>{_cell(record[name])}</td>" for name in names) for record in shown]
    more += len(records) - len(shown)
    rest = f"<p>and {more:,} more rows</p>" if more else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div><strong>{_cell(title)}</strong><table>{body}</table>{rest}</div>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    from html import escape

    return escape(clean(f"{value:.6g}" if isinstance(value, float) else str(value)))


class Part(Record):
    """A part of an answer, such as the verdict of a plan. Its text for a programmer has the plain fields; ``to_dict`` of the answer has all."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        values = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in self._plain().items()}
        return f"<{type(self).__name__}: {', '.join(f'{name}={value!r}' for name, value in values.items())}>"

    def _repr_html_(self) -> str:
        """The table of a notebook."""
        return html_table(type(self).__name__, [self._plain()])

    def _plain(self) -> dict[str, Any]:
        """The fields that are numbers or words, and not records of their own."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None and isinstance(value, (str, int, float))}

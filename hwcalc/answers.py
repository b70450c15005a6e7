"""What the functions of the library return: one document, rows for a data frame, a line for a prompt, and a table for a notebook."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.documents import document_of
from hwcalc.text import clean

MOST_ROWS: Final = 60
"""As many rows as a notebook shows; :meth:`Answer.records` has all."""


class Answer:
    """A result. Its class says in :meth:`headline` what it is, and in :meth:`records` which rows it has."""

    __slots__ = ()

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

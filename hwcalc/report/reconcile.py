"""A reconciliation as text: the verdict, the figures side by side, and the inputs of the plan."""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.core import OTHER_GPU
from hwcalc.reconcile.facts import Number, Row
from hwcalc.reconcile.result import Reconciliation
from hwcalc.report.columns import listed
from hwcalc.report.text import csv_text, plural
from hwcalc.report.view import View
from hwcalc.units import human_bytes

_HEADER: Final = ("", "figure", "predicted", "range", "reported", "difference", "%", "is")
_CSV: Final = (
    "name", "unit", "definition", "predicted", "low", "high", "reported", "reported_low", "reported_high", "difference", "percent",
    "distance_percent", "within", "needs", "rank", "line", "meaning",
)  # fmt: skip
_LEAST_DIFFERENCE: Final = 0.005
"""Smaller differences round to zero when they are printed."""


def verdict(reconciliation: Reconciliation) -> str:
    """One line with the number of figures that agree, and the names of those that do not or cannot be judged."""
    judged = [row for row in reconciliation.rows if row.within is not None]
    needs = sorted({row.needs for row in reconciliation.rows if row.needs is not None})
    left = f"; {len(reconciliation.rows) - len(judged)} not judged (needs {', '.join(needs)})" if needs else ""
    if not judged:
        return f"not judged: needs {', '.join(needs)}"
    agree, whole = sum(row.within is True for row in judged), len(judged)
    allowed = f"{100 * reconciliation.tolerance:g} %"
    if reconciliation.within:
        # An estimate agrees where its range does, however far its expected value is from the log's.
        ranged = any(abs(row.percent or 0) > 100 * max(row.tolerance, reconciliation.tolerance) for row in judged)
        how = f"in their range or within {allowed} of it" if ranged else f"within {allowed}"
        return f"agrees: {agree} of {whole} figures {how}{left}"
    if other := next((note.message for note in reconciliation.notes if note.code == OTHER_GPU), ""):
        return f"differs: {other[0].lower()}{other[1:]}"
    apart = [row for row in judged if not row.within]
    exact, others = (", ".join(row.name for row in apart if (row.tolerance == 0) is held) for held in (True, False))
    said = [f"{others} further apart than {allowed}" if others else "", f"{exact} (must match exactly)" if exact else ""]
    return f"differs: {'; '.join(filter(None, said))} ({agree} of {whole} figures agree){left}"


def reconcile_text(reconciliation: Reconciliation, view: View) -> str:
    """The reconciliation of a log as a table or Markdown."""
    version = f" {reconciliation.engine_version}" if reconciliation.engine_version else ""
    log = f"{reconciliation.log} ({reconciliation.engine}{version}, {plural(reconciliation.lines, 'line')})"
    return compared_text(reconciliation, f"{reconciliation.model} beside {log}", view)


def compared_text(reconciliation: Reconciliation, title: str, view: View) -> str:
    """The verdict and the figures below a title, and what was planned with."""
    head = view.headed(title, verdict(reconciliation), agrees=reconciliation.within)
    rows = [_cells(row) for row in reconciliation.rows]
    figures, dropped = listed(view, _HEADER, rows, ("is", "difference", "range"), right=(2, 3, 4, 5, 6))
    return f"{head}{figures}{view.paragraphs(dropped)}{_ranks(reconciliation, view)}{'' if view.quiet else _foot(reconciliation, view)}"


def reconcile_csv(reconciliation: Reconciliation) -> str:
    """One row for each figure, with numbers without units and separators."""
    return csv_text(_CSV, [[getattr(row, name) for name in _CSV] for row in reconciliation.rows])


def _cells(row: Row) -> list[str]:
    span = ""
    if row.low != row.high:
        low, high = _shown(row.low, row.unit), _shown(row.high, row.unit)
        # If both ends have the same unit, it is printed once.
        start, _, unit = low.rpartition(" ")
        span = "" if low == high else f"{start if unit and high.endswith(f' {unit}') else low} to {high}"
    difference, percent = "0", ""
    if abs(row.difference) >= _LEAST_DIFFERENCE:
        difference = ("+" if row.difference > 0 else "") + _shown(row.difference, row.unit)
        percent = "" if row.percent is None else f"{row.percent:+.2f}".replace("-0.00", "0.00").replace("+0.00", "0.00")
    predicted, reported = _shown(row.predicted, row.unit), _shown(row.reported, row.unit)
    sign = "?" if row.within is None else "" if row.within else "!"
    return [
        sign,
        row.name,
        predicted,
        span,
        reported,
        difference,
        percent,
        row.definition if row.needs is None else f"needs {row.needs}",
    ]


def _shown(value: Number, unit: str) -> str:
    if unit == "bytes":
        return human_bytes(int(value))
    if unit in ("%", "x", "share"):
        return f"{value:,.2f}{ {'%': ' %', 'x': 'x', 'share': ''}[unit] }"
    return f"{value:,}"


def _ranks(reconciliation: Reconciliation, view: View) -> str:
    """A table of the sizes that each process stated; empty if only one process stated any."""
    named = [fact for fact in reconciliation.facts if fact.rank is not None and fact.unit == "bytes"]
    processes = sorted({fact.rank for fact in named if fact.rank is not None})
    if len(processes) < 2:
        return ""
    names = sorted({fact.name for fact in named})
    shown = {(fact.rank, fact.name): human_bytes(int(fact.value)) for fact in named if not isinstance(fact.value, str)}
    rows = [[rank, *(shown.get((rank, name), "") for name in names)] for rank in processes[:64]]
    titles = ("process", *(name.removesuffix("_bytes").replace("_", " ") for name in names))
    return "\n" + view.table(titles, rows, right=range(1, len(titles)))


def _foot(reconciliation: Reconciliation, view: View) -> str:
    """The inputs of the plan, the meaning of each figure, and the notes."""
    inputs = [f"{one.name} {one.value} ({f'line {one.line:,}' if one.line else one.source})" for one in reconciliation.inputs]
    lines = [("planned with", ", ".join(inputs))]
    lines += [
        (
            row.name,
            f"{row.meaning} ({f'line {row.line:,}' if row.line else row.text}{'' if row.rank is None else f', {row.rank}'})",
        )
        for row in reconciliation.rows
    ]
    lines += [
        ("in use", f"{100 * fact.value:g} % of the cache, as the server runs (line {fact.line:,})")
        for fact in reconciliation.facts
        if fact.name == "usage_share" and fact.line and not isinstance(fact.value, str)
    ]
    if reconciliation.saved is not None:
        saved = reconciliation.saved.values.items()
        sizes = (f"{name.removesuffix('_bytes').replace('_', ' ')} {human_bytes(size)}" for name, size in saved)
        lines.append(("kept", f"{', '.join(sizes)}: {reconciliation.saved.path}"))
    lines += [("note", note.message) for note in reconciliation.notes]
    lines += unread_rows(reconciliation)
    return "\n" + view.labelled(lines)


def unread_rows(reconciliation: Reconciliation) -> list[tuple[str, str]]:
    """The lines that were not understood, each with its label; empty unless the user asked for them."""
    rows = [(f"line {one.line:,}", one.text) for one in reconciliation.unread]
    more = reconciliation.unread_lines - len(rows)
    return [*rows, ("", f"and {plural(more, 'line')} more that were not understood")] if rows and more else rows

"""``kvplan workload`` as text: the lengths of its requests, and what else it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.report.text import percent, plural
from hwcalc.report.view import View
from hwcalc.units import human_duration

if TYPE_CHECKING:
    from hwcalc.workload.request import Summary


def workload_text(summary: Summary, view: View) -> str:
    """Name and format, the table of lengths, and a line for each other property that it has."""
    parts = [view.paragraphs(_head(summary))]
    header = ("tokens", "mean", "shortest", *summary.prompt.quantiles, "longest", "sum")
    rows = [
        [str(record["tokens"]), *(f"{value:,.0f}" for name, value in record.items() if name != "tokens")]
        for record in summary.records()
    ]
    parts.append(view.table(header, rows, right=range(1, len(header))))
    lines = [f"{name}: {said}" for name, said in _lines(summary).items() if said]
    if not view.quiet:
        lines += [f"note: {note}" for note in summary.notes]
    parts.append(view.paragraphs(lines))
    return "\n".join(parts)


def _head(summary: Summary) -> list[str]:
    known = ""
    if summary.trace is not None:
        about = ", ".join(filter(None, (summary.source, summary.licence)))
        known = f" ({summary.trace}{f': {about}' if about else ''})"
    return [f"{summary.name}{known}: {plural(summary.requests, 'request')}"]


def _lines(summary: Summary) -> dict[str, str]:
    """Lines behind the table, by name; empty for what it does not have."""
    prefixes = summary.prefixes
    shared = (
        f"{percent(prefixes.shared_tokens, summary.prompt.total)} of prompt tokens begin as an earlier prompt does, in whole blocks of {prefixes.block_size:,}; "
        f"{plural(prefixes.requests, 'request')} of {summary.requests:,}"
    )
    return {
        "arrivals": _arrivals(summary),
        "prefixes": shared if prefixes.known else "not known" if summary.trace is not None else "",
        "sessions": f"{summary.sessions:,}, of at most {plural(summary.most_turns, 'turn')}" if summary.sessions else "",
        "samples": f"{summary.samples:,} outputs" if summary.samples != summary.requests else "",
        "cancelled": f"{plural(summary.cancelled, 'request')} by their users" if summary.cancelled else "",
        "priorities": f"{summary.priorities:,} different ones" if summary.priorities > 1 else "",
        "left out": ", ".join(f"{count:,} {reason}" for reason, count in summary.left_out.items()),
    }


def _arrivals(summary: Summary) -> str:
    together = "" if summary.concurrency is None else f", at most {summary.concurrency:,} together: the next when one is answered"
    if summary.rate_per_s is None:
        return f"all at once{together}"
    peak = summary.peak_rate_per_s or 0.0
    busiest = f", {peak:,.3g} in the busiest minute" if peak > summary.rate_per_s else ""
    return f"{summary.rate_per_s:,.3g} requests a second over {human_duration(summary.duration_s)}{busiest}{together}"

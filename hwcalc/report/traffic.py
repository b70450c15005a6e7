"""``kvplan simulate`` as text: what users wait for, how full the pool is, and settings side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.report.text import csv_text, plural
from hwcalc.report.view import View
from hwcalc.units import human_duration

if TYPE_CHECKING:
    from hwcalc.replay.compare import Comparison
    from hwcalc.replay.traffic import Limits, Spread, Traffic

_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_TIMES: Final = {
    "first token": "ttft",
    "next token": "itl",
    "a request's mean": "tpot",
    "whole answer": "e2e",
    "in the queue": "queue",
}
_COUNTS: Final = {"running": "running", "waiting": "waiting"}


def traffic_text(traffic: Traffic, view: View) -> str:
    """A line on the replay, a table of quantiles, and a line for each other figure."""
    rows = [
        [label, *(_time(getattr(spread, name), traffic.clock) for name in _COLUMNS)]
        for label, field in _TIMES.items()
        if (spread := getattr(traffic, field)) is not None
    ]
    rows += [
        [label, *(f"{getattr(spread, name):,.4g}" for name in _COLUMNS)]
        for label, field in _COUNTS.items()
        if (spread := getattr(traffic, field)) is not None
    ]
    if traffic.use is not None:
        rows.append(["pool in use", *(_share(getattr(traffic.use, name)) for name in _COLUMNS)])
    parts = [view.paragraphs([_head(traffic)]), view.table(("", *_COLUMNS), rows, right=range(1, len(_COLUMNS) + 1))]
    lines = [f"{name}: {said}" for name, said in _lines(traffic).items() if said]
    lines += [f"warning: {note.message}" for note in traffic.warnings]
    if not view.quiet:
        lines += [f"note: {note.message}" for note in traffic.notes]
    return "\n".join([*parts, view.paragraphs(lines)])


def traffic_csv(traffic: Traffic) -> str:
    """One row."""
    rows = traffic.records()
    return csv_text(tuple(rows[0]), [tuple(row.values()) for row in rows])


def comparison_text(comparison: Comparison, view: View) -> str:
    """The settings side by side."""
    told = [setting.traffic for setting in comparison.settings if setting.traffic is not None]
    names = tuple(comparison.settings[0].changed) if comparison.settings else ()
    header = (
        *names,
        "first token p95",
        "next token p95",
        "answer p95",
        "tokens/s",
        "preempted",
        "pool at peak",
        "hits",
        "within limits",
    )
    rows = [
        [
            *setting.changed.values(),
            *(_compared(setting.traffic) if setting.traffic is not None else ("", "", "", "", "", "", "", "")),
        ]
        for setting in comparison.settings
    ]
    limited = any(traffic.goodput is not None for traffic in told)
    shown = len(header) if limited else len(header) - 1
    head = [_head(told[0], compared=True)] if told else []
    errors = [
        f"{', '.join(f'{name}={value}' for name, value in setting.changed.items())}: {setting.error}"
        for setting in comparison.settings
        if setting.error is not None
    ]
    warned = list(dict.fromkeys(note.message for traffic in told for note in traffic.warnings))
    limits = [f"limits: {_limits(told[0].goodput.limits)}"] if told and told[0].goodput is not None else []
    parts = [view.paragraphs(head), view.table(header[:shown], [row[:shown] for row in rows], right=range(len(names), shown))]
    return "\n".join([*parts, view.paragraphs([*limits, *errors, *(f"warning: {message}" for message in warned)])])


def comparison_csv(comparison: Comparison) -> str:
    """A row for each setting."""
    rows = comparison.records()
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return csv_text(names, [tuple(row.get(name) for name in names) for row in rows])


def _compared(traffic: Traffic) -> tuple[str, ...]:
    def p95(spread: Spread | None) -> str:
        return "" if spread is None else _time(spread.p95, traffic.clock)

    rate = "" if traffic.throughput is None else f"{traffic.throughput.output_tokens_per_s:,.0f}"
    return (
        p95(traffic.ttft),
        p95(traffic.itl),
        p95(traffic.e2e),
        rate,
        f"{traffic.totals.get('preemptions', 0):,}",
        "" if traffic.use is None else _share(traffic.use.max),
        "" if traffic.hit_share is None else _share(traffic.hit_share),
        "" if traffic.goodput is None else _share(traffic.goodput.share),
    )


def _head(traffic: Traffic, *, compared: bool = False) -> str:
    hardware = "" if traffic.gpu is None else f" on {traffic.gpu}"
    replicas = "" if traffic.replicas == 1 or compared else f", {traffic.replicas:,} replicas"
    served = f"{traffic.engine} {traffic.engine_version or ''}".strip()
    if compared:
        return f"{traffic.model}, {served}{hardware}: {plural(traffic.requests, 'request')} of {traffic.workload}"
    done = f"{traffic.finished:,} of {plural(traffic.requests, 'request')} of {traffic.workload}"
    return f"{traffic.model}, {served}{hardware}{replicas}: {done} in {plural(traffic.totals['model_steps'], 'step')}"


def _lines(traffic: Traffic) -> dict[str, str]:
    """What is said behind the table, by its name; empty for what it does not have."""
    totals, throughput, goodput = traffic.totals, traffic.throughput, traffic.goodput
    sizes, unit = traffic.settings.get("block_size") or (), traffic.unit
    peak = totals[f"peak_used_{unit}"]
    of_tokens = f" of {', '.join(f'{size:,}' for size in dict.fromkeys(sizes))} tokens" if sizes else ""
    each = " each" if traffic.replicas > 1 else ""
    rate = "" if goodput is None or goodput.requests_per_s is None else f", {goodput.requests_per_s:,.3g} requests a second"
    return {
        "pool": f"{traffic.capacity:,} {unit}{of_tokens}{each}, at most {peak:,} in use",
        "prefix cache": f"{_share(traffic.hit_share)} of the looked-up tokens found"
        if traffic.hit_share is not None
        else "not known"
        if any(note.code == "prefixes-unknown" for note in traffic.notes)
        else "",
        "preemptions": f"{totals['preemptions']:,}" if totals["preemptions"] else "none",
        "throughput": ""
        if throughput is None
        else f"{throughput.requests_per_s:,.3g} requests and {throughput.output_tokens_per_s:,.0f} output tokens a second, "
        f"over {_time(throughput.duration_s, 'seconds')}",
        "within limits": "" if goodput is None else f"{_share(goodput.share)} of the requests ({_limits(goodput.limits)}){rate}",
        "cancelled": f"{totals['cancelled']:,}" if totals["cancelled"] else "",
    }


def _limits(limits: Limits) -> str:
    named = {"first token": limits.ttft, "each further token": limits.itl, "whole answer": limits.e2e}
    return ", ".join(f"{name} {_time(value, 'seconds')}" for name, value in named.items() if value is not None)


def _time(value: float, clock: str) -> str:
    """A time with three digits; steps as they are.

    >>> _time(0.0123, "seconds"), _time(75.0, "seconds"), _time(12.0, "steps")
    ('12.3 ms', '75 s', '12 steps')
    """
    return f"{value:,.4g} steps" if clock == "steps" else human_duration(value)


def _share(share: float) -> str:
    """A share in percent with one decimal."""
    return f"{100 * share:.1f} %"

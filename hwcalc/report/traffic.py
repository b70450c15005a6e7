"""``kvplan simulate`` and ``tune`` as text: what users wait for, how full the pool is, and settings side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.report.columns import listed
from hwcalc.report.text import plural, share_text
from hwcalc.report.view import View
from hwcalc.units import human_duration

if TYPE_CHECKING:
    from hwcalc.replay.compare import Comparison
    from hwcalc.replay.traffic import Limits, Spread, Traffic
    from hwcalc.replay.tune import Tuning

_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_TIMES: Final = {
    "first token": "ttft",
    "next token": "itl",
    "a request's mean": "tpot",
    "whole answer": "e2e",
    "in the queue": "queue",
}
_COUNTS: Final = {"requests running": "running", "requests waiting": "waiting"}
_WITHIN: Final = "within limits"
_COMPARED: Final[Mapping[str, Callable[[Traffic], str]]] = {
    "first token p95": lambda traffic: _p95(traffic.ttft, traffic),
    "next token p95": lambda traffic: _p95(traffic.itl, traffic),
    "answer p95": lambda traffic: _p95(traffic.e2e, traffic),
    "tokens/s": lambda traffic: "" if traffic.throughput is None else f"{traffic.throughput.output_tokens_per_s:,.0f}",
    "preempted": lambda traffic: f"{traffic.totals.get('preemptions', 0):,}",
    "pool at peak": lambda traffic: "" if traffic.use is None else share_text(traffic.use.max),
    "hits": lambda traffic: "" if traffic.hit_share is None else share_text(traffic.hit_share),
    _WITHIN: lambda traffic: "" if traffic.goodput is None else share_text(traffic.goodput.share),
}
"""The columns of settings side by side."""
_TUNED: Final[Mapping[str, Callable[[Traffic], str]]] = {
    _WITHIN: _COMPARED[_WITHIN],
    "first token p95": _COMPARED["first token p95"],
    "request's mean p95": lambda traffic: _p95(traffic.tpot, traffic),
    "answer p95": _COMPARED["answer p95"],
}
"""Those of settings that were searched."""
_TUNED_COLUMNS: Final = (
    "goodput/GPU: requests that are answered within the limits, a second and GPU; within limits: their share of all requests; "
    "alike: more settings with the same numbers"
)
_LESS: Final = ("answer p95", "request's mean p95", "alike", "first token p95")
"""Columns that are left out where there is no room, the first before others."""


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
        rows.append(["pool in use", *(share_text(getattr(traffic.use, name)) for name in _COLUMNS)])
    parts = [view.paragraphs([_head(traffic)])]
    parts += [view.table(("", *_COLUMNS), rows, right=range(1, len(_COLUMNS) + 1))] if rows else []
    lines = [f"{name}: {said}" for name, said in _lines(traffic).items() if said]
    lines += [f"warning: {note.message}" for note in traffic.warnings]
    if not view.quiet:
        lines += [f"note: {note.message}" for note in traffic.notes]
    return "\n".join([*parts, view.paragraphs(lines)])


def comparison_text(comparison: Comparison, view: View) -> str:
    """The settings side by side."""
    told = [setting.traffic for setting in comparison.settings if setting.traffic is not None]
    names = tuple(comparison.settings[0].changed) if comparison.settings else ()
    limited = any(traffic.goodput is not None for traffic in told)
    shown = [name for name in _COMPARED if limited or name != _WITHIN]
    rows = [
        [*setting.changed.values(), *("" if setting.traffic is None else _COMPARED[name](setting.traffic) for name in shown)]
        for setting in comparison.settings
    ]
    head = [_head(told[0], compared=True)] if told else []
    errors = [
        f"{', '.join(f'{name}={value}' for name, value in setting.changed.items())}: {setting.error}"
        for setting in comparison.settings
        if setting.error is not None
    ]
    warned = list(dict.fromkeys(note.message for traffic in told for note in traffic.warnings))
    limits = [f"limits: {_limits(told[0].goodput.limits)}"] if told and told[0].goodput is not None else []
    header = (*names, *shown)
    parts = [view.paragraphs(head), view.table(header, rows, right=range(len(names), len(header)))]
    said = [*limits, *errors, *(f"warning: {message}" for message in warned)]
    if not view.quiet:
        # Other notes are those of a replay alone.
        said += dict.fromkeys(
            f"note: {note.message}" for traffic in told for note in traffic.notes if note.code in ("cut", "workload")
        )
    return "\n".join([*parts, *([view.paragraphs(said)] if said else [])])


def tuning_text(tuning: Tuning, view: View) -> str:
    """The best settings side by side, what was tried, and the command that starts the best."""
    from hwcalc.replay.tune import ENGINES_OWN, NOT_IN_COMMAND

    names = [name for name, values in tuning.searched.items() if len(values) > 1]
    header = (*names, "goodput/GPU", *_TUNED, "alike")
    rows = [
        [
            *(trial.changed.get(name, ENGINES_OWN) for name in names),
            f"{trial.goodput_per_gpu:,.3g}/s",
            *(told(trial.traffic) for told in _TUNED.values()),
            f"+{trial.alike:,}" if trial.alike else "",
        ]
        for trial in tuning.best
    ]
    best, own = tuning.best[0], tuning.default
    found = f"{best.goodput_per_gpu:,.3g} requests a second of each GPU within the limits"
    if not tuning.holds:
        found = f"nothing holds; the nearest has {_COMPARED[_WITHIN](best.traffic)} of the requests within the limits"
    found += "" if best.excess is None else f"; at p95, the longest time is {_three_digits(best.excess)} times its limit"
    left_out = {
        "do not start": sum(tuning.dropped.values()),
        "are the same as others": tuning.same,
        "are too slow for one request alone": tuning.too_slow,
        "have more GPUs than can pay off": tuning.too_large,
        "have a worse forecast": tuning.left_out,
    }
    tried = "".join(f"{number:,} {words}, " for words, number in left_out.items() if number)
    lines = {
        "limits": f"{_limits(tuning.limits)}, for {share_text(tuning.share)} of the requests",
        "searched": "; ".join(f"{name} {', '.join(tuning.searched[name])}" for name in names),
        "best": found,
        "all default": ""
        if own is None
        else f"{own.goodput_per_gpu:,.3g} requests a second of each GPU within the limits, {_COMPARED[_WITHIN](own.traffic)} of all",
        "settings": f"{tuning.settings:,}: {tried}{tuning.replayed:,} {'was' if tuning.replayed == 1 else 'were'} replayed",
        "work": f"as much as {_three_digits(tuning.work)} {'replay' if tuning.work == 1 else 'replays'} of all requests "
        f"(--budget {tuning.budget:,} for each number of GPUs)",
    }
    said = [f"{name}: {text}" for name, text in lines.items() if text]
    said += [f"warning: {note.message}" for note in best.traffic.warnings]
    if not view.quiet:
        said.insert(0, _TUNED_COLUMNS)
        said += [f"{plural(number, 'setting')}: {reason}" for reason, number in tuning.dropped.items()]
    said += [f"note: {note.message}" for note in tuning.notes if not view.quiet or note.code == NOT_IN_COMMAND]
    head = _head(replace(best.traffic, gpu=None) if "gpu" in names else best.traffic, compared=True)
    start = [view.command("start" if tuning.holds else "nearest", tuning.command)] if tuning.command else []
    table, dropped = listed(view, header, rows, _LESS, right=range(len(names), len(header)))
    return "\n".join([view.paragraphs([head]), table, view.paragraphs([*dropped, *said]), *start])


def _head(traffic: Traffic, *, compared: bool = False) -> str:
    hardware = "" if traffic.gpu is None else f" on {traffic.gpu}"
    replicas = "" if traffic.replicas == 1 or compared else f", {traffic.replicas:,} replicas"
    if traffic.prefill is not None and not compared:
        replicas = f", {plural(traffic.prefill.replicas, 'server')} for prompts and {traffic.replicas:,} for tokens"
    served = f"{traffic.engine} {traffic.engine_version or ''}".strip()
    if compared:
        return f"{traffic.model}, {served}{hardware}: {plural(traffic.requests, 'request')} of {traffic.workload}"
    done = f"{traffic.finished:,} of {plural(traffic.requests, 'request')} of {traffic.workload}"
    return f"{traffic.model}, {served}{hardware}{replicas}: {done} in {plural(traffic.totals['model_steps'], 'step')}"


def _lines(traffic: Traffic) -> dict[str, str]:
    """Lines behind the table, by name; empty for what it does not have."""
    totals, throughput, goodput = traffic.totals, traffic.throughput, traffic.goodput
    sizes, unit = traffic.settings.get("block_size") or (), traffic.unit
    peak = totals[f"peak_used_{unit}"]
    of_tokens = f" of {', '.join(f'{size:,}' for size in dict.fromkeys(sizes))} tokens" if sizes else ""
    each = " each" if traffic.replicas > 1 else ""
    rate = "" if goodput is None or goodput.requests_per_s is None else f", {goodput.requests_per_s:,.3g} requests a second"
    prompts = traffic.prefill
    return {
        "prompts": ""
        if prompts is None
        else f"{plural(prompts.replicas, 'server')}{'' if prompts.gpu is None else f' on {prompts.gpu}'}, computed after "
        f"{_p95(prompts.computed, traffic)} (p95), pool of {prompts.capacity:,} {unit}, at most "
        f"{prompts.totals[f'peak_used_{unit}']:,} in use",
        "pool": f"{traffic.capacity:,} {unit}{of_tokens}{each}, at most {peak:,} in use",
        "prefix cache": f"{share_text(traffic.hit_share)} of the looked-up tokens found"
        if traffic.hit_share is not None
        else "not known"
        if any(note.code == "prefixes-unknown" for note in traffic.notes)
        else "",
        "preemptions": f"{totals['preemptions']:,}" if totals["preemptions"] else "none",
        "throughput": ""
        if throughput is None
        else f"{throughput.requests_per_s:,.3g} requests and {throughput.output_tokens_per_s:,.0f} output tokens a second, "
        f"over {_time(throughput.duration_s, 'seconds')}",
        "within limits": ""
        if goodput is None
        else f"{share_text(goodput.share)} of the requests ({_limits(goodput.limits)}){rate}",
        "cancelled": f"{totals['cancelled']:,}" if totals["cancelled"] else "",
    }


def _limits(limits: Limits) -> str:
    named = {"first token": limits.ttft, "each further token": limits.itl, "whole answer": limits.e2e}
    return ", ".join(f"{name} {_time(value, 'seconds')}" for name, value in named.items() if value is not None)


def _p95(spread: Spread | None, traffic: Traffic) -> str:
    return "" if spread is None else _time(spread.p95, traffic.clock)


def _three_digits(value: float) -> str:
    """A number with three digits, without a power of ten.

    >>> _three_digits(0.19512), _three_digits(2.0), _three_digits(2_233_456.7)
    ('0.195', '2', '2,230,000')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _time(value: float, clock: str) -> str:
    """A time with three digits; steps as they are.

    >>> _time(0.0123, "seconds"), _time(75.0, "seconds"), _time(12.0, "steps")
    ('12.3 ms', '75 s', '12 steps')
    """
    return f"{value:,.4g} steps" if clock == "steps" else human_duration(value)

"""Prefill and decode apart, as text, Markdown or CSV."""

from __future__ import annotations

from typing import Final

from hwcalc.model import Definition
from hwcalc.planner.apart import Apart, SideInfo
from hwcalc.planner.verdict import layout_text
from hwcalc.planner.within_result import TimeInfo
from hwcalc.report.text import plural
from hwcalc.report.view import View
from hwcalc.report.within import limit_word
from hwcalc.units import human_bytes, human_duration

_HEADER: Final = ("pool", "servers", "each", "a step", "at once", "requests/s", "slow end", "limit")
_LIMITS: Final = {"time": "the time that prompts take"}


def apart_text(found: Apart, view: View) -> str:
    """Text: what both pools serve, the pools, the same GPUs in one."""
    version = f" {found.engine_version}" if found.engine_version else ""
    cached = f" ({found.cached_tokens:,} cached)" if found.cached_tokens else ""
    of = f"prompt of {found.prompt_tokens:,} tokens{cached}, output of {found.output_tokens:,}"
    head = f"{found.model}: {of}, {found.engine}{version}, prefill and decode apart"
    slower = {"prefill": "the pool for prompts", "decode": "the pool for tokens"}[found.limiting]
    said = (
        f"{found.requests_per_s:,.3g} requests/s ({found.requests_per_s_low:,.3g} at the slow end) on {plural(found.gpus, 'GPU')}, "
        f"{found.output_tokens_per_s:,.0f} tokens/s; limit: {slower}"
        if found.requests_per_s
        else f"no requests are served within the limits, by any number of servers: {slower} cannot keep them"
    )
    rows = [_row("prompts", found.prefill), _row("tokens", found.decode)]
    moved = found.transfer
    each = f"each: {human_duration(found.ttft_s)} to the first token, {human_duration(found.itl_s)} between tokens, {human_duration(found.e2e_s)} in all."
    lines = [each] if found.requests_per_s else []
    lines.append(
        f"transfer: {human_bytes(moved.bytes_per_gpu)} on the fullest GPU over {moved.link}, {moved.gbps:,.3g} GB/s: {human_duration(moved.seconds)}."
    )
    if found.together is not None and found.requests_per_s:
        one = found.together
        lines.append(
            f"together: as many GPUs in {plural(one.servers, 'server')} that do both serve {one.requests_per_s:,.3g} requests/s, "
            f"{one.users:,} users at once each (limit: {limit_word(one.limiting)})."
        )
    lines += (
        []
        if view.quiet
        else [
            f"speeds: {'fitted to measurements of ' if found.definition == Definition.ESTIMATE else ''}{found.source}.",
            *(note.message for note in found.notes),
        ]
    )
    return "\n".join([view.paragraphs([head, said]), view.table(_HEADER, rows, right=(1, 3, 4, 5, 6)), view.paragraphs(lines)])


def _row(name: str, side: SideInfo) -> list[str]:
    gpus = side.tp * side.pp * side.dp
    layout = layout_text(side)
    each = f"{gpus:,} x {side.gpu}" + (f", {layout}" if layout else "")
    users = "" if side.users is None else f"{side.users:,}"
    limit = _LIMITS.get(side.limiting, limit_word(side.limiting))
    return [
        name,
        f"{side.servers:,}",
        each,
        _time(side.step_s),
        users,
        f"{side.requests_per_s:,.3g}",
        f"{side.requests_per_s_low:,.3g}",
        limit,
    ]


def _time(one: TimeInfo) -> str:
    return f">= {human_duration(one.bound)}" if one.expected is None else human_duration(one.expected)

"""``kvplan strategies`` as text: the strategies side by side, other heads, pairs of tokens, and one strategy explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.library.strategies_explained import strategy_section
from hwcalc.library.symbols import symbols_in
from hwcalc.report.explain_lines import figure_lines
from hwcalc.report.markdown import escaped
from hwcalc.report.rows import csv_text, listing
from hwcalc.report.text import parameters, plural
from hwcalc.text import TIMES, clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import HeadChoice, PairCounts, Strategies, Strategy

__all__ = ["operations", "strategies_csv", "strategies_text", "strategy_text"]

_POWERS: Final = ("", "K", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
_HEADER: Final = ("strategy", "when full", "now", "wasted now", "at most", "peak", "last step", "all steps")
_HEADS: Final = ("heads", "key/value heads", "when full", "of its own", "parameters")
_BOUND: Final = "\N{GREATER-THAN OR EQUAL TO} "


def operations(count: int) -> str:
    """Operations with three digits and a power of 1,000.

    >>> operations(999), operations(137_856_655_360), operations(10**40)
    ('999 FLOP', '138 GFLOP', '1e+40 FLOP')
    """
    power, scaled = 0, float(count)
    while scaled >= 999.5 and power < len(_POWERS) - 1:
        scaled, power = scaled / 1000, power + 1
    if scaled >= 999.5:
        return f"{float(count):.3g} FLOP"
    return f"{scaled:.3g} {_POWERS[power]}FLOP"


def strategies_text(found: Strategies, *, format_: str, color: bool, width: int, quiet: bool) -> str:
    """All strategies; behind them what each trades, other heads and pairs of tokens."""
    timed = any(one.step_s_bound is not None for one in found.strategies)
    header = (*_HEADER, *(("a step takes",) if timed else ()))
    rows = [_row(one, timed=timed) for one in found.strategies]
    parts = [
        _head(found, format_),
        listing(header, rows, format_=format_, right=range(1, len(header)), color=color, width=width),
    ]
    if not quiet:
        told = [(one.name, one.title, one.trades, one.used_by) for one in found.strategies]
        parts.append(listing(("strategy", "what", "trades", "used by"), told, format_=format_, color=color, width=width))
    if found.heads:
        heads = [_head_row(one) for one in found.heads]
        parts.append(listing(_HEADS, heads, format_=format_, right=(1, 2, 3, 4), color=color, width=width))
    parts.append(_lines(_tail(found, quiet=quiet), format_))
    return "\n".join(parts)


def strategy_text(found: Strategies, *, format_: str, width: int, color: bool) -> str:
    """The strategies of the answer, each figure with its formula and numbers."""
    parts = [_head(found, format_)]
    for one in found.strategies:
        section = strategy_section(one)
        rows: list[tuple[str, str]] = []
        for name, lines, _ in figure_lines(section.figures):
            rows += [(name if not number else "", line) for number, line in enumerate(lines)]
        symbols = symbols_in(figure.formula for figure in section.figures)
        meanings = [(symbol.name, symbol.meaning) for symbol in symbols]
        parts += [
            _lines([f"{section.title}: {section.about}"], format_),
            listing(("figure", "how"), rows, format_=format_, color=color, width=width),
            listing(("symbol", "meaning"), meanings, format_=format_, color=color, width=width),
            _lines(section.remarks, format_),
        ]
    return "\n".join(parts)


def strategies_csv(found: Strategies) -> str:
    """A row for each strategy, with its request; all numbers are whole and exact."""
    common = {
        "model": found.model,
        "engine": found.engine,
        "engine_version": found.engine_version or "",
        "seq": found.seq,
        "batch": found.batch,
        "prompt": found.prompt,
        "kv_dtype": found.kv_dtype,
        "block_size": found.block_size,
        "lengths": found.lengths,
        "needed_bytes": found.needed_bytes,
    }
    rows = found.records()
    return csv_text((*common, *rows[0]), ([*common.values(), *row.values()] for row in rows))


def _head(found: Strategies, format_: str) -> str:
    engine = "" if found.engine == "reference" else f", {found.engine} {found.engine_version or ''}".rstrip()
    gpu = "" if found.gpu is None else f", {found.gpu}"
    encoder = f", {found.encoder_seq:,} encoder tokens" if found.encoder_seq else ""
    first = (
        f"{found.model}: {plural(found.batch, 'sequence')} of up to {found.seq:,} tokens, prompt {found.prompt:,}{encoder}, "
        f"KV dtype {found.kv_dtype}, blocks of {found.block_size:,}{engine}{gpu}"
    )
    return _lines([first, f"now: {found.lengths}; they need {human_bytes(found.needed_bytes)}"], format_)


def _row(one: Strategy, *, timed: bool) -> tuple[str, ...]:
    full = (
        human_bytes(one.full_bytes)
        if not one.host_bytes
        else f"{human_bytes(one.full_bytes)} + {human_bytes(one.host_bytes)} host"
    )
    step, total = one.flops_per_step, one.total_flops
    row = (
        one.name,
        full,
        _size(one.held_bytes),
        _size(one.wasted_bytes),
        _size(one.most_wasted_bytes),
        (_BOUND if one.peak_definition == "bound" else "") + human_bytes(one.peak_bytes),
        operations(one.attention_flops_per_step if step is None else step),
        operations(one.attention_total_flops if total is None else total),
    )
    if not timed:
        return row
    return (*row, "" if one.step_s_bound is None else f"{_BOUND}{_seconds(one.step_s_bound)}")


def _size(size: int | None) -> str:
    return "" if size is None else human_bytes(size)


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def _head_row(one: HeadChoice) -> tuple[str, ...]:
    difference = one.parameters_difference
    words = "" if difference is None else "its own" if one.own else "the same" if not difference else _signed(difference)
    heads = "" if one.num_key_value_heads is None else f"{one.num_key_value_heads:,}"
    return (one.name, heads, human_bytes(one.full_bytes), f"{one.share:,.4g} {TIMES}", words)


def _signed(count: int) -> str:
    return f"{'+' if count > 0 else '-'}{parameters(abs(count))}"


def _tail(found: Strategies, *, quiet: bool) -> list[str]:
    if quiet:
        return []
    lines = _pair_lines(found.pairs)
    copied = next((one for one in found.strategies if one.copied_bytes), None)
    if copied is not None:
        lines.append(f"copies: growing writes {human_bytes(copied.copied_bytes)} in all.")
    moved = next((one for one in found.strategies if one.bus_bytes_per_step), None)
    if moved is not None:
        link = found.host_link
        time = (
            ""
            if link is None or moved.bus_s_bound is None
            else f", {_seconds(moved.bus_s_bound)} at least over {link.name} ({link.gbps:.1f} GB/s)"
        )
        lines.append(
            f"bus: offloading moves {human_bytes(moved.bus_bytes_per_step)} to the device in a step, and as much back{time}."
        )
    return [*lines, *(clean(note.message) for note in found.notes), "how a number comes about: --explain pages"]


def _pair_lines(pairs: PairCounts) -> list[str]:
    since = "the first token on" if pairs.prompt == 1 else f"a prompt of {pairs.prompt:,} on"
    line = (
        f"pairs of tokens in a layer of full attention, from {since} to {pairs.tokens:,}: {pairs.recomputed:,} without a cache "
        f"({pairs.recomputed_scores:,} scores, if a pass makes whole squares), {pairs.cached:,} with one. "
        f"Often quoted: n^3 = {pairs.quoted_recomputed:,} and n^2 = {pairs.quoted_cached:,}."
    )
    return [line]


def _lines(lines: Sequence[str], format_: str) -> str:
    if format_ == "markdown":
        return "".join(f"{escaped(line)}\n\n" for line in lines)
    return "".join(f"{clean(line)}\n" for line in lines)

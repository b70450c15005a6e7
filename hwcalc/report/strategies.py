"""``kvplan strategies`` as text: the strategies side by side, other heads, pairs of tokens, and one strategy explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines import DEFAULT
from hwcalc.library.explained import symbols_in
from hwcalc.library.strategies import strategy_section
from hwcalc.report.drawing import listing
from hwcalc.report.explain import figure_lines
from hwcalc.report.text import csv_text, escaped, parameters, plural
from hwcalc.text import TIMES, clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import HeadChoice, PairCounts, Strategies, Strategy

_POWERS: Final = ("", "K", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
_BYTES: Final = ("strategy", "when full", "now", "wasted now", "most wasted", "peak")
_COST: Final = ("on host", "last step", "all steps")
_HEADS: Final = ("heads", "key/value heads", "when full", "of its own", "parameters")
_BETWEEN: Final = 2
"""Blanks between two columns."""
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
    header = (*_BYTES, *_COST, *(("a step takes",) if timed else ()))
    tables = [(header, [_row(one, timed=timed) for one in found.strategies], len(_BYTES))]
    if found.heads:
        tables.append((_HEADS, [_head_row(one) for one in found.heads], len(_HEADS)))
    listed = [
        listing(part[0], part[1:], format_=format_, right=range(1, len(part[0])), color=color, width=width)
        for titles, rows, together in tables
        for part in (_parted([titles, *rows], together, width) if format_ == "table" else [[titles, *rows]])
    ]
    parts = [_head(found, format_, width), *listed]
    if not quiet:
        told = [(one.name, f"{one.title}; {one.trades} ({one.used_by})") for one in found.strategies]
        parts.append(listing(("strategy", "what it trades (who does it)"), told, format_=format_, color=color, width=width))
    parts.append(_lines(_tail(found, quiet=quiet), format_, width))
    return "\n".join(parts)


def _parted(rows: Sequence[Sequence[str]], together: int, width: int) -> list[list[tuple[str, ...]]]:
    """The table as it is if it fits; else the first ``together`` columns, then the others, each table as wide as there is room.

    >>> _parted([("name", "bytes", "cost"), ("a", "10 B", "1 s")], 2, 12)
    [[('name', 'bytes'), ('a', '10 B')], [('name', 'cost'), ('a', '1 s')]]
    """
    sizes = [max(map(len, column)) + _BETWEEN for column in zip(*rows, strict=True)]
    if sum(sizes) - _BETWEEN <= width:
        return [[tuple(row) for row in rows]]
    places: list[list[int]] = []
    for place in range(1, len(sizes)):
        taken = sizes[0] + sum(sizes[one] for one in places[-1]) if places else 0
        if not places or place == together or taken + sizes[place] - _BETWEEN > width:
            places.append([])
        places[-1].append(place)
    return [[(row[0], *(row[one] for one in part)) for row in rows] for part in places]


def strategy_text(found: Strategies, *, format_: str, width: int, color: bool) -> str:
    """The strategies of the answer, each figure with its formula and numbers."""
    parts = [_head(found, format_, width)]
    for one in found.strategies:
        section = strategy_section(one)
        rows: list[tuple[str, str]] = []
        for name, lines, _ in figure_lines(section.figures):
            rows += [(name if not number else "", line) for number, line in enumerate(lines)]
        symbols = symbols_in(figure.formula for figure in section.figures)
        meanings = [(symbol.name, symbol.meaning) for symbol in symbols]
        parts += [
            _lines([f"{section.title}: {section.about}"], format_, width),
            listing(("figure", "how"), rows, format_=format_, color=color, width=width),
            listing(("symbol", "meaning"), meanings, format_=format_, color=color, width=width),
            _lines(section.remarks, format_, width),
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


def _head(found: Strategies, format_: str, width: int) -> str:
    engine = "" if found.engine == DEFAULT else f", {found.engine} {found.engine_version or ''}".rstrip()
    gpu = "" if found.gpu is None else f", {found.gpu}"
    encoder = f", {found.encoder_seq:,} encoder tokens" if found.encoder_seq else ""
    first = (
        f"{found.model}: {plural(found.batch, 'sequence')} of up to {found.seq:,} tokens, prompt {found.prompt:,}{encoder}, "
        f"KV dtype {found.kv_dtype}, blocks of {found.block_size:,}{engine}{gpu}"
    )
    return _lines([first, f"now: {found.lengths}; they need {human_bytes(found.needed_bytes)}"], format_, width)


def _row(one: Strategy, *, timed: bool) -> tuple[str, ...]:
    step, total = one.flops_per_step, one.total_flops
    row = (
        one.name,
        human_bytes(one.full_bytes),
        _size(one.held_bytes),
        _size(one.wasted_bytes),
        _size(one.most_wasted_bytes),
        (_BOUND if one.peak_definition == "bound" else "") + human_bytes(one.peak_bytes),
        human_bytes(one.host_bytes) if one.host_bytes else "",
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
    return [
        *lines,
        *(clean(note.message) for note in found.notes),
        "other lengths now: --fill 30% or --lengths 1k,2k,8k; how a number comes about: --explain pages",
    ]


def _pair_lines(pairs: PairCounts) -> list[str]:
    since = "the first token on" if pairs.prompt == 1 else f"a prompt of {pairs.prompt:,} on"
    line = (
        f"pairs of tokens in a layer of full attention, from {since} to {pairs.tokens:,}: {pairs.recomputed:,} without a cache "
        f"({pairs.recomputed_scores:,} scores, if a pass makes whole squares), {pairs.cached:,} with one. "
        f"Often quoted: n^3 = {pairs.quoted_recomputed:,} and n^2 = {pairs.quoted_cached:,}."
    )
    return [line]


def _lines(lines: Sequence[str], format_: str, width: int) -> str:
    from textwrap import fill

    if format_ == "markdown":
        return "".join(f"{escaped(line)}\n\n" for line in lines)
    filled = (fill(clean(line), width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False) for line in lines)
    return "".join(f"{line}\n" for line in filled)

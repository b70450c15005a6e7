"""``kvplan strategies`` as text: the strategies side by side, other heads, pairs of tokens, and one strategy explained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines import DEFAULT
from hwcalc.library.explained import symbols_in
from hwcalc.library.strategies import strategy_section
from hwcalc.report.columns import GAP
from hwcalc.report.explain import figure_lines
from hwcalc.report.text import csv_text, escaped, parameters, plural
from hwcalc.report.view import View
from hwcalc.text import TIMES, clean
from hwcalc.units import human_bytes, human_duration

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import HeadChoice, Strategies, Strategy

_POWERS: Final = ("", "K", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
_BYTES: Final = ("strategy", "when full", "now", "wasted now", "most wasted", "peak")
_COST: Final = ("on host", "last step", "all steps")
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


def strategies_text(answer: Strategies, view: View) -> str:
    """All strategies; behind them what each trades, other heads and pairs of tokens."""
    timed = any(strategy.step_s_bound is not None for strategy in answer.strategies)
    header = (*_BYTES, *_COST, *(("a step takes",) if timed else ()))
    tables = [([header, *(_row(strategy, timed=timed) for strategy in answer.strategies)], len(_BYTES))]
    if answer.heads:
        tables.append(([_HEADS, *map(_head_row, answer.heads)], len(_HEADS)))
    parts = [_head(answer, view)]
    for rows, together in tables:
        listed = _parted(rows, together, view.width) if view.format == "table" else [rows]
        parts += [view.table(part[0], part[1:], right=range(1, len(part[0]))) for part in listed]
    if not view.quiet:
        told = [(strategy.name, f"{strategy.title}; {strategy.trades} ({strategy.used_by})") for strategy in answer.strategies]
        parts.append(view.table(("strategy", "what it trades (who does it)"), told))
    parts.append(_lines([] if view.quiet else _tail(answer), view))
    return "\n".join(parts)


def _parted(rows: Sequence[tuple[str, ...]], together: int, width: int) -> list[list[tuple[str, ...]]]:
    """The table as it is if it fits; else the first ``together`` columns, then the others, each table as wide as there is room.

    >>> _parted([("name", "bytes", "cost"), ("a", "10 B", "1 s")], 2, 12)
    [[('name', 'bytes'), ('a', '10 B')], [('name', 'cost'), ('a', '1 s')]]
    """
    sizes = [max(map(len, column)) + GAP for column in zip(*rows, strict=True)]
    if sum(sizes) - GAP <= width:
        return [list(rows)]
    places: list[list[int]] = []
    for place in range(1, len(sizes)):
        taken = sizes[0] + sum(sizes[column] for column in places[-1]) if places else 0
        if not places or place == together or taken + sizes[place] - GAP > width:
            places.append([])
        places[-1].append(place)
    return [[(row[0], *(row[column] for column in part)) for row in rows] for part in places]


def strategy_text(answer: Strategies, view: View) -> str:
    """The strategies of the answer, each figure with its formula and numbers."""
    parts = [_head(answer, view)]
    for strategy in answer.strategies:
        section = strategy_section(strategy)
        rows: list[tuple[str, str]] = []
        for name, lines, _ in figure_lines(section.figures):
            rows += [(name if not number else "", line) for number, line in enumerate(lines)]
        symbols = symbols_in(figure.formula for figure in section.figures)
        parts += [
            _lines([f"{section.title}: {section.about}"], view),
            view.table(("figure", "how"), rows),
            view.table(("symbol", "meaning"), [(symbol.name, symbol.meaning) for symbol in symbols]),
            _lines(section.remarks, view),
        ]
    return "\n".join(parts)


def strategies_csv(answer: Strategies) -> str:
    """A row for each strategy, with its request; all numbers are whole and exact."""
    names = ("model", "engine", "engine_version", "seq", "batch", "prompt", "kv_dtype", "block_size", "lengths", "needed_bytes")
    request = [getattr(answer, name) for name in names]
    rows = answer.records()
    return csv_text((*names, *rows[0]), ([*request, *row.values()] for row in rows))


def _head(answer: Strategies, view: View) -> str:
    """The model, what was asked, and the lengths that sequences have now."""
    engine = "" if answer.engine == DEFAULT else f", {answer.engine} {answer.engine_version or ''}".rstrip()
    gpu = "" if answer.gpu is None else f", {answer.gpu}"
    encoder = f", {answer.encoder_seq:,} encoder tokens" if answer.encoder_seq else ""
    first = (
        f"{answer.model}: {plural(answer.batch, 'sequence')} of up to {answer.seq:,} tokens, prompt {answer.prompt:,}{encoder}, "
        f"KV dtype {answer.kv_dtype}, blocks of {answer.block_size:,}{engine}{gpu}"
    )
    return _lines([first, f"now: {answer.lengths}; they need {human_bytes(answer.needed_bytes)}"], view)


def _row(strategy: Strategy, *, timed: bool) -> tuple[str, ...]:
    step = strategy.attention_flops_per_step if strategy.flops_per_step is None else strategy.flops_per_step
    total = strategy.attention_total_flops if strategy.total_flops is None else strategy.total_flops
    now = (
        "" if size is None else human_bytes(size)
        for size in (strategy.held_bytes, strategy.wasted_bytes, strategy.most_wasted_bytes)
    )
    peak = (_BOUND if strategy.peak_definition == "bound" else "") + human_bytes(strategy.peak_bytes)
    host = human_bytes(strategy.host_bytes) if strategy.host_bytes else ""
    row = (strategy.name, human_bytes(strategy.full_bytes), *now, peak, host, operations(step), operations(total))
    if not timed:
        return row
    return (*row, "" if strategy.step_s_bound is None else f"{_BOUND}{human_duration(strategy.step_s_bound)}")


def _head_row(choice: HeadChoice) -> tuple[str, ...]:
    difference = choice.parameters_difference
    words = ""
    if difference is not None:
        more = f"{'+' if difference > 0 else '-'}{parameters(abs(difference))}"
        words = "its own" if choice.own else more if difference else "the same"
    heads = "" if choice.num_key_value_heads is None else f"{choice.num_key_value_heads:,}"
    return (choice.name, heads, human_bytes(choice.full_bytes), f"{choice.share:,.4g} {TIMES}", words)


def _tail(answer: Strategies) -> list[str]:
    """Pairs of tokens, copies, what moves over the bus, notes, and what to type next."""
    pairs = answer.pairs
    since = "the first token on" if pairs.prompt == 1 else f"a prompt of {pairs.prompt:,} on"
    without = f"{pairs.recomputed:,} without a cache ({pairs.recomputed_scores:,} scores, if a pass makes whole squares)"
    quoted = f"Often quoted: n^3 = {pairs.quoted_recomputed:,} and n^2 = {pairs.quoted_cached:,}."
    counts = f"from {since} to {pairs.tokens:,}: {without}, {pairs.cached:,} with one. {quoted}"
    lines = [f"pairs of tokens in a layer of full attention, {counts}"]
    copied = next((strategy for strategy in answer.strategies if strategy.copied_bytes), None)
    if copied is not None:
        lines.append(f"copies: growing writes {human_bytes(copied.copied_bytes)} in all.")
    moved = next((strategy for strategy in answer.strategies if strategy.bus_bytes_per_step), None)
    if moved is not None:
        link, time = answer.host_link, ""
        if link is not None and moved.bus_s_bound is not None:
            time = f", {human_duration(moved.bus_s_bound)} at least over {link.name} ({link.gbps:.1f} GB/s)"
        moves = f"moves {human_bytes(moved.bus_bytes_per_step)} to the device in a step, and as much back{time}"
        lines.append(f"bus: offloading {moves}.")
    lines += [clean(note.message) for note in answer.notes]
    return [*lines, "other lengths now: --fill 30% or --lengths 1k,2k,8k; how a number comes about: --explain pages"]


def _lines(lines: Iterable[str], view: View) -> str:
    """Paragraphs, which Markdown sets apart by blank lines."""
    if view.format == "markdown":
        return "".join(f"{escaped(line)}\n\n" for line in lines)
    return view.paragraphs(lines)

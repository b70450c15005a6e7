"""The models that run on a GPU as a table, Markdown or CSV, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.planner.runnables import Runnable, Runnables
from hwcalc.report.drawing import PIPED_WIDTH
from hwcalc.report.listing import csv_text, listing
from hwcalc.report.text import escaped, filled, how_many, parameters, plural
from hwcalc.text import clean
from hwcalc.units import GIB

_CSV_COLUMNS: Final = (
    "id", "family", "source", "modality", "parameters", "active_parameters", "released", "weights", "file_type", "weights_bytes", "seq", "batch",
    "kv_dtype", "cache_bytes", "needed_bytes", "usable_bytes", "headroom_bytes", "max_seq", "expected_max_seq", "max_position_embeddings", "verdict", "gpu_layers", "all_layers",
    "host_bytes", "host_experts", "decode_tokens_per_s_bound", "bound_by", "command",
)  # fmt: skip
_WORDS: Final = ("model", "format", "fits")
_EXPENDABLE: Final = ("free", "KV", "fits", "parameters")
"""Columns that are left out where the terminal is too narrow, in this order."""
_EXPENDABLE_SPLIT: Final = ("free", "KV", "parameters", "weights")
"""The same where a part of some model lies on the host, which the last column says."""


def fit_csv(runnables: Runnables) -> str:
    """One row for each model. Numbers have no separators; an empty cell is unknown."""
    return csv_text(_CSV_COLUMNS, ([getattr(row, name) for name in _CSV_COLUMNS] for row in runnables.models))


def fit_text(
    runnables: Runnables, *, format_: str = "table", color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False
) -> str:
    """What was asked, the models, and what was left out and why. ``quiet`` leaves only the first two."""
    blocks = [_lines([_asked(runnables)], format_, width)]
    if runnables.models:
        blocks.append(_table(runnables.models, format_=format_, color=color, width=width))
    else:
        blocks.append(_lines(["Nothing runs on it."], format_, width))
    lines = [f"{one.id}: {one.message}" for one in runnables.unread]
    if not quiet:
        lines = [*_meaning(runnables), *lines, *left_out(runnables), *(note.message for note in runnables.notes)]
    if lines:
        blocks.append(_lines(lines, format_, width))
    if runnables.models and not quiet:
        blocks.append(_next(runnables.models[0].command, format_, width))
    return "\n".join(blocks)


def _next(command: str, format_: str, width: int) -> str:
    """What to type next. Over several lines a shell still reads it as one command; one with quoted words is left as it is."""
    if format_ == "markdown":
        ticks = "``" if "`" in command else "`"
        return f"- plan one: {ticks}{command}{ticks}\n"
    line = f"plan one: {command}"
    if len(line) <= width or "'" in command:
        return f"{line}\n"
    lines = [""]
    for part in command.split(" --"):
        word = f"--{part}" if lines[-1] else part
        if lines[-1] and len(lines[-1]) + len(word) + 5 > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "plan one:\n  " + " \\\n    ".join(lines) + "\n"


def left_out(runnables: Runnables) -> list[str]:
    """What is not listed, and why."""
    out = []
    if runnables.more:
        out.append(f"{runnables.more:,} more run: --all --limit 0 lists each, --family F those of one family.")
    for count, why in (
        (runnables.too_large, "do not fit"),
        (runnables.short, f"are made for fewer than {runnables.seq:,} tokens"),
        (runnables.refused, f"{runnables.engine} does not run, or their size is not known"),
        (runnables.slow, "are slower by the bound"),
    ):
        if count:
            out.append(f"{count:,} of {runnables.considered:,} {why}.")
    return out


def _asked(runnables: Runnables) -> str:
    engine = " ".join(filter(None, (runnables.engine, runnables.engine_version)))
    usable = "" if runnables.usable_bytes is None else f", {runnables.usable_bytes / GIB:,.2f} GiB may be used"
    what = f"{plural(runnables.batch, 'sequence')} of {plural(runnables.seq, 'token')}"
    return f"{runnables.gpus:,} x {runnables.gpu}{usable}: {what}, {engine}, {' and '.join(runnables.sources)}"


def _lines(lines: Sequence[str], format_: str, width: int) -> str:
    """Lines as a Markdown list, or as paragraphs with a hanging indent."""
    if format_ == "markdown":
        return "".join(f"- {escaped(line)}\n" for line in lines)
    how = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    return "".join(f"{filled(clean(line), width, **how)}\n" for line in lines)


def _table(rows: Sequence[Runnable], *, format_: str, color: bool, width: int) -> str:
    header = ["model", "parameters", "format", "weights", "KV", "total", "free", "max seq", "tok/s", "fits"]
    lines = [_row(row) for row in rows]
    split = any(not row.whole for row in rows)
    for title in _EXPENDABLE_SPLIT if split else _EXPENDABLE:
        if format_ != "table" or _width([header, *lines]) <= width:
            break
        place = header.index(title)
        header, *lines = ([*line[:place], *line[place + 1 :]] for line in (header, *lines))
    right = [place for place, title in enumerate(header) if title not in _WORDS]
    return listing(header, lines, format_=format_, right=right, color=color, width=width)


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Characters of a line, with two blanks between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2


def _row(row: Runnable) -> list[str]:
    also = f" and {len(row.also):,} more" if row.also else ""
    return [
        f"{row.id}{also}",
        "" if row.parameters is None else parameters(row.parameters),
        row.weights or row.file_type or "as published",
        _gib(row.weights_bytes),
        _gib(row.cache_bytes),
        _gib(row.needed_bytes),
        _gib(max(0, row.headroom_bytes)),
        _longest(row),
        _rate(row.decode_tokens_per_s_bound),
        row.verdict.text if row.whole else _parts(row),
    ]


def _longest(row: Runnable) -> str:
    """The longest for sure; what is expected where nothing is sure."""
    if row.max_seq:
        return how_many(row.max_seq)
    return f"~{how_many(row.expected_max_seq)}" if row.expected_max_seq else "-"


def _parts(row: Runnable) -> str:
    """How much of a model lies on the GPU: layers, or all of them without the experts of some."""
    if row.gpu_layers == row.all_layers:
        return f"experts of {row.host_experts:,} on host"
    return f"{row.gpu_layers:,} of {row.all_layers:,} layers"


def _meaning(runnables: Runnables) -> list[str]:
    """What the columns say."""
    if not runnables.models:
        return []
    # Of a machine without a GPU there is nothing but the host.
    alone = all(row.gpu_layers is None and row.host_bytes is not None for row in runnables.models)
    where = "host memory" if alone else "the GPU"
    out = [f"GiB of {where}; max seq is the longest that surely fits; tok/s is a bound that no engine is faster than."]
    if not all(row.max_seq for row in runnables.models):
        out.append("max seq with ~: expected, not sure, as the memory that the host has is not known; -: none is expected.")
    if any(row.also for row in runnables.models):
        out.append("and N more: variants of the same size, such as the model before instruction; --all lists each.")
    if any(row.gpu_layers != row.all_layers for row in runnables.models):
        out.append("N of M layers: the others stay in the memory of the host.")
    if any(row.gpu_layers == row.all_layers and row.host_experts for row in runnables.models):
        out.append(
            "experts of N on host: all layers are on the GPU, without the experts of N, which stay in the memory of the host."
        )
    return out


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f}"


def _rate(tokens: float | None) -> str:
    return "" if tokens is None else f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:,.1f}"

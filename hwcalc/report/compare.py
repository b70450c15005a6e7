"""Several plans side by side, and what differs between two, as a table, Markdown or CSV.

The rows of several engines: what each stores, what its numbers are, and why they are not those of the formulas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hwcalc.engines import find_engine
from hwcalc.library.compare import Comparison, EngineRow, Variant
from hwcalc.model import Definition
from hwcalc.planner.diff import Change, Difference, KeyChange
from hwcalc.planner.verdict import Verdict
from hwcalc.report.columns import (
    GAP,
    HOURLY,
    MONTHLY,
    NEEDED,
    PER_MILLION,
    PER_USER,
    RATE,
    Column,
    cost_cells,
    dated_prices,
    gib,
    left_out,
    rate_text,
    said_of,
    size_text,
    that_fit,
    width_of,
)
from hwcalc.report.summary import footnotes
from hwcalc.report.text import PIPED_WIDTH, broken, csv_text, filled, how_many, parameters, sure_or_likely
from hwcalc.report.view import View
from hwcalc.report.within import limit_word
from hwcalc.text import clean, cut_beside
from hwcalc.units import human_bytes

_WORDS: Final = {"exact": "exact", "engine": "rule", "estimate": "estimate", "measured": "measured"}
_AS_THE_FORMULAS: Final = "as the formulas"
_MOST: Final = 3
"""Reasons in a row; JSON and CSV have all."""
_MOST_HELPED: Final = 12
"""Lines of what makes rows fit."""
_NO_HELP: Final = "nothing that was tried"
_NUMBER: Final = "number: exact by the formulas, or by the rule of the engine's own code"
_ALL_GPUS: Final = "; on several GPUs each counted as the fullest"
_POOL_TOKENS: Final = "pool tokens: of the pool that the engine makes of the accelerator, or of --kv-memory"
_WHY: Final = "why it differs: what the engine keeps beyond the formulas or leaves out, and its bytes of the cache; empty if it keeps the same"
_BESIDE: Final = {"a token": "a token: bytes of each further token of a long sequence"}
"""Columns that have an engine's own number where engines stand beside each other."""
_FREED: Final = "blocks freed"
_ASKED: Final = ("kept", "saved", "peak")
"""Columns of policies that are never left out where policies stand side by side."""
_POLICY: Final = (*_ASKED, _FREED, "the engine", "in all")
_WANTED: Final = frozenset({"at once", NEEDED})
"""Columns for which names make room, by a line of their own."""
_TEXTS: Final = ("verdict", "the engine", "in all")
"""Columns of words, which stand on the left."""
_UNKNOWN: Final = "unknown"
_LIKELY: Final = "~: expected, where none is sure"


def comparison_text(comparison: Comparison, view: View) -> str:
    """A text: what all variants share, a row for each with verdict and memory, what failed, whose config is not as published.

    Where a line has no room for all columns, those that matter least are left out, which is said; where it has none for the names either,
    the first of them stands above its rows, or all of them do.
    """
    variants = comparison.variants
    labels, names = _labels(comparison)
    planned = [place for place, variant in enumerate(variants) if variant.error is None]
    beside = any(variant.row is not None for variant in variants)
    all_columns = columns = _columns(variants, beside=beside, policies="policy" in comparison.varying)
    # Every engine has a row beside others, those that cannot run the model too.
    shown = range(len(variants)) if beside else planned
    reasons = [_reason(variant) for variant in variants] if beside else []
    limited = view.format == "table" and view.width < PIPED_WIDTH
    dropped: list[str] = []
    above = 0
    if limited:
        # A line of its own says why numbers differ; there is none where they do not.
        reasons = ["" if reason == _AS_THE_FORMULAS else reason for reason in reasons]
        taken = [max(map(len, column)) + GAP for column in zip(labels, *(names[place] for place in shown), strict=True)]
        # The first name has a line of its own where columns that are wanted have no room beside it; all names have where any is too wide.
        for above in dict.fromkeys((0, 1, len(labels))):
            room = view.width - sum(taken[above:]) - (GAP if above else 0)
            columns, dropped = that_fit(all_columns, room)
            fits = not columns or width_of(columns) <= room + GAP
            if fits and (above or len(labels) == 1 or _WANTED.isdisjoint(dropped)):
                break
    header = [*labels[above:], *(column.title for column in columns)]
    rows = [[*names[place][above:], *(column.cells[place] for column in columns)] for place in shown]
    right = [len(header) - len(columns) + place for place, column in enumerate(columns) if column.right]
    # A screen has no column in which nothing is said.
    if beside and (not limited or any(reasons)):
        header, rows = [*header, "why it differs"], [[*row, reasons[place]] for row, place in zip(rows, shown, strict=True)]
    titles = [", ".join(names[place][:above]) for place in shown] if above else ()
    shared = _shared(comparison, variants[planned[0]])
    parts = [
        f"{filled(shared, view.width) if view.format == 'table' else shared}\n",
        view.table(header, rows, right=right, titles=titles),
    ]
    if beside:
        parts += _meanings(variants, view, header)
    else:
        failed = [[*names[place], variant.error] for place, variant in enumerate(variants) if variant.error is not None]
        parts += [view.table([*labels, "not planned"], failed)] if failed else []
        said = said_of(header)
        parts += [f"{filled(said, view.width)}\n"] if said and view.format == "table" and not view.quiet else []
    if any(cell.startswith("~") for column in columns for cell in column.cells) and not view.quiet:
        parts.append(view.paragraphs([_LIKELY]))
    if told := dated_prices(variant.cost for variant in variants):
        parts.append(view.paragraphs(told))
    if dropped and not view.quiet:
        parts.append(f"{filled(left_out(dropped), view.width)}\n")
    refused = [place for place in planned if variants[place].passes is False]
    if refused and not view.quiet:
        runs = comparison.varying == ("engine",) and any(variant.passes and _is_server(variant) for variant in variants)
        parts += _what_helps([(", ".join(names[place]), variants[place]) for place in refused], view, offers=not runs)
    as_if = [variant for variant in variants if variant.policy_offered is False]
    parts += [view.paragraphs(_lacking(as_if))] if as_if else []
    pairs = ((variant.model, variant.definition) for variant in variants if variant not in as_if)
    below = footnotes(pairs, view)
    return "\n".join([*parts, *([below] if below else [])])


def _is_server(variant: Variant) -> bool:
    """True for an engine that a command starts. The formulas alone run nothing, and a library starts no server."""
    return find_engine(variant.engine)[0].command.known


def _what_helps(refused: Sequence[tuple[str, Variant]], view: View, *, offers: bool) -> list[str]:
    """What makes each row fit that does not, or not in time, once for all rows that it makes fit; with ``offers``, the first as a command."""
    helped: dict[str, list[str]] = {}
    for name, variant in refused:
        parts = variant.suggestions[0].effect.split("; ") if variant.suggestions else [_NO_HELP]
        cure = "; ".join((parts[0], *(part for part in parts[1:] if part == Verdict.PROBABLY.text)))
        helped.setdefault(cure, []).append(name)
    lines = [f"{'; '.join(names)}: {cure}" for cure, names in helped.items()][:_MOST_HELPED]
    lines += [f"{len(helped) - _MOST_HELPED:,} more: --json"] if len(helped) > _MOST_HELPED else []
    if view.format == "markdown":
        told = f"\n{view.paragraphs(lines)}"
    else:
        told = "".join(f"  {line}\n" for text in lines for line in broken(clean(text), view.width - 2, 2))
    late = " within the limits of time" if refused[0][1].within is not None else ""
    helped_rows = [variant for _, variant in refused if variant.suggestions and offers]
    # No engine runs a policy that it lacks: what runs comes first.
    first = min(helped_rows, key=lambda variant: (variant.policy_offered is False, not _is_server(variant)), default=None)
    label = "try one of them" if len(refused) > 1 else "try"
    tried = [] if first is None else [view.command(label, first.suggestions[0].command)]
    return [f"What makes it fit{late}:\n{told}", *tried]


def _lacking(variants: Sequence[Variant]) -> list[str]:
    """For each engine the policies that it lacks, and what their numbers are."""
    lacking: dict[str, list[str]] = {}
    for variant in variants:
        lacking.setdefault(variant.engine, []).append(clean(variant.policy or ""))
    return [
        f"{engine} lacks {', '.join(dict.fromkeys(policies))}: planned as if it had; these numbers are assumed."
        for engine, policies in lacking.items()
    ]


def _labels(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The titles of the names by which variants differ, and the names of each variant."""
    labels = [{"seq": "tokens", "gpu": "runs on"}.get(name, name) for name in comparison.varying] or ["model"]
    return labels, [_names(variant, comparison) for variant in comparison.variants]


def _columns(variants: Sequence[Variant], *, beside: bool, policies: bool) -> list[Column]:
    """All columns: the verdict, what is needed of what there is, how many and how long; then what memory goes where, and policies.

    ``policies`` says that these are what is compared.
    """

    def column(title: str, cell: Callable[[Variant], str], rank: int = 0, *, right: bool = True) -> list[Column]:
        cells = tuple("" if variant.error is not None else cell(variant) for variant in variants)
        return [Column(title=title, cells=cells, rank=rank, right=right)] if any(cells) else []

    out: list[Column] = []
    if any(variant.verdict is not None or variant.gpu is not None for variant in variants):
        limited = any(variant.users_within is not None for variant in variants)
        # Beside engines that split no model, the columns are for a model of which something lies in host memory.
        split = any(variant.all_layers is not None and not (beside and not variant.host_bytes) for variant in variants)
        out += column("layout", lambda variant: variant.layout or "", right=False)
        out += column("verdict", _verdict, right=False)
        out += column(NEEDED, _needed, 2)
        out += column("of", lambda variant: gib(variant.usable_bytes), 3)
        out += column("at once", _at_once if limited else _sure, 3 if limited else 1)
        out += column("users", _users)
        out += column("limit", lambda variant: limit_word(variant.limited_by), 6, right=False)
        out += column("longest", lambda variant: sure_or_likely(variant.max_seq, variant.expected_max_seq), 4)
        if split:
            out += column("layers on GPU", _layers_on_gpu, 6)
            out += column("in host memory", _in_host_memory, 7)
        # A bound alone tells less of a plan than its bytes.
        out += column(RATE, _speed, 5 if any(variant.decode_tokens_per_s is not None for variant in variants) else 9)
        for title, rank in {HOURLY: 0, PER_MILLION: 2, **({PER_USER: 0} if limited else {}), MONTHLY: 10}.items():
            out += column(title, partial(_cost, title), rank)
    if beside:
        pools = any(variant.row is not None and variant.row.pool_tokens is not None for variant in variants)
        out += column("stores", _of_row(lambda row: row.stores), 10, right=False)
        out += column("cache", _of_row(lambda row: human_bytes(row.all_gpus_bytes)), 6 if out else 0)
        out += column("a token", _of_row(lambda row: human_bytes(row.growth_bytes)), 11)
        out += column("pool tokens", _of_row(_pool_tokens), 12) if pools else []
        out += column("number", lambda variant: _WORDS.get(variant.definition or "", variant.definition or ""), 13, right=False)
    else:
        out += column("cache", lambda variant: size_text(variant.cache_total_bytes), 8 if out else 0)
        out += column("a token", lambda variant: size_text(variant.bytes_per_token), 11)
    out += column("ratio", lambda variant: "" if variant.cache_ratio is None else f"{variant.cache_ratio:.2f}", 14)
    out += column("weights", lambda variant: size_text(variant.weights_bytes), 9)
    out += column("total", lambda variant: size_text(variant.total_bytes), 15)
    if any(variant.policy is not None for variant in variants):
        paged = any(variant.blocks_freed is not None for variant in variants)
        titles = [title for title in _POLICY if paged or title != _FREED]
        for place, title in enumerate(titles):
            kept = title == "in all" or (policies and title in _ASKED)
            out += column(title, partial(_policy_cell, titles, place), 0 if kept else 4 + place, right=title not in _TEXTS)
    return out


def _policy_cell(titles: Sequence[str], place: int, variant: Variant) -> str:
    return _policy(variant, titles)[place]


def _of_row(cell: Callable[[EngineRow], str]) -> Callable[[Variant], str]:
    """The cell of an engine's row; empty for an engine that cannot run the model."""
    return lambda variant: "" if variant.row is None else cell(variant.row)


def _verdict(variant: Variant) -> str:
    """The verdict, and how what fits stands to the limits of time where it is not known to be within them."""
    if variant.verdict is None:
        return _UNKNOWN
    return variant.verdict.text if variant.passes or not variant.fits else f"{variant.verdict.text}, {variant.within} limits"


def _needed(variant: Variant) -> str:
    """GiB that the fullest GPU needs; both ends where the verdict depends on them."""
    verdict, low, high = variant.verdict, variant.total_per_gpu_low_bytes, variant.total_per_gpu_high_bytes
    if verdict is not None and not verdict.certain and low is not None and high is not None:
        return f"{gib(low)} to {gib(high)}"
    return gib(variant.total_per_gpu_bytes)


def _sure(variant: Variant) -> str:
    """The most sequences for sure, or else by the expected value."""
    return sure_or_likely(variant.max_batch, variant.expected_max_batch)


def _at_once(variant: Variant) -> str:
    """The most sequences as users beside them are told: by the expected value, and for sure."""
    expected, sure = variant.expected_max_batch, variant.max_batch
    return how_many(sure) if expected in (None, sure) else f"{how_many(expected)} ({how_many(sure)})"


def _users(variant: Variant) -> str:
    """The users within the limits of time, and those of the slow end."""
    users, low = variant.users_within, variant.users_within_low
    return "" if users is None else f"{users:,}" if low in (None, users) else f"{users:,} ({low:,})"


def _cost(title: str, variant: Variant) -> str:
    return cost_cells(variant.cost)[title]


def _layers_on_gpu(variant: Variant) -> str:
    return "" if variant.all_layers is None else f"{variant.gpu_layers:,} of {variant.all_layers:,}"


def _in_host_memory(variant: Variant) -> str:
    return "" if variant.host_bytes is None else human_bytes(variant.host_bytes) if variant.host_bytes else "-"


def _speed(variant: Variant) -> str:
    if not variant.fits:
        return ""
    return rate_text(variant.decode_tokens_per_s, variant.decode_tokens_per_s_low, variant.decode_tokens_per_s_bound)


def _pool_tokens(row: EngineRow) -> str:
    return "no pool" if row.pool_is is None else "" if row.pool_tokens is None else f"{row.pool_tokens:,}"


def _reason(variant: Variant) -> str:
    """Reasons why an engine's numbers are not those of the formulas, or are missing."""
    if variant.row is None:
        return f"cannot: {variant.error}"
    return _why(variant.row, exact=variant.definition == Definition.EXACT)


def _shared(comparison: Comparison, first: Variant) -> str:
    """A line of what all variants share."""
    formats = {variant.weights for variant in comparison.variants if variant.error is None}
    words = {
        "model": first.model,
        "seq": f"{first.seq:,} tokens" if first.seq is not None else "",
        "batch": f"batch {first.batch:,}",
        "dtype": f"KV {first.dtype}" if first.row is None else "",
        "weights": f"weights {first.weights}" if first.weights is not None and formats == {first.weights} else "",
        "engine": _engine(first, comparison),
        "gpu": _node(first) or "",
        "tp": first.layout if first.layout and first.gpu is None else "",
        "policy": first.policy or "",
    }
    return clean(" · ".join(word for name, word in words.items() if word and name not in comparison.varying))


def _names(variant: Variant, comparison: Comparison) -> list[str]:
    """The values by which this variant differs from the others."""
    cells = []
    for name in comparison.varying:
        value = _engine(variant, comparison) if name == "engine" else _node(variant) if name == "gpu" else getattr(variant, name)
        if value is None:
            value = "none" if name == "policy" else "default"
        cells.append(f"{value:,}" if isinstance(value, int) else str(value))
    return cells or [variant.model]


def _node(variant: Variant) -> str | None:
    """The instance, or the accelerator and how many."""
    several = variant.gpus is not None and variant.gpus > 1
    return variant.instance or (f"{variant.gpus} x {variant.gpu}" if several else variant.gpu)


def _engine(variant: Variant, comparison: Comparison) -> str:
    """The engine's name, with its version if the comparison has several versions of it."""
    same = [other for other in comparison.variants if other.engine == variant.engine and other.error is None]
    several = len({other.engine_version for other in same}) > 1
    return f"{variant.engine}@{variant.engine_version}" if several and variant.engine_version else variant.engine


def _why(row: EngineRow, *, exact: bool) -> str:
    """Reasons why the bytes are not the formulas', the largest first."""
    if row.reasons is None:
        return "not said for unlike lengths"
    if not row.reasons:
        return "these are the formulas" if exact else _AS_THE_FORMULAS
    causes = [
        f"{cause.words} ({'+' if cause.bytes > 0 else '-'}{human_bytes(abs(cause.bytes))})" for cause in row.reasons[:_MOST]
    ]
    more = len(row.reasons) - _MOST
    return "; ".join(causes) + (f"; and {more:,} more" if more > 0 else "")


def _meanings(variants: Sequence[Variant], view: View, shown: Sequence[str]) -> list[str]:
    """A table of what the numbers of each engine are, once, where no screen limits it; and what the shown columns are: a line each, or a
    paragraph of Markdown.
    """
    rows = {variant.engine: variant.row for variant in variants if variant.row is not None}
    header, cells = ["engine", "its cache is"], [[name, row.cache_is] for name, row in rows.items()]
    pools = any(variant.row is not None and variant.row.pool_tokens is not None for variant in variants)
    if any(row.pool_tokens is not None for row in rows.values()):
        header.append("its pool tokens are")
        cells = [[*cell, row.pool_is or "no pool"] for cell, row in zip(cells, rows.values(), strict=True)]
    several = any(variant.row is not None and variant.row.all_gpus_bytes != variant.cache_total_bytes for variant in variants)
    meant = {"number": _NUMBER, "why it differs": _WHY + (_ALL_GPUS if several else "")}
    lines = [said] if (said := said_of(shown, _BESIDE)) else []
    lines += [meant[title] for title in meant if title in shown]
    lines += [_POOL_TOKENS] if pools and "pool tokens" in shown else []
    if view.format == "markdown":
        return [view.table(header, cells), f"{'; '.join(lines)}.\n"]
    told = "".join(f"{filled(line, view.width)}\n" for line in lines)
    return [told] if view.width < PIPED_WIDTH else [view.table(header, cells), told]


def _policy(variant: Variant, titles: Sequence[str]) -> list[str]:
    """Cells of a variant's policy: tokens kept, bytes saved, whether the engine has it and it saves memory in all."""
    if variant.kept_tokens is None or variant.kept_tokens_low is None or variant.policy_saved_bytes is None:
        return ["all", *[""] * (len(titles) - 1)]
    kept = f"{variant.kept_tokens:,}"
    if variant.kept_tokens_low != variant.kept_tokens:
        kept = f"{variant.kept_tokens_low:,} to {kept}"
    freed = "" if variant.blocks_freed is None else f"{variant.blocks_freed:,} of {variant.blocks_held:,}"
    balance = "frees after the prefill" if variant.blocks_freed else "frees nothing"
    balance = "loses" if variant.loses else "saves" if variant.policy_saved_bytes else balance
    sizes = (size_text(variant.policy_saved_bytes), size_text(variant.prefill_peak_bytes))
    has = "has it" if variant.policy_offered else "lacks it"
    return [kept, *sizes, *([freed] if _FREED in titles else []), has, balance]


_FIGURES: Final = {
    "parameters.total": "parameters",
    "parameters.active": "active parameters",
    "cache.bytes_per_token": "cache of a token",
    "cache.state_bytes_per_sequence": "state of a sequence",
    "cache.bytes_per_sequence": "cache of a sequence",
    "cache.total_bytes": "cache",
    "memory.weights.bytes": "weights",
    "memory.activations.bytes": "activations",
    "memory.overhead.bytes": "overhead",
    "memory.total_bytes": "all together",
    "memory.per_gpu.total": "on the fullest GPU",
    "fit.max_batch": "sequences at once",
    "fit.max_seq": "longest sequence",
}
"""Figures by their names in the table. Documents and CSV have those of the document."""
_LONGEST: Final = 60
"""Characters of a value in a table."""
_MOST_KEYS: Final = 200
"""Keys that a table lists. Two published configs of one type differ in up to a hundred."""


def difference_text(difference: Difference, view: View) -> str:
    """Both names, the figures with their difference and factor, and the keys that differ."""
    rows = [_figure_row(figure) for figure in difference.figures]
    fits_a, fits_b = ("" if verdict is None else verdict.text for verdict in (difference.verdict_a, difference.verdict_b))
    rows += [("verdict", fits_a, fits_b, "", "")] if fits_a or fits_b else []
    a, b = difference.seq_a, difference.seq_b
    title = f"at {a:,} tokens" if a == b else f"at {a:,} and {b:,} tokens"
    figures = view.table((title, "A", "B", "B - A", "B / A"), rows, right=(1, 2, 3, 4))
    changed = [(key.key.removeprefix("request."), *_both(key)) for key in difference.keys]
    more = len(changed) - _MOST_KEYS
    keys = view.table(("key", "A", "B"), changed[:_MOST_KEYS]) if changed else "No key that bears on memory differs.\n"
    if more > 0:
        keys += f"\n{more:,} more keys differ. All of them: --format csv, or --json\n"
    told = footnotes(((difference.a, difference.definition_a), (difference.b, difference.definition_b)), view)
    head = f"A  {clean(difference.a)}\nB  {clean(difference.b)}\n"
    return "\n".join([head, figures, keys, *([told] if told else [])])


def _figure_row(figure: Change) -> tuple[str, str, str, str, str]:
    """A figure of both plans in words and binary units, the difference with its sign, and the factor."""
    of_model, of_fit = figure.name.startswith("parameters."), figure.name.startswith("fit.")
    written: Callable[[int], str] = parameters if of_model else how_many if of_fit else human_bytes
    a, b = ("unknown" if size is None else written(size) for size in (figure.a, figure.b))
    apart = figure.difference
    if not apart:
        return _FIGURES[figure.name], a, b, "" if apart is None else "same", ""
    factor = f"{figure.b / figure.a:.3g}" if figure.a and figure.b else ""
    return _FIGURES[figure.name], a, b, f"{'+' if apart > 0 else '-'}{written(abs(apart))}", factor


def difference_csv(difference: Difference) -> str:
    """One table with the request, the figures as numbers (empty is unknown) and the keys (empty is absent)."""

    def cell(present: bool, value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, default=str) if present else ""

    a, b = difference.seq_a, difference.seq_b
    rows: list[tuple[object, ...]] = [("model", "id", difference.a, difference.b, "")]
    rows += [("model", "definition", difference.definition_a, difference.definition_b, ""), ("request", "seq", a, b, b - a)]
    rows += (("figure", figure.name, figure.a, figure.b, figure.difference) for figure in difference.figures)
    rows += (("key", key.key, cell(key.in_a, key.a), cell(key.in_b, key.b), "") for key in difference.keys)
    return csv_text(("what", "name", "a", "b", "difference"), rows)


def _both(key: KeyChange) -> tuple[str, str]:
    """Both values of a key as JSON, cut where they are long."""
    a, b = (
        json.dumps(value, default=str) if present else "(absent)" for present, value in ((key.in_a, key.a), (key.in_b, key.b))
    )
    return cut_beside(a, b, _LONGEST)

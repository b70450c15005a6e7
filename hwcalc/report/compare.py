"""Several plans side by side, as a table, Markdown or CSV.

The rows of several engines: what each stores, what its numbers are, and why they are not those of the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hwcalc.library.compare import Comparison, EngineRow, Variant
from hwcalc.model import Definition
from hwcalc.report.summary import footnotes
from hwcalc.report.text import csv_text, filled, how_many
from hwcalc.report.view import View
from hwcalc.text import clean
from hwcalc.units import human_bytes

_ENGINES: Final = ("stores", "cache", "a token", "pool tokens", "verdict", "number", "why it differs")
_NUMBERS: Final = frozenset({"cache", "a token", "pool tokens"})
"""Columns of engines' rows with numbers, which stand on the right."""
_REASONS_WIDTH: Final = 30
"""Characters that reasons need beside the other columns; with fewer they stand below them."""
_WORDS: Final = {"exact": "exact", "engine": "rule", "estimate": "estimate", "measured": "measured"}
_MOST: Final = 3
"""Reasons in a row; JSON and CSV have all."""
_NUMBER: Final = "number: exact by the formulas, or by the rule of the engine's own code"
_ALL_GPUS: Final = "cache: on all GPUs together, each counted as the fullest"
_POOL_TOKENS: Final = "pool tokens: of the pool that the engine makes of the accelerator, or of --kv-memory"
_ALWAYS: Final = (
    "a token: what one token more takes of one sequence in the long run",
    "why it differs: from what must be kept by the formulas; the bytes in brackets are part of the cache",
    "ratio: the cache in times of the first row's",
)
_MEMORY: Final = ("cache", "a token", "ratio", "weights", "total")
_VERDICT: Final = ("a GPU needs", "may use", "verdict", "max seq", "max batch")
_SPLIT: Final = ("layers on GPU", "in host memory", "tok/s")
"""What else is told of engines that may leave a part of a model to the host, which makes it slower."""
_FREED: Final = "blocks freed"
_POLICY: Final = ("tokens kept", "saved", "prefill peak", _FREED, "the engine", "in all")
_TEXTS: Final = ("verdict", "the engine", "in all")
"""Columns of words, which stand on the left."""
_AS_IF: Final = "lacks it: planned as if the engine had the policy; these numbers are assumed.\n"
_UNKNOWN: Final = "unknown"
_Rows: TypeAlias = list[Sequence[str]]


def comparison_csv(comparison: Comparison) -> str:
    """One row for each variant with all fields. An empty cell is unknown or was not planned."""
    records = comparison.records()
    return csv_text(list(records[0]), (list(record.values()) for record in records))


def comparison_text(comparison: Comparison, view: View) -> str:
    """What all variants share, the memory of each, verdicts if an accelerator was named, what failed, and whose config is not as published.

    If the variants' names would make a table too wide, the names get a table of their own, which numbers them, and the other tables show
    the numbers.
    """
    variants = comparison.variants
    labels = [{"seq": "tokens", "gpu": "GPU"}.get(name, name) for name in comparison.varying] or ["model"]
    names = [_names(variant, comparison) for variant in variants]
    planned = [place for place, variant in enumerate(variants) if variant.error is None]
    beside = any(variant.row is not None for variant in variants)
    tables = _tables([variants[place] for place in planned], beside=beside)
    parts = [_shared(comparison, variants[planned[0]]) + "\n"]
    shown, of_engines = _engine_rows(variants) if beside else ([], [])
    # Each table by its width: two blanks between columns, nothing wrapped.
    measured = [(header, [[*names[place], *row] for place, row in zip(planned, rows, strict=True)]) for header, rows in tables]
    if beside and len(labels) > 1:
        # What an engine stores may be wrapped, and reasons stand below. The name of an engine alone has room.
        least = [
            [*name, max(row[0].split(), key=len, default=""), *row[1:-1]] for name, row in zip(names, of_engines, strict=True)
        ]
        measured.append((shown[:-1], least))
    widths = [
        sum(max(map(len, column)) + 2 for column in zip([*labels, *header], *rows, strict=True)) - 2 for header, rows in measured
    ]
    if view.format == "table" and max(widths) > view.width:
        parts.append(view.table(["", *labels], [[str(number), *cells] for number, cells in enumerate(names, 1)], right=(0,)))
        labels, names = [""], [[str(number)] for number in range(1, len(variants) + 1)]
    if beside:
        # Every engine has a row here, those that cannot run the model too.
        right = [len(labels) + place for place, title in enumerate(shown) if title in _NUMBERS]
        named = [[*name, *row] for name, row in zip(names, of_engines, strict=True)]
        parts.append(view.table([*labels, *shown], named, right=right, last=_REASONS_WIDTH))
    for header, rows in tables:
        right = [len(labels) + place for place, title in enumerate(header) if title not in _TEXTS]
        named = [[*names[place], *row] for place, row in zip(planned, rows, strict=True)]
        parts.append(view.table([*labels, *header], named, right=right))
    failed = [[*names[place], variant.error] for place, variant in enumerate(variants) if variant.error is not None]
    if beside:
        parts += _meanings(variants, view)
    elif failed:
        parts.append(view.table([*labels, "not planned"], failed))
    as_if = [variant for variant in variants if variant.policy_offered is False]
    parts += [_AS_IF] if as_if else []
    pairs = ((variant.model, variant.definition) for variant in variants if variant not in as_if)
    below = footnotes(pairs, view)
    return "\n".join([*parts, *([below] if below else [])])


def _shared(comparison: Comparison, first: Variant) -> str:
    """What all variants have in common, in one line."""
    formats = {variant.weights for variant in comparison.variants if variant.error is None}
    words = {
        "model": first.model,
        "seq": f"{first.seq:,} tokens" if first.seq is not None else "",
        "batch": f"batch {first.batch:,}",
        "dtype": f"KV {first.dtype}" if first.row is None else "",
        "weights": f"weights {first.weights}" if first.weights is not None and formats == {first.weights} else "",
        "engine": _engine(first, comparison),
        "gpu": first.gpu or "",
        "tp": f"tp {first.tp}" if first.tp > 1 else "",
        "policy": first.policy or "",
    }
    return clean(" · ".join(word for name, word in words.items() if word and name not in comparison.varying))


def _names(variant: Variant, comparison: Comparison) -> list[str]:
    """The values by which this variant differs from the others."""
    cells = []
    for name in comparison.varying:
        value = _engine(variant, comparison) if name == "engine" else getattr(variant, name)
        if value is None:
            value = "none" if name == "policy" else "default"
        cells.append(f"{value:,}" if isinstance(value, int) else str(value))
    return cells or [variant.model]


def _engine(variant: Variant, comparison: Comparison) -> str:
    """The engine's name, with its version if the comparison has several versions of it."""
    same = [other for other in comparison.variants if other.engine == variant.engine and other.error is None]
    several = len({other.engine_version for other in same}) > 1
    return f"{variant.engine}@{variant.engine_version}" if several and variant.engine_version else variant.engine


def _engine_rows(variants: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of each engine; pools and verdicts are left out where no accelerator and no budget was given."""
    rows = []
    for variant in variants:
        row = variant.row
        if row is None:
            rows.append(["", "", "", "", "", "", f"cannot: {variant.error}"])
            continue
        pool = "" if row.pool_tokens is None else f"{row.pool_tokens:,}"
        verdict = "" if variant.verdict is None else variant.verdict.text
        number = _WORDS.get(variant.definition or "", variant.definition or "")
        why = _why(row, exact=variant.definition == Definition.EXACT)
        sizes = (human_bytes(row.all_gpus_bytes), human_bytes(row.growth_bytes))
        rows.append([row.stores, *sizes, "no pool" if row.pool_is is None else pool, verdict, number, why])
    without = set()
    if all(variant.row is None or variant.row.pool_tokens is None for variant in variants):
        without.add("pool tokens")
    if all(variant.verdict is None for variant in variants):
        without.add("verdict")
    places = [place for place, title in enumerate(_ENGINES) if title not in without]
    return [_ENGINES[place] for place in places], [[cells[place] for place in places] for cells in rows]


def _why(row: EngineRow, *, exact: bool) -> str:
    """Why the bytes are not those of the formulas, the largest causes first."""
    if row.reasons is None:
        return "not said for unlike lengths"
    if not row.reasons:
        return "these are the formulas" if exact else "as the formulas"
    causes = [
        f"{cause.words} ({'+' if cause.bytes > 0 else '-'}{human_bytes(abs(cause.bytes))})" for cause in row.reasons[:_MOST]
    ]
    more = len(row.reasons) - _MOST
    return "; ".join(causes) + (f"; and {more:,} more" if more > 0 else "")


def _meanings(variants: Sequence[Variant], view: View) -> list[str]:
    """A table of what the numbers of each engine are, once; and what the columns are: a line each, or a paragraph of Markdown."""
    rows = {variant.engine: variant.row for variant in variants if variant.row is not None}
    header, cells = ["engine", "its cache is"], [[name, row.cache_is] for name, row in rows.items()]
    pools = any(variant.row is not None and variant.row.pool_tokens is not None for variant in variants)
    if any(row.pool_tokens is not None for row in rows.values()):
        header.append("its pool tokens are")
        cells = [[*cell, row.pool_is or "no pool"] for cell, row in zip(cells, rows.values(), strict=True)]
    several = any(variant.row is not None and variant.row.all_gpus_bytes != variant.cache_total_bytes for variant in variants)
    lines = [_NUMBER, *([_ALL_GPUS] if several else []), *_ALWAYS, *([_POOL_TOKENS] if pools else [])]
    if view.format == "markdown":
        return [view.table(header, cells), f"{'; '.join(lines)}.\n"]
    return [view.table(header, cells), "".join(f"{filled(line, view.width)}\n" for line in lines)]


def _tables(variants: Sequence[Variant], *, beside: bool) -> list[tuple[Sequence[str], _Rows]]:
    """The header and the cells of each table of what was planned: the answer first, then where it comes from.

    ``beside``: the row of an engine has the cache and the verdict already.
    """
    tables: list[tuple[Sequence[str], _Rows]] = []
    if any(variant.verdict is not None or variant.gpu is not None for variant in variants):
        # Beside engines that split no model, the columns are for a model of which something lies in host memory.
        split = any(variant.all_layers is not None and not (beside and not variant.host_bytes) for variant in variants)
        titles = [title for title in _VERDICT if not (beside and title == "verdict")]
        rows: _Rows = [_verdict(variant, beside=beside, split=split) for variant in variants]
        tables.append(([*titles, *(_SPLIT if split else ())], rows))
    memory: _Rows = []
    for variant in variants:
        ratio = "" if variant.cache_ratio is None else f"{variant.cache_ratio:.2f}"
        sizes = [] if beside else [_size(variant.cache_total_bytes), _size(variant.bytes_per_token)]
        memory.append([*sizes, ratio, _size(variant.weights_bytes), _size(variant.total_bytes)])
    tables.append((_MEMORY[2:] if beside else _MEMORY, memory))
    if any(variant.policy is not None for variant in variants):
        paged = any(variant.blocks_freed is not None for variant in variants)
        titles = [title for title in _POLICY if paged or title != _FREED]
        tables.append((titles, [_policy(variant, titles) for variant in variants]))
    return tables


def _verdict(variant: Variant, *, beside: bool, split: bool) -> list[str]:
    """What a GPU needs and may use, the verdict, the limits; then where the layers lie, and the bound on the speed of what runs."""
    verdict, low, high = variant.verdict, variant.total_per_gpu_low_bytes, variant.total_per_gpu_high_bytes
    needed = _size(variant.total_per_gpu_bytes)
    if verdict is not None and not verdict.certain and low is not None and high is not None:
        # Both ends of the estimate, as the verdict depends on them.
        needed = f"{human_bytes(low)} to {human_bytes(high)}"
    cells = [needed, _size(variant.usable_bytes), *([] if beside else [_UNKNOWN if verdict is None else verdict.text])]
    cells += [how_many(variant.max_seq), how_many(variant.max_batch)]
    if split:
        layers = "" if variant.all_layers is None else f"{variant.gpu_layers:,} of {variant.all_layers:,}"
        host = "" if variant.host_bytes is None else human_bytes(variant.host_bytes) if variant.host_bytes else "-"
        speed = variant.decode_tokens_per_s_bound if variant.fits else None
        cells += [layers, host, "" if speed is None else f"{speed:,.3g}" if speed < 100 else f"{speed:,.0f}"]
    return cells


def _policy(variant: Variant, titles: Sequence[str]) -> list[str]:
    """What the policy of a variant leaves, what that saves, and whether the engine has it, and less memory to provide for."""
    if variant.kept_tokens is None or variant.kept_tokens_low is None or variant.policy_saved_bytes is None:
        return ["all", *[""] * (len(titles) - 1)]
    kept = f"{variant.kept_tokens:,}"
    if variant.kept_tokens_low != variant.kept_tokens:
        kept = f"{variant.kept_tokens_low:,} to {kept}"
    freed = "" if variant.blocks_freed is None else f"{variant.blocks_freed:,} of {variant.blocks_held:,}"
    balance = "frees behind the prefill" if variant.blocks_freed else "frees nothing"
    balance = "loses" if variant.loses else "saves" if variant.policy_saved_bytes else balance
    sizes = (_size(variant.policy_saved_bytes), _size(variant.prefill_peak_bytes))
    has = "has it" if variant.policy_offered else "lacks it"
    return [kept, *sizes, *([freed] if _FREED in titles else []), has, balance]


def _size(count: int | None) -> str:
    return _UNKNOWN if count is None else human_bytes(count)

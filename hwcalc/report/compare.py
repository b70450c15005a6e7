"""Several plans side by side, as a table, Markdown or CSV.

The rows of several engines: what each stores, what its numbers are, and why they are not those of the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hwcalc.engines.causes import Cause
from hwcalc.library.compare import Comparison, EngineRow, Variant
from hwcalc.model import Definition
from hwcalc.report.drawing import PIPED_WIDTH, listing
from hwcalc.report.summary import footnotes
from hwcalc.report.text import csv_text, filled, how_many
from hwcalc.text import clean
from hwcalc.units import human_bytes

_POOL, _VERDICTS_OF_ENGINES = "pool tokens", "verdict"
_COLUMNS: Final = ("stores", "cache", "a token", _POOL, _VERDICTS_OF_ENGINES, "number", "why it differs")
NUMBERS: Final = frozenset({"cache", "a token", _POOL})
"""Columns of numbers, which stand on the right."""
REASONS_WIDTH: Final = 30
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


def legend(variants: Sequence[Variant], format_: str, width: int) -> str:
    """What the columns are: a line each, or a paragraph of Markdown."""
    rows = [(variant, variant.row) for variant in variants if variant.row is not None]
    several = any(row.all_gpus_bytes != variant.cache_total_bytes for variant, row in rows)
    pools = any(row.pool_tokens is not None for _, row in rows)
    lines = [_NUMBER, *([_ALL_GPUS] if several else []), *_ALWAYS, *([_POOL_TOKENS] if pools else [])]
    if format_ == "markdown":
        return f"{'; '.join(lines)}.\n"
    return "".join(f"{filled(line, width)}\n" for line in lines)


def shown_columns(variants: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of each variant; pools and verdicts are left out where no accelerator and no budget was given."""
    rows = [_cells(variant) for variant in variants]
    without = set()
    if all(variant.row is None or variant.row.pool_tokens is None for variant in variants):
        without.add(_POOL)
    if all(variant.verdict is None for variant in variants):
        without.add(_VERDICTS_OF_ENGINES)
    places = [place for place, title in enumerate(_COLUMNS) if title not in without]
    return [_COLUMNS[place] for place in places], [[row[place] for place in places] for row in rows]


def _cells(variant: Variant) -> Sequence[str]:
    """The cells of a row; of an engine that cannot run the model, why not."""
    row = variant.row
    if row is None:
        return ("", "", "", "", "", "", f"cannot: {variant.error}")
    return (
        row.stores,
        human_bytes(row.all_gpus_bytes),
        human_bytes(row.growth_bytes),
        _pool(row),
        "" if variant.verdict is None else variant.verdict.text,
        _WORDS.get(variant.definition or "", variant.definition or ""),
        _why(row, exact=variant.definition == Definition.EXACT),
    )


def _pool(row: EngineRow) -> str:
    if row.pool_is is None:
        return "no pool"
    return "" if row.pool_tokens is None else f"{row.pool_tokens:,}"


def _why(row: EngineRow, *, exact: bool) -> str:
    if row.reasons is None:
        return "not said for unlike lengths"
    if not row.reasons:
        return "these are the formulas" if exact else "as the formulas"
    more = len(row.reasons) - _MOST
    return "; ".join(map(_cause, row.reasons[:_MOST])) + (f"; and {more:,} more" if more > 0 else "")


def _cause(cause: Cause) -> str:
    return f"{cause.words} ({'+' if cause.bytes > 0 else '-'}{human_bytes(abs(cause.bytes))})"


def meanings(variants: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows that say what the numbers of each engine are, once; pools only where a row has one."""
    rows = {variant.engine: variant.row for variant in variants if variant.row is not None}
    header, cells = ["engine", "its cache is"], [[name, row.cache_is] for name, row in rows.items()]
    if all(row.pool_tokens is None for row in rows.values()):
        return header, cells
    pools = [row.pool_is or "no pool" for row in rows.values()]
    return [*header, "its pool tokens are"], [[*cell, pool] for cell, pool in zip(cells, pools, strict=True)]


_UNKNOWN = "unknown"
_Table: TypeAlias = tuple[Sequence[str], Sequence[tuple[Sequence[str], Sequence[str]]]]
"""A header, and the name and the cells of each row."""


def comparison_csv(comparison: Comparison) -> str:
    """One row for each variant with all fields. An empty cell is unknown or was not planned."""
    records = comparison.records()
    return csv_text(list(records[0]), (list(record.values()) for record in records))


def comparison_text(comparison: Comparison, *, format_: str, color: bool = False, width: int = PIPED_WIDTH) -> str:
    """What all variants share, the memory of each, verdicts if an accelerator was named, what failed, and whose config is not as published.

    ``format_`` is ``table`` or ``markdown``. If the variants' names would make a table too wide, the names get a table of their own,
    which numbers them, and the other tables show the numbers.
    """
    variants = comparison.variants
    labels = [_label(name) for name in comparison.varying] or ["model"]
    names = [_names(variant, comparison) for variant in variants]
    planned = [place for place, variant in enumerate(variants) if variant.error is None]
    beside = any(variant.row is not None for variant in variants)
    tables: list[_Table] = [
        (header, [(names[place], cells) for place, cells in zip(planned, rows, strict=True)])
        for header, rows in _tables([variants[place] for place in planned], beside=beside)
    ]
    parts = [_shared(comparison, variants[planned[0]]) + "\n"]

    def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), last: int = 0) -> str:
        return listing(header, rows, format_=format_, right=right, color=color, width=width, last=last)

    shown, row_cells = shown_columns(variants) if beside else ([], [])
    measured: list[_Table] = list(tables)
    if beside and len(labels) > 1:
        # What an engine stores may be wrapped, and reasons stand below. The name of an engine alone has room.
        least = [[max(row[0].split(), key=len, default=""), *row[1:-1]] for row in row_cells]
        measured.append((shown[:-1], list(zip(names, least, strict=True))))
    if format_ == "table" and any(_width(labels, header, rows) > width for header, rows in measured):
        parts.append(table(["", *labels], [[str(number), *cells] for number, cells in enumerate(names, 1)], right=(0,)))
        labels, names = [""], [[str(number)] for number in range(1, len(variants) + 1)]
        tables = [
            (header, [(names[place], cells) for place, (_, cells) in zip(planned, rows, strict=True)]) for header, rows in tables
        ]
    if beside:
        # Every engine has a row here, those that cannot run the model too.
        right = [len(labels) + place for place, title in enumerate(shown) if title in NUMBERS]
        rows_of_engines = [[*name, *row] for name, row in zip(names, row_cells, strict=True)]
        parts.append(table([*labels, *shown], rows_of_engines, right, last=REASONS_WIDTH))
    for header, rows in tables:
        right = [len(labels) + place for place, title in enumerate(header) if title not in _TEXTS]
        parts.append(table([*labels, *header], [[*named, *cells] for named, cells in rows], right))
    failed = [[*names[place], variant.error] for place, variant in enumerate(variants) if variant.error is not None]
    if beside:
        parts += [table(*meanings(variants)), legend(variants, format_, width)]
    elif failed:
        parts.append(table([*labels, "not planned"], failed))
    as_if = [variant for variant in variants if variant.policy_offered is False]
    parts += [_AS_IF] if as_if else []
    below = footnotes(
        ((variant.model, variant.definition) for variant in variants if variant not in as_if), format_=format_, width=width
    )
    parts += [below] if below else []
    return "\n".join(parts)


def _tables(variants: Sequence[Variant], *, beside: bool) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
    """The header and the cells of each table of what was planned: the answer first, then where it comes from.

    ``beside``: the row of an engine has the cache and the verdict already.
    """
    titles: tuple[str, ...] = _MEMORY[2:] if beside else _MEMORY
    tables: list[tuple[Sequence[str], list[Sequence[str]]]] = [
        (titles, [_memory(variant)[-len(titles) :] for variant in variants])
    ]
    if any(variant.verdict is not None or variant.gpu is not None for variant in variants):
        # Beside engines that split no model, the columns are for a model of which something lies in host memory.
        split = any(variant.all_layers is not None and not (beside and not variant.host_bytes) for variant in variants)
        titles = tuple(title for title in _VERDICT if not (beside and title == "verdict"))
        cells = [dict(zip(_VERDICT, _verdict(variant), strict=True)) for variant in variants]
        rows: list[Sequence[str]] = [
            (*map(cell.__getitem__, titles), *_split(variant, split)) for cell, variant in zip(cells, variants, strict=True)
        ]
        tables.insert(0, ((*titles, *(_SPLIT if split else ())), rows))
    if any(variant.policy is not None for variant in variants):
        paged = any(variant.blocks_freed is not None for variant in variants)
        titles = tuple(title for title in _POLICY if paged or title != _FREED)
        tables.append((titles, [_policy(variant, titles) for variant in variants]))
    return tables


_MEMORY = ("cache", "a token", "ratio", "weights", "total")
_VERDICT = ("a GPU needs", "may use", "verdict", "max seq", "max batch")
_FREED = "blocks freed"
_POLICY = ("tokens kept", "saved", "prefill peak", _FREED, "the engine", "in all")
_AS_IF = "lacks it: planned as if the engine had the policy; these numbers are assumed.\n"
_TEXTS = ("verdict", "the engine", "in all")
"""Columns of words, which stand on the left."""
_SPLIT = ("layers on GPU", "in host memory", "tok/s")
"""What else is told of engines that may leave a part of a model to the host, which makes it slower."""


def _width(labels: Sequence[str], header: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> int:
    """Width of a table in characters: two blanks between columns, nothing wrapped."""
    lines = [[*labels, *header], *([*named, *cells] for named, cells in rows)]
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2


def _label(name: str) -> str:
    return {"seq": "tokens", "gpu": "GPU"}.get(name, name)


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
    same = [word for name, word in words.items() if word and name not in comparison.varying]
    return clean(" · ".join(same))


def _names(variant: Variant, comparison: Comparison) -> list[str]:
    """The values by which this variant differs from the others."""
    values = {
        **{name: getattr(variant, name) for name in comparison.varying},
        **({"engine": _engine(variant, comparison)} if "engine" in comparison.varying else {}),
    }
    cells = [_cell(values[name], "none" if name == "policy" else "default") for name in comparison.varying]
    return cells or [variant.model]


def _engine(variant: Variant, comparison: Comparison) -> str:
    """The engine's name, with its version if the comparison has several versions of it."""
    same = [other for other in comparison.variants if other.engine == variant.engine and other.error is None]
    versions = {other.engine_version for other in same}
    return f"{variant.engine}@{variant.engine_version}" if len(versions) > 1 and variant.engine_version else variant.engine


def _cell(value: object, missing: str) -> str:
    if value is None:
        return missing
    return f"{value:,}" if isinstance(value, int) else str(value)


def _memory(variant: Variant) -> tuple[str, ...]:
    ratio = "" if variant.cache_ratio is None else f"{variant.cache_ratio:.2f}"
    return (
        _size(variant.cache_total_bytes),
        _size(variant.bytes_per_token),
        ratio,
        _size(variant.weights_bytes),
        _size(variant.total_bytes),
    )


def _verdict(variant: Variant) -> tuple[str, ...]:
    return (
        _needed(variant),
        _size(variant.usable_bytes),
        _UNKNOWN if variant.verdict is None else variant.verdict.text,
        how_many(variant.max_seq),
        how_many(variant.max_batch),
    )


def _policy(variant: Variant, titles: Sequence[str]) -> tuple[str, ...]:
    """What the policy of a variant leaves, what that saves, and whether the engine has it."""
    if variant.kept_tokens is None or variant.kept_tokens_low is None or variant.policy_saved_bytes is None:
        return ("all", *[""] * (len(titles) - 1))
    kept = f"{variant.kept_tokens:,}"
    freed = "" if variant.blocks_freed is None else f"{variant.blocks_freed:,} of {variant.blocks_held:,}"
    return (
        kept if variant.kept_tokens_low == variant.kept_tokens else f"{variant.kept_tokens_low:,} to {kept}",
        _size(variant.policy_saved_bytes),
        _size(variant.prefill_peak_bytes),
        *([freed] if _FREED in titles else []),
        "has it" if variant.policy_offered else "lacks it",
        _balance(variant),
    )


def _balance(variant: Variant) -> str:
    """Whether there is less memory to provide for."""
    if variant.loses:
        return "loses"
    if variant.policy_saved_bytes:
        return "saves"
    return "frees behind the prefill" if variant.blocks_freed else "frees nothing"


def _split(variant: Variant, split: bool) -> tuple[str, ...]:
    """Where the layers lie, and the bound on the speed of what runs."""
    if not split:
        return ()
    layers = "" if variant.all_layers is None else f"{variant.gpu_layers:,} of {variant.all_layers:,}"
    host = "" if variant.host_bytes is None else human_bytes(variant.host_bytes) if variant.host_bytes else "-"
    speed = variant.decode_tokens_per_s_bound if variant.fits else None
    return (layers, host, "" if speed is None else f"{speed:,.3g}" if speed < 100 else f"{speed:,.0f}")


def _needed(variant: Variant) -> str:
    """The bytes a GPU needs; both ends of the estimate if the verdict depends on them."""
    low, high = variant.total_per_gpu_low_bytes, variant.total_per_gpu_high_bytes
    if variant.verdict is None or variant.verdict.certain or low is None or high is None:
        return _size(variant.total_per_gpu_bytes)
    return f"{human_bytes(low)} to {human_bytes(high)}"


def _size(count: int | None) -> str:
    return _UNKNOWN if count is None else human_bytes(count)

"""The rows of several engines: what each stores, what its numbers are, and why they are not those of the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.engines.causes import Cause
from hwcalc.library.compare import Variant
from hwcalc.library.side_by_side import EngineRow
from hwcalc.model import Definition
from hwcalc.report.text import filled
from hwcalc.units import human_bytes

__all__ = ["NUMBERS", "REASONS_WIDTH", "legend", "meanings", "shown_columns"]

_POOL, _VERDICT = "pool tokens", "verdict"
_COLUMNS: Final = ("stores", "cache", "a token", _POOL, _VERDICT, "number", "why it differs")
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
    return "".join(f"{filled(line, width, subsequent_indent='  ', break_on_hyphens=False)}\n" for line in lines)


def shown_columns(variants: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of each variant; pools and verdicts are left out where no accelerator and no budget was given."""
    rows = [_cells(variant) for variant in variants]
    without = set()
    if all(variant.row is None or variant.row.pool_tokens is None for variant in variants):
        without.add(_POOL)
    if all(variant.verdict is None for variant in variants):
        without.add(_VERDICT)
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

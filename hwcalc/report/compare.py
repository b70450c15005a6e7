"""Several plans side by side, for people and for spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from hwcalc.report.compare_records import Comparison, Variant
from hwcalc.report.rows import csv_text, listing
from hwcalc.report.table import PIPED_WIDTH
from hwcalc.report.text import TIMES, clean
from hwcalc.units import human_bytes

__all__ = ["comparison_csv", "comparison_text"]

_UNKNOWN = "unknown"


def comparison_csv(comparison: Comparison) -> str:
    """One row for each variant, all fields; an empty cell is unknown or not planned."""
    names = [field.name for field in fields(Variant)]
    return csv_text(names, ([getattr(variant, name) for name in names] for variant in comparison.variants))


def comparison_text(comparison: Comparison, *, format_: str, color: bool = False, width: int = PIPED_WIDTH) -> str:
    """What all variants share, the memory of each, the verdicts where an accelerator was named, and what failed.

    ``format_`` is ``table`` or ``markdown``.
    """
    planned = [variant for variant in comparison.variants if variant.error is None]
    parts = [_shared(comparison, planned[0]) + "\n"]
    labels = [_label(name) for name in comparison.varying] or ["model"]
    memory = [(*_names(variant, comparison), *_memory(variant)) for variant in planned]
    header = (*labels, "cache", "a token", TIMES, "weights", "total")
    first = len(labels)
    parts.append(listing(header, memory, format_=format_, right=range(first, first + 5), color=color, width=width))
    if any(variant.verdict is not None for variant in planned):
        verdicts = [(*_names(variant, comparison), *_verdict(variant)) for variant in planned]
        header = (*labels, "a GPU needs", "may use", "verdict", "max seq", "max batch")
        right = (first, first + 1, first + 3, first + 4)
        parts.append(listing(header, verdicts, format_=format_, right=right, color=color, width=width))
    failed = [variant for variant in comparison.variants if variant.error is not None]
    if failed:
        rows = [(*_names(variant, comparison), variant.error or "") for variant in failed]
        parts.append(listing((*labels, "not planned"), rows, format_=format_, color=color, width=width))
    return "\n".join(parts)


def _label(name: str) -> str:
    return {"seq": "tokens", "gpu": "GPU"}.get(name, name)


def _shared(comparison: Comparison, first: Variant) -> str:
    """What is the same in all, in one line."""
    words = {
        "model": first.model,
        "seq": f"{first.seq:,} tokens" if first.seq is not None else "",
        "batch": f"batch {first.batch:,}",
        "dtype": f"KV {first.dtype}",
        "weights": "" if first.weights is None else f"weights {first.weights}",
        "engine": _engine(first, comparison),
        "gpu": first.gpu or "",
        "tp": f"tp {first.tp}" if first.tp > 1 else "",
    }
    same = [word for name, word in words.items() if word and name not in comparison.varying]
    return clean(" · ".join(same))


def _names(variant: Variant, comparison: Comparison) -> list[str]:
    """What tells this variant from the others."""
    values = {
        **{name: getattr(variant, name) for name in comparison.varying},
        **({"engine": _engine(variant, comparison)} if "engine" in comparison.varying else {}),
    }
    cells = [_cell(values[name]) for name in comparison.varying]
    return cells or [variant.model]


def _engine(variant: Variant, comparison: Comparison) -> str:
    """The engine, with its version where the same engine is there in several."""
    versions = {other.engine_version for other in comparison.variants if other.engine == variant.engine}
    return f"{variant.engine}@{variant.engine_version}" if len(versions) > 1 and variant.engine_version else variant.engine


def _cell(value: object) -> str:
    if value is None:
        return "default"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _memory(variant: Variant) -> Sequence[str]:
    ratio = "" if variant.cache_ratio is None else f"{variant.cache_ratio:.2f}"
    return (
        _size(variant.cache_total_bytes),
        _size(variant.bytes_per_token),
        ratio,
        _size(variant.weights_bytes),
        _size(variant.total_bytes),
    )


def _verdict(variant: Variant) -> Sequence[str]:
    return (
        _size(variant.total_per_gpu_bytes),
        _size(variant.usable_bytes),
        variant.verdict or _UNKNOWN,
        "" if variant.max_seq is None else f"{variant.max_seq:,}",
        "" if variant.max_batch is None else f"{variant.max_batch:,}",
    )


def _size(count: int | None) -> str:
    return _UNKNOWN if count is None else human_bytes(count)

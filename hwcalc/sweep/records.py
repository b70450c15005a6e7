"""The documents of many plans at once, as dataclasses: what ``kvplan compare`` and ``kvplan sweep`` write."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.frozen import frozen

__all__ = ["AXES", "Comparison", "SweepDocument", "SweepPoint", "Variant"]

AXES: Final = ("model", "engine", "dtype", "weights", "gpu", "tp", "seq", "batch")
"""What may differ between variants, in the order in which it changes: the last fastest."""


@frozen
class Variant:
    """One plan's headline figures; null is unknown or not planned, and ``error`` says why nothing was planned.

    ``cache_ratio`` is the cache in times of the first variant that was planned. What is said of the accelerator is per GPU; ``low`` and
    ``high`` are the ends of its estimate.
    """

    model: str
    engine: str
    engine_version: str | None
    dtype: str | None
    weights: str | None
    gpu: str | None
    tp: int
    seq: int | None
    batch: int
    bytes_per_token: int | None = None
    cache_total_bytes: int | None = None
    cache_per_gpu_bytes: int | None = None
    cache_ratio: float | None = None
    weights_bytes: int | None = None
    total_bytes: int | None = None
    total_per_gpu_bytes: int | None = None
    total_per_gpu_low_bytes: int | None = None
    total_per_gpu_high_bytes: int | None = None
    usable_bytes: int | None = None
    fits: bool | None = None
    verdict: str | None = None
    max_seq: int | None = None
    max_batch: int | None = None
    error: str | None = None


@frozen
class Comparison:
    """Variants in the order of the lists; ``varying`` names the fields that tell them apart."""

    schema_version: str
    kvplan_version: str
    varying: tuple[str, ...]
    variants: tuple[Variant, ...]


@frozen
class SweepPoint:
    """One point of a grid: a line of ``--format jsonl``, and a row of CSV and Parquet with the same names.

    Null is unknown or not asked for. ``low`` and ``high`` are the ends of the estimate of one GPU. ``warning`` holds the codes of the plan's warnings; with an ``error`` nothing was planned.
    """

    model: str
    engine: str
    engine_version: str | None
    dtype: str | None
    gpu: str | None
    tp: int | None
    seq: int | None
    batch: int | None
    bytes_per_token: int | None
    cache_total_bytes: int | None
    cache_per_gpu_bytes: int | None
    weights_bytes: int | None
    weights_per_gpu_bytes: int | None
    total_bytes: int | None
    total_per_gpu_bytes: int | None
    total_per_gpu_low_bytes: int | None
    total_per_gpu_high_bytes: int | None
    verdict: str | None
    warning: str | None
    error: str | None


@frozen
class SweepDocument:
    """What ``kvplan sweep --json`` prints."""

    schema_version: str
    kvplan_version: str
    points: tuple[SweepPoint, ...]

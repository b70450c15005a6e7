"""The document that ``kvplan sweep`` writes, as dataclasses."""

from __future__ import annotations

from hwcalc.formulas.record import Record


class SweepPoint(Record):
    """One point of a grid: a line of ``--format jsonl``, and a row of CSV and Parquet with the same names.

    Null is unknown or not asked for; without a ``gpu`` nothing is usable, and there are no ``gpus``. ``definition`` is that of
    the cache. ``low`` and ``high`` are the ends of the estimate of one GPU, and ``fits`` is the verdict: ``fits``, ``probably``,
    ``probably_not`` or ``no``. Of a ``policy``, ``kept_tokens`` are those of the layer that keeps most behind the prompt.
    ``warning`` holds the codes of the plan's warnings; with an ``error`` nothing was planned.
    """

    model: str
    engine: str
    engine_version: str | None
    dtype: str | None
    gpu: str | None
    gpus: int | None
    tp: int | None
    policy: str | None
    seq: int | None
    batch: int | None
    bytes_per_token: int | None
    cache_total_bytes: int | None
    cache_per_gpu_bytes: int | None
    definition: str | None
    weights_bytes: int | None
    weights_per_gpu_bytes: int | None
    total_bytes: int | None
    total_per_gpu_bytes: int | None
    total_per_gpu_low_bytes: int | None
    total_per_gpu_high_bytes: int | None
    usable_bytes: int | None
    kept_tokens: int | None
    policy_saved_bytes: int | None
    prefill_peak_bytes: int | None
    fits: str | None
    warning: str | None
    error: str | None


class SweepDocument(Record):
    """What ``kvplan sweep --json`` prints."""

    schema_version: str
    kvplan_version: str
    points: tuple[SweepPoint, ...]

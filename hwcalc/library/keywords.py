"""The options of a plan as keywords, for type checkers alone: what functions with ``**options`` take.

Nothing imports this module when the program runs. A test holds it to the table in :mod:`hwcalc.planner.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from hwcalc.library.load import ModelLike

__all__ = ["CompareOptions", "PlanOptions", "RecommendOptions", "ReconcileOptions", "SweepOptions"]


class _Everywhere(TypedDict, total=False):
    """What one value for all plans makes sense of, with or without named hardware."""

    memory_utilization: float | str | None
    lora: str | None
    draft: ModelLike | None
    encoder_seq: int | str | None
    engine_options: Mapping[str, object] | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None


class _Hardware(_Everywhere, total=False):
    """The same, with hardware that is named."""

    gpus: int | str | None
    instance: str | None
    pp: int | str
    dp: int | str
    dcp: int | str
    ep: int | str
    kv_memory: int | str | None


class CompareOptions(_Hardware, total=False):
    """Options of a plan of which a comparison takes one value."""

    margin: float | str | None


class SweepOptions(CompareOptions, total=False):
    """Options of a plan of which a sweep takes one value."""

    weights: str | None
    engine: str


class PlanOptions(SweepOptions, total=False):
    """All options of a plan."""

    seq: int | str | None
    batch: int | str
    dtype: str | None
    gpu: str | None
    tp: int | str


class RecommendOptions(_Everywhere, total=False):
    """Options of a plan that name no hardware."""

    margin: float | str | None
    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str


class ReconcileOptions(_Hardware, total=False):
    """Options of a plan that replace what a log states, or add to it."""

    seq: int | str | None
    batch: int | str | None
    dtype: str | None
    weights: str | None
    gpu: str | None
    tp: int | str | None

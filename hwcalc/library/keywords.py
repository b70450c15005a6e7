"""The types of the keywords that functions with ``**options`` take, for type checkers.

A test compares them with the table in :mod:`hwcalc.planner.options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from hwcalc.library.load import ModelLike

__all__ = [
    "CompareOptions",
    "ExploreOptions",
    "FitOptions",
    "PlanOptions",
    "RecommendOptions",
    "ReconcileOptions",
    "StrategiesOptions",
    "SweepOptions",
]


class _Everywhere(TypedDict, total=False):
    """Options that all of these functions take, with or without named hardware."""

    memory_utilization: float | str | None
    lora: str | None
    draft: ModelLike | None
    encoder_seq: int | str | None
    prompt: int | str | None
    policy_rules: str | None
    compaction: str | None
    shared_prefix: int | str | None
    lengths: Sequence[int | str] | str | None
    samples: int | str
    beams: int | str
    engine_options: Mapping[str, object] | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None


class _Dimensions(TypedDict, total=False):
    """Options that change the dimensions of a model, or give them without one."""

    layers: int | str | None
    heads: int | str | None
    kv_heads: int | str | None
    head_dim: int | str | None
    hidden_size: int | str | None
    intermediate_size: int | str | None
    vocab_size: int | str | None
    parameters: int | str | None


class _Hardware(_Everywhere, total=False):
    """Options of functions that can name hardware."""

    gpus: int | str | None
    instance: str | None
    pp: int | str
    dp: int | str
    dcp: int | str
    ep: int | str
    kv_memory: int | str | None


class CompareOptions(_Hardware, _Dimensions, total=False):
    """Options that have the same value in all plans of a comparison."""

    margin: float | str | None


class SweepOptions(CompareOptions, total=False):
    """Options that have the same value in all plans of a sweep."""

    weights: str | None
    engine: str | None


class PlanOptions(SweepOptions, total=False):
    """All options of a plan."""

    policy: object
    seq: int | str | None
    batch: int | str
    dtype: str | None
    gpu: str | None
    tp: int | str


class RecommendOptions(_Everywhere, _Dimensions, total=False):
    """Options of a plan that name no hardware."""

    policy: object
    margin: float | str | None
    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None


class ReconcileOptions(_Hardware, total=False):
    """Options of a plan that replace what a log states, or add to it."""

    policy: object
    seq: int | str | None
    batch: int | str | None
    dtype: str | None
    weights: str | None
    gpu: str | None
    tp: int | str | None


class FitOptions(TypedDict, total=False):
    """Options of a plan that many models share on one kind of GPU."""

    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None
    engine_options: Mapping[str, object] | None
    gpu: str | None
    gpus: int | str | None
    memory_utilization: float | str | None
    margin: float | str | None


class StrategiesOptions(_Dimensions, total=False):
    """Options of a plan by which ways of allocation differ, or that say how the model is read."""

    seq: int | str | None
    batch: int | str
    prompt: int | str | None
    encoder_seq: int | str | None
    dtype: str | None
    weights: str | None
    engine: str | None
    engine_options: Mapping[str, object] | None
    gpu: str | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None


class ExploreOptions(_Dimensions, total=False):
    """Options of a plan that are chosen when a page opens, that all its states have, or that say how models are read."""

    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None
    gpus: int | str | None
    tp: int | str
    memory_utilization: float | str | None
    margin: float | str | None
    encoder_seq: int | str | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None

"""Several plans side by side: the product of a few lists, each variant planned by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import KvplanError, UnknownNameError, UsageError
from hwcalc.library.plan import plan
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan
from hwcalc.sweep.records import AXES, Comparison, Variant

__all__ = ["MOST_VARIANTS", "common_length", "compared"]

MOST_VARIANTS: Final = 24


def common_length(models: Iterable[ModelSpec]) -> int:
    """The smallest maximum: one length for all, or the bytes would say nothing about the models."""
    known = [model.max_position_embeddings for model in models if model.max_position_embeddings is not None]
    if not known:
        raise UsageError("no model states its longest sequence.", hint="Give one: --seq 32k")
    return min(known)


def compared(models: Iterable[ModelSpec], axes: Mapping[str, tuple[Any, ...]], options: Mapping[str, Any]) -> Comparison:
    """Plan every combination of the models and the other :data:`AXES`; ``options`` are further keywords of :func:`hwcalc.plan`.

    An entry of ``None`` leaves that keyword out. A variant that cannot be planned has its reason. Raises the first reason, a
    :class:`~hwcalc.errors.KvplanError`, if none can be planned, and :class:`~hwcalc.errors.UsageError` for too many and for a name
    that no model could have with any of the engines.
    """
    lists = [tuple(models), *(axes[name] for name in AXES[1:])]
    every = list(product(*lists))
    if len(every) > MOST_VARIANTS:
        raise UsageError(
            f"those are {len(every):,} variants, and a comparison has at most {MOST_VARIANTS}.",
            hint="Leave some out, or write them all as rows: kvplan sweep",
        )
    found: list[Variant] = []
    first: KvplanError | None = None
    strange: list[tuple[dict[str, Any], UnknownNameError]] = []
    base: int | None = None
    for values in every:
        asked = dict(zip(AXES, values, strict=True))
        try:
            planned = plan(asked.pop("model"), **options, **{name: value for name, value in asked.items() if value is not None})
        except KvplanError as error:
            first = first or error
            if isinstance(error, UnknownNameError):
                strange.append((asked, error))
            found.append(_failed(dict(zip(AXES, values, strict=True)), error))
            continue
        base = planned.cache.total_bytes if base is None else base
        found.append(_variant(planned, asked["gpu"], base))
    unknown = _unknown(strange, axes["engine"])
    if unknown is not None:
        raise unknown
    if first is not None and all(variant.error is not None for variant in found):
        raise first
    planned_ones = [variant for variant in found if variant.error is None]
    # A default is another for every model; that of the weights is told by their size.
    varying = tuple(
        name
        for name, values in zip(AXES, lists, strict=True)
        if len(values) > 1 or (name != "weights" and len({getattr(variant, name) for variant in planned_ones}) > 1)
    )
    return Comparison(schema_version=SCHEMA_VERSION, kvplan_version=__version__, varying=varying, variants=tuple(found))


def _unknown(strange: Iterable[tuple[Mapping[str, Any], UnknownNameError]], engines: tuple[Any, ...]) -> UnknownNameError | None:
    """The first name that no model could have. A dtype that another of the engines knows is none of them."""
    spoken: dict[str, set[Any]] = {}
    for asked, error in strange:
        if error.option != "dtype":
            return error
        without = spoken.setdefault(asked["dtype"], set())
        without.add(asked["engine"])
        if without >= set(engines):
            return error
    return None


def _variant(plan: Plan, gpu: str | None, base: int) -> Variant:
    request, cache, memory, fit = plan.request, plan.cache, plan.memory, plan.fit
    return Variant(
        model=plan.model.id,
        engine=request.engine,
        engine_version=request.engine_version,
        dtype=request.kv_dtype,
        weights=memory.weights.format or None,
        gpu=gpu if fit is None else fit.gpu,
        tp=request.tp,
        seq=request.seq,
        batch=request.batch,
        bytes_per_token=cache.bytes_per_token,
        cache_total_bytes=cache.total_bytes,
        cache_per_gpu_bytes=cache.per_gpu_bytes,
        cache_ratio=round(cache.total_bytes / base, 6) if base else None,
        weights_bytes=memory.weights.bytes,
        total_bytes=memory.total_bytes,
        total_per_gpu_bytes=memory.per_gpu.total,
        total_per_gpu_low_bytes=None if fit is None else fit.needed_low_bytes,
        total_per_gpu_high_bytes=None if fit is None else fit.needed_high_bytes,
        usable_bytes=None if fit is None else fit.usable_bytes,
        fits=None if fit is None else fit.fits,
        verdict=None if fit is None else fit.verdict,
        max_seq=None if fit is None else fit.max_seq,
        max_batch=None if fit is None else fit.max_batch,
    )


def _failed(asked: Mapping[str, Any], error: KvplanError) -> Variant:
    engine, _, version = str(asked["engine"] or "reference").partition("@")
    return Variant(
        model=asked["model"].id,
        engine=engine,
        engine_version=version or None,
        dtype=asked["dtype"],
        weights=asked["weights"],
        gpu=asked["gpu"],
        tp=asked["tp"] or 1,
        seq=asked["seq"],
        batch=asked["batch"],
        error=error.message,
    )

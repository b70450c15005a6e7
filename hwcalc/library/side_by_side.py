"""What stands in the row of an engine beside others: what it stores, what its numbers are, and why they are not the formulas'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwcalc.engines.base import Opened
from hwcalc.engines.causes import Cause, causes, growth_bytes, request_bytes, stored_words
from hwcalc.engines.request import Request
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan

__all__ = ["EngineRow", "SideBySide", "flat_row"]


class EngineRow(Record):
    """What one engine makes of a workload that others plan too.

    ``stores`` is what it keeps, by format; ``cache_is`` and ``pool_is`` are what its numbers are. ``growth_bytes`` are those that a token
    more takes of one sequence in the long run, with blocks spread over their tokens, on the GPUs that hold it together. ``pool_tokens`` are
    those of the pool that it makes of the GPU or the budget, as its own log counts them; null without a pool, or without a GPU and budget.
    ``all_gpus_bytes`` is the cache with each GPU counted as the fullest. ``reasons`` say why that is not what the formulas keep once: their
    bytes add up to the difference. They are null where sequences differ in length.
    """

    stores: str
    cache_is: str
    pool_is: str | None
    growth_bytes: int
    pool_tokens: int | None
    all_gpus_bytes: int
    reasons: tuple[Cause, ...] | None


class SideBySide:
    """Makes the rows of a comparison. The formulas of each workload are planned once."""

    def __init__(self) -> None:
        self._formulas: dict[tuple[object, ...], tuple[ModelSpec, Opened | None]] = {}
        """Each with its model, which lives on, so that no other one gets its ``id``."""

    def row(self, model: ModelSpec, opened: Opened, plan: Plan) -> EngineRow:
        """The row of an opened request about ``model`` and its plan."""
        engine, request = opened.engine, opened.request
        formulas = None if request.lengths else self._of(model, request)
        return EngineRow(
            stores=stored_words(opened),
            cache_is=engine.cache_is,
            pool_is=engine.pool_is or None,
            growth_bytes=growth_bytes(opened) if opened.evicted is None else plan.cache.bytes_per_token,
            pool_tokens=None if plan.pool is None else plan.pool.tokens,
            all_gpus_bytes=request_bytes(opened),
            reasons=None if formulas is None else causes(opened, formulas),
        )

    def _of(self, model: ModelSpec, request: Request) -> Opened | None:
        """The formulas for the workload of a request, whatever its hardware; ``None`` if they refuse it.

        A format that no formula has, such as one of a single engine, is left out: the cache is then that of the model's own dtype.
        """
        sharing = request.sharing
        workload = {
            **{name: getattr(request, name) for name in ("seq", "batch", "encoder_seq", "prompt")},
            "shared_prefix": sharing.prefix or None,
            "samples": sharing.samples,
            "beams": sharing.beams,
        }
        key = (id(model), request.dtype, *workload.values())
        if key not in self._formulas:
            self._formulas[key] = model, _opened(model, request.dtype, workload)
        return self._formulas[key][1]


def _opened(model: ModelSpec, dtype: str | None, workload: Mapping[str, Any]) -> Opened | None:
    for each in dict.fromkeys((dtype, None)):
        try:
            return open_request(model, engine="reference", dtype=each, **workload)
        except KvplanError:
            continue
    return None


def flat_row(row: EngineRow | None) -> dict[str, Any]:
    """The values of a row without lists: the reasons as one text. All are null where there is no row.

    >>> flat_row(None)["reasons"] is None
    True
    """
    values = {name: None if row is None else getattr(row, name) for name in EngineRow.__struct_fields__}
    reasons = (
        None if row is None or row.reasons is None else "; ".join(f"{cause.words}: {cause.bytes:+,} B" for cause in row.reasons)
    )
    return {**values, "reasons": reasons}

"""Blocks of rows, stored by column. All rows of a block have the same model, format, accelerator, number of ranks and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.planner.result import Plan
from hwcalc.sweep.records import SweepPoint

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers: TypeAlias = npt.NDArray[Any]
    """An array of whole numbers, int64."""

Value = str | int | None
Column: TypeAlias = "Value | Sequence[Value] | Integers"
"""One value for all rows of a block, or a value for each row."""

COLUMNS: Final = SweepPoint.__struct_fields__
NUMBERS: Final = frozenset(name for name, kind in SweepPoint.__annotations__.items() if "int" in kind)
"""The columns with whole numbers; the others hold text."""


class SharedNumbers(list[int]):
    """Numbers that many blocks share, such as lengths and batches."""

    @cached_property
    def texts(self) -> list[str]:
        """Each number as text."""
        return list(map(str, self))


class RowBlock(Record):
    """``size`` rows. ``columns`` has all of :data:`COLUMNS`; ``None`` means unknown, not planned, or no error."""

    size: int
    columns: Mapping[str, Column]
    failed: int = 0
    """The number of rows with an ``error``."""
    error: KvplanError | None = None
    """The first error."""

    @property
    def unjudged(self) -> int:
        """The number of planned rows that name an accelerator and have no verdict: nobody can say whether they fit."""
        if self.columns["gpu"] is None or isinstance(self.columns["fits"], str):
            return 0
        columns = ("gpu", "fits", "error")
        cells: list[Any] = [
            [held] * self.size if isinstance(held, (str, NoneType)) else held for held in map(self.columns.get, columns)
        ]
        return sum(gpu is not None and verdict is error is None for gpu, verdict, error in zip(*cells, strict=True))


def row_of(plan: Plan) -> dict[str, Value]:
    """A plan as one row."""
    request, cache, memory, policy = plan.request, plan.cache, plan.memory, plan.policy
    return {
        "model": plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version,
        "dtype": request.kv_dtype,
        "gpu": None if plan.fit is None else plan.fit.gpu,
        "gpus": None if plan.fit is None else plan.fit.gpus,
        "tp": request.tp,
        "policy": request.policy,
        "seq": request.seq,
        "batch": request.batch,
        "bytes_per_token": cache.bytes_per_token,
        "cache_total_bytes": cache.total_bytes,
        "cache_per_gpu_bytes": cache.per_gpu_bytes,
        "definition": cache.definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        "total_bytes": memory.total_bytes,
        "total_per_gpu_bytes": memory.per_gpu.total,
        "total_per_gpu_low_bytes": None if plan.fit is None else plan.fit.needed_low_bytes,
        "total_per_gpu_high_bytes": None if plan.fit is None else plan.fit.needed_high_bytes,
        "usable_bytes": None if plan.fit is None else plan.fit.usable_bytes,
        "kept_tokens": None if policy is None else max((layers.kept for layers in policy.layers), default=None),
        "policy_saved_bytes": None if policy is None else policy.saved_bytes,
        "prefill_peak_bytes": None if policy is None else policy.prefill_peak_bytes,
        "fits": None if plan.fit is None else plan.fit.verdict.value,
        "warning": " ".join(note.code for note in plan.warnings) or None,
        "error": None,
    }


def failed_row(known: Mapping[str, Value], error: str) -> dict[str, Value]:
    """The row of a point that cannot be planned: the request and the error, without figures."""
    return dict.fromkeys(COLUMNS) | dict(known) | {"error": error}

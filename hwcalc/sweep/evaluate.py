"""Evaluate a grid block by block: from the engine's curves if it has any, else by planning each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from time import monotonic
from typing import Any, Final

import numpy as np

from hwcalc.engines import find_engine
from hwcalc.engines.base import Opened
from hwcalc.engines.encoder import follows_output
from hwcalc.errors import KvplanError
from hwcalc.formulas.frozen import frozen
from hwcalc.library.load import Missing
from hwcalc.library.plan import plan
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import lasting_warnings
from hwcalc.sources.progress import tell
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock, Value, failed_row, row_of
from hwcalc.sweep.budgets import Budgets, EqualPoints, budgets_of, ends_of, equal_points, verdicts
from hwcalc.sweep.cost import in_words
from hwcalc.sweep.curves import CURVES, ON_CURVES, Curves, amounts, growth, largest
from hwcalc.sweep.grid import Grid, count
from hwcalc.sweep.spans import Integers

__all__ = ["blocks"]

_ROWS: Final = 65_536
"""The most rows of one block, which limits the memory that a sweep takes."""
_PLANNED_ROWS: Final = 128
"""The most rows of a block if every row is planned; fewer, so that rows and progress appear steadily."""
_SETTLED_SECONDS: Final = 2.0
"""Seconds after which the pace so far says how long the rest takes."""
_INT64: Final = 2**63 - 1
_MOST_IN_INT64: Final = 2**24
"""The most sequences for which no term of a GPU's memory equation comes near 64 bits."""
_OF_A_GPU: Final = frozenset({"gpu", "memory_utilization", "margin"})


def blocks(grid: Grid) -> Iterator[RowBlock]:
    """All rows; the batch changes fastest, then length, policy, ranks, accelerator, dtype and model. Reports progress.

    A point that cannot be planned becomes a row with an ``error``; nothing is raised.
    """
    total, done, begun = count(grid), 0, monotonic()
    axes = _Axes(grid.seqs, grid.batches)
    for model in grid.models:
        for block in [_missing(model, grid)] if isinstance(model, Missing) else _of_model(grid, axes, model):
            done += block.size
            tell(f"{done:,} of {total:,} points{_left(monotonic() - begun, done / total)}")
            yield block


def _left(seconds: float, share: float) -> str:
    """How much longer it takes, once that is known and worth a word."""
    left = seconds / share - seconds
    return f", about {in_words(left)} left" if seconds > _SETTLED_SECONDS and left >= 1 else ""


def _missing(model: Missing, grid: Grid) -> RowBlock:
    row = failed_row({"model": model.id, "engine": grid.engine_of(model).partition("@")[0]}, model.error.message)
    return RowBlock(size=1, columns=row, failed=1, error=model.error)


def _of_model(grid: Grid, axes: _Axes, model: ModelSpec) -> Iterator[RowBlock]:
    per_model = _PerModel(model)
    for setting in grid.settings:
        keywords = grid.keywords(setting)
        known: dict[str, Value] = {
            "model": model.id,
            "engine": grid.engine_of(model).partition("@")[0],
            "dtype": setting.dtype,
            "gpu": setting.gpu,
            "tp": setting.tp,
            "policy": None if setting.policy is None else setting.policy.text,
        }
        try:
            point = _curves(grid, model, keywords)
            own = axes if grid.seqs or point is None else _Axes((point.opened.tokens,), grid.batches)
            prepared = None if point is None else _prepared(own, point, per_model, keywords)
        except KvplanError as error:
            yield from _refused(grid, axes, model, keywords, known, error)
            continue
        if prepared is None:
            yield from _planned(grid, model, keywords, known)
        else:
            yield from _evaluated(own, prepared, setting.gpu)


@frozen
class _LongestPoint:
    """The request of the longest point, opened, and the curves for all points."""

    opened: Opened
    curves: Curves


def _curves(grid: Grid, model: ModelSpec, keywords: Mapping[str, Any]) -> _LongestPoint | None:
    """The curves for these keywords; ``None`` if the engine has none. Raises the engine's error for the longest point."""
    if find_engine(grid.engine_of(model))[0].name not in CURVES or not keywords.keys() <= ON_CURVES:
        return None
    request = read_options(keywords).keywords()
    opened = open_request(model, seq=max(grid.seqs, default=None), batch=max(grid.batches), **request)
    rules = CURVES.get(opened.engine.name)
    return None if rules is None or opened.engine.periods(opened) else _LongestPoint(opened=opened, curves=rules(opened))


class _PerModel:
    """Values that all dtypes of one model share: its weights, and the budgets of each GPU."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._weights: dict[int, dict[str, Value]] = {}
        self._budgets: dict[tuple[str, int], Budgets | None] = {}

    def weights(self, opened: Opened, keywords: Mapping[str, Any]) -> dict[str, Value]:
        """The row of a plan without a GPU. It supplies the weights and the columns of the model."""
        ranks = opened.request.parallel.tp
        if ranks not in self._weights:
            without_gpu = {name: value for name, value in keywords.items() if name not in _OF_A_GPU}
            self._weights[ranks] = row_of(plan(self._model, seq=opened.tokens, **without_gpu))
        return self._weights[ranks]

    def budgets(self, point: _LongestPoint, axes: _Axes, kind: Any) -> Budgets | None:
        """The budgets of all points; ``None`` without a GPU, or if they are unknown."""
        gpu, ranks = point.opened.request.hardware.gpu, point.opened.request.parallel.tp
        if gpu is None:
            return None
        if (gpu.id, ranks) not in self._budgets:
            self._budgets[gpu.id, ranks] = budgets_of(
                point.opened, axes.seqs, axes.batches, axes.equal_points(point.opened), kind
            )
        return self._budgets[gpu.id, ranks]


def _refused(
    grid: Grid, axes: _Axes, model: ModelSpec, keywords: Mapping[str, Any], known: dict[str, Value], error: KvplanError
) -> Iterator[RowBlock]:
    """Rows for a grid whose longest point is refused. If the shortest is refused with the same message, so are all between them."""
    try:
        grid.plan(model, keywords, min(grid.seqs, default=None), min(grid.batches))
    except KvplanError as other:
        if grid.seqs and other.message == error.message:
            row = failed_row(known, error.message)
            for seqs, batches in axes.pieces():
                size = len(axes.seqs[seqs]) * len(axes.batches[batches])
                yield RowBlock(size=size, columns=row | axes.columns(seqs, batches), failed=size, error=error)
            return
    yield from _planned(grid, model, keywords, known)


class _Axes:
    """The lengths and batches of a grid, and values that depend on these alone."""

    def __init__(self, seqs: tuple[int, ...], batches: tuple[int, ...]) -> None:
        self.seqs, self.batches = seqs, batches
        self._columns: dict[tuple[int, int], dict[str, Column]] = {}
        self._equal_points: tuple[EqualPoints, ...] | None = None

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Split the lengths and batches into parts of at most :data:`_ROWS` rows, in order."""
        wide = min(len(self.batches), _ROWS)
        tall = max(1, _ROWS // wide)
        for start in range(0, len(self.seqs), tall):
            for left in range(0, len(self.batches), wide):
                yield slice(start, start + tall), slice(left, left + wide)

    def equal_points(self, opened: Opened) -> tuple[EqualPoints, ...]:
        """The groups of points that share the terms of the memory equation; they are the same for any model."""
        if self._equal_points is None:
            self._equal_points = equal_points(opened, self.seqs, self.batches)
        return self._equal_points

    def columns(self, seqs: slice, batches: slice) -> dict[str, Column]:
        """The columns ``seq`` and ``batch`` of a part. Those of the last part are kept."""
        key = (seqs.start, batches.start)
        if key not in self._columns:
            here, there = self.seqs[seqs], self.batches[batches]
            self._columns = {
                key: {
                    "seq": [seq for seq in here for _ in there],
                    "batch": list(there) * len(here),
                }
            }
        return self._columns[key]


@frozen
class _Prepared:
    """The inputs of the blocks: arrays over the lengths and batches, the row of a plan, and the budgets of a GPU."""

    point: _LongestPoint
    row: dict[str, Value]
    held: Integers
    rank: Integers
    grown: Integers
    counts: Integers
    budgets: Budgets | None


def _prepared(axes: _Axes, point: _LongestPoint, per_model: _PerModel, keywords: Mapping[str, Any]) -> _Prepared:
    """Compute everything that may raise an error; what follows is arithmetic."""
    opened, curves = point.opened, point.curves
    row = per_model.weights(opened, keywords)
    follows = follows_output(opened.model, opened.request)
    kind = _kind(axes, point, int(row["weights_bytes"] or 0), follows=follows)
    tokens = np.array(axes.seqs, dtype=kind)
    # If the length of the encoder's input is unknown, it is assumed to be that of the output.
    encoder = tokens if follows else np.full_like(tokens, opened.encoder_tokens)
    return _Prepared(
        point=point,
        row=row,
        held=amounts(curves.held, tokens, encoder),
        rank=amounts(curves.rank, tokens, encoder),
        grown=growth(curves.grown, tokens, encoder),
        counts=np.array(axes.batches, dtype=kind),
        budgets=per_model.budgets(point, axes, kind),
    )


def _evaluated(axes: _Axes, prepared: _Prepared, gpu: str | None) -> Iterator[RowBlock]:
    opened, counts, budgets = prepared.point.opened, prepared.counts, prepared.budgets
    row = prepared.row | {"dtype": opened.dtypes.kv, "gpu": gpu, "gpus": None if budgets is None else opened.request.gpus}
    for seqs, batches in axes.pieces():
        total, on_rank = np.outer(prepared.held[seqs], counts[batches]), np.outer(prepared.rank[seqs], counts[batches])
        yield RowBlock(
            size=total.size,
            columns={
                **row,
                **axes.columns(seqs, batches),
                "bytes_per_token": np.repeat(prepared.grown[seqs], total.shape[1]),
                "cache_total_bytes": total.ravel(),
                "cache_per_gpu_bytes": on_rank.ravel(),
                **_sums(row, total, on_rank, budgets and budgets.part(seqs, batches), opened.request.gpus),
                "warning": _warning(
                    axes,
                    seqs,
                    batches,
                    opened.model.max_position_embeddings,
                    [
                        note.code
                        for note in lasting_warnings(
                            opened, known_weights=row["weights_bytes"] is not None, verdict=gpu is None or budgets is not None
                        )
                    ],
                ),
            },
        )


def _kind(axes: _Axes, point: _LongestPoint, weights: int, *, follows: bool) -> Any:
    """The type of the arrays: int64, or Python's integers if a number of the grid could be larger."""
    longest, most = max(axes.seqs) + 1, max(axes.batches)
    encoder = longest if follows else point.opened.encoder_tokens
    bound = largest(point.curves.held + point.curves.rank, longest, encoder) * most + weights
    return np.int64 if bound < _INT64 // 2 and most <= _MOST_IN_INT64 else object


def _sums(row: Mapping[str, Value], total: Integers, on_rank: Integers, budgets: Budgets | None, gpus: int) -> dict[str, Column]:
    """The columns with the sums of all GPUs and of the fullest one, and the verdict, as a plan has them."""
    weights, on_gpu = row["weights_bytes"], row["weights_per_gpu_bytes"]
    if budgets is None:
        return {
            "total_bytes": None if weights is None else (total + weights).ravel(),
            "total_per_gpu_bytes": None if on_gpu is None else (on_rank + on_gpu).ravel(),
        }
    low, high = ends_of(on_rank, budgets)
    return {
        "weights_per_gpu_bytes": budgets.weights,
        "total_bytes": None if weights is None else (total + weights + gpus * budgets.beside).ravel(),
        "total_per_gpu_bytes": (on_rank + budgets.weights + budgets.beside).ravel(),
        "total_per_gpu_low_bytes": low,
        "total_per_gpu_high_bytes": high,
        "usable_bytes": budgets.usable,
        "fits": verdicts(on_rank, budgets),
    }


def _warning(axes: _Axes, seqs: slice, batches: slice, maximum: int | None, codes: Sequence[str]) -> Column:
    """The codes of a plan's warnings, row by row. ``codes`` are those that all rows have."""
    always = " ".join(codes) or None
    if maximum is None or max(axes.seqs[seqs]) <= maximum:
        return always
    both = " ".join(filter(None, ("beyond-maximum", always)))
    words = [both if seq > maximum else always for seq in axes.seqs[seqs]]
    return [word for word in words for _ in axes.batches[batches]]


def _planned(grid: Grid, model: ModelSpec, keywords: Mapping[str, Any], known: dict[str, Value]) -> Iterator[RowBlock]:
    """Plan each point by itself."""
    rows: list[dict[str, Value]] = []
    first: KvplanError | None = None
    for seq, batch in product(grid.seqs or (None,), grid.batches):
        try:
            row = row_of(grid.plan(model, keywords, seq, batch))
            row["gpu"] = row["gpu"] or known["gpu"]
        except KvplanError as error:
            first = first or error
            row = failed_row(known | {"seq": seq, "batch": batch}, error.message)
        rows.append(row)
        if len(rows) == _PLANNED_ROWS:
            yield _gathered(rows, first)
            rows = []
    if rows:
        yield _gathered(rows, first)


def _gathered(rows: list[dict[str, Value]], error: KvplanError | None) -> RowBlock:
    columns: dict[str, Column] = {}
    for name in COLUMNS:
        values = [row[name] for row in rows]
        columns[name] = values[0] if len(set(values)) == 1 else values
    return RowBlock(size=len(rows), columns=columns, failed=sum(row["error"] is not None for row in rows), error=error)

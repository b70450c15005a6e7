"""A grid, block by block: on the engine's curves where it has them, else plan by plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import numpy as np

from hwcalc.engines import find_engine
from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.encoder import has_cross
from hwcalc.errors import KvplanError
from hwcalc.formulas.frozen import frozen
from hwcalc.library.plan import plan
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.sources.progress import tell
from hwcalc.sweep.blocks import COLUMNS, Block, Column, Value, failed_row, row_of
from hwcalc.sweep.budgets import Alike, Budgets, alike, budgets_of, ends_of, verdicts
from hwcalc.sweep.curves import CURVES, Curves, amounts, growth, largest
from hwcalc.sweep.grid import Grid, Missing, count
from hwcalc.sweep.spans import Integers

__all__ = ["blocks"]

_ROWS: Final = 65_536
"""Rows of one block at most: what bounds memory."""
_PLANNED_ROWS: Final = 128
"""The same where every row is a plan, so that rows and progress come steadily."""
_INT64: Final = 2**63 - 1
_MOST_IN_INT64: Final = 2**24
"""Sequences at once with which no term of a GPU's equation comes near 64 bits."""
_ON_CURVES: Final = frozenset({"engine", "dtype", "tp", "weights", "encoder_seq", "gpu", "memory_utilization", "margin"})
"""Keywords of a plan that the curves follow. With any other that is given, each point is planned."""
_OF_A_GPU: Final = frozenset({"gpu", "memory_utilization", "margin"})


def blocks(grid: Grid) -> Iterator[Block]:
    """All rows, the batch changing fastest, then length, ranks, accelerator, dtype and model. What is done is told as it goes.

    A point that cannot be planned is a row with an ``error``; nothing is raised for it.
    """
    total, done = count(grid), 0
    axes = _Axes(grid.seqs, grid.batches)
    for model in grid.models:
        for block in [_missing(model, grid)] if isinstance(model, Missing) else _of_model(grid, axes, model):
            done += block.size
            tell(f"{done:,} of {total:,} points")
            yield block


def _missing(model: Missing, grid: Grid) -> Block:
    row = failed_row({"model": model.name, "engine": grid.engine.partition("@")[0]}, model.error.message)
    return Block(size=1, columns=row, failed=1, error=model.error)


def _of_model(grid: Grid, axes: _Axes, model: ModelSpec) -> Iterator[Block]:
    kept = _Kept(model)
    for dtype, gpu, tp in product(grid.dtypes, grid.gpus, grid.tps):
        keywords = grid.keywords(dtype, gpu, tp)
        known: dict[str, Value] = {
            "model": model.id,
            "engine": grid.engine.partition("@")[0],
            "dtype": dtype,
            "gpu": gpu,
            "tp": tp,
        }
        try:
            found = _curves(grid, model, keywords)
            own = axes if grid.seqs or found is None else _Axes((found.context.tokens,), grid.batches)
            made = None if found is None else _prepared(own, found, kept, keywords)
        except KvplanError as error:
            yield from _refused(grid, axes, model, keywords, known, error)
            continue
        if made is None:
            yield from _planned(grid, model, keywords, known)
        else:
            yield from _evaluated(own, made, gpu)


@frozen
class _Found:
    """The longest point as the engine sees it, and the curves of all."""

    engine: Engine
    context: Opened
    curves: Curves


def _curves(grid: Grid, model: ModelSpec, keywords: Mapping[str, Any]) -> _Found | None:
    """``None`` if the engine has no curves, or not with these options. Raises what the engine raises for the longest point."""
    rules = CURVES.get(find_engine(grid.engine)[0].name)
    if rules is None or not keywords.keys() <= _ON_CURVES:
        return None
    request = read_options(keywords).keywords()
    context = open_request(model, seq=max(grid.seqs, default=None), batch=max(grid.batches), **request)
    engine = context.engine
    return None if engine.periods(context) else _Found(engine=engine, context=context, curves=rules(engine, context))


class _Kept:
    """What is the same for every dtype of one model: its weights, and what a GPU has left beside them."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._weights: dict[int, dict[str, Value]] = {}
        self._budgets: dict[tuple[str, int], Budgets | None] = {}

    def weights(self, context: Opened, keywords: Mapping[str, Any]) -> dict[str, Value]:
        """The row of a plan without a GPU, for its weights and what the model is."""
        ranks = context.request.parallel.tp
        if ranks not in self._weights:
            plain = {name: value for name, value in keywords.items() if name not in _OF_A_GPU}
            self._weights[ranks] = row_of(plan(self._model, seq=context.tokens, **plain))
        return self._weights[ranks]

    def budgets(self, found: _Found, axes: _Axes, kind: Any) -> Budgets | None:
        """What each point has left; ``None`` without a GPU, or where that is not known."""
        gpu, ranks = found.context.request.hardware.gpu, found.context.request.parallel.tp
        if gpu is None:
            return None
        if (gpu.id, ranks) not in self._budgets:
            self._budgets[gpu.id, ranks] = budgets_of(
                found.engine, found.context, axes.seqs, axes.batches, axes.alike(found.engine, found.context), kind
            )
        return self._budgets[gpu.id, ranks]


def _refused(
    grid: Grid, axes: _Axes, model: ModelSpec, keywords: Mapping[str, Any], known: dict[str, Value], error: KvplanError
) -> Iterator[Block]:
    """The longest point is refused. If the shortest is refused in the same words, so are those in between."""
    try:
        plan(model, seq=min(grid.seqs, default=None), batch=min(grid.batches), **keywords)
    except KvplanError as other:
        if grid.seqs and other.message == error.message:
            row = failed_row(known, error.message)
            for seqs, batches in axes.pieces():
                size = len(axes.seqs[seqs]) * len(axes.batches[batches])
                yield Block(size=size, columns=row | axes.columns(seqs, batches), failed=size, error=error)
            return
    yield from _planned(grid, model, keywords, known)


class _Axes:
    """The two axes of every block, and what of them is the same in all blocks."""

    def __init__(self, seqs: tuple[int, ...], batches: tuple[int, ...]) -> None:
        self.seqs, self.batches = seqs, batches
        self._kept: dict[tuple[int, int], dict[str, Column]] = {}
        self._alike: tuple[Alike, ...] | None = None

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Parts of the plane of lengths and batches, few enough rows each, in order."""
        wide = min(len(self.batches), _ROWS)
        tall = max(1, _ROWS // wide)
        for start in range(0, len(self.seqs), tall):
            for left in range(0, len(self.batches), wide):
                yield slice(start, start + tall), slice(left, left + wide)

    def alike(self, engine: Engine, context: Opened) -> tuple[Alike, ...]:
        """The points for which an accelerator's equation is the same, of any model."""
        if self._alike is None:
            self._alike = alike(engine, context, self.seqs, self.batches)
        return self._alike

    def columns(self, seqs: slice, batches: slice) -> dict[str, Column]:
        """The columns ``seq`` and ``batch`` of a part."""
        key = (seqs.start, batches.start)
        if key not in self._kept:
            here, there = self.seqs[seqs], self.batches[batches]
            self._kept = {
                key: {
                    "seq": [seq for seq in here for _ in there],
                    "batch": list(there) * len(here),
                }
            }
        return self._kept[key]


@frozen
class _Prepared:
    """What one block is made of: arrays over the lengths, the row of a plan, and what each point of a GPU has left."""

    found: _Found
    row: dict[str, Value]
    held: Integers
    rank: Integers
    grown: Integers
    counts: Integers
    budgets: Budgets | None


def _prepared(axes: _Axes, found: _Found, kept: _Kept, keywords: Mapping[str, Any]) -> _Prepared:
    """Everything that may be refused: what comes after is arithmetic."""
    context, curves = found.context, found.curves
    row = kept.weights(context, keywords)
    follows = has_cross(context.model) and context.request.encoder_seq is None and context.model.encoder_tokens is None
    kind = _kind(axes, found, int(row["weights_bytes"] or 0), follows=follows)
    tokens = np.array(axes.seqs, dtype=kind)
    # An encoder whose length nobody says is taken to be as long as the output.
    encoder = tokens if follows else np.full_like(tokens, context.encoder_tokens)
    return _Prepared(
        found=found,
        row=row,
        held=amounts(curves.held, tokens, encoder),
        rank=amounts(curves.rank, tokens, encoder),
        grown=growth(curves.grown, tokens, encoder),
        counts=np.array(axes.batches, dtype=kind),
        budgets=kept.budgets(found, axes, kind),
    )


def _evaluated(axes: _Axes, made: _Prepared, gpu: str | None) -> Iterator[Block]:
    context, counts, budgets = made.found.context, made.counts, made.budgets
    row = made.row | {"dtype": context.dtypes.kv, "gpu": gpu}
    for seqs, batches in axes.pieces():
        total, on_rank = np.outer(made.held[seqs], counts[batches]), np.outer(made.rank[seqs], counts[batches])
        yield Block(
            size=total.size,
            columns={
                **row,
                **axes.columns(seqs, batches),
                "bytes_per_token": np.repeat(made.grown[seqs], total.shape[1]),
                "cache_total_bytes": total.ravel(),
                "cache_per_gpu_bytes": on_rank.ravel(),
                **_sums(row, total, on_rank, budgets and budgets.part(seqs, batches), context.request.gpus),
                "warning": _beyond(axes, seqs, batches, context.model.max_position_embeddings),
            },
        )


def _kind(axes: _Axes, found: _Found, weights: int, *, follows: bool) -> Any:
    """int64, or Python's own integers where a number of the grid could be larger."""
    longest, most = max(axes.seqs) + 1, max(axes.batches)
    encoder = longest if follows else found.context.encoder_tokens
    bound = largest(found.curves.held + found.curves.rank, longest, encoder) * most + weights
    return np.int64 if bound < _INT64 // 2 and most <= _MOST_IN_INT64 else object


def _sums(row: Mapping[str, Value], total: Integers, on_rank: Integers, budgets: Budgets | None, gpus: int) -> dict[str, Column]:
    """The whole sum, that of the fullest GPU, and the verdict, as the plan has them."""
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
        "verdict": verdicts(on_rank, budgets),
    }


def _beyond(axes: _Axes, seqs: slice, batches: slice, maximum: int | None) -> Column:
    if maximum is None or max(axes.seqs[seqs]) <= maximum:
        return None
    words = ["beyond-maximum" if seq > maximum else None for seq in axes.seqs[seqs]]
    return [word for word in words for _ in axes.batches[batches]]


def _planned(grid: Grid, model: ModelSpec, keywords: Mapping[str, Any], known: dict[str, Value]) -> Iterator[Block]:
    """Plan by plan."""
    rows: list[dict[str, Value]] = []
    first: KvplanError | None = None
    for seq, batch in product(grid.seqs or (None,), grid.batches):
        try:
            row = row_of(plan(model, seq=seq, batch=batch, **keywords))
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


def _gathered(rows: list[dict[str, Value]], error: KvplanError | None) -> Block:
    columns: dict[str, Column] = {}
    for name in COLUMNS:
        values = [row[name] for row in rows]
        columns[name] = values[0] if len(set(values)) == 1 else values
    return Block(size=len(rows), columns=columns, failed=sum(row["error"] is not None for row in rows), error=error)

"""Evaluate a grid block by block: from the engine's form if it has one, else by planning each point."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from time import monotonic
from typing import Any, Final

import numpy as np

from hwcalc.errors import KvplanError
from hwcalc.library.load import Missing
from hwcalc.model import ModelSpec
from hwcalc.sources.progress import tell
from hwcalc.sweep.axes import Axes, Piece
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock, Value, failed_row, row_of
from hwcalc.sweep.cost import in_words
from hwcalc.sweep.family import Family, family_of
from hwcalc.sweep.grid import Grid, Setting, count
from hwcalc.sweep.requests import Refusals, Requests

__all__ = ["blocks"]

_PLANNED_ROWS: Final = 128
"""The most rows of a block if every row is planned; fewer, so that rows and progress appear steadily."""
_SETTLED_SECONDS: Final = 2.0
"""Seconds after which the pace so far says how long the rest takes."""


def blocks(grid: Grid) -> Iterator[RowBlock]:
    """All rows; the batch changes fastest, then length, policy, ranks, accelerator, dtype and model. Reports progress.

    A point that cannot be planned becomes a row with an ``error``; nothing is raised.
    """
    total, done, begun = count(grid), 0, monotonic()
    axes = Axes(grid.seqs, grid.batches)
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


def _of_model(grid: Grid, axes: Axes, model: ModelSpec) -> Iterator[RowBlock]:
    for setting in grid.settings:
        yield from _Setting(grid, model, setting).blocks(axes)


class _Setting:
    """The rows of one model in one setting."""

    def __init__(self, grid: Grid, model: ModelSpec, setting: Setting) -> None:
        self._named = bool(grid.seqs)
        self._known: dict[str, Value] = {
            "model": model.id,
            "engine": grid.engine_of(model).partition("@")[0],
            "dtype": setting.dtype,
            "gpu": setting.gpu,
            "tp": setting.tp,
            "policy": None if setting.policy is None else setting.policy.text,
        }
        self._requests = Requests(model, grid.engine_of(model), grid.keywords(setting), grid.option_draft)

    @cached_property
    def _family(self) -> Family | None:
        """What all requests have in common, if the engine has a form of it. Some point has been opened."""
        opened, gpu = self._requests.first, self._known["gpu"]
        assert opened is not None
        assert not isinstance(gpu, int)
        return family_of(opened, gpu)

    def blocks(self, axes: Axes) -> Iterator[RowBlock]:
        """All rows, in blocks."""
        if not self._named:
            axes = Axes((self._requests.usual_length(axes.batches),), axes.batches)
        for piece in axes.pieces:
            yield from self._of_piece(piece, axes)

    def _of_piece(self, piece: Piece, axes: Axes) -> Iterator[RowBlock]:
        refusals = self._requests.refusals(piece)
        if refusals is None:
            yield from self._planned(piece)
        elif refusals.all:
            yield self._refused(piece, axes, refusals)
        elif None in piece.seqs or self._family is None or not self._family.agrees(piece, refusals.texts):
            yield from self._planned(piece)
        elif self._family.holds_for(piece):
            yield self._evaluated(self._family, piece, axes, refusals)
        elif piece.size <= _PLANNED_ROWS:
            yield from self._planned(piece)
        else:
            for half in piece.halves:
                yield from self._of_piece(half, axes)

    def _evaluated(self, family: Family, piece: Piece, axes: Axes, refusals: Refusals) -> RowBlock:
        """Rows from the form, between which some may be refused."""
        columns = family.columns(piece) | axes.columns(piece)
        if not refusals.count:
            return RowBlock(size=piece.size, columns=columns)
        refused = refusals.texts.ravel() != None  # noqa: E711 - place by place
        others = self._columns_of_refused(piece, axes) | {"error": refusals.texts.ravel()}
        mixed = {name: _either(refused, others[name], columns[name]) for name in COLUMNS}
        return RowBlock(size=piece.size, columns=mixed, failed=refusals.count, error=refusals.first)

    def _columns_of_refused(self, piece: Piece, axes: Axes) -> dict[str, Column]:
        """The columns of refused rows. They have the length that was asked for, which is none where it is the model's own."""
        return {**failed_row(self._known, ""), **axes.columns(piece), **({} if self._named else {"seq": None})}

    def _refused(self, piece: Piece, axes: Axes, refusals: Refusals) -> RowBlock:
        texts = refusals.texts.ravel().tolist()
        columns = self._columns_of_refused(piece, axes) | {"error": _column(texts)}
        return RowBlock(size=piece.size, columns=columns, failed=piece.size, error=refusals.first)

    def _planned(self, piece: Piece) -> Iterator[RowBlock]:
        """Plan each point by itself."""
        rows: list[dict[str, Value]] = []
        first: KvplanError | None = None
        for seq, batch in piece.points:
            asked = seq if self._named else None
            try:
                row = row_of(self._requests.plan(asked, batch))
                row["gpu"] = row["gpu"] or self._known["gpu"]
            except KvplanError as error:
                first = first or error
                row = failed_row(self._known | {"seq": asked, "batch": batch}, error.message)
            rows.append(row)
            if len(rows) == _PLANNED_ROWS:
                yield _gathered(rows, first)
                rows = []
        if rows:
            yield _gathered(rows, first)


def _either(chosen: Any, yes: Column, no: Column) -> Column:
    """A column of two, place by place."""
    return _column(np.where(chosen, _objects(yes, chosen.size), _objects(no, chosen.size)).tolist())


def _objects(column: Column, size: int) -> Any:
    found = np.empty(size, dtype=object)
    found[:] = column
    return found


def _column(values: list[Any]) -> Column:
    """The values, or the one that all have."""
    return values[0] if len(set(values)) == 1 else values


def _gathered(rows: list[dict[str, Value]], error: KvplanError | None) -> RowBlock:
    columns = {name: _column([row[name] for row in rows]) for name in COLUMNS}
    return RowBlock(size=len(rows), columns=columns, failed=sum(row["error"] is not None for row in rows), error=error)

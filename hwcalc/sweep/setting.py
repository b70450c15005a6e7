"""The rows of one model in one setting of a grid: from the engine's form if it has one, else by planning each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import KvplanError
from hwcalc.model import ModelSpec
from hwcalc.sweep.axes import Axes, Piece
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock, Value, failed_row, row_of
from hwcalc.sweep.grid import Grid, Setting
from hwcalc.sweep.requests import Refusals, Requests

if TYPE_CHECKING:
    from hwcalc.sweep.family import Family

_PLANNED_ROWS: Final = 128
"""The most rows of a block if every row is planned; fewer, so that rows and progress appear steadily."""


class SettingRows:
    """The rows of one model in one setting, of which ``asked`` are the parsed keywords. ``few`` are planned one by one."""

    def __init__(self, grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], *, few: bool = False) -> None:
        self._named = bool(grid.seqs)
        self._few = few
        self._known: dict[str, Value] = {
            "model": model.id,
            "engine": grid.engine_of(model).partition("@")[0],
            "dtype": setting.dtype,
            "gpu": setting.gpu,
            "tp": setting.tp,
            "policy": None if setting.policy is None else setting.policy.text,
        }
        self._requests = Requests(model, grid.engine_of(model), asked)

    @cached_property
    def _family(self) -> Family | None:
        """What all requests have in common, if the engine has a form of it. Some point has been opened."""
        opened, gpu = self._requests.first, self._known["gpu"]
        assert opened is not None
        assert not isinstance(gpu, int)
        from hwcalc.sweep.family import family_of

        return family_of(opened, gpu) if self._requests.follow_the_axes else None

    def blocks(self, axes: Axes) -> Iterator[RowBlock]:
        """All rows, in blocks."""
        if self._few:
            yield from self._planned(axes.whole if self._named else Piece(seqs=(None,), batches=axes.batches))
            return
        if not self._named:
            axes = Axes((self._requests.usual_length(axes.batches),), axes.batches)
        for piece in axes.pieces:
            yield from self.of_piece(piece, axes)

    def plan(self, seq: int | None, batch: int) -> dict[str, Value]:
        """The row of one point, by its plan. Raises its error."""
        row = row_of(self._requests.plan(seq if self._named else None, batch))
        return {**row, "gpu": row["gpu"] or self._known["gpu"]}

    def are_arrays(self, piece: Piece) -> bool:
        """Whether no point of this piece has to be planned."""
        refusals = self._requests.refusals(piece)
        return refusals is not None and (refusals.all or self._evaluates(piece, refusals))

    def _evaluates(self, piece: Piece, refusals: Refusals) -> bool:
        """Whether the form speaks of this piece, of which some points are accepted."""
        return None not in piece.seqs and self._family is not None and self._family.agrees(piece, refusals.texts)

    def of_piece(self, piece: Piece, axes: Axes) -> Iterator[RowBlock]:
        """The rows of a piece, in blocks."""
        refusals = self._requests.refusals(piece)
        if refusals is None:
            yield from self._planned(piece)
        elif refusals.all:
            yield self._refused(piece, axes, refusals)
        elif not self._evaluates(piece, refusals) or self._family is None:
            yield from self._planned(piece)
        elif self._family.holds_for(piece):
            yield self._evaluated(self._family, piece, axes, refusals)
        elif piece.size <= _PLANNED_ROWS:
            yield from self._planned(piece)
        else:
            for half in piece.halves:
                yield from self.of_piece(half, axes)

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
        columns = self._columns_of_refused(piece, axes) | {"error": column_of(texts)}
        return RowBlock(size=piece.size, columns=columns, failed=piece.size, error=refusals.first)

    def _planned(self, piece: Piece) -> Iterator[RowBlock]:
        """Plan each point by itself."""
        rows: list[dict[str, Value]] = []
        first: KvplanError | None = None
        for seq, batch in piece.points:
            asked = seq if self._named else None
            try:
                row = self.plan(seq, batch)
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
    import numpy as np

    return column_of(np.where(chosen, objects_of(yes, chosen.size), objects_of(no, chosen.size)).tolist())


def objects_of(column: Column, size: int) -> Any:
    """A column as an array of objects."""
    import numpy as np

    found = np.empty(size, dtype=object)
    found[:] = column
    return found


def column_of(values: list[Any]) -> Column:
    """The values, or the one that all have."""
    return values[0] if len(set(values)) == 1 else values


def _gathered(rows: list[dict[str, Value]], error: KvplanError | None) -> RowBlock:
    columns = {name: column_of([row[name] for row in rows]) for name in COLUMNS}
    return RowBlock(size=len(rows), columns=columns, failed=sum(row["error"] is not None for row in rows), error=error)

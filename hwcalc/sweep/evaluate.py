"""Evaluate a grid block by block, model by model and setting by setting."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

from hwcalc.library.load import Missing
from hwcalc.model import ModelSpec
from hwcalc.sources.request import tell
from hwcalc.sweep.axes import Axes
from hwcalc.sweep.blocks import RowBlock, failed_row
from hwcalc.sweep.cost import in_words
from hwcalc.sweep.grid import Grid, count, is_small
from hwcalc.sweep.laid_out import rows_of

_SETTLED_SECONDS: Final = 2.0
"""Seconds after which the pace so far says how long the rest takes."""


def blocks(grid: Grid) -> Iterator[RowBlock]:
    """All rows; the batch changes fastest, then length, policy, ranks, accelerator, dtype and model. Reports progress.

    A point that cannot be planned becomes a row with an ``error``; nothing is raised.
    """
    total, done, begun = count(grid), 0, monotonic()
    axes = Axes(grid.seqs, grid.batches)
    for model in grid.models:
        for block in [_missing(model, grid)] if isinstance(model, Missing) else _of_model(grid, axes, model, few=is_small(grid)):
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


def _of_model(grid: Grid, axes: Axes, model: ModelSpec, *, few: bool) -> Iterator[RowBlock]:
    for setting, asked in grid.asked:
        yield from rows_of(grid, model, setting, asked, few=few).blocks(axes)

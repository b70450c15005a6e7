"""Evaluates a grid block by block, and estimates its time from a few points: a point takes a microsecond or a minute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.load import Missing
from hwcalc.library.plan import request_of
from hwcalc.model import ModelSpec
from hwcalc.sources.request import tell
from hwcalc.sweep.blocks import RowBlock, failed_row
from hwcalc.sweep.grid import Axes, Grid, Piece, Setting, count, is_small
from hwcalc.sweep.laid_out import rows_of
from hwcalc.text import quoted

if TYPE_CHECKING:
    from hwcalc.sweep.setting import SettingRows

MAX_TIME: Final = "1h"
"""The most time that a sweep may take by its estimate, unless the user allows more."""
_LONGEST_SECONDS: Final = 366 * 86_400
_ARRAY_SECONDS: Final = 2e-6
"""A point of a form that is evaluated as an array and written as CSV: 1 to 2 us on a core of 2020 and later."""
_SETTING_SECONDS: Final = 0.001
_PLAN_SECONDS: Final = 0.002
_GROUP_SECONDS: Final = 0.0002
"""A setting; and a plan, and each group of equal layers in it, where nothing is worth timing."""
_MOST_ASKED: Final = 40
_WORTH_TIMING: Final = 20
"""Settings, or plans of one model, from which on timing a few of them takes little beside all."""
_MOST_TIMED: Final = 6
_TIMED_SECONDS: Final = 0.1
_COLD_SECONDS: Final = 2.0
"""What takes up to so long at first may have loaded modules most of the time: it is timed again."""
_WARM: Final = 4
_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TIME: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([a-z]{0,3})", re.ASCII)


def parse_time(text: str | float, option: str) -> float:
    """The seconds of a time such as ``90``, ``90s``, ``10m``, ``2h`` or ``1d``.

    >>> parse_time("1.5h", "max-time"), parse_time(90, "max-time")
    (5400.0, 90.0)
    """
    number = isinstance(text, (int, float)) and not isinstance(text, bool) and abs(text) <= _LONGEST_SECONDS
    match = _TIME.fullmatch(str(text).strip().lower()) if number or isinstance(text, str) else None
    if match is None or match[2] not in _UNITS or not 0 < (seconds := float(match[1]) * _UNITS[match[2]]) <= _LONGEST_SECONDS:
        raise UsageError(f"{option} is no length of time: {quoted(text, 40)}", hint="Allowed: 90s, 10m, 2h or 1d, up to 366d.")
    return seconds


def in_words(seconds: float) -> str:
    """The rounded time in words.

    >>> in_words(7), in_words(100), in_words(5400), in_words(1e7)
    ('7 s', '2 min', '1.5 h', '116 days')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.2g} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:,.0f} days"


def estimated_seconds(grid: Grid, most: float) -> float:
    """The estimated seconds of all points. It stops adding once the sum is more than ``most``."""
    settings = len(grid.dtypes) * len(grid.gpus) * len(grid.tps)
    points = settings * len(grid.seqs or (0,)) * len(grid.batches)
    first = next(grid.settings)
    models = [model for model in grid.models if isinstance(model, ModelSpec)]
    # Of many models some are asked, which stand for the others.
    step = max(1, len(models) // _MOST_ASKED)
    total = 0.0
    for model, policy in product(models[::step], grid.policies):
        if total > most:
            break
        total += len(models) / len(models[::step]) * _seconds_of(grid, model, first._replace(policy=policy), settings, points)
    return total


def _seconds_of(grid: Grid, model: ModelSpec, setting: Setting, settings: int, points: int) -> float:
    """The estimated seconds of all points of one model under one policy."""
    if points < _WORTH_TIMING or is_small(grid):
        return points * (_PLAN_SECONDS + _GROUP_SECONDS * len(model.stack.groups))
    ends = ((max(grid.seqs, default=None), max(grid.batches)), (min(grid.seqs, default=None), min(grid.batches)))
    try:
        rows = rows_of(grid, model, setting, request_of(grid.keywords(setting), grid.option_draft))
        piece = Piece(seqs=tuple({seq for seq, _ in ends}), batches=tuple({batch for _, batch in ends}))
        if rows.are_arrays(piece):
            return settings * _SETTING_SECONDS + points * _ARRAY_SECONDS
    except KvplanError:
        return points * _ARRAY_SECONDS
    # The first plans load modules and profiles, so quick ones are timed again.
    spent: list[float] = []
    while len(spent) < _MOST_TIMED and sum(spent) < (_COLD_SECONDS if len(spent) < _WARM else _TIMED_SECONDS):
        spent.append(_timed(rows, *ends[len(spent) % 2]))
    return points * min(spent)


def _timed(rows: SettingRows, seq: int | None, batch: int) -> float:
    begun = perf_counter()
    with suppress(KvplanError):
        rows.plan(seq, batch)
    return perf_counter() - begun


_SETTLED_SECONDS: Final = 2.0
"""Seconds after which the pace so far says how long the rest takes."""


def blocks(grid: Grid) -> Iterator[RowBlock]:
    """The blocks of all rows; the batch changes fastest, then length, policy, ranks, accelerator, dtype and model. Reports progress.

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
    """The remaining time in words; empty while it is unknown or too short to mention."""
    left = seconds / share - seconds
    return f", about {in_words(left)} left" if seconds > _SETTLED_SECONDS and left >= 1 else ""


def _missing(model: Missing, grid: Grid) -> RowBlock:
    row = failed_row({"model": model.id, "engine": grid.engine_of(model).partition("@")[0]}, model.error.message)
    return RowBlock(size=1, columns=row, failed=1, error=model.error)


def _of_model(grid: Grid, axes: Axes, model: ModelSpec, *, few: bool) -> Iterator[RowBlock]:
    for setting, asked in grid.asked:
        yield from rows_of(grid, model, setting, asked, few=few).blocks(axes)

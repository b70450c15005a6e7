"""Plan every combination of models, lengths, batches, formats, accelerators and ranks: :func:`sweep`.

Its time is estimated from a few points before, because a point takes a microsecond or a minute.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice, product
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import MOST_ROWS, SCHEMA_VERSION, Answer, document_of, html_table
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import Numbers, Words, each_model, numbers, policies_of, words
from hwcalc.library.load import Missing, load, load_each
from hwcalc.library.parts import Dataset, Part, results
from hwcalc.library.plan import engine_of, option_draft, request_of
from hwcalc.model import ModelLike, ModelSpec, Note
from hwcalc.planner.asked import by_name, take_options
from hwcalc.planner.options import SweepOptions, takes
from hwcalc.planner.plan import no_encoder, without_effect
from hwcalc.planner.values import read_flag, refuse_auto
from hwcalc.sources.request import tell
from hwcalc.sweep.grid import COLUMNS, Axes, Grid, Piece, RowBlock, Setting, SweepDocument, SweepPoint, check, count, failed_row
from hwcalc.sweep.setting import rows_of
from hwcalc.sweep.writers import read_parquet, write_parquet
from hwcalc.text import quoted

if TYPE_CHECKING:
    from typing import Unpack

FEW: Final = 64
"""Points of a grid that are planned one by one sooner than NumPy is imported."""
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
_SETTLED_SECONDS: Final = 2.0
"""Seconds after which the pace so far says how long the rest takes."""
_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TIME: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([a-z]{0,3})", re.ASCII)


class Sweep(Answer, Record):
    """A grid that is planned while it is iterated: row by row, or in :meth:`blocks` of many rows."""

    grid: Grid
    notes: tuple[Note, ...] = ()
    """Notes on hardware that was assumed, and on options that have no effect on any row."""
    seconds: float = 0.0
    """About how long all rows take in one process."""
    executor: Executor | None = None
    """Its workers plan the rows."""

    def __len__(self) -> int:
        return count(self.grid)

    def __iter__(self) -> Iterator[SweepPoint]:
        for block in self.blocks():
            for values in zip(*map(block.values, COLUMNS), strict=True):
                yield SweepPoint(**dict(zip(COLUMNS, values, strict=True)))

    def blocks(self, out: str | os.PathLike[str] | None = None) -> Iterator[RowBlock]:
        """The rows in blocks, of which the folder ``out`` keeps those that are finished (:class:`~hwcalc.library.parts.Dataset`)."""
        return blocks(self.grid, self.executor, None if out is None else Dataset(out, write_parquet, read_parquet))

    def save(self, out: str | os.PathLike[str]) -> int:
        """Write all rows into the Parquet dataset ``out``, but for parts that are finished there. Returns the number of rows."""
        return sum(block.size for block in self.blocks(out)) - self.grid.missing

    def headline(self) -> str:
        models = len(self.grid.models)
        return f"{len(self):,} points of {models:,} {'model' if models == 1 else 'models'}"

    def records(self) -> list[dict[str, Any]]:
        return [document_of(point) for point in self]

    def to_dict(self) -> dict[str, Any]:
        points = tuple(self)
        document: dict[str, Any] = document_of(
            SweepDocument(schema_version=SCHEMA_VERSION, kvplan_version=__version__, points=points)
        )
        return document

    def _repr_html_(self) -> str:
        shown = [document_of(point) for point in islice(self, MOST_ROWS)]
        return html_table(self.headline(), shown, more=len(self) - len(shown))

    __repr__ = Answer.__repr__


@takes(SweepOptions)
def sweep(
    models: ModelLike | Sequence[ModelLike] = (),
    *,
    seq: Numbers = None,
    batch: Numbers = 1,
    dtype: Words = None,
    gpu: Words = None,
    tp: Numbers = None,
    policy: object = None,
    every: bool = False,
    keep_going: bool = False,
    max_time: str | float = MAX_TIME,
    executor: Executor | None = None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Plan every combination of the models and of the lists, as rows; ``options`` are further keywords of :func:`hwcalc.plan`.

    A list may be a Python list, or text with commas: ``[1, 2]``, ``"1k,4k"``, ``"1k..128k"``. A model may be a pattern of catalog
    ids; ``every`` adds the whole catalog. A list of policies is that of :func:`hwcalc.compare`. A point that cannot be planned is
    a row with an ``error``, and so is a model that cannot be read; with ``keep_going`` also where no model can. A grid that would
    take longer than ``max_time`` by estimate is refused. ``executor`` is any of :mod:`concurrent.futures`, whose workers plan the rows of a
    model and a setting each. Raises a :class:`~hwcalc.errors.KvplanError` subclass if an option is
    wrong for all models.
    """
    from hwcalc.hardware.named import gpu_ids

    lists = {"seq": seq, "batch": batch, "dtype": dtype, "gpu": gpu, "tp": tp, "policy": policy}
    given = by_name({**lists, **options})
    one_for_all, asked = take_options("sweep", {name: value for name, value in given.items() if name not in lists})
    refuse_auto(asked.weights, "sweep")
    notes: list[Note] = []
    axes: dict[str, Any] = {
        "gpus": gpu_ids(words(given["gpu"], "gpu"), notes) or (None,),
        "seqs": numbers(given["seq"], "seq"),
        "batches": numbers(given["batch"], "batch") or (1,),
        "dtypes": words(given["dtype"], "dtype") or (None,),
        "tps": numbers(given["tp"], "tp") or (None,),
        "policies": policies_of(given["policy"]),
    }
    wanted = each_model(models, every=read_flag(every, "every"))
    grid = Grid(models=load_each(wanted, asked, keep_going=read_flag(keep_going, "keep_going")), options=one_for_all, **axes)
    # The draft is the same for all points.
    if asked.draft is not None:
        grid = replace(grid, options={**one_for_all, "draft": load(asked.draft, asked.access, assume=asked.assume)})
    else:
        grid = replace(grid, option_draft=option_draft(asked.engine, asked.engine_options, asked.access, asked.assume))
    most = parse_time(max_time)
    seconds = estimated_seconds(grid, most)
    if seconds > most:
        raise UsageError(
            f"the grid has {count(grid):,} points, which would take {in_words(seconds)} or more; {in_words(most)} is allowed.",
            hint=f"Take larger steps or fewer models, or allow more: --max-time {math.ceil(seconds / 3600) + 1}h",
        )
    check(grid)
    # What has no effect on any row: a list stands for one of its entries.
    any_policy = next((entry for entry in grid.policies if entry is not None), None)
    keywords = {**asked.keywords(), "draft": asked.draft, "gpu": grid.gpus[0], "policy": any_policy}
    read = [model for model in grid.models if isinstance(model, ModelSpec)]
    notes += [*without_effect(keywords, grid.tps), *no_encoder(read, asked.encoder_seq)]
    return Sweep(grid=grid, notes=tuple(notes), seconds=seconds, executor=executor)


def parse_time(text: str | float) -> float:
    """The seconds of ``--max-time``, a time such as ``90``, ``90s``, ``10m``, ``2h`` or ``1d``.

    >>> parse_time("1.5h"), parse_time(90)
    (5400.0, 90.0)
    """
    number = isinstance(text, (int, float)) and not isinstance(text, bool) and abs(text) <= _LONGEST_SECONDS
    match = _TIME.fullmatch(str(text).strip().lower()) if number or isinstance(text, str) else None
    if match is None or match[2] not in _UNITS or not 0 < (seconds := float(match[1]) * _UNITS[match[2]]) <= _LONGEST_SECONDS:
        raise UsageError(f"max-time is no length of time: {quoted(text, 40)}", hint="Allowed: 90s, 10m, 2h or 1d, up to 366d.")
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
    chosen = models[:: max(1, len(models) // _MOST_ASKED)]
    total = 0.0
    for model, policy in product(chosen, grid.policies):
        if total > most:
            break
        if points < _WORTH_TIMING or count(grid) <= FEW:
            seconds = points * (_PLAN_SECONDS + _GROUP_SECONDS * len(model.stack.groups))
        else:
            seconds = _seconds_of_large(grid, model, first._replace(policy=policy), settings, points)
        total += len(models) / len(chosen) * seconds
    return total


def _seconds_of_large(grid: Grid, model: ModelSpec, setting: Setting, settings: int, points: int) -> float:
    """The estimated seconds of all points of one model under one policy, from the largest and the smallest of them."""
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
        begun = perf_counter()
        with suppress(KvplanError):
            rows.plan(*ends[len(spent) % 2])
        spent.append(perf_counter() - begun)
    return points * min(spent)


def blocks(
    grid: Grid, executor: Executor | None = None, dataset: Dataset[Iterable[RowBlock]] | None = None
) -> Iterator[RowBlock]:
    """The blocks of all rows; the batch changes fastest, then length, policy, ranks, accelerator, dtype and model. Reports progress.

    A point that cannot be planned becomes a row with an ``error``; nothing is raised. A part of the work is one model in one setting; one
    that cannot be read is no part. The rows that this ``executor`` works out, and those of a ``dataset``, come part by part.
    """
    total, done, begun = count(grid), 0, monotonic()
    read = [model for model in grid.models if isinstance(model, ModelSpec)]
    parts = [part for model in read for part in _parts_of(grid, model, few=total <= FEW)]

    def told(done: int, total: int, of: str) -> None:
        seconds = monotonic() - begun
        left = seconds * (total - done) / max(1, done)
        remaining = f", about {in_words(left)} left" if done and seconds > _SETTLED_SECONDS and left >= 1 else ""
        tell(f"{done:,} of {total:,} {of}{remaining}")

    in_parts = executor is not None or dataset is not None
    of_parts = results(parts, executor, dataset, lambda done, total, _: told(done, total, "parts") if in_parts else None)
    for model in grid.models:
        of_model: Iterable[RowBlock]
        if isinstance(model, Missing):
            engine = engine_of(model, grid.options.get("engine")).partition("@")[0]
            row = failed_row({"model": model.id, "engine": engine}, model.error.message)
            of_model = [RowBlock(size=1, columns=row, failed=1, error=model.error)]
        else:
            of_model = chain.from_iterable(islice(of_parts, len(grid.asked)))
        for block in of_model:
            done += block.size
            if not in_parts:
                told(done, total, "points")
            yield block


def _parts_of(grid: Grid, model: ModelSpec, *, few: bool) -> Iterator[Part]:
    """The parts of one model, one for each setting."""
    alone, engine = replace(grid, models=()), engine_of(model, grid.options.get("engine")).partition("@")[0]
    for setting, asked in grid.asked:
        named = {"dtype": setting.dtype, "gpu": setting.gpu, "tp": setting.tp, "policy": setting.policy and setting.policy.text}
        yield Part(
            model=model.id,
            engine=engine,
            setting=", ".join(f"{name}={value}" for name, value in named.items() if value is not None) or "default",
            content=(model, setting, asked, grid.seqs, grid.batches),
            call=_rows,
            arguments=(alone, model, setting, asked, few),
        )


def _rows(grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], few: bool) -> Iterator[RowBlock]:
    """The rows of a part; a function that another process can import."""
    return rows_of(grid, model, setting, asked, few=few).blocks(_axes(grid.seqs, grid.batches))


@lru_cache(maxsize=1)
def _axes(seqs: tuple[int, ...], batches: tuple[int, ...]) -> Axes:
    """The axes that all settings share."""
    return Axes(seqs, batches)

"""Plan every combination of models, lengths, batches, formats, accelerators and ranks: :func:`sweep`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.answers import MOST_ROWS, Answer, html_table
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import Numbers, Words, each_model, numbers, policies_of, words
from hwcalc.library.load import load, load_each
from hwcalc.library.plan import option_draft
from hwcalc.model import ModelLike, ModelSpec, Note
from hwcalc.planner.auto_weights import refuse_auto
from hwcalc.planner.options import Asked, SweepOptions, take_options, takes
from hwcalc.planner.plan import no_encoder, without_effect
from hwcalc.planner.values import read_flag
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock
from hwcalc.sweep.evaluate import MAX_TIME, blocks, estimated_seconds, in_words, parse_time
from hwcalc.sweep.grid import Grid, check, count
from hwcalc.sweep.records import SweepDocument, SweepPoint

if TYPE_CHECKING:
    from typing import Unpack


class Sweep(Answer, Record):
    """A grid that is planned while it is iterated: row by row, or in :meth:`blocks` of many rows."""

    grid: Grid
    notes: tuple[Note, ...] = ()
    """Notes on hardware that was assumed, and on options that have no effect on any row."""
    seconds: float = 0.0
    """About how long all rows take."""

    def __len__(self) -> int:
        return count(self.grid)

    def __iter__(self) -> Iterator[SweepPoint]:
        for block in self.blocks():
            columns = [_cells(block.columns[name], block.size) for name in COLUMNS]
            for values in zip(*columns, strict=True):
                yield SweepPoint(**dict(zip(COLUMNS, values, strict=True)))

    def blocks(self) -> Iterator[RowBlock]:
        """The rows in blocks."""
        return blocks(self.grid)

    def headline(self) -> str:
        models = len(self.grid.models)
        return f"{len(self):,} points of {models:,} {'model' if models == 1 else 'models'}"

    def records(self) -> list[dict[str, Any]]:
        return [document_of(point) for point in self]

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = document_of(
            SweepDocument(schema_version=SCHEMA_VERSION, kvplan_version=__version__, points=tuple(self))
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
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Plan every combination of the models and of the lists, as rows; ``options`` are further keywords of :func:`hwcalc.plan`.

    A list may be a Python list, or text with commas: ``[1, 2]``, ``"1k,4k"``, ``"1k..128k"``. A model may be a pattern of catalog
    ids; ``every`` adds the whole catalog. A list of policies is that of :func:`hwcalc.compare`. A point that cannot be planned is
    a row with an ``error``, and so is a model that cannot be read; with ``keep_going`` also where no model can. A grid that would
    take longer than ``max_time`` by estimate is refused. Raises a :class:`~hwcalc.errors.KvplanError` subclass if an option is
    wrong for all models.
    """
    from hwcalc.hardware.named import gpu_ids

    one_for_all, asked = take_options("sweep", options)
    refuse_auto(asked.weights, "sweep")
    said: list[Note] = []
    gpus = gpu_ids(words(gpu, "gpu"), said)
    axes: dict[str, tuple[Any, ...]] = {
        "seqs": numbers(seq, "seq"),
        "batches": numbers(batch, "batch") or (1,),
        "dtypes": words(dtype, "dtype") or (None,),
        "gpus": gpus or (None,),
        "tps": numbers(tp, "tp") or (None,),
        "policies": policies_of(policy),
    }
    given = each_model(models, every=read_flag(every, "every"))
    grid = Grid(models=load_each(given, asked, keep_going=read_flag(keep_going, "keep_going")), options=one_for_all)
    grid = replace(grid, **axes)
    grid = _with_draft(grid, asked)
    seconds = _affordable(grid, parse_time(max_time, "max-time"))
    check(grid)
    read = [model for model in grid.models if isinstance(model, ModelSpec)]
    notes = (
        *said,
        *without_effect(_keywords(grid, asked), grid.tps),
        *no_encoder(read, asked.encoder_seq),
    )
    return Sweep(grid=grid, notes=notes, seconds=seconds)


def _keywords(grid: Grid, asked: Asked) -> dict[str, Any]:
    """The keywords of a plan that may have no effect on any row; a list stands for one of its entries."""
    policy = next((one for one in grid.policies if one is not None), None)
    return {**asked.keywords(), "draft": asked.draft, "gpu": grid.gpus[0], "policy": policy}


def _affordable(grid: Grid, most: float) -> float:
    """The estimated seconds. Raises :class:`~hwcalc.errors.UsageError` if there are more than ``most``."""
    seconds = estimated_seconds(grid, most)
    if seconds > most:
        raise UsageError(
            f"the grid has {count(grid):,} points, which would take {in_words(seconds)} or more; {in_words(most)} is allowed.",
            hint=f"Take larger steps or fewer models, or allow more: --max-time {math.ceil(seconds / 3600) + 1}h",
        )
    return seconds


def _with_draft(grid: Grid, asked: Asked) -> Grid:
    """The grid with its draft loaded, which is the same for all points."""
    if asked.draft is not None:
        return replace(grid, options={**grid.options, "draft": load(asked.draft, asked.access, assume=asked.assume)})
    return replace(grid, option_draft=option_draft(asked.engine, asked.engine_options, asked.access, asked.assume))


def _cells(column: Column, size: int) -> Sequence[Any]:
    if column is None or isinstance(column, (str, int)):
        return [column] * size
    values: Sequence[Any] = column if isinstance(column, list) else column.tolist()  # type: ignore[union-attr]
    return values

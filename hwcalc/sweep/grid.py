"""The grid of a sweep: lists of values, of which every combination is a point."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.frozen import field, frozen
from hwcalc.library.load import Missing
from hwcalc.library.plan import engine_of, plan_loaded
from hwcalc.model import ModelSpec
from hwcalc.planner.result import Plan

__all__ = ["Grid", "check", "count"]


@frozen
class Grid:
    """Every combination of the lists.

    Without ``seqs``, each model is planned at its own maximum. A dtype of ``None`` is the default, a GPU of ``None`` is no GPU, and a
    ``tp`` of ``None`` leaves the number of ranks to ``options``. These are further keywords of :func:`hwcalc.plan` that were given; a draft among
    them is loaded, and so is ``option_draft``, the draft that an engine option names.
    """

    models: tuple[ModelSpec | Missing, ...]
    seqs: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str | None, ...] = (None,)
    gpus: tuple[str | None, ...] = (None,)
    tps: tuple[int | None, ...] = (None,)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    option_draft: ModelSpec | None = None

    def engine_of(self, model: ModelSpec | Missing) -> str:
        """The engine that plans a model: the one that was given, which may include a version, or the model's own."""
        return engine_of(model, self.options.get("engine"))

    def keywords(self, dtype: str | None, gpu: str | None, tp: int | None) -> dict[str, Any]:
        """All keywords of a plan except model, length and batch."""
        own = {"dtype": dtype, "gpu": gpu, "tp": tp}
        return dict(self.options) | {name: value for name, value in own.items() if value is not None}

    def plan(self, model: ModelSpec, keywords: Mapping[str, Any], seq: int | None, batch: int) -> Plan:
        """The plan of one point. Nothing is read."""
        return plan_loaded(model, {**keywords, "seq": seq, "batch": batch}, self.option_draft)


def count(grid: Grid) -> int:
    """The number of rows: the points of the grid, and one for each missing model."""
    missing = sum(isinstance(model, Missing) for model in grid.models)
    lists = (grid.seqs or (0,), grid.batches, grid.dtypes, grid.gpus, grid.tps)
    return missing + prod(map(len, lists), start=len(grid.models) - missing)


def check(grid: Grid) -> None:
    """Raise the :class:`~hwcalc.errors.UsageError` of an option or a list entry that is wrong for every model.

    Each entry is tried together with the first entry of every other list, on one model after the other until a model accepts it.
    """
    dtype, gpu, tp = grid.dtypes[0], grid.gpus[0], grid.tps[0]
    longest, most = max(grid.seqs, default=None), max(grid.batches)
    tries: list[tuple[int | None, int, str | None, str | None, int | None]] = [
        (longest, most, entry, gpu, tp) for entry in grid.dtypes
    ]
    tries += [(longest, most, dtype, entry, tp) for entry in grid.gpus[1:]]
    tries += [(longest, most, dtype, gpu, entry) for entry in grid.tps[1:]]
    models = [model for model in grid.models if isinstance(model, ModelSpec)]
    for seq, batch, dtype, gpu, tp in tries:
        first: UsageError | None = None
        for model in models:
            try:
                grid.plan(model, grid.keywords(dtype, gpu, tp), seq, batch)
            except UsageError as error:
                first = first or error
                continue
            except KvplanError:
                pass
            break
        else:
            if first is not None:
                raise first

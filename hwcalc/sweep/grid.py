"""What is to be evaluated: the lists whose every combination is a point."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.frozen import field, frozen
from hwcalc.library.plan import plan
from hwcalc.model import ModelSpec

__all__ = ["Grid", "Missing", "check", "count"]


@frozen
class Missing:
    """A model that could not be read: one row with the reason."""

    name: str
    error: KvplanError


@frozen
class Grid:
    """Every combination of the lists. No ``seqs`` is each model's own maximum; a dtype or GPU of ``None`` is the default or none.

    ``options`` are further keywords of :func:`hwcalc.plan`, those that are not given left out. A ``tp`` of ``None`` leaves the number
    of ranks to them.
    """

    models: tuple[ModelSpec | Missing, ...]
    seqs: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str | None, ...] = (None,)
    gpus: tuple[str | None, ...] = (None,)
    tps: tuple[int | None, ...] = (None,)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def engine(self) -> str:
        """The engine's name as it was given, with a version perhaps."""
        return str(self.options.get("engine", "reference"))

    def keywords(self, dtype: str | None, gpu: str | None, tp: int | None) -> dict[str, Any]:
        """All keywords of a plan but model, length and batch."""
        own = {"dtype": dtype, "gpu": gpu, "tp": tp}
        return dict(self.options) | {name: value for name, value in own.items() if value is not None}


def count(grid: Grid) -> int:
    """Rows of the grid: its points, and one for each model that is missing."""
    missing = sum(isinstance(model, Missing) for model in grid.models)
    lists = (grid.seqs or (0,), grid.batches, grid.dtypes, grid.gpus, grid.tps)
    return missing + prod(map(len, lists), start=len(grid.models) - missing)


def check(grid: Grid) -> None:
    """Raise the :class:`~hwcalc.errors.UsageError` of an option or a list's entry that is wrong for every model alike.

    Each entry is tried beside the first of every other list, with one model after the other until one does not object.
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
                plan(model, seq=seq, batch=batch, **grid.keywords(dtype, gpu, tp))
            except UsageError as error:
                first = first or error
                continue
            except KvplanError:
                pass
            break
        else:
            if first is not None:
                raise first

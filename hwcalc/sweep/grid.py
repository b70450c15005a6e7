"""The grid of a sweep: lists of values, of which every combination is a point, in pieces that a block of rows can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product, starmap
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import field
from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.load import Missing
from hwcalc.library.plan import engine_of, plan_loaded, request_of
from hwcalc.model import ModelSpec
from hwcalc.planner.options import with_policy
from hwcalc.planner.result import Plan
from hwcalc.sweep.blocks import Column, SharedNumbers

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

_ROWS: Final = 65_536
"""The most rows of one block, which limits the memory that a sweep takes."""


class Piece(Record):
    """Some lengths, each with some batches; the batch changes fastest. A single length may be ``None``: the user names none."""

    seqs: tuple[Any, ...]
    batches: tuple[int, ...]

    @cached_property
    def tokens(self) -> Any:
        """The lengths in tokens, as an array of one column."""
        import numpy as np

        return np.array(self.seqs)[:, None]

    @cached_property
    def sequences(self) -> Any:
        """The batches, as an array of one row."""
        import numpy as np

        return np.array(self.batches)[None, :]

    @property
    def size(self) -> int:
        """The number of points."""
        return len(self.seqs) * len(self.batches)

    @property
    def points(self) -> Iterator[tuple[int | None, int]]:
        """Length and batch of each point, in order."""
        return ((seq, batch) for seq in self.seqs for batch in self.batches)

    @property
    def halves(self) -> tuple[Piece, Piece]:
        """The first and the second half of the points, in order."""
        if len(self.seqs) > 1:
            middle = len(self.seqs) // 2
            return replace(self, seqs=self.seqs[:middle]), replace(self, seqs=self.seqs[middle:])
        middle = len(self.batches) // 2
        return replace(self, batches=self.batches[:middle]), replace(self, batches=self.batches[middle:])


class Axes:
    """The pieces of a grid, and the columns that depend on lengths and batches alone. Those of the last piece are kept."""

    def __init__(self, seqs: Sequence[int | None], batches: Sequence[int]) -> None:
        self.batches = tuple(batches)
        self.whole = Piece(seqs=tuple(seqs), batches=self.batches)
        self.pieces = tuple(_pieces(self.whole))
        self._last: tuple[Piece | None, dict[str, Column]] = (None, {})

    def columns(self, piece: Piece) -> dict[str, Column]:
        """The columns ``seq`` and ``batch``."""
        last, columns = self._last
        if last is not piece:
            seqs = (seq for seq in piece.seqs for _ in piece.batches)
            columns = {
                "seq": None if None in piece.seqs else SharedNumbers(seqs),
                "batch": SharedNumbers(piece.batches * len(piece.seqs)),
            }
            self._last = piece, columns
        return columns


def _pieces(whole: Piece) -> Iterator[Piece]:
    """Parts of at most :data:`_ROWS` points, in order."""
    if whole.size <= _ROWS:
        yield whole
        return
    wide = min(len(whole.batches), _ROWS)
    tall = max(1, _ROWS // wide)
    for start in range(0, len(whole.seqs), tall):
        for left in range(0, len(whole.batches), wide):
            yield Piece(seqs=whole.seqs[start : start + tall], batches=whole.batches[left : left + wide])


FEW = 64
"""Points of a grid that are planned one by one sooner than NumPy is imported."""


class Setting(NamedTuple):
    """The values that all rows of a block share, without the model."""

    dtype: str | None
    gpu: str | None
    tp: int | None
    policy: Chosen | None


class Grid(Record):
    """Every combination of the lists.

    Without ``seqs``, each model is planned at its own maximum. A dtype of ``None`` is the default, a GPU of ``None`` is no GPU, a
    policy of ``None`` keeps everything, and a ``tp`` of ``None`` leaves the number of ranks to ``options``. These are further
    keywords of :func:`hwcalc.plan` that were given; a draft among them is loaded, and so is ``option_draft``, the draft that an
    engine option names.
    """

    models: tuple[ModelSpec | Missing, ...]
    seqs: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str | None, ...] = (None,)
    gpus: tuple[str | None, ...] = (None,)
    tps: tuple[int | None, ...] = (None,)
    policies: tuple[Chosen | None, ...] = (None,)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    option_draft: ModelSpec | None = None

    def engine_of(self, model: ModelSpec | Missing) -> str:
        """The engine that plans a model: the one that was given, which may include a version, or the model's own."""
        return engine_of(model, self.options.get("engine"))

    @property
    def settings(self) -> Iterator[Setting]:
        """Every combination of all lists but the models, the lengths and the batches."""
        return starmap(Setting, product(self.dtypes, self.gpus, self.tps, self.policies))

    @cached_property
    def asked(self) -> tuple[tuple[Setting, Mapping[str, Any]], ...]:
        """All settings, with the parsed keywords of their requests. Raises the error of an option that cannot be read."""
        return tuple((setting, request_of(self.keywords(setting), self.option_draft)) for setting in self.settings)

    def keywords(self, setting: Setting) -> dict[str, Any]:
        """All keywords of a plan except model, length and batch."""
        own = {"dtype": setting.dtype, "gpu": setting.gpu, "tp": setting.tp}
        named = {**self.options, **{name: value for name, value in own.items() if value is not None}}
        return with_policy(named, setting.policy, self.policies)

    def plan(self, model: ModelSpec, keywords: Mapping[str, Any], seq: int | None, batch: int) -> Plan:
        """The plan of one point. Nothing is read."""
        return plan_loaded(model, {**keywords, "seq": seq, "batch": batch}, self.option_draft)


def count(grid: Grid) -> int:
    """The number of rows: the points of the grid, and one for each missing model."""
    missing = sum(isinstance(model, Missing) for model in grid.models)
    lists = (grid.seqs or (0,), grid.batches, grid.dtypes, grid.gpus, grid.tps, grid.policies)
    return missing + prod(map(len, lists), start=len(grid.models) - missing)


def is_small(grid: Grid) -> bool:
    """Whether the grid has few points."""
    return count(grid) <= FEW


def check(grid: Grid) -> None:
    """Raise the :class:`~hwcalc.errors.UsageError` of an option or a list entry that is wrong for every model.

    Each entry is tried together with the first entry of every other list, on one model after the other until a model accepts it.
    """
    longest, most = max(grid.seqs, default=None), max(grid.batches)
    base = next(grid.settings)
    tries = [base._replace(dtype=entry) for entry in grid.dtypes]
    tries += [base._replace(gpu=entry) for entry in grid.gpus[1:]]
    tries += [base._replace(tp=entry) for entry in grid.tps[1:]]
    tries += [base._replace(policy=entry) for entry in grid.policies[1:]]
    models = [model for model in grid.models if isinstance(model, ModelSpec)]
    for setting in tries:
        first: UsageError | None = None
        for model in models:
            try:
                grid.plan(model, grid.keywords(setting), longest, most)
            except UsageError as error:
                first = first or error
                continue
            except KvplanError:
                pass
            break
        else:
            if first is not None:
                raise first

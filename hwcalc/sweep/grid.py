"""The grid of a sweep: lists of values, of which every combination is a point and becomes a row; and blocks of rows, stored by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product, starmap
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec import field
from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.load import Missing
from hwcalc.library.plan import plan_loaded, request_of
from hwcalc.model import ModelSpec
from hwcalc.planner.options import with_policy
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwcalc.policies.base import Chosen

    Integers: TypeAlias = npt.NDArray[Any]
    """An array of whole numbers, int64."""

Value = str | int | float | None
Column: TypeAlias = "Value | Sequence[Value] | Integers"
"""One value for all rows of a block, or a value for each row."""


class SweepPoint(Record):
    """One point of a grid: a line of ``--format jsonl``, and a row of CSV and Parquet with the same names.

    Null is unknown or not asked for; without a ``gpu`` nothing is usable, and there are no ``gpus``. ``definition`` is that of
    the cache. ``low`` and ``high`` are the ends of the estimate of one GPU, and ``fits`` is the verdict: ``fits``, ``probably``,
    ``probably_not`` or ``no``. Within limits of time ``users_within`` are served by the expected times and ``users_within_low`` by the slow
    end of their range; ``limited_by`` is what binds. ``decode_tokens_per_s`` are the expected tokens per second of all sequences while
    they decode, with the range; null where nothing like it was measured, and where it does not fit. Of a ``policy``, ``kept_tokens`` are those of the layer that keeps most behind the prompt.
    ``warning`` holds the codes of the plan's warnings; with an ``error`` nothing was planned.
    """

    model: str
    engine: str
    engine_version: str | None
    dtype: str | None
    gpu: str | None
    gpus: int | None
    tp: int | None
    policy: str | None
    seq: int | None
    batch: int | None
    bytes_per_token: int | None
    cache_total_bytes: int | None
    cache_per_gpu_bytes: int | None
    definition: str | None
    weights_bytes: int | None
    weights_per_gpu_bytes: int | None
    total_bytes: int | None
    total_per_gpu_bytes: int | None
    total_per_gpu_low_bytes: int | None
    total_per_gpu_high_bytes: int | None
    usable_bytes: int | None
    kept_tokens: int | None
    policy_saved_bytes: int | None
    prefill_peak_bytes: int | None
    fits: str | None
    users_within: int | None
    users_within_low: int | None
    limited_by: str | None
    decode_tokens_per_s: float | None
    decode_tokens_per_s_low: float | None
    decode_tokens_per_s_high: float | None
    warning: str | None
    error: str | None


class SweepDocument(Record):
    """What ``kvplan sweep --json`` prints."""

    schema_version: str
    kvplan_version: str
    points: tuple[SweepPoint, ...]


COLUMNS: Final = SweepPoint.__struct_fields__
OF_LIMITS: Final = ("users_within", "users_within_low", "limited_by")
"""Columns that are empty without limits of time."""
OF_SPEED: Final = tuple(name for name, kind in SweepPoint.__annotations__.items() if "float" in kind)
"""The columns with decimal numbers."""
SPEED_DIGITS: Final = 2
"""Their digits behind the point."""
NUMBERS: Final = frozenset(name for name, kind in SweepPoint.__annotations__.items() if "int" in kind)
"""The columns with whole numbers; the others hold text."""


class SharedNumbers(list[int]):
    """Numbers that many blocks share, such as lengths and batches."""

    @cached_property
    def texts(self) -> list[str]:
        """Each number as text."""
        return list(map(str, self))


class RowBlock(Record):
    """``size`` rows of one model, format, accelerator, number of ranks and policy.

    ``columns`` has all of :data:`COLUMNS`; ``None`` means unknown, not planned, or no error.
    """

    size: int
    columns: Mapping[str, Column]
    failed: int = 0
    """The number of rows with an ``error``."""
    error: KvplanError | None = None
    """The first error."""

    def values(self, name: str) -> Sequence[Any]:
        """The values of a column, one for each row."""
        column: Any = self.columns[name]
        if column is None or isinstance(column, (str, int, float)):
            return [column] * self.size
        values: Sequence[Any] = column if isinstance(column, list) else column.tolist()
        return values

    @property
    def unjudged(self) -> int:
        """The number of planned rows that name an accelerator and have no verdict: nobody can say whether they fit."""
        if self.columns["gpu"] is None or isinstance(self.columns["fits"], str):
            return 0
        cells = map(self.values, ("gpu", "fits", "error"))
        return sum(gpu is not None and verdict is error is None for gpu, verdict, error in zip(*cells, strict=True))


def row_of(plan: Plan) -> dict[str, Value]:
    """A plan as one row."""
    request, cache, memory, policy = plan.request, plan.cache, plan.memory, plan.policy
    speeds = plan.rates
    return {
        "model": plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version,
        "dtype": request.kv_dtype,
        "gpu": None if plan.fit is None else plan.fit.gpu,
        "gpus": None if plan.fit is None else plan.fit.gpus,
        "tp": request.tp,
        "policy": request.policy,
        "seq": request.seq,
        "batch": request.batch,
        "bytes_per_token": cache.bytes_per_token,
        "cache_total_bytes": cache.total_bytes,
        "cache_per_gpu_bytes": cache.per_gpu_bytes,
        "definition": cache.definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        "total_bytes": memory.total_bytes,
        "total_per_gpu_bytes": memory.per_gpu.total,
        "total_per_gpu_low_bytes": None if plan.fit is None else plan.fit.needed_low_bytes,
        "total_per_gpu_high_bytes": None if plan.fit is None else plan.fit.needed_high_bytes,
        "usable_bytes": None if plan.fit is None else plan.fit.usable_bytes,
        "kept_tokens": None if policy is None else max((layers.kept for layers in policy.layers), default=None),
        "policy_saved_bytes": None if policy is None else policy.saved_bytes,
        "prefill_peak_bytes": None if policy is None else policy.prefill_peak_bytes,
        "fits": None if plan.fit is None else plan.fit.verdict.value,
        **dict.fromkeys(OF_LIMITS),
        **({} if plan.within is None else {name: plan.within.row()[name] for name in OF_LIMITS}),
        **{name: None if (rate := speeds.get(name)) is None else round(rate, SPEED_DIGITS) for name in OF_SPEED},
        "warning": " ".join(note.code for note in plan.warnings) or None,
        "error": None,
    }


def failed_row(known: Mapping[str, Value], error: str) -> dict[str, Value]:
    """The row of a point that cannot be planned: the request and the error, without figures."""
    return dict.fromkeys(COLUMNS) | dict(known) | {"error": error}


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
        self.whole = Piece(seqs=tuple(seqs), batches=tuple(batches))
        wide = min(len(batches), _ROWS)
        tall = _ROWS // wide
        self.pieces = tuple(
            Piece(seqs=self.whole.seqs[start : start + tall], batches=self.whole.batches[left : left + wide])
            for start in range(0, len(seqs), tall)
            for left in range(0, len(batches), wide)
        )
        self._last: tuple[Piece | None, dict[str, Column]] = (None, {})

    def columns(self, piece: Piece) -> dict[str, Column]:
        """The columns ``seq`` and ``batch``."""
        last, columns = self._last
        if last is not piece:
            seqs = None if None in piece.seqs else SharedNumbers(seq for seq in piece.seqs for _ in piece.batches)
            columns = {"seq": seqs, "batch": SharedNumbers(piece.batches * len(piece.seqs))}
            self._last = piece, columns
        return columns


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

    @property
    def missing(self) -> int:
        """The number of models that could not be read. Each is a row with its error, and no part of the work."""
        return sum(isinstance(model, Missing) for model in self.models)

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


def count(grid: Grid) -> int:
    """The number of rows: the points of the grid, and one for each missing model."""
    lists = (grid.seqs or (0,), grid.batches, grid.dtypes, grid.gpus, grid.tps, grid.policies)
    return grid.missing + prod(map(len, lists), start=len(grid.models) - grid.missing)


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
                plan_loaded(model, {**grid.keywords(setting), "seq": longest, "batch": most}, grid.option_draft)
            except UsageError as error:
                first = first or error
                continue
            except KvplanError:
                pass
            break
        else:
            if first is not None:
                raise first

"""The rows of one model in one setting of a grid: from the form of its deployment if it has one, else by planning each point.

The form (:mod:`hwcalc.engines.forms`) gives the figures of all lengths and batches at once, as arrays; what depends on neither comes from one
occupancy of the setting. Arrays have 64 bits, and a larger number would be wrong in silence. So a form is first evaluated at the largest
length and number of sequences, in integers of Python (:meth:`Family.holds_for`).

Refused points are found by planning few of them, where many are refused for one reason. Where the user names a number of GPUs alone, each
point has the layout in which its plan runs (:class:`LaidOutRows`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.facts import Turns
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.engines.memory import Section
from hwcalc.engines.models import follows_output
from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError
from hwcalc.formulas import Span
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at
from hwcalc.library.plan import engine_of
from hwcalc.model import ModelSpec, answers_with_vectors
from hwcalc.planner.context import open_request
from hwcalc.planner.expected import speed_of
from hwcalc.planner.forecast import quantity_of
from hwcalc.planner.layouts import has_experts, layouts, node_of, sizes_for
from hwcalc.planner.options import WITHIN
from hwcalc.planner.plan import lasting_warnings, on_all_ranks, plan_memory, plan_opened
from hwcalc.planner.step_time import StepTimes, step_times
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.sweep.grid import (
    COLUMNS,
    OF_LIMITS,
    OF_SPEED,
    SPEED_DIGITS,
    Axes,
    Column,
    Grid,
    Piece,
    RowBlock,
    Setting,
    Value,
    failed_row,
    row_of,
)
from hwcalc.units import MOST_TOKENS

_MOST: Final = 2**52
"""The most that may come of a form. Its numbers grow with length and batch, and no step is a thousand times what comes of it."""
_OF_A_VERDICT: Final = (
    *("total_per_gpu_low_bytes", "total_per_gpu_high_bytes", "usable_bytes", "fits"),
    *("kept_tokens", "policy_saved_bytes", "prefill_peak_bytes"),
    *OF_LIMITS,
    *OF_SPEED,
)
"""Columns that are empty without a GPU, a policy, limits of time or measurements."""
_WORDS: Final = tuple(verdict.value for verdict in (Verdict.NO, Verdict.PROBABLY_NOT, Verdict.PROBABLY, Verdict.FITS))
_WEIGHTS: Final = ("weights_bytes", "weights_per_gpu_bytes")


class Family(Record):
    """The requests of one setting, which differ in length and batch alone.

    ``form`` is the memory of a GPU, ``curve`` that of the cache.
    """

    opened: Occupancy
    curve: Curve
    form: MemoryForm | None
    row: dict[str, Any]
    """The columns that are the same at every point."""
    warnings: tuple[str, ...]
    """The codes of the warnings that every point has."""
    grown: dict[Span, int]
    """The bytes of a position of all tensors of one sequence that have this span, by the formulas."""
    times: StepTimes | None
    """The steps, where something like them was measured."""
    loaded_bytes: int | None
    """The weights on all GPUs, where no form of their memory says more."""

    def agrees(self, piece: Piece, refused: Any) -> bool:
        """True if every point of the piece that the form refuses is among the ``refused`` ones."""
        most_tokens, most_sequences = self.curve.most_tokens, self.curve.most_sequences
        if most_tokens is None and most_sequences is None:
            return True
        tokens, sequences = piece.tokens, piece.sequences
        beyond = tokens < 0 if most_tokens is None else tokens > most_tokens
        if most_sequences is not None:
            beyond = beyond | (-(-sequences // self.opened.setup.parallel.dp) > most_sequences)
        return not beyond.any() if refused is None else bool(((refused != None) | ~beyond).all())  # noqa: E711 - place by place

    def _accepted(self, piece: Piece) -> tuple[Any, Any]:
        """The lengths and batches of a piece, cut to the largest that the form accepts. The rows of larger ones are replaced by errors."""
        tokens, sequences = piece.tokens, piece.sequences
        if self.curve.most_tokens is not None:
            tokens = tokens.clip(max=self.curve.most_tokens)
        if self.curve.most_sequences is not None:
            sequences = sequences.clip(max=self.curve.most_sequences * self.opened.setup.parallel.dp)
        return tokens, sequences

    def holds_for(self, piece: Piece) -> bool:
        """True if the form covers the lengths of the piece, and no number needs more than 64 bits."""
        if max(*piece.seqs, *piece.batches) > _MOST:
            return False
        accepted = self._accepted(piece)
        tokens, sequences = int(accepted[0].max()), int(accepted[1].max())
        if self.form is not None and accepted[0].min() < self.form.least_tokens:
            return False
        # Of the growth no step is larger than this.
        longest = max(tokens + 1, self.opened.encoder_tokens)
        grown = sum(size * max(longest, sum(span.numbers)) for span, size in self.grown.items())
        caches = self.curve.total_bytes(tokens, sequences) + self.curve.needed_bytes(tokens, sequences)
        simple = caches + sum(self.row[name] or 0 for name in _WEIGHTS) + grown
        if self.form is None:
            return bool(simple <= _MOST)
        memory = self.form.at(tokens, sequences)
        parts = (memory.parts_bytes("expected", section.value) for section in Section)
        return bool(max(simple, memory.needed_bytes, self._total(memory) or 0, *parts) <= _MOST)

    def _total(self, memory: Memory) -> Any:
        """The bytes on all GPUs: cache, weights, and for each GPU activations and overhead of the fullest.

        It is ``None`` if weights are unknown.
        """
        weights = self.row["weights_bytes"]
        if memory.devices_bytes is not None:
            return memory.devices_bytes
        if weights is None:
            return None
        others = sum(memory.parts_bytes("expected", section.value) for section in (Section.ACTIVATIONS, Section.OVERHEAD))
        # Weights do not follow from length or batch.
        loaded = on_all_ranks(self.opened, int(memory.parts_bytes("expected", Section.WEIGHTS.value)))
        return memory.total_bytes + loaded + self.opened.setup.gpus * others

    def columns(self, piece: Piece) -> dict[str, Column]:
        """All columns but length and batch."""
        import numpy as np

        tokens, sequences = self._accepted(piece)
        # What one more token adds to a sequence, while the encoder's input stays the same.
        opened = self.opened
        encoder: Any = None if follows_output(opened.model, opened.load) else opened.encoder_tokens
        grown: Any = 0
        for span, size in self.grown.items():
            stairs = span.stairs(tokens if encoder is None else encoder)
            grown = grown + size * (stairs_at(stairs, tokens + 1) - stairs_at(stairs, tokens))
        arrays: dict[str, Any] = {"bytes_per_token": grown}
        memory = None
        if self.form is None:
            replicas = self.opened.setup.parallel.dp
            cache = self.curve.total_bytes(tokens, sequences)
            needed = self.curve.needed_bytes(tokens, sequences if replicas == 1 else -(-sequences // replicas))
        else:
            memory = self.form.at(tokens, sequences)
            cache, needed, usable = memory.total_bytes, memory.needed_bytes, self.form.usable[1]
            low, high = (usable - memory.left(end) + needed for end in ("high", "low"))
            arrays |= {"total_per_gpu_low_bytes": larger(0, low), "total_per_gpu_high_bytes": high, "usable_bytes": usable}
            arrays["fits"] = _verdicts(*map(memory.holds, ENDS))
        if memory is None or self.opened.setup.hardware.kv_memory is not None:
            # A budget that the user gives holds the cache alone.
            on_gpu = self.row["weights_per_gpu_bytes"]
            arrays["total_bytes"] = None if self.loaded_bytes is None else cache + self.loaded_bytes
            arrays["total_per_gpu_bytes"] = None if on_gpu is None else needed + on_gpu
        else:
            parts = {section: memory.parts_bytes("expected", section.value) for section in Section}
            arrays["weights_per_gpu_bytes"] = parts[Section.WEIGHTS]
            arrays["total_bytes"] = self._total(memory)
            arrays["total_per_gpu_bytes"] = sum(parts.values()) + needed
        arrays |= {"cache_total_bytes": cache, "cache_per_gpu_bytes": needed}
        if self.times is not None:
            rates = quantity_of(self.times.decode(sequences, tokens)).per_s(sequences)
            ends = rates.expected, rates.low, rates.high
            arrays |= {name: rate.round(SPEED_DIGITS) for name, rate in zip(OF_SPEED, ends, strict=True)}
            runs: Any = True if memory is None else memory.holds("expected")
            if not np.all(runs):
                arrays |= {name: np.where(runs, arrays[name], None) for name in OF_SPEED}
        shape = len(piece.seqs), len(piece.batches)
        columns = {name: _column(array, shape) for name, array in arrays.items()}
        return {**self.row, **columns, "warning": self._warning(piece)}

    def _warning(self, piece: Piece) -> Column:
        """The codes of a plan's warnings, row by row."""
        always, longest = " ".join(self.warnings) or None, self.opened.model.max_position_embeddings
        if longest is None or max(piece.seqs) <= longest:
            return always
        both = " ".join(("beyond-maximum", *self.warnings))
        if min(piece.seqs) > longest:
            return both
        return [both if seq > longest else always for seq in piece.seqs for _ in piece.batches]


def family_of(opened: Occupancy, gpu: str | None) -> Family | None:
    """The figures of all requests that differ from this one in length and batch alone; ``None`` if the engine has no form of them.

    ``gpu`` is the accelerator that the rows name.
    """
    setup, hardware = opened.setup, opened.setup.hardware
    if setup.policy is not None or opened.load.lengths or opened.load.sharing.asked:
        return None
    judged = hardware.gpu is not None or hardware.kv_memory is not None
    form = opened.form() if judged else None
    if judged and form is None and (hardware.kv_memory is not None or opened.budget is not None):
        return None
    curve = opened.curve() if form is None else form.curve
    if curve is None:
        return None
    definition = opened.model.definition(opened.engine.definition)
    # The weights and the bytes of the cache do not depend on each other: of any point, the weights are those of all.
    memory = plan_memory(opened, cache_bytes=0, rank_bytes=0, definition=definition, budget=None)
    warnings = lasting_warnings(opened, known_weights=memory.weights.bytes is not None, verdict=form is not None)
    row: dict[str, Any] = {
        "model": opened.model.id,
        "engine": opened.engine.name,
        "engine_version": opened.deployment.version or None,
        "dtype": opened.dtypes.kv,
        "gpu": gpu if form is None or hardware.gpu is None else hardware.gpu.id,
        "gpus": None if form is None else setup.gpus,
        "tp": setup.parallel.tp,
        "policy": None,
        "definition": definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        **dict.fromkeys(_OF_A_VERDICT),
        "error": None,
    }
    grown: dict[Span, int] = {}
    for group in opened.model.stack.groups:
        for tensor in group.kind.tensors():
            size = group.count * tensor.bytes_per_position(opened.dtypes.roles[tensor.role])
            if size:
                grown[tensor.span] = grown.get(tensor.span, 0) + size
    codes = tuple(note.code for note in warnings)
    times = step_times(opened)
    if times is not None and (times.speed_class is None or answers_with_vectors(opened.model.id)):
        times = None
    return Family(
        opened=opened, curve=curve, form=form, row=row, warnings=codes, grown=grown, times=times, loaded_bytes=memory.loaded_bytes
    )


def _verdicts(low: Any, expected: Any, high: Any) -> Any:
    """The verdicts as an array of text, from arrays of what fits at each end of the estimates: :meth:`Verdict.of`, element by element."""
    import numpy as np

    certain = (low == expected) & (high == expected)
    words = np.where(expected, np.where(certain, 3, 2), np.where(certain, 0, 1))
    return np.array(_WORDS, dtype=object)[words]


def _column(array: Any, shape: tuple[int, int]) -> Column:
    """The column of an array: a single value if all points have the same, else a value for each point."""
    import numpy as np

    if array is None or isinstance(array, int):
        return array
    if array.shape == shape:
        flat = array.ravel()
    elif array.min() == array.max():
        same: Value = array.item(0)
        return same
    else:
        flat = np.broadcast_to(array, shape).ravel()
    column: Column = flat
    if array.dtype == object:
        words = flat.tolist()
        column = words if len(set(words)) > 1 else words[0]
    return column


_KEPT: Final = 8
"""The number of axes whose groups of values are kept."""
_PLANNED_ROWS: Final = 128
"""The most rows of a block if every row is planned; fewer, so that rows and progress appear steadily."""
_SIZES: Final = ("tp", "pp", "dp", "dcp", "ep")


class Refusals(Record):
    """The refused points of a piece.

    ``texts`` is an array of messages, with ``None`` for accepted points; ``None`` if no point is refused.
    """

    texts: Any
    count: int
    first: KvplanError | None
    all: bool
    """True if every point is refused."""


@lru_cache(maxsize=_KEPT)
def _alike(values: tuple[int | None, ...], turns: tuple[int, ...]) -> tuple[list[int], ...]:
    """The positions of the values, grouped by the two turns between which a value lies. It is the same in all settings."""
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(0 if value is None else bisect_left(turns, value), []).append(place)
    return tuple(groups.values())


def rows_of(grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], *, few: bool = False) -> SettingRows:
    """The rows of one model in one setting, of which ``asked`` are the parsed keywords. ``few`` are planned one by one.

    So are all within limits of time: a plan takes the layout that serves the most, and no array says which that is.
    """
    named = any((asked.get(name) or 1) > 1 for name in _SIZES)
    several = (asked.get("gpus") or 1) > 1 or (asked.get("instance") is not None and asked.get("gpus") is None)
    by_memory = asked.get("kv_memory") is None and asked.keys().isdisjoint(WITHIN)
    chosen = LaidOutRows if several and not named and by_memory else SettingRows
    return chosen(grid, model, setting, asked, few=few)


class SettingRows:
    """The rows of one model in one setting, of which ``asked`` are the parsed keywords of :func:`~hwcalc.planner.context.open_request`.

    ``few`` are planned one by one.
    """

    def __init__(self, grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], *, few: bool = False) -> None:
        self._grid, self._model, self._setting, self._asked, self._few = grid, model, setting, asked, few
        self._named = bool(grid.seqs)
        self._engine = engine_of(model, grid.options.get("engine"))
        self._options: Mapping[str, str] = asked.get("engine_options", {})
        self._in_time = not asked.keys().isdisjoint(WITHIN)
        self._first: Occupancy | None = None
        """The occupancy of the first point that was accepted."""
        self._known: dict[str, Value] = {
            "model": model.id,
            "engine": self._engine.partition("@")[0],
            "dtype": setting.dtype,
            "gpu": setting.gpu,
            "tp": setting.tp,
            "policy": None if setting.policy is None else setting.policy.text,
        }

    @cached_property
    def _turns(self) -> Turns:
        """The tokens and the batches at which rules of the engine change.

        Settings with the same options and replicas share them.
        """
        prompt, replicas = self._asked.get("prompt") or 1, self._asked.get("dp", 1)

        def make() -> Turns:
            try:
                engine = find_engine(self._engine)[0].requests.started_by(self._options)
                engine.requests.check_options(self._options)
                turns = engine.requests.turns(self._model, self._options)
            except KvplanError:
                # What is refused for its options is refused at every point.
                turns = Turns()
            return Turns(
                tokens=tuple(sorted({*turns.tokens, prompt - 1, MOST_TOKENS})),
                sequences=tuple(sorted({*(most * replicas for most in turns.sequences), MOST_TOKENS})),
            )

        return self._model.once(("turns", self._engine, prompt, replicas, *self._options.items()), make)

    def _open(self, seq: int | None, batch: int) -> Occupancy:
        """The occupancy of one point, whose stored bytes are computed. Raises the error with which its plan is refused."""
        opened = open_request(self._model, **{**self._asked, "seq": seq, "batch": batch})
        _ = opened.evicted, opened.stored_bytes
        self._first = self._first or opened
        return opened

    def _error(self, seq: int | None, batch: int) -> KvplanError | None:
        try:
            self._open(seq, batch)
        except KvplanError as error:
            return error
        return None

    def _refusals(self, piece: Piece) -> Refusals | None:
        """The refused points of a piece; ``None`` if only planning each point would tell."""
        texts: Any = None
        first: KvplanError | None = None
        count = 0
        groups = product(_alike(piece.seqs, self._turns.tokens), _alike(piece.batches, self._turns.sequences))
        for rows, columns in groups:
            seqs, batches = [piece.seqs[row] for row in rows], [piece.batches[column] for column in columns]
            error = self._error(seqs[0], batches[0])
            if error is None:
                continue
            messages = self._messages(seqs, batches, {(seqs[0], batches[0]): error.message})
            if messages is None:
                return None
            import numpy as np

            if texts is None:
                texts = np.full((len(piece.seqs), len(piece.batches)), None, dtype=object)
            texts[np.ix_(rows, columns)] = messages
            first, count = first or error, count + len(rows) * len(columns)
        return Refusals(texts=texts, count=count, first=first, all=count == piece.size)

    def _messages(self, seqs: Sequence[Any], batches: Sequence[int], known: dict[tuple[Any, int], str | None]) -> Any:
        """The messages of points that are refused for the same reason, as an array that broadcasts; ``None`` if a point is accepted.

        The numbers that a message names do not fall as length and batch grow. So if it is the same at the smallest and the largest, it
        is the same everywhere between. ``known`` are the messages of points that were tried.
        """
        import numpy as np

        def message(seq: Any, batch: int) -> str | None:
            if (seq, batch) not in known:
                error = self._error(seq, batch)
                known[seq, batch] = None if error is None else error.message
            return known[seq, batch]

        few, many, short, long = min(batches), max(batches), min(seqs), max(seqs)
        least, most = message(short, few), message(long, many)
        if least is None or most is None:
            return None
        if least == most:
            return np.array([[least]], dtype=object)
        if all(message(short, batch) == message(long, batch) for batch in batches):
            messages = [[message(short, batch) for batch in batches]]
        elif all(message(seq, few) == message(seq, many) for seq in seqs):
            messages = [[message(seq, few)] for seq in seqs]
        else:
            messages = [[message(seq, batch) for batch in batches] for seq in seqs]
        return None if any(text is None for row in messages for text in row) else np.array(messages, dtype=object)

    @cached_property
    def _family(self) -> Family | None:
        """The figures of all requests of the setting, as arrays; ``None`` without a form, or if an engine option sets length or batch.

        A point must have been accepted before. Users within limits of time are counted plan by plan.
        """
        opened = self._first
        assert opened is not None
        return (
            None if self._in_time or opened.engine.requests.names_sizes(self._options) else family_of(opened, self._setting.gpu)
        )

    def blocks(self, axes: Axes) -> Iterator[RowBlock]:
        """All rows, in blocks."""
        if self._few:
            yield from self._planned(axes.whole if self._named else Piece(seqs=(None,), batches=axes.whole.batches))
            return
        if not self._named:
            # The planned length of the first batch that is accepted, unless it differs between batches.
            batches = axes.whole.batches
            for places in _alike(batches, self._turns.sequences):
                if self._error(None, batches[places[0]]) is None:
                    break
            length: int | None = None
            if self._first is not None:
                engine, setup, load = self._first.engine, self._first.setup, self._first.load
                named = engine.requests.length_named(self._model, load.batch, setup.options) is not None
                length = None if named or engine.requests.names_length(setup.hardware.gpu) else load.seq
            axes = Axes((length,), batches)
        for piece in axes.pieces:
            yield from self.of_piece(piece, axes)

    def plan(self, seq: int | None, batch: int) -> dict[str, Value]:
        """The row of one point, by its plan; its limits are worked out where users within them are counted. Raises its error."""
        opened = self._open(seq if self._named else None, batch)
        plan = plan_opened(opened, limits=self._in_time)
        row = row_of(plan if plan.speed is not None else replace(plan, speed=speed_of(opened)))
        return {**row, "gpu": row["gpu"] or self._setting.gpu}

    def are_arrays(self, piece: Piece) -> bool:
        """True if no point of this piece has to be planned."""
        refusals = self._refusals(piece)
        return refusals is not None and (refusals.all or self._evaluated(piece, refusals) is not None)

    def _evaluated(self, piece: Piece, refusals: Refusals) -> Family | None:
        """The figures of this piece, of which some points are accepted; ``None`` if its rows must be planned."""
        family = None if None in piece.seqs else self._family
        return family if family is not None and family.agrees(piece, refusals.texts) else None

    def of_piece(self, piece: Piece, axes: Axes) -> Iterator[RowBlock]:
        """The rows of a piece, in blocks."""
        refusals = self._refusals(piece)
        if refusals is None:
            yield from self._planned(piece)
            return
        if refusals.all:
            errors = column_of(refusals.texts.ravel().tolist())
            of_refused = self._columns_of_refused(piece, axes) | {"error": errors}
            yield RowBlock(size=piece.size, columns=of_refused, failed=piece.size, error=refusals.first)
            return
        family = self._evaluated(piece, refusals)
        if family is not None and family.holds_for(piece):
            columns: Mapping[str, Column] = family.columns(piece) | axes.columns(piece)
            if refusals.count:
                texts = refusals.texts.ravel()
                refused = (texts != None) * 1  # noqa: E711 - place by place
                columns = _mixed([columns, self._columns_of_refused(piece, axes) | {"error": texts}], refused)
            yield RowBlock(size=piece.size, columns=columns, failed=refusals.count, error=refusals.first)
        elif family is None or piece.size <= _PLANNED_ROWS:
            yield from self._planned(piece)
        else:
            for half in piece.halves:
                yield from self.of_piece(half, axes)

    def _columns_of_refused(self, piece: Piece, axes: Axes) -> dict[str, Column]:
        """The columns of refused rows. Their ``seq`` is the length that the user names, ``None`` where the user names none."""
        return {**failed_row(self._known, ""), **axes.columns(piece), **({} if self._named else {"seq": None})}

    def _planned(self, piece: Piece) -> Iterator[RowBlock]:
        """The rows of a piece, each point planned by itself."""
        rows: list[dict[str, Value]] = []
        first: KvplanError | None = None
        for number, (seq, batch) in enumerate(product(piece.seqs, piece.batches), 1):
            try:
                row = self.plan(seq, batch)
            except KvplanError as error:
                first = first or error
                row = failed_row(self._known | {"seq": seq if self._named else None, "batch": batch}, error.message)
            rows.append(row)
            if len(rows) == _PLANNED_ROWS or number == piece.size:
                columns = {name: column_of([row[name] for row in rows]) for name in COLUMNS}
                failed = sum(row["error"] is not None for row in rows)
                yield RowBlock(size=len(rows), columns=columns, failed=failed, error=first)
                rows = []


class LaidOutRows(SettingRows):
    """The rows of a setting in which every point may have another layout.

    That is the rule of :func:`hwcalc.planner.within.best_layout`, row by row: the first layout that surely holds the sequences, else the
    first that probably does, else the one that holds the most of them, else the usual one.
    """

    @cached_property
    def _laid_out(self) -> dict[Layout, SettingRows]:
        """The rows in each layout that was tried."""
        return {}

    def _usual(self, refusals: Refusals | None) -> Layout | None:
        """The layout of points of which no layout holds a sequence; ``None`` if the engine accepts no point, or has no choice of layouts."""
        from hwcalc.planner.solve import has_layouts

        opened = self._first
        if refusals is None or refusals.all or opened is None or not has_layouts(opened.engine, opened.request):
            return None
        gpu, instance = opened.setup.hardware.gpu, self._asked.get("instance") is not None
        sizes = sizes_for(opened.engine, opened.model, gpu, opened.setup.gpus, Parallel(), instance=instance)
        return Layout(tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, ep=sizes.ep)

    def are_arrays(self, piece: Piece) -> bool:
        usual = self._usual(self._refusals(piece))
        return super().are_arrays(piece) if usual is None else self._in(usual).are_arrays(piece)

    def of_piece(self, piece: Piece, axes: Axes) -> Iterator[RowBlock]:
        refusals, opened = self._refusals(piece), self._first
        usual = self._usual(refusals)
        if usual is None or refusals is None or opened is None:
            yield from super().of_piece(piece, axes)
            return
        import numpy as np

        from hwcalc.planner.solve import fullest_layout

        found = {usual: self._in_layout(usual, usual, piece, axes)}
        verdicts: dict[Layout, Any] = {}
        chosen, holds = np.zeros(piece.size, dtype=int), np.zeros(piece.size, dtype=bool)
        gpus = opened.setup.gpus
        node = node_of(opened.setup.hardware.gpu, None if self._asked.get("instance") is None else gpus)
        # The order of layouts depends on whether all replicas have a sequence.
        busy = np.minimum(np.tile(np.array(piece.batches), len(piece.seqs)), gpus)
        for number in np.unique(busy).tolist():
            unsure = busy == number
            for layout in layouts(opened.sized(batch=number), gpus, node):
                if not unsure.any():
                    break
                if layout not in found:
                    found[layout] = self._in_layout(layout, usual, piece, axes)
                if layout not in verdicts:
                    verdicts[layout] = objects_of(found[layout]["fits"], piece.size)
                surely = unsure & (verdicts[layout] == Verdict.FITS.value)
                better = surely | (unsure & ~holds & (verdicts[layout] == Verdict.PROBABLY.value))
                chosen[better] = list(found).index(layout)
                unsure, holds = unsure & ~surely, holds | better
            # Which layout holds the most follows from the length, whatever the batch is.
            unheld = ((busy == number) & ~holds).reshape(len(piece.seqs), len(piece.batches))
            for row in np.flatnonzero(unheld.any(axis=1)).tolist():
                at_length = {} if piece.seqs[row] is None else {"seq": piece.seqs[row]}
                fullest = fullest_layout(opened.sized(batch=number, **at_length), gpus, node)
                if fullest is not None:
                    if fullest.layout not in found:
                        found[fullest.layout] = self._in_layout(fullest.layout, usual, piece, axes)
                    chosen.reshape(unheld.shape)[row, unheld[row]] = list(found).index(fullest.layout)
        columns = _mixed(list(found.values()), chosen)
        errors = objects_of(columns["error"], piece.size)
        failed = int((errors != None).sum())  # noqa: E711 - place by place
        yield RowBlock(size=piece.size, columns=columns, failed=failed, error=refusals.first if failed else None)

    def _in(self, layout: Layout) -> SettingRows:
        """The rows in one layout."""
        if layout not in self._laid_out:
            asked = {**self._asked, **asdict(layout), "dcp": 1}
            self._laid_out[layout] = SettingRows(self._grid, self._model, self._setting, asked)
        return self._laid_out[layout]

    def _in_layout(self, layout: Layout, usual: Layout, piece: Piece, axes: Axes) -> Mapping[str, Column]:
        """The columns of all points in a layout. If the engine refuses the layout, whole experts may be dealt out."""
        import numpy as np

        blocks = list(self._in(layout).of_piece(piece, axes))
        columns = blocks[0].columns
        if len(blocks) > 1:
            columns = {
                name: np.concatenate([objects_of(block.columns[name], block.size) for block in blocks]) for name in COLUMNS
            }
        dealt, opened = replace(layout, ep=layout.tp * layout.dp), self._first
        deals = (
            opened is not None and layout.ep < dealt.ep and opened.deployment.traits.deals_experts and has_experts(opened.model)
        )
        if not deals or layout == usual or not any(block.failed for block in blocks):
            return columns
        refused = (objects_of(columns["error"], piece.size) != None) * 1  # noqa: E711 - place by place
        return _mixed([columns, self._in_layout(dealt, usual, piece, axes)], refused)


def _mixed(rows: Sequence[Mapping[str, Column]], chosen: Any) -> Mapping[str, Column]:
    """The columns with the values of ``rows[chosen]`` at each point."""
    import numpy as np

    first, *others = np.unique(chosen).tolist()
    columns: Mapping[str, Column] = rows[first]
    if not others:
        return columns
    places = [(number, chosen == number) for number in others]
    mixed: dict[str, Column] = {}
    for name in COLUMNS:
        objects = objects_of(columns[name], chosen.size)
        for number, there in places:
            objects = np.where(there, objects_of(rows[number][name], chosen.size), objects)
        mixed[name] = column_of(objects.tolist())
    return mixed


def objects_of(column: Column, size: int) -> Any:
    """A column as an array of objects."""
    import numpy as np

    objects = np.empty(size, dtype=object)
    objects[:] = column
    return objects


def column_of(values: list[Any]) -> Column:
    """The values as a column: a single value if all are equal."""
    return values[0] if len(set(values)) == 1 else values

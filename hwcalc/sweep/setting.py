"""The rows of one model in one setting of a grid: from the form of its deployment if it has one, else by planning each point.

The form (:mod:`hwcalc.engines.forms`) gives the figures of all lengths and batches as arrays. What does not depend on length and batch
comes from one occupancy of the setting. Refused points are found by planning few of them, where many are refused for one reason.

Arrays have 64 bits, and a larger number would be wrong in silence. So a rule is first called with the range of all lengths and the range of
all numbers of sequences in place of arrays (:class:`Reach`), which bounds every step of its arithmetic in integers of Python.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from math import ceil
from typing import Any, Final

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Turns
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.engines.memory import Section
from hwcalc.errors import KvplanError
from hwcalc.formulas import Span
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import lasting_warnings, plan_memory, plan_opened
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock, Value, failed_row, row_of
from hwcalc.sweep.grid import Axes, Grid, Piece, Setting
from hwcalc.units import MOST_TOKENS

_FAR: Final = 2**100
"""More than anybody asks about."""


class Reach:
    """A range of numbers, from ``low`` to ``high``.

    ``seen`` collects the largest magnitude of all steps of the arithmetic with it.
    """

    shape = ()

    def __init__(self, low: Any, high: Any, seen: list[Any]) -> None:
        self.low, self.high, self.seen = low, high, seen
        seen[0] = max(seen[0], high)
        seen[0] = max(seen[0], -low)

    def __add__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(self.low + low, self.high + high, self.seen)

    def __sub__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(self.low - high, self.high - low, self.seen)

    def __rsub__(self, other: Any) -> Reach:
        low, high = _ends(other)
        return Reach(low - self.high, high - self.low, self.seen)

    def __mul__(self, other: Any) -> Reach:
        low, high = _ends(other)
        if self.low >= 0 and low >= 0:
            return Reach(self.low * low, self.high * high, self.seen)
        products = (self.low * low, self.low * high, self.high * low, self.high * high)
        return Reach(min(products), max(products), self.seen)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Reach:
        return Reach(-self.high, -self.low, self.seen)

    def __floordiv__(self, other: Any) -> Reach:
        # Nothing is divided by a number below one.
        low, high = (max(end, 1) for end in _ends(other))
        return Reach(self.low // (low if self.low < 0 else high), self.high // (high if self.high < 0 else low), self.seen)

    def __truediv__(self, other: Any) -> Reach:
        low, high = (max(end, 1) for end in _ends(other))
        return Reach(self.low / (low if self.low < 0 else high), self.high / (high if self.high < 0 else low), self.seen)

    def _answer(self, other: Any) -> Reach:
        """The range of a comparison: 0 for false to 1 for true."""
        return Reach(0, 1, self.seen)

    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __rand__ = __ror__ = _answer
    __eq__ = __ne__ = _answer  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def clip(self, min: Any = None, max: Any = None) -> Reach:  # noqa: A002 - the names of NumPy
        """As an array has it."""
        if min is not None:
            low, high = _ends(min)
            return Reach(_larger(self.low, low), _larger(self.high, high), self.seen)
        low, high = _ends(max)
        return Reach(_smaller(self.low, low), _smaller(self.high, high), self.seen)

    def astype(self, kind: str) -> Reach:
        """As an array has it: all bounds are kept."""
        return self

    def ravel(self) -> Reach:
        """As an array has it."""
        return self

    def reshape(self, shape: Any) -> Reach:
        """As an array has it."""
        return self

    def tolist(self) -> list[Any]:
        """Both ends."""
        return [self.low, self.high]


_larger, _smaller = max, min


def _ends(other: Any) -> tuple[Any, Any]:
    if type(other) is Reach:
        return other.low, other.high
    return (min(other), max(other)) if type(other) is list else (other, other)


def reached(tokens: tuple[int, int], sequences: tuple[int, int], ask: Callable[[Any, Any], object]) -> int | None:
    """The largest magnitude of all steps of the rules that ``ask`` calls, over these ranges of tokens and of sequences.

    ``None`` if a rule uses an operation that a range does not have.
    """
    seen: list[Any] = [0]
    try:
        ask(Reach(*tokens, seen), Reach(*sequences, seen))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    largest: int = ceil(min(seen[0], _FAR))
    return largest


_OF_A_VERDICT: Final = (
    *("total_per_gpu_low_bytes", "total_per_gpu_high_bytes", "usable_bytes", "fits"),
    *("kept_tokens", "policy_saved_bytes", "prefill_peak_bytes"),
)
"""Columns that are empty without a GPU or a policy."""
_VERDICTS: Final = (Verdict.NO, Verdict.PROBABLY_NOT, Verdict.PROBABLY, Verdict.FITS)
_WORDS: Final = tuple(verdict.value for verdict in _VERDICTS)
_MOST: Final = 2**62
_WEIGHTS: Final = ("weights_bytes", "weights_per_gpu_bytes")
_SPARE_BITS: Final = 10


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

    def agrees(self, piece: Piece, refused: Any) -> bool:
        """Whether every point of the piece that the form refuses is among the ``refused`` ones."""
        most_tokens, most_sequences = self.curve.most_tokens, self.curve.most_sequences
        if most_tokens is None and most_sequences is None:
            return True
        tokens, sequences = piece.tokens, piece.sequences
        beyond = tokens < 0 if most_tokens is None else tokens > most_tokens
        if most_sequences is not None:
            beyond = beyond | (-(-sequences // self.opened.setup.parallel.dp) > most_sequences)
        return not beyond.any() if refused is None else bool(((refused != None) | ~beyond).all())  # noqa: E711 - place by place

    def holds_for(self, piece: Piece) -> bool:
        """Whether the form covers the lengths of the piece, and no number needs more than 64 bits."""
        if max(*piece.seqs, *piece.batches) > _MOST:
            return False
        tokens, sequences = self._accepted(piece)
        far = int(tokens.max()), int(sequences.max())
        if self.form is not None and tokens.min() < self.form.least_tokens:
            return False
        caches = self.curve.total_bytes(*far) + self.curve.needed_bytes(*far)
        simple = caches + sum(self.row[name] or 0 for name in _WEIGHTS) + self._most_grown(far[0])
        if self.form is None:
            # No step of a plain curve is larger than the sum, which grows with both.
            return simple <= (_MOST if type(self.curve) is Curve else _MOST >> _SPARE_BITS)
        most = reached((1, far[0] + 1), (1, far[1]), partial(self._answers, self.form))
        if most is not None:
            return max(most, simple) <= _MOST
        # Such a form takes arrays alone. Its numbers grow with both, and no step is a thousand times what comes of it.
        return bool(max(simple, *self._answers(self.form, *far)) <= _MOST >> _SPARE_BITS)

    def _most_grown(self, tokens: int) -> int:
        """An upper bound on the bytes in any step of the growth."""
        longest = max(tokens + 1, self.opened.encoder_tokens)
        return sum(size * max(longest, sum(span.numbers)) for span, size in self.grown.items())

    def _answers(self, form: MemoryForm, tokens: Any, sequences: Any) -> list[Any]:
        """All numbers and verdicts that rows take from the form."""
        memory = form.at(tokens, sequences)
        parts = (memory.parts_bytes("expected", section.value) for section in Section)
        total = self._total(memory)
        holds = map(memory.holds, ENDS)
        return [memory.needed_bytes, *(() if total is None else (total,)), *parts, *holds]

    def columns(self, piece: Piece) -> dict[str, Column]:
        """All columns but length and batch."""
        tokens, sequences = self._accepted(piece)
        shape = len(piece.seqs), len(piece.batches)
        arrays = {"bytes_per_token": self._growth(tokens)}
        arrays |= self._without_gpu(tokens, sequences) if self.form is None else self._on_gpu(self.form.at(tokens, sequences))
        return {
            **self.row,
            **{name: _column(array, shape) for name, array in arrays.items()},
            "warning": self._warning(piece),
        }

    def _accepted(self, piece: Piece) -> tuple[Any, Any]:
        """The lengths and batches of a piece, cut to the largest that the form accepts.

        The rows of larger ones are replaced by errors.
        """
        tokens, sequences = piece.tokens, piece.sequences
        if self.curve.most_tokens is not None:
            tokens = tokens.clip(max=self.curve.most_tokens)
        if self.curve.most_sequences is not None:
            sequences = sequences.clip(max=self.curve.most_sequences * self.opened.setup.parallel.dp)
        return tokens, sequences

    def _without_gpu(self, tokens: Any, sequences: Any) -> dict[str, Any]:
        replicas = self.opened.setup.parallel.dp
        needed = self.curve.needed_bytes(tokens, sequences if replicas == 1 else -(-sequences // replicas))
        return self._beside_weights(self.curve.total_bytes(tokens, sequences), needed)

    def _beside_weights(self, cache: Any, needed: Any) -> dict[str, Any]:
        """The columns of the cache on all GPUs and on the fullest, and of their sums with the weights, without any other memory."""
        weights, on_gpu = (self.row[name] for name in _WEIGHTS)
        return {
            "cache_total_bytes": cache,
            "cache_per_gpu_bytes": needed,
            "total_bytes": None if weights is None else cache + weights,
            "total_per_gpu_bytes": None if on_gpu is None else needed + on_gpu,
        }

    def _on_gpu(self, memory: Memory) -> dict[str, Any]:
        usable, needed = memory.form.usable[1], memory.needed_bytes
        low, high = (usable - memory.left(end) + needed for end in ("high", "low"))
        return {
            **(self._beside_weights(memory.total_bytes, needed) if self.is_given else self._equation(memory)),
            "total_per_gpu_low_bytes": larger(0, low),
            "total_per_gpu_high_bytes": high,
            "usable_bytes": usable,
            "fits": _verdicts(*map(memory.holds, ENDS)),
        }

    def _equation(self, memory: Memory) -> dict[str, Any]:
        parts = {section: memory.parts_bytes("expected", section.value) for section in Section}
        return {
            "cache_total_bytes": memory.total_bytes,
            "cache_per_gpu_bytes": memory.needed_bytes,
            "weights_per_gpu_bytes": parts[Section.WEIGHTS],
            "total_bytes": self._total(memory),
            "total_per_gpu_bytes": sum(parts.values()) + memory.needed_bytes,
        }

    @property
    def is_given(self) -> bool:
        """Whether the user gives the budget, which holds the cache alone."""
        return self.opened.setup.hardware.kv_memory is not None

    def _total(self, memory: Memory) -> Any:
        """The bytes on all GPUs: cache, weights, and for each GPU activations and overhead of the fullest.

        It is ``None`` if weights are unknown.
        """
        weights = self.row["weights_bytes"]
        if memory.devices_bytes is not None:
            return memory.devices_bytes
        if weights is None:
            return None
        beside = sum(memory.parts_bytes("expected", section.value) for section in (Section.ACTIVATIONS, Section.OVERHEAD))
        return memory.total_bytes + weights + self.opened.setup.gpus * beside

    def _growth(self, tokens: Any) -> Any:
        """The bytes that one more token adds to a sequence, while the encoder's input stays the same."""
        encoder: Any = self.opened.growing_encoder_tokens
        encoder = tokens if encoder is None else encoder
        grown: Any = 0
        for span, size in self.grown.items():
            stairs = span.stairs(encoder)
            grown = grown + size * (stairs_at(stairs, tokens + 1) - stairs_at(stairs, tokens))
        return grown

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
    request, hardware = opened.request, opened.setup.hardware
    if request.setup.policy is not None or request.load.lengths or request.load.sharing.asked:
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
    known = memory.weights.bytes is not None
    warnings = lasting_warnings(opened, known_weights=known, verdict=form is not None)
    row: dict[str, Any] = {
        "model": opened.model.id,
        "engine": opened.engine.name,
        "engine_version": opened.version or None,
        "dtype": opened.dtypes.kv,
        "gpu": gpu if form is None or hardware.gpu is None else hardware.gpu.id,
        "gpus": None if form is None else request.setup.gpus,
        "tp": request.setup.parallel.tp,
        "policy": None,
        "definition": definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        **dict.fromkeys(_OF_A_VERDICT),
        "error": None,
    }
    return Family(
        opened=opened,
        curve=curve,
        form=form,
        row=row,
        warnings=tuple(note.code for note in warnings),
        grown=_grown(opened),
    )


def _grown(opened: Occupancy) -> dict[Span, int]:
    roles = opened.dtypes.roles
    sizes: dict[Span, int] = {}
    for group in opened.model.stack.groups:
        for tensor in group.kind.tensors():
            size = group.count * tensor.bytes_per_position(roles[tensor.role])
            sizes[tensor.span] = sizes.get(tensor.span, 0) + size
    return {span: size for span, size in sizes.items() if size}


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


class Refusals(Record):
    """The refused points of a piece.

    ``texts`` is an array of messages, with ``None`` for accepted points; ``None`` if no point is refused.
    """

    texts: Any
    count: int
    first: KvplanError | None
    all: bool
    """Whether every point is refused."""


class Requests:
    """The requests of one model in one setting of a grid. ``asked`` are parsed keywords of :func:`~hwcalc.planner.context.open_request`."""

    def __init__(self, model: ModelSpec, engine: str, asked: Mapping[str, Any]) -> None:
        self._model, self._engine, self._asked = model, engine, asked
        self.first: Occupancy | None = None
        """The occupancy of the first point that was accepted."""

    @cached_property
    def _turns(self) -> Turns:
        """The tokens and the batches at which rules of the engine change.

        Settings with the same options and replicas share them.
        """
        prompt, replicas, options = (
            self._asked.get("prompt") or 1,
            self._asked.get("dp", 1),
            self._asked.get("engine_options", {}),
        )
        key = ("turns", self._engine, prompt, replicas, *options.items())
        turns: Turns = self._model.once(key, lambda: self._turns_of(prompt, replicas, options))
        return turns

    def _turns_of(self, prompt: int, replicas: int, options: Mapping[str, str]) -> Turns:
        try:
            engine = find_engine(self._engine)[0]
            engine = engine.started_by(options)
            engine.check_options(options)
            turns = engine.turns(self._model, options)
        except KvplanError:
            # What is refused for its options is refused at every point.
            turns = Turns()
        return Turns(
            tokens=tuple(sorted({*turns.tokens, prompt - 1, MOST_TOKENS})),
            sequences=tuple(sorted({*(most * replicas for most in turns.sequences), MOST_TOKENS})),
        )

    def open(self, seq: int | None, batch: int) -> Occupancy:
        """The occupancy of one point, whose stored bytes are computed. Raises the error with which its plan is refused."""
        opened = open_request(self._model, **{**self._asked, "seq": seq, "batch": batch})
        _ = opened.evicted, opened.stored_bytes
        self.first = self.first or opened
        return opened

    def plan(self, seq: int | None, batch: int) -> Plan:
        """The plan of one point, without the limits, which no column holds. Raises its error."""
        return plan_opened(self.open(seq, batch), limits=False)

    @property
    def follow_the_axes(self) -> bool:
        """Whether requests have the lengths and batches of the grid; false if an engine option sets others."""
        assert self.first is not None
        return not self.first.engine.names_sizes(self._asked.get("engine_options", {}))

    def usual_length(self, batches: tuple[int, ...]) -> int | None:
        """The planned length where the user names none; ``None`` if it differs between batches, or if all points are refused."""
        for places in _alike(batches, self._turns.sequences):
            if self._error(None, batches[places[0]]) is None:
                break
        if self.first is None:
            return None
        engine, request = self.first.engine, self.first.request
        named = engine.length_named(self._model, request.load.batch, request.setup.options) is not None
        return None if named or engine.names_length(request.setup.hardware.gpu) else request.load.seq

    def refusals(self, piece: Piece) -> Refusals | None:
        """The refused points of a piece; ``None`` if only planning each point would tell."""
        texts: Any = None
        first: KvplanError | None = None
        count = 0
        for rows in _alike(piece.seqs, self._turns.tokens):
            for columns in _alike(piece.batches, self._turns.sequences):
                error = self._error(piece.seqs[rows[0]], piece.batches[columns[0]])
                if error is None:
                    continue
                seqs, batches = [piece.seqs[row] for row in rows], [piece.batches[column] for column in columns]
                messages = _same_words(seqs, batches, self._words_beside(error, seqs[0], batches[0]))
                if messages is None:
                    return None
                import numpy as np

                if texts is None:
                    texts = np.full((len(piece.seqs), len(piece.batches)), None, dtype=object)
                texts[np.ix_(rows, columns)] = messages
                first, count = first or error, count + len(rows) * len(columns)
        return Refusals(texts=texts, count=count, first=first, all=count == piece.size)

    def _words_beside(self, error: KvplanError, seq: int | None, batch: int) -> Callable[[int | None, int], str | None]:
        """A function from a point to the message of its refusal. The message of the given point is known already."""
        return lambda *point: error.message if point == (seq, batch) else _text(self._error(*point))

    def _error(self, seq: int | None, batch: int) -> KvplanError | None:
        try:
            self.open(seq, batch)
        except KvplanError as error:
            return error
        return None


def _text(error: KvplanError | None) -> str | None:
    return None if error is None else error.message


@lru_cache(maxsize=_KEPT)
def _alike(values: tuple[int | None, ...], turns: tuple[int, ...]) -> tuple[list[int], ...]:
    """The positions of the values, grouped by the two turns between which a value lies. It is the same in all settings."""
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(0 if value is None else bisect_left(turns, value), []).append(place)
    return tuple(groups.values())


def _same_words(seqs: Sequence[Any], batches: Sequence[int], words: Callable[[Any, int], str | None]) -> Any:
    """The messages of points that are refused for the same reason, as an array that broadcasts; ``None`` if a point is accepted.

    The numbers that a message names do not fall as length and batch grow. So if it is the same at the smallest and the largest, it is the
    same everywhere between.
    """
    import numpy as np

    few, many, short, long = min(batches), max(batches), min(seqs), max(seqs)
    least, most = words(short, few), words(long, many)
    if least is None or most is None:
        return None
    if least == most:
        return np.array([[least]], dtype=object)
    for_batch = [(words(short, batch), words(long, batch)) for batch in batches]
    if all(one == other for one, other in for_batch):
        messages = [[one for one, _ in for_batch]]
    else:
        for_length = [(words(seq, few), words(seq, many)) for seq in seqs]
        if all(one == other for one, other in for_length):
            messages = [[one] for one, _ in for_length]
        else:
            messages = [[words(seq, batch) for batch in batches] for seq in seqs]
    return None if any(text is None for row in messages for text in row) else np.array(messages, dtype=object)


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
        """The figures of all requests of the setting, as arrays; ``None`` without a form.

        A point must have been accepted before.
        """
        opened, gpu = self._requests.first, self._known["gpu"]
        assert opened is not None
        assert not isinstance(gpu, int)

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
        """Whether the form gives the rows of this piece, of which some points are accepted."""
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
        """The block of a piece from the form, with error rows for its refused points."""
        columns = family.columns(piece) | axes.columns(piece)
        if not refusals.count:
            return RowBlock(size=piece.size, columns=columns)
        refused = refusals.texts.ravel() != None  # noqa: E711 - place by place
        others = self._columns_of_refused(piece, axes) | {"error": refusals.texts.ravel()}
        mixed = {name: _either(refused, others[name], columns[name]) for name in COLUMNS}
        return RowBlock(size=piece.size, columns=mixed, failed=refusals.count, error=refusals.first)

    def _columns_of_refused(self, piece: Piece, axes: Axes) -> dict[str, Column]:
        """The columns of refused rows. Their ``seq`` is the length that the user names, ``None`` where the user names none."""
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
            named_length = seq if self._named else None
            try:
                row = self.plan(seq, batch)
            except KvplanError as error:
                first = first or error
                row = failed_row(self._known | {"seq": named_length, "batch": batch}, error.message)
            rows.append(row)
            if len(rows) == _PLANNED_ROWS:
                yield _gathered(rows, first)
                rows = []
        if rows:
            yield _gathered(rows, first)


def _either(chosen: Any, yes: Column, no: Column) -> Column:
    """A column with the values of ``yes`` where ``chosen`` is true, else those of ``no``."""
    import numpy as np

    return column_of(np.where(chosen, objects_of(yes, chosen.size), objects_of(no, chosen.size)).tolist())


def objects_of(column: Column, size: int) -> Any:
    """A column as an array of objects."""
    import numpy as np

    objects = np.empty(size, dtype=object)
    objects[:] = column
    return objects


def column_of(values: list[Any]) -> Column:
    """The values as a column: a single value if all are equal."""
    return values[0] if len(set(values)) == 1 else values


def _gathered(rows: list[dict[str, Value]], error: KvplanError | None) -> RowBlock:
    columns = {name: column_of([row[name] for row in rows]) for name in COLUMNS}
    return RowBlock(size=len(rows), columns=columns, failed=sum(row["error"] is not None for row in rows), error=error)

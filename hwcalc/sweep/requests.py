"""The requests of one setting of a grid: opened point by point, or refused, with few of them asked where many are refused alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Turns
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import plan_opened
from hwcalc.planner.result import Plan
from hwcalc.sweep.axes import Piece
from hwcalc.units import MOST_TOKENS

_KEPT: Final = 8
"""Axes of which it is known what lies between two turns."""


class Refusals(Record):
    """Which points of a piece are refused, and in which words: an array of text, ``None`` where a plan is made or if no point is."""

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
        """The first request that was accepted."""

    @cached_property
    def _turns(self) -> Turns:
        """The turns of lengths, and those of all sequences, which all settings of a model have that differ in neither options nor replicas."""
        prompt, replicas, options = (
            self._asked.get("prompt") or 1,
            self._asked.get("dp", 1),
            self._asked.get("engine_options", {}),
        )
        key = ("turns", self._engine, prompt, replicas, *options.items())
        found: Turns = self._model.once(key, lambda: self._turns_of(prompt, replicas, options))
        return found

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
        """The request of one point, with all that it stores. Raises the error with which its plan is refused."""
        opened = open_request(self._model, **{**self._asked, "seq": seq, "batch": batch})
        _ = opened.evicted, opened.stored_bytes
        self.first = self.first or opened
        return opened

    def plan(self, seq: int | None, batch: int) -> Plan:
        """The plan of one point, without what no column has. Raises its error."""
        return plan_opened(self.open(seq, batch), limits=False)

    @property
    def follow_the_axes(self) -> bool:
        """Whether requests have the lengths and batches that are asked for, and no option names others."""
        assert self.first is not None
        return not self.first.engine.names_sizes(self._asked.get("engine_options", {}))

    def usual_length(self, batches: tuple[int, ...]) -> int | None:
        """The length where the user names none; ``None`` if it is not the same for every batch, or all are refused."""
        for places in _alike(batches, self._turns.sequences):
            if self._error(None, batches[places[0]]) is None:
                break
        if self.first is None:
            return None
        engine, request = self.first.engine, self.first.request
        named = engine.length_named(self._model, request.batch, request.options) is not None
        return None if named or engine.names_length(request.hardware.gpu) else request.seq

    def refusals(self, piece: Piece) -> Refusals | None:
        """The points that are refused; ``None`` if that can only be known by planning each."""
        texts: Any = None
        first: KvplanError | None = None
        count = 0
        for rows in _alike(piece.seqs, self._turns.tokens):
            for columns in _alike(piece.batches, self._turns.sequences):
                error = self._error(piece.seqs[rows[0]], piece.batches[columns[0]])
                if error is None:
                    continue
                seqs, batches = [piece.seqs[row] for row in rows], [piece.batches[column] for column in columns]
                found = _same_words(seqs, batches, self._words_beside(error, seqs[0], batches[0]))
                if found is None:
                    return None
                import numpy as np

                if texts is None:
                    texts = np.full((len(piece.seqs), len(piece.batches)), None, dtype=object)
                texts[np.ix_(rows, columns)] = found
                first, count = first or error, count + len(rows) * len(columns)
        return Refusals(texts=texts, count=count, first=first, all=count == piece.size)

    def _words_beside(self, error: KvplanError, seq: int | None, batch: int) -> Callable[[int | None, int], str | None]:
        """The message of any point; that of one is known."""
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
    """The places of the values between two turns, for each two. It is the same in all settings."""
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(0 if value is None else bisect_left(turns, value), []).append(place)
    return tuple(groups.values())


def _same_words(seqs: Sequence[Any], batches: Sequence[int], words: Callable[[Any, int], str | None]) -> Any:
    """The messages of points that are refused for one reason, as an array that broadcasts; ``None`` if one of them is not refused.

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
        found = [[one for one, _ in for_batch]]
    else:
        for_length = [(words(seq, few), words(seq, many)) for seq in seqs]
        if all(one == other for one, other in for_length):
            found = [[one] for one, _ in for_length]
        else:
            found = [[words(seq, batch) for batch in batches] for seq in seqs]
    return None if any(text is None for row in found for text in row) else np.array(found, dtype=object)

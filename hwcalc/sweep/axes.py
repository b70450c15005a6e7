"""The lengths and batches of a grid, in pieces that a block of rows can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.sweep.blocks import Column, SharedNumbers

_ROWS: Final = 65_536
"""The most rows of one block, which limits the memory that a sweep takes."""


class Piece(Record):
    """Some lengths, each with some batches; the batch changes fastest. Alone, a length may be ``None``: nobody named one."""

    seqs: tuple[Any, ...]
    batches: tuple[int, ...]

    @cached_property
    def tokens(self) -> Any:
        """The lengths as a column."""
        import numpy as np

        return np.array(self.seqs)[:, None]

    @cached_property
    def sequences(self) -> Any:
        """The batches as a row."""
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
        """The first and the second half, which follow each other."""
        if len(self.seqs) > 1:
            middle = len(self.seqs) // 2
            return replace(self, seqs=self.seqs[:middle]), replace(self, seqs=self.seqs[middle:])
        middle = len(self.batches) // 2
        return replace(self, batches=self.batches[:middle]), replace(self, batches=self.batches[middle:])


class Axes:
    """The pieces of a grid, with what depends on lengths and batches alone. That of the last piece is kept."""

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

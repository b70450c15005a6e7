"""The cache as a function of length and number of sequences: sums of stairs.

Layers that grow alike are a :class:`Term`: ``count x unit_bytes x stairs(tokens)``, for each sequence. Llama-3.1-8B in bf16 with four tokens
is one term: 32 layers x 4,096 bytes x 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import largest, mapped
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, stairs_at, together

__all__ = ["AskedCurve", "Curve", "StagedCurve", "Term"]


class Term(Record):
    """Layers of one kind that grow alike. A unit is a position, or a block of ``unit_tokens`` tokens.

    ``stairs`` are the units that one layer takes of one sequence; of several sums the largest counts. ``rule`` says it in words, where
    ``n`` is the number of tokens.
    """

    kind: str
    layers: LayerNumbers
    count: int
    unit_bytes: int
    stairs: tuple[tuple[Stair, ...], ...]
    rule: str
    unit_tokens: int = 1

    def units(self, tokens: int) -> int:
        """Positions or blocks of one layer and one sequence."""
        units: int = largest(stairs_at(sums, tokens) for sums in self.stairs)
        return units

    def bytes(self, tokens: int) -> int:
        """Bytes of all these layers for one sequence."""
        return self.count * self.unit_bytes * self.units(tokens)


class _Sum(NamedTuple):
    """Some terms: those of one sum of stairs as a single sum, in bytes, and the others."""

    stairs: tuple[Stair, ...]
    others: tuple[Term, ...]

    @classmethod
    def of(cls, terms: Iterable[Term]) -> _Sum:
        found = tuple(terms)
        single = ((term.count * term.unit_bytes, term.stairs[0]) for term in found if len(term.stairs) == 1)
        return cls(together(single), tuple(term for term in found if len(term.stairs) > 1))

    def bytes(self, tokens: int) -> int:
        """Bytes of all of them for one sequence."""
        size = stairs_at(self.stairs, tokens)
        return size + sum(term.bytes(tokens) for term in self.others) if self.others else size


class Curve(Record):
    """The cache. ``gpus`` has a sum of terms for each GPU that differs, of which the largest counts; ``total`` are those of all GPUs.

    ``once_bytes`` and ``total_once_bytes`` are there once, however many sequences there are. Sequences of more than ``most_tokens``, and
    more than ``most_sequences`` of them, are refused. An engine with another rule has a subclass.
    """

    gpus: tuple[tuple[Term, ...], ...]
    total: tuple[Term, ...]
    once_bytes: int = 0
    total_once_bytes: int = 0
    most_tokens: int | None = None
    most_sequences: int | None = None

    @cached_property
    def _on_gpus(self) -> tuple[_Sum, ...]:
        return tuple(dict.fromkeys(map(_Sum.of, self.gpus)))

    @cached_property
    def _in_all(self) -> _Sum:
        return _Sum.of(self.total)

    @cached_property
    def _by_gpu(self) -> tuple[_Sum, ...]:
        return tuple(map(_Sum.of, self.gpus))

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes on one of the GPUs, for so many sequences of a replica."""
        return sequences * self._by_gpu[gpu].bytes(tokens) + self.once_bytes

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on the fullest GPU, for so many sequences of a replica."""
        sums = self._on_gpus
        most: int = sums[0].bytes(tokens) if len(sums) == 1 else largest(one.bytes(tokens) for one in sums)
        return sequences * most + self.once_bytes

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on all GPUs, for all sequences."""
        return sequences * self._in_all.bytes(tokens) + self.total_once_bytes


class StagedCurve(Curve):
    """A cache in which what is there once is not the same on each GPU: ``once_on`` are those bytes in place of ``once_bytes``."""

    once_on: tuple[int, ...]

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        return sequences * self._by_gpu[gpu].bytes(tokens) + self.once_on[gpu]

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        most: int = largest(self.bytes_on(gpu, tokens, sequences) for gpu in range(len(self.gpus)))
        return most


class AskedCurve(Curve):
    """A cache that is no sum of stairs, but as much for each sequence as for one: the engine is asked once for each length.

    ``one`` is a sequence of a replica on the fullest GPU, and ``whole`` a sequence on all GPUs.
    """

    gpus: tuple[tuple[Term, ...], ...] = ((),)
    total: tuple[Term, ...] = ()
    one: Callable[[int], int]
    whole: Callable[[int], int]

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        size: int = sequences * mapped(self.one, tokens) + self.once_bytes
        return size

    def total_bytes(self, tokens: int, sequences: int) -> int:
        size: int = sequences * mapped(self.whole, tokens) + self.total_once_bytes
        return size

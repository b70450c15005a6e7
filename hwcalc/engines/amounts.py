"""Bytes as functions of length and number of sequences: what a part of the memory equation takes.

Every rule here takes arrays of lengths and of numbers of sequences in place of integers (:mod:`hwcalc.formulas.arithmetic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hwcalc.engines.curves import Term
from hwcalc.engines.moments import Fullest
from hwcalc.engines.passes import Pass, passed_tokens
from hwcalc.formulas.arithmetic import either, largest, mapped, smaller, some
from hwcalc.formulas.record import Record

__all__ = [
    "DRAWN",
    "Amount",
    "Asked",
    "Constant",
    "Early",
    "Largest",
    "Measured",
    "OwnAmount",
    "Pass",
    "PerGpu",
    "passed_tokens",
]


class Constant(Record):
    """The same at every length and for every number of sequences."""

    bytes: int

    @classmethod
    def of(cls, size: int) -> Constant:
        """So many bytes."""
        return cls(bytes=size)

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        return self.bytes


class Largest(Record):
    """The largest of some terms, for all sequences: a tensor that exists twice while it grows."""

    terms: tuple[Term, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        most: int = largest(term.bytes(tokens) for term in self.terms) if self.terms else 0
        return sequences * most


class Measured(Record):
    """A rule, but the bytes that were measured where a forward pass is one of the ``readings``: its tokens, its sequences, bytes.

    At most ``chunk`` tokens are processed at once, as in :class:`Pass`.
    """

    rule: Amount
    chunk: int | None
    readings: tuple[tuple[int, int, int], ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = passed_tokens(tokens, sequences, self.chunk)
        size = self.rule.at(tokens, sequences)
        for tokens_at_once, rows, measured in reversed(self.readings):
            size = either((tokens_at_once == passed) & (rows == sequences), measured, size)
        return size


class Early(Record):
    """The bytes at the first lengths, from one token on, and the rule that holds from the next length on."""

    first: Sequence[int]
    rule: Amount

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        last = len(self.first)
        if isinstance(tokens, int):
            return self.first[tokens - 1] if 1 <= tokens <= last else self.rule.at(tokens, sequences)
        is_early = tokens <= last
        if not some(is_early):
            return self.rule.at(tokens, sequences)
        early = mapped(lambda length: self.first[length - 1] if length <= last else 0, smaller(tokens, last + 1))
        size: int = either(is_early, early, self.rule.at(tokens, sequences))
        return size


class PerGpu(Record):
    """Another amount on each GPU of a :class:`Curve`, where each runs a part of the model of its own."""

    amounts: tuple[Amount, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """The largest of them."""
        most: int = largest(amount.at(tokens, sequences) for amount in self.amounts)
        return most


class OwnAmount:
    """A rule of one engine, which nobody else knows."""

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        raise NotImplementedError


class Asked(OwnAmount, Record):
    """What an engine says of one sequence, for each sequence: it is asked once for each length."""

    rule: Callable[[int], int]
    alone: bool = False
    """Whether it says it of all sequences together."""

    def at(self, tokens: int, sequences: int) -> int:
        size: int = mapped(self.rule, tokens)
        return size if self.alone else sequences * size


DRAWN: Final = (Constant, Pass, Largest, Fullest, PerGpu, Measured, Early)
"""Those that the page of ``kvplan explore`` can evaluate."""
Amount = Constant | Pass | Largest | Fullest | PerGpu | Measured | Early | OwnAmount

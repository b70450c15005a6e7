"""The fullest moment of a forward pass, where several may be it: an amount of :mod:`hwcalc.engines.forms`.

Each moment is a sum of products of what is passed at once, sequences and positions, and has a share of its own by which it was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from hwcalc.formulas.arithmetic import ceiled, floored, largest, smaller
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.formulas.stairs import Stair

__all__ = ["Factor", "Fullest", "Moment", "Product"]

Factor = Literal["passed", "sequences", "each", "alone"]
"""Tokens that are processed at once; sequences; of the former those of one sequence; 1 if there is one sequence, 0 if more."""


class Product(NamedTuple):
    """``bytes x stairs``, times the factors. Without any stairs that is ``bytes`` times the factors."""

    bytes: int
    factors: tuple[Factor, ...] = ()
    stairs: tuple[Stair, ...] = ()

    def at(self, tokens: int, factors: Mapping[Factor, int]) -> int:
        """The value for so many tokens of a sequence."""
        value = self.bytes * (stairs_at(self.stairs, tokens) if self.stairs else 1)
        for name in self.factors:
            value = value * factors[name]  # not in place: an array would keep its shape
        return value


class Moment(NamedTuple):
    """``share x`` the sum of the products: one multiplication in floating point, of a whole number."""

    share: float
    products: tuple[Product, ...]


class Fullest(Record):
    """The largest of the moments, rounded ``up`` or down to whole bytes. At most ``chunk`` tokens are processed at once."""

    moments: tuple[Moment, ...]
    chunk: int | None
    up: bool

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = sequences * tokens if self.chunk is None else smaller(sequences * tokens, self.chunk)
        factors: dict[Factor, int] = {
            "passed": passed,
            "sequences": sequences,
            "each": -(-passed // sequences),
            "alone": (sequences == 1) * 1,
        }
        most = largest(one.share * sum(product.at(tokens, factors) for product in one.products) for one in self.moments)
        rounded: int = ceiled(most) if self.up else floored(most)
        return rounded

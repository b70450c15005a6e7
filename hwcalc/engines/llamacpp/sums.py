"""Sums of products of a context's sizes, such as ``2 x n_ubatch x n_ctx_seq + 512``.

A rule of a buffer is written once, with names of :class:`~hwcalc.engines.llamacpp.settings.Settings` in place of numbers. A plan puts its own
numbers in; the form of all lengths and batches keeps the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings


class Sum:
    """A number of bytes or elements for each product of sizes; the empty product is 1."""

    __slots__ = ("products",)

    products: Mapping[tuple[str, ...], int]

    def __init__(self, products: Mapping[tuple[str, ...], int]) -> None:
        self.products = products

    @classmethod
    def of(cls, number: int | Sum) -> Sum:
        """A plain number as a sum."""
        return number if isinstance(number, Sum) else cls({(): number} if number else {})

    def __add__(self, other: int | Sum) -> Sum:
        added = dict(self.products)
        for names, number in Sum.of(other).products.items():
            added[names] = added.get(names, 0) + number
        return Sum(added)

    def __mul__(self, other: int | Sum) -> Sum:
        made: dict[tuple[str, ...], int] = {}
        for names, number in self.products.items():
            for others, times in Sum.of(other).products.items():
                both = tuple(sorted(names + others))
                made[both] = made.get(both, 0) + number * times
        return Sum(made)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        return any(self.products.values())

    def at(self, one: Settings) -> int:
        """The sum with the sizes of a context, or of an array of contexts."""
        return sum(number * prod(_GET[name](one) for name in names) for names, number in self.products.items())


def _named(name: str) -> Sum:
    return Sum({(name,): 1})


NOTHING: Final = Sum({})
N_UBATCH: Final = _named("n_ubatch")
N_SEQ_MAX: Final = _named("n_seq_max")
N_STREAM: Final = _named("n_stream")
N_CTX_SEQ: Final = _named("n_ctx_seq")
CELLS_SWA: Final = _named("cells_swa")
GROUPS_OF_4: Final = _named("groups_of_4")
GROUPS_OF_128: Final = _named("groups_of_128")
OUTPUTS: Final = _named("outputs")
EACH: Final = _named("tokens_each")
ALONE: Final = _named("alone")

_GET: Final = {
    name: attrgetter(name)
    for one in (N_UBATCH, N_SEQ_MAX, N_STREAM, N_CTX_SEQ, CELLS_SWA, GROUPS_OF_4, GROUPS_OF_128, OUTPUTS, EACH, ALONE)
    for (name,) in one.products
}

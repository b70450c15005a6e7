"""A cache in pages of equally many tokens, each of which is taken whole."""

from __future__ import annotations

from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.formulas.tensor import Span

__all__ = ["Pages"]


class Pages(Span):
    """Every token, in whole pages of ``size`` tokens.

    >>> [Pages(32).positions(tokens) for tokens in (0, 1, 32, 33)]
    [0, 32, 32, 64]
    """

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size)

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        return -(-tokens // self.numbers[0]) * self.numbers[0]

    def of_first(self, first: int, tokens: int) -> int:
        """Pages that have only tokens of the first ones can be kept once for several sequences."""
        return min(first, tokens) // self.numbers[0] * self.numbers[0]

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (blocks_stair(self.numbers[0], times=self.numbers[0]),)

    @property
    def text(self) -> str:
        return "n" if self.numbers[0] == 1 else f"roundup(n, {self.numbers[0]:,})"

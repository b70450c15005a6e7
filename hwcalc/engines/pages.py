"""A cache in pages of equally many tokens, each of which is taken whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.steps import Step, step
from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.formulas.tensor import Span

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy


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


def blocks_of_requests(opened: Occupancy, block_size: int) -> int:
    """Blocks that the sequences of the fullest replica take, each with blocks of its own."""
    request = opened.replica.request
    return sum(count * request.sharing.branches * -(-tokens // block_size) for tokens, count in request.lengths_of)


def request_steps(blocks: int, block_size: int, per_request: int, *, kept: str, count: int = 1) -> tuple[Step, ...]:
    """Tokens and requests of so many blocks, ``count`` of which are ``kept`` for something else; no requests where each is another one."""
    usable = max(0, blocks - count)
    steps = (
        step("tokens", "blocks x block_size", blocks * block_size, unit="tokens", blocks=blocks, block_size=block_size),
        step("usable_blocks", f"max(0, blocks - {kept})", usable, unit="blocks", blocks=blocks, **{kept: count}),
    )
    if not per_request:
        return steps
    requests = step(
        "max_requests",
        "floor(usable_blocks / blocks_per_request)",
        usable // per_request,
        unit="requests",
        usable_blocks=usable,
        blocks_per_request=per_request,
    )
    return (*steps, requests)

"""Caches without pages: they grow by 512 positions (``NormalCache::CACHE_GROW_SIZE``, mistralrs-core/src/kv_cache/mod.rs)."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.stairs import Stair, stairs_at
from hwcalc.formulas.tensor import Span

GROWTH: Final = 512


class Rotating(Span):
    """A window with room to slide: grows by 512 up to ``window + 512`` (mistralrs-core/src/kv_cache/rotating_cache.rs).

    >>> [Rotating(1000).positions(tokens) for tokens in (1, 512, 513, 1025, 9999)]
    [512, 512, 1024, 1512, 1512]
    >>> [Rotating(128).positions(tokens) for tokens in (1, 129, 513)]
    [128, 512, 640]
    """

    __slots__ = ()

    def __init__(self, window: int) -> None:
        super().__init__(window)

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        return stairs_at(self.stairs(), tokens)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        (window,) = self.numbers
        if window < GROWTH:
            # It begins with the window, and then has 512 positions, and at last 512 more than the window.
            return (
                Stair(times=window, most=1),
                Stair(times=GROWTH - window, per=window + 1, most=1),
                Stair(times=window, per=GROWTH + 1, most=1),
            )
        steps, rest = divmod(window + GROWTH, GROWTH)
        grown = Stair(times=GROWTH, per=GROWTH, add=GROWTH - 1, most=steps)
        return (grown, Stair(times=rest, per=steps * GROWTH + 1, most=1)) if rest else (grown,)

    @property
    def text(self) -> str:
        return f"min(roundup(n, {GROWTH}), {self.numbers[0]:,} + {GROWTH})"

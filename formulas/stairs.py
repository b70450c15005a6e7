"""Stairs: how many positions or blocks a length takes, in the one form that every rule of a cache can be written in.

``times x min(most, floor((tokens + add) / per))``, and sums of these. With blocks of 16, ``ceil(n / 16)`` is ``floor((n + 15) / 16)``.
Whatever evaluates this form (Python, NumPy, the script of a page) knows every rule without repeating one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hwcalc.formulas.arithmetic import smaller


class Stair(NamedTuple):
    """One staircase: ``times x min(most, floor((tokens + add) / per))``, for one token or more. Without ``most`` it never ends.

    >>> window = Stair(most=3)
    >>> [window.at(tokens) for tokens in (1, 2, 3, 4)]
    [1, 2, 3, 3]
    """

    times: int = 1
    per: int = 1
    add: int = 0
    most: int | None = None

    def at(self, tokens: int) -> int:
        """The value for so many tokens; of an array of lengths an array."""
        steps = (tokens + self.add) // self.per
        held: int = steps if self.most is None else smaller(steps, self.most)
        return self.times * held

    def shared(self, ranks: int) -> Stair | None:
        """Those on the fullest of some ranks, over which they are dealt one by one; ``None`` if that is no stair.

        >>> [Stair(per=2, most=3).shared(2).at(tokens) for tokens in (1, 2, 4, 6, 9)]
        [0, 1, 1, 2, 2]
        """
        most = None if self.most is None else -(-self.most // ranks)
        if self.times == 1:
            return Stair(per=self.per * ranks, add=self.add + self.per * (ranks - 1), most=most)
        return self._replace(times=-(-self.times // ranks)) if self.most == 1 else None


def blocks_stair(block_tokens: int, most_tokens: int | None = None, times: int = 1) -> Stair:
    """``ceil(min(n, most_tokens) / block_tokens)``.

    >>> [blocks_stair(4, 6).at(tokens) for tokens in (1, 4, 5, 9)]
    [1, 1, 2, 2]
    """
    most = None if most_tokens is None else -(-most_tokens // block_tokens)
    return Stair(times=times, per=block_tokens, add=block_tokens - 1, most=most)


def stairs_at(stairs: Iterable[Stair], tokens: int) -> int:
    """The sum of several stairs; nothing before the first token. An array of lengths begins with the first token."""
    if not isinstance(tokens, int):
        return sum(stair.at(tokens) for stair in stairs)
    total = 0
    if tokens > 0:
        for times, per, add, most in stairs:
            steps = (tokens + add) // per
            total += times * (steps if most is None or steps < most else most)
    return total


def stairs_sum(stairs: Iterable[Stair], tokens: int) -> int:
    """The sum of :func:`stairs_at` over 1, 2, ... ``tokens`` tokens; of an array of lengths an array.

    >>> [stairs_sum([stair], 4) for stair in (Stair(), Stair(most=2), Stair(per=2), Stair(per=2, add=1))]
    [10, 7, 4, 6]

    1 + 2 + 3 + 4; 1 + 2 + 2 + 2; 0 + 1 + 1 + 2; 1 + 1 + 2 + 2.
    """
    total = 0
    for times, per, add, most in stairs:
        rising = tokens if most is None else smaller(tokens, max(0, most * per - add))
        total += times * (floors_sum(rising + add, per) - floors_sum(add, per) + (tokens - rising) * (most or 0))
    return total


def floors_sum(last: int, per: int) -> int:
    """0 // per + 1 // per + ... + last // per."""
    whole, rest = divmod(last, per)
    return per * (whole * (whole - 1) // 2) + whole * (rest + 1)


def together(weighted: Iterable[tuple[int, Iterable[Stair]]]) -> tuple[Stair, ...]:
    """Sums of stairs, each so many times, as one sum: stairs with the same steps are one.

    >>> together([(2, [Stair(per=4)]), (3, [Stair(per=4), Stair(most=1)])])
    (Stair(times=5, per=4, add=0, most=None), Stair(times=3, per=1, add=0, most=1))
    """
    times: dict[tuple[int, int, int | None], int] = {}
    for weight, stairs in weighted:
        for stair in stairs:
            # What has all its steps from the first token on is the same everywhere.
            always = stair.most is not None and (1 + stair.add) // stair.per >= stair.most
            steps = (1, 0, 1) if always else stair[1:]
            times[steps] = times.get(steps, 0) + weight * stair.times * (stair.most or 0 if always else 1)
    return tuple(Stair(number, *steps) for steps, number in times.items() if number)

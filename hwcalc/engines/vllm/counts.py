"""The blocks of one request as a function of its length, with groups of layers that grow alike counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from hwcalc.engines.vllm.groups import BlockGroup
    from hwcalc.engines.vllm.specs import LayerSpec, Limits

_Stairs = tuple[tuple[int, int, int, int], ...]
"""``times``, ``per``, ``add`` and ``most`` of a sum of stairs; without an end, ``most`` is :data:`_ENDLESS`."""
_ENDLESS: Final = 2**63


def longest(fits: Callable[[int], bool], bound: int, low: int = 0) -> int:
    """The largest number from ``low`` to ``bound`` that fits, by bisection; ``low`` if none does."""
    high = bound
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


class BlockCounts(NamedTuple):
    """Blocks of a request: ``fixed`` ones, ``stairs`` of groups with one rule, and ``largest``, groups of which the larger of several counts.

    Stairs that never end lie between two lines: ``slope x length + above`` and ``slope x length - below``, both in parts of a block, of which
    a block has ``scale``. Those that end are ``ended`` blocks from ``ended_at`` tokens on.
    """

    fixed: int
    stairs: _Stairs
    largest: tuple[tuple[int, tuple[_Stairs, ...]], ...]
    scale: int
    slope: int
    above: int
    below: int
    ended: int
    ended_at: int

    @classmethod
    def of(cls, groups: Iterable[BlockGroup], limits: Limits) -> Self:
        """The blocks of these groups together."""
        fixed, sums = 0, Counter[tuple[int, int, int]]()
        largest: Counter[tuple[_Stairs, ...]] = Counter()
        for group in groups:
            rules = tuple(dict.fromkeys(_stairs(spec, limits) for spec in group.distinct))
            if len(rules) > 1:
                largest[rules] += 1
                continue
            for times, per, add, most in rules[0]:
                if per == add == most == 1:
                    fixed += times
                else:
                    sums[per, add, most] += times
        stairs = tuple((times, *rest) for rest, times in sums.items())
        rising = [one for one in stairs if one[3] == _ENDLESS]
        ending = [one for one in stairs if one[3] != _ENDLESS]
        scale = lcm(*(per for _, per, _, _ in rising))
        return cls(
            fixed=fixed,
            stairs=stairs,
            largest=tuple((count, rules) for rules, count in largest.items()),
            scale=scale,
            slope=sum(times * scale // per for times, per, _, _ in rising),
            above=sum(times * scale // per * add for times, per, add, _ in rising),
            below=sum(times * scale // per * (per - 1 - add) for times, per, add, _ in rising),
            ended=sum(times * most for times, _, _, most in ending),
            ended_at=max((per * most - add for _, per, add, most in ending), default=0),
        )

    def at(self, length: int) -> int:
        """Blocks of a request of so many tokens."""
        total = self.fixed
        for times, per, add, most in self.stairs:
            steps = (length + add) // per
            total += times * min(most, steps)
        for count, rules in self.largest:
            total += count * max(
                sum([times * min((length + add) // per, most) for times, per, add, most in rule]) for rule in rules
            )
        return total

    def longest(self, blocks: int, bound: int) -> int:
        """The longest request, up to ``bound`` tokens, that takes no more than so many blocks; 0 if none does."""
        low, high = 0, bound
        if self.slope and not self.largest:
            left, ended = (blocks - self.fixed) * self.scale, self.ended * self.scale
            low = max(0, min(bound, (left - ended - self.above) // self.slope))
            high = max(low, min(bound, (left - (ended if low >= self.ended_at else 0) + self.below) // self.slope))
        return longest(lambda length: self.at(length) <= blocks, high, low)


def _stairs(spec: LayerSpec, limits: Limits) -> _Stairs:
    return tuple((times, per, add, _ENDLESS if most is None else most) for times, per, add, most in spec.stairs(limits))

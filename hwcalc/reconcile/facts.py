"""What a log states: numbers with the range that their rounding leaves, and the line and the process that stated them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.units import GIB, KIB, MIB

__all__ = ["BINARY", "Fact", "Facts", "Found", "byte_range", "number_after", "number_before"]

Number = int | float

BINARY: Final = {"GiB": GIB, "GB": GIB, "MiB": MIB, "MB": MIB, "KiB": KIB, "KB": KIB, "bytes": 1, "B": 1}
"""Units of engines that divide by powers of 1,024 whatever they call it."""
_MOST_RANKS: Final = 4096
_LONGEST_RAW: Final = 160
_FEWEST_DECIMALS: Final = 2

# What stands between a name and its number, and the number: each part is bounded and starts with other characters than the one
# before may end with.
_GAP = re.compile(r"[ :=~]{0,12}[(`'\"]?")
_DIGITS = re.compile(r"-?[0-9]{1,3}(?:[,_'\u00a0\u202f][0-9]{3}){1,6}(?![0-9])|-?[0-9]{1,18}(?![0-9])", re.ASCII)
_FRACTION = re.compile(r"\.([0-9]{1,20})", re.ASCII)
_UNIT = re.compile(r"[ ]{0,2}(GiB|GB|MiB|MB|KiB|KB|bytes|B|%|x|tokens)(?![A-Za-z])")


@frozen
class Found:
    """A number in a text: its digits without the point, how many of them are decimals, its unit, and where it ends."""

    digits: int
    decimals: int
    unit: str
    end: int

    @property
    def value(self) -> Number:
        """The number as it stands there."""
        return self.digits if self.decimals == 0 else self.digits / 10**self.decimals


@frozen
class Fact:
    """One thing that a log states. ``low`` and ``high`` are what it may have been before it was rounded; ``text`` is the line."""

    name: str
    value: Number | str
    low: Number | None
    high: Number | None
    unit: str
    rank: str | None
    line: int
    text: str


class Facts:
    """What was found so far: the last of each name and process. Its size is bounded whatever the log says."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str | None], Fact] = {}

    def add(
        self,
        name: str,
        value: Number | str,
        *,
        line: int,
        text: str,
        unit: str = "",
        low: Number | None = None,
        high: Number | None = None,
        rank: str | None = None,
    ) -> None:
        """Keep this one, unless the one that is there is the same number with more digits."""
        key = (name, rank)
        old = self._facts.pop(key, None)
        if old is None and len(self._facts) >= _MOST_RANKS:
            return
        if not isinstance(value, str):
            low, high = (value if low is None else low), (value if high is None else high)
        new = Fact(name=name, value=value, low=low, high=high, unit=unit, rank=rank, line=line, text=text.strip()[:_LONGEST_RAW])
        self._facts[key] = old if old is not None and _finer(old, new) else new

    def add_bytes(
        self,
        name: str,
        found: Found | None,
        *,
        line: int,
        text: str,
        rank: str | None = None,
        units: dict[str, int] | None = None,
    ) -> None:
        """A size in one of ``units``; one without a known unit is left out."""
        factor = (BINARY if units is None else units).get("" if found is None else found.unit)
        if found is None or factor is None:
            return
        value, low, high = byte_range(found, factor)
        self.add(name, value, line=line, text=text, unit="bytes", low=low, high=high, rank=rank)

    def clear(self) -> None:
        """Forget everything: the engine starts anew."""
        self._facts.clear()

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, name: str) -> bool:
        return any(key[0] == name for key in self._facts)

    def has_of(self, names: Iterable[str], rank: str | None) -> bool:
        """Whether this process stated any of these."""
        return any((name, rank) in self._facts for name in names)

    def all(self) -> tuple[Fact, ...]:
        """Everything, by line."""
        return tuple(sorted(self._facts.values(), key=lambda fact: (fact.line, fact.name)))

    def ranks(self, name: str) -> tuple[Fact, ...]:
        """What each process said, by line."""
        return tuple(fact for fact in self.all() if fact.name == name)

    def last(self, name: str) -> Fact | None:
        """What was said last."""
        found = self.ranks(name)
        return found[-1] if found else None

    def smallest(self, name: str) -> Fact | None:
        """The least of all processes: a pool is as large as the smallest."""
        return min(self.ranks(name), key=_size, default=None)

    def largest(self, name: str) -> Fact | None:
        """The most of all processes: a plan is of the fullest one."""
        return max(self.ranks(name), key=_size, default=None)

    def number(self, name: str) -> Number | None:
        """The last value, if it is a number."""
        fact = self.last(name)
        return None if fact is None or isinstance(fact.value, str) else fact.value

    def word(self, name: str) -> str | None:
        """The last value, if it is a word."""
        fact = self.last(name)
        return fact.value if fact is not None and isinstance(fact.value, str) else None


def _size(fact: Fact) -> Number:
    return 0 if isinstance(fact.value, str) else fact.value


def _finer(old: Fact, new: Fact) -> bool:
    if None in (old.low, old.high, new.low, new.high):
        return False
    assert old.low is not None and old.high is not None and new.low is not None and new.high is not None  # noqa: PT018
    return new.low <= old.low and old.high <= new.high and old.high - old.low < new.high - new.low


def number_after(text: str, name: str, start: int = 0) -> Found | None:
    """The number that follows the first ``name``, past blanks, a sign and an opening bracket.

    >>> number_after("GPU KV cache size: 1,043,072 tokens", "GPU KV cache size").value
    1043072
    >>> number_after("non_torch_memory=0.35GiB", "non_torch_memory")
    Found(digits=35, decimals=2, unit='GiB', end=24)
    """
    place = text.find(name, start)
    return None if place < 0 else number_at(text, place + len(name))


def number_at(text: str, place: int) -> Found | None:
    """The number at this place, past what may stand before a number."""
    gap = _GAP.match(text, place)
    place = place if gap is None else gap.end()
    whole = _DIGITS.match(text, place)
    if whole is None:
        return None
    fraction = _FRACTION.match(text, whole.end())
    after = whole.end() if fraction is None else fraction.end()
    decimals = "" if fraction is None else fraction[1]
    unit = _UNIT.match(text, after)
    number = "".join(letter for letter in whole[0] if letter.isdigit())
    sign = -1 if whole[0].startswith("-") else 1
    return Found(
        digits=sign * int(number + decimals),
        decimals=len(decimals),
        unit="" if unit is None else unit[1],
        end=after if unit is None else unit.end(),
    )


def number_before(text: str, name: str) -> Found | None:
    """The number that ends where the first ``name`` begins, unit and all: ``1.4 GiB`` before ``for peak activation``.

    >>> number_before("Actual usage is 8.8 GiB for weight, 1.4 GiB for peak activation", " for peak activation").value
    1.4
    """
    place = text.find(name)
    if place < 0:
        return None
    words = text[max(0, place - 40) : place].replace("(", " ").split()
    for first in (-1, -2):
        if len(words) >= -first:
            found = number_at(" ".join(words[first:]), 0)
            if found is not None:
                return found
    return None


def byte_range(found: Found, factor: int) -> tuple[int, int, int]:
    """A printed size as bytes, and the least and most that are printed so. Engines print two decimals and may drop zeros.

    0.4 is at least 0.395 and at most 0.405: times 2^30, 424,128,020.5 and 434,865,438.7.

    >>> byte_range(Found(digits=4, decimals=1, unit="GiB", end=0), 2**30)[1:]
    (424128021, 434865438)
    """
    scale = 10**found.decimals
    value = (2 * found.digits * factor + scale) // (2 * scale)
    if factor == 1:
        return value, value, value
    fine = 10 ** max(found.decimals, _FEWEST_DECIMALS)
    steps = found.digits * (fine // scale)
    # Half a step either way: (2 x steps +- 1) / (2 x fine) units.
    low, high = -(-(2 * steps - 1) * factor // (2 * fine)), (2 * steps + 1) * factor // (2 * fine)
    return value, min(low, value), max(value, high)

"""When requests arrive, and the words that say it.

======================================  ==============================================================================
``once``                                all at the beginning
``rate=4``                              four a second, evenly
``poisson=4``                           four a second on average, each whenever it likes
``poisson=4,burstiness=0.5``            gaps of a gamma distribution with this shape: below 1 in bursts, above 1 evenly
======================================  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, repeat
from math import log1p
from random import Random
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import quoted, shown

_ALLOWED: Final = "Allowed: once; rate=4; poisson=4; poisson=4,burstiness=0.5. Rates are requests a second."
_NUMBER: Final = r"(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_WORDS: Final = rf"(rate|poisson) *[=:] *({_NUMBER})(?: */ *s)?(?: *, *burstiness *[=:] *({_NUMBER}))?"


class Arrivals(Record):
    """The times at which requests arrive, in seconds from 0. ``text`` is the words that name them. ``rate`` is ``None`` for all at once."""

    text: str
    rate: float | None = None
    random: bool = False
    burstiness: float = 1.0

    def times(self, seed: str) -> Iterator[float]:
        """The times, without end; random ones follow from the seed."""
        if self.rate is None:
            yield from repeat(0.0)
            return
        if not self.random:
            yield from (number / self.rate for number in count())
            return
        drawn, now, scale = Random(seed), 0.0, 1 / (self.rate * self.burstiness)  # noqa: S311 - nothing is secret
        while True:
            yield now
            now += -log1p(-drawn.random()) / self.rate if self.burstiness == 1 else drawn.gammavariate(self.burstiness, scale)


def read_arrivals(value: Any, name: str = "arrival") -> Arrivals:
    """The arrivals that words name.

    >>> read_arrivals("rate=2").rate, read_arrivals("once").rate, read_arrivals("poisson=4,burstiness=0.5").burstiness
    (2.0, None, 0.5)

    Raises :class:`~hwcalc.errors.UsageError` for words that name none.
    """
    if isinstance(value, Arrivals):
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name} is {quoted(value, 40)}.", hint=_ALLOWED)
    words = value.strip().lower()
    if words in ("once", "at once", "all at once"):
        return Arrivals(text="once")
    match = re.fullmatch(_WORDS, words)
    if match is None or float(match[2]) <= 0 or (match[3] and (float(match[3]) <= 0 or match[1] == "rate")):
        raise UsageError(f"{name} {shown(value, 60)} is not known.", hint=_ALLOWED)
    return Arrivals(text=words, rate=float(match[2]), random=match[1] == "poisson", burstiness=float(match[3] or 1))

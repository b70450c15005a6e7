"""Where an engine may begin, or cease, to refuse requests: so that many of them are checked by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

__all__ = ["Sizes", "Turns"]

_MOST_DIGITS: Final = 15
"""Longer numbers are beyond all lengths."""


class Turns(NamedTuple):
    """Numbers behind which an engine may answer otherwise whether it runs a request.

    With ``tokens=(4096,)``, all lengths up to 4,096 are accepted or refused alike, and so are all longer ones; ``sequences`` are those of a
    replica. What is refused alike has one reason, and the numbers that its message names do not fall as length or sequences grow.
    """

    tokens: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()

    def also(self, *, tokens: tuple[int, ...] = (), sequences: tuple[int, ...] = ()) -> Turns:
        """These and some more."""
        return Turns(tokens=(*self.tokens, *tokens), sequences=(*self.sequences, *sequences))


class Sizes:
    """What the planner asks an engine about the lengths and numbers of sequences of many requests."""

    def names_sizes(self, options: Mapping[str, str]) -> bool:
        """Whether these options name the length or the number of sequences, whatever else is asked for."""
        return False

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns of all requests about this model with these options, which are known to be valid.

        By default, limits of length and number of sequences are numbers that an option names.
        """
        named = [int(value) for value in options.values() if value.isdecimal() and len(value) <= _MOST_DIGITS]
        limits = tuple(limit for number in named for limit in (number - 1, number))
        return Turns(tokens=limits, sequences=limits)

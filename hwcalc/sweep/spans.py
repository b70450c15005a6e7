"""The positions that a span keeps, for an array of lengths: :meth:`hwcalc.formulas.Span.stairs` with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hwcalc.formulas import Span
from hwcalc.formulas.stairs import Stair

__all__ = ["Integers", "positions"]

Integers = npt.NDArray[Any]
"""An array of whole numbers: int64, or Python's integers (``object``) if 64 bits are not enough."""


def positions(span: Span, tokens: Integers, encoder_tokens: Integers) -> Integers:
    """The positions kept for each number of tokens. Both arrays and the result have the same shape and type."""
    # The stairs of an encoder's output are as many as it has: of an array, an array.
    encoder: Any = encoder_tokens
    first, *others = (_at(stair, tokens) for stair in span.stairs(encoder))
    return sum(others, start=first)


def _at(stair: Stair, tokens: Integers) -> Integers:
    """:meth:`Stair.at` for an array, in which no tokens are none of it."""
    times, per, add, most = stair
    steps = tokens + add if add else tokens
    if per != 1:
        steps = steps // per
    if most is not None:
        steps = np.minimum(steps, most)
    if add:
        steps = np.where(tokens > 0, steps, np.zeros_like(steps))
    return steps if isinstance(times, int) and times == 1 else steps * times

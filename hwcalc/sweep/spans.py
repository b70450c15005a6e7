"""The positions that a span keeps, for an array of lengths: :meth:`hwcalc.formulas.Span.positions` with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hwcalc.formulas import Chunk, Encoder, Fixed, Full, Kept, Once, Remainder, Sink, Span, Strided, Window

__all__ = ["Integers", "positions"]

Integers = npt.NDArray[Any]
"""An array of whole numbers: int64, or Python's integers (``object``) if 64 bits are not enough."""


def _at_most(span: Span, tokens: Integers, encoder: Integers) -> Integers:
    return np.minimum(tokens, sum(span.numbers))


def _constant(count: int, tokens: Integers) -> Integers:
    return np.where(tokens > 0, np.asarray(count, dtype=tokens.dtype), np.asarray(0, dtype=tokens.dtype))


_RULES: Final[Mapping[type[Span], Callable[[Span, Integers, Integers], Integers]]] = {
    Full: lambda _span, tokens, _encoder: tokens,
    Kept: _at_most,
    Window: _at_most,
    Sink: _at_most,
    Chunk: _at_most,
    Strided: lambda span, tokens, _encoder: tokens // span.numbers[0],
    Remainder: lambda span, tokens, _encoder: tokens % span.numbers[0],
    Once: lambda _span, tokens, _encoder: _constant(1, tokens),
    Fixed: lambda span, tokens, _encoder: _constant(span.numbers[0], tokens),
    Encoder: lambda _span, tokens, encoder: np.where(tokens > 0, encoder, np.zeros_like(encoder)),
}


def positions(span: Span, tokens: Integers, encoder_tokens: Integers) -> Integers:
    """The positions kept for each number of tokens. Both arrays and the result have the same shape and type.

    A span without a rule here is asked for each length by itself.
    """
    rule = _RULES.get(type(span))
    if rule is not None:
        return rule(span, tokens, encoder_tokens)
    pairs = zip(tokens.tolist(), encoder_tokens.tolist(), strict=True)
    return np.array([span.positions(number, encoder) for number, encoder in pairs], dtype=tokens.dtype)

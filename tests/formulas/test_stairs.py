"""The stairs of a span for a whole array are the positions of the span itself, number by number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas import Span
from hwcalc.formulas.stairs import Stair, stairs_at
from hwcalc.formulas.tensor import (
    Chunk,
    Encoder,
    Fixed,
    Full,
    Kept,
    Later,
    Latest,
    Once,
    Pooled,
    Remainder,
    Sink,
    Strided,
    Window,
)


class EveryOther(Span):
    """A span that only this test knows."""

    __slots__ = ()

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        return (tokens + 1) // 2 + (encoder_tokens if tokens else 0)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return Stair(per=2, add=1), Encoder().stairs(encoder_tokens)[0]


SIZES = st.integers(1, 2**31)
SPANS = st.one_of(
    st.builds(Full),
    st.builds(Window, SIZES),
    st.builds(Sink, SIZES, SIZES),
    st.builds(Chunk, SIZES),
    st.builds(Strided, SIZES),
    st.builds(Remainder, SIZES),
    st.builds(Once),
    st.builds(Fixed, SIZES),
    st.builds(Encoder),
    st.builds(Kept, SIZES),
    st.builds(Latest, SIZES),
    st.builds(Later, SIZES, SIZES),
    st.builds(Pooled, SIZES, SIZES, SIZES),
    st.builds(EveryOther),
)
LENGTHS = st.lists(st.tuples(st.integers(1, 2**41), st.integers(0, 2**41)), min_size=1, max_size=20)


def in_all(span: Span, tokens: Any, encoder: Any) -> Any:
    """The positions by the stairs."""
    return stairs_at(span.stairs(encoder), tokens)


@pytest.mark.parametrize("kind", ["int64", "object"])
@given(span=SPANS, lengths=LENGTHS)
def test_an_array_is_its_numbers(kind: str, span: Span, lengths: list[tuple[int, int]]) -> None:
    """In 64 bits and in Python's own integers."""
    import numpy as np

    tokens, encoder = (np.array(column, dtype=kind) for column in zip(*lengths, strict=True))

    found = np.broadcast_to(in_all(span, tokens, encoder), tokens.shape)

    assert [span.positions(*pair) for pair in lengths] == found.tolist()
    assert found.dtype == tokens.dtype or span == Once()


def test_numbers_written_out() -> None:
    """Ten tokens by each rule, and seven of an encoder."""
    import numpy as np

    ten = np.array([10])
    kept = {
        Full(): 10, Window(4): 4, Window(40): 10, Sink(1, 4): 5, Chunk(8): 8, Strided(4): 2, Remainder(4): 2, Once(): 1,
        Fixed(3): 3, Encoder(): 7, Kept(6): 6, Latest(4): 4, Later(5, 8): 5, Later(5, 11): 0, Pooled(4, 2, 6): 4,
    }  # fmt: skip

    assert kept == {span: int(np.max(in_all(span, ten, 7))) for span in kept}


def test_a_new_span_needs_no_rule_here() -> None:
    """Its stairs are enough: (10 + 1) // 2 + 7."""
    import numpy as np

    assert in_all(EveryOther(), np.array([10]), np.array([7])).tolist() == [12]

"""Spans count positions; dtypes turn elements into bytes; both are exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas import CacheTensor, DType, Role, Span
from hwcalc.formulas.stairs import stairs_at
from hwcalc.formulas.tensor import (
    Chunk,
    Encoder,
    Fixed,
    Full,
    Kept,
    Later,
    Latest,
    Limited,
    Once,
    Pooled,
    Remainder,
    Sink,
    Strided,
    Window,
)
from hwcalc.profiles.dtypes import dtype_names, find_dtype

SPANS = (
    (Full(), (0, 1, 2, 3, 4, 5)),
    (Window(3), (0, 1, 2, 3, 3, 3)),
    (Sink(1, 2), (0, 1, 2, 3, 3, 3)),
    (Chunk(3), (0, 1, 2, 3, 3, 3)),
    (Strided(4), (0, 0, 0, 0, 1, 1)),
    (Remainder(4), (0, 1, 2, 3, 0, 1)),
    (Once(), (0, 1, 1, 1, 1, 1)),
    (Fixed(8), (0, 8, 8, 8, 8, 8)),
    (Encoder(), (0, 7, 7, 7, 7, 7)),
    (Kept(2), (0, 1, 2, 2, 2, 2)),
    (Latest(2), (0, 0, 2, 2, 2, 2)),
    (Later(7, 3), (0, 0, 0, 7, 7, 7)),
    # Of ABCD [AB] and [CD], of ABCDE no more; nothing before D.
    (Pooled(2, 2, 4), (0, 0, 0, 0, 2, 2)),
    (Pooled(2, 1, 3), (0, 0, 0, 2, 3, 4)),
)


@pytest.mark.parametrize(("span", "positions"), SPANS, ids=lambda value: type(value).__name__)
def test_positions_of_zero_to_five_tokens(span: Span, positions: tuple[int, ...]) -> None:
    """What each span keeps of A, AB, ABC and so on, with seven encoder tokens."""
    assert tuple(span.positions(tokens, 7) for tokens in range(6)) == positions
    assert span.text


NUMBERS = st.integers(1, 2**31)
ANY_SPAN = st.one_of(
    *(st.builds(kind, NUMBERS) for kind in (Chunk, Fixed, Kept, Latest, Remainder, Strided, Window)),
    *(st.builds(kind) for kind in (Encoder, Full, Once)),
    *(st.builds(kind, NUMBERS, NUMBERS) for kind in (Later, Sink)),
    st.builds(Pooled, NUMBERS, NUMBERS, NUMBERS),
)


@given(ANY_SPAN, st.integers(0, 2**41), st.integers(0, 2**31))
def test_stairs_are_positions(span: Span, tokens: int, encoder_tokens: int) -> None:
    """At any length. An encoder's output of no length of its own is as long as the sequence."""
    assert stairs_at(span.stairs(encoder_tokens), tokens) == span.positions(tokens, encoder_tokens)
    assert stairs_at(span.stairs(None), tokens) == span.positions(tokens, tokens)


@given(ANY_SPAN.filter(lambda span: not isinstance(span, (Pooled, Remainder))), st.integers(1, 2**35), st.integers(1, 64))
def test_stairs_of_a_rank(span: Span, tokens: int, ranks: int) -> None:
    """The fullest of the ranks over which positions are dealt one by one has its share, rounded up."""
    (stair,) = span.stairs(7)
    shared = stair.shared(ranks)

    assert shared is not None
    assert shared.at(tokens) == -(-span.positions(tokens, 7) // ranks)


def test_every_span_is_drawn() -> None:
    """None that the formulas have is left out above."""
    own = {kind for base in (Span, Limited) for kind in base.__subclasses__() if kind.__module__ == Span.__module__}

    assert own - {Limited} == {type(span) for span, _ in SPANS}


DTYPES = st.sampled_from([find_dtype(name) for name in dtype_names()])


@given(DTYPES, st.integers(0, 10_000))
def test_a_row_is_whole_blocks(dtype: DType, elements: int) -> None:
    """A row never takes less than its plain share, less than a block more, and exactly its share where blocks are full."""
    share = elements * dtype.block_bytes
    row = dtype.row_bytes(elements) * dtype.block_elements

    assert share <= row < share + dtype.block_elements * dtype.block_bytes
    assert dtype.row_bytes(elements * dtype.block_elements) == share


@given(DTYPES, st.integers(0, 5_000), st.integers(0, 5_000))
def test_one_row_is_never_longer_than_its_parts(dtype: DType, left: int, right: int) -> None:
    """Cutting a row in two can only add padding, and a longer row never takes less."""
    assert max(dtype.row_bytes(left), dtype.row_bytes(right)) <= dtype.row_bytes(left + right)
    assert dtype.row_bytes(left + right) <= dtype.row_bytes(left) + dtype.row_bytes(right)


def test_blocks_run_along_the_last_axis() -> None:
    """Eight rows of 40 elements in blocks of 32 take eight times two blocks, not the ten blocks of 320 elements."""
    q8_0 = DType(name="q8_0", block_elements=32, block_bytes=34)
    tensor = CacheTensor(name="keys", shape=(8, 40), axes=("heads", "head_dim"), role=Role.KEY, span=Full())

    assert tensor.bytes_per_position(q8_0) == 8 * 2 * 34
    assert tensor.bytes(q8_0, 4) == 4 * 8 * 2 * 34


def test_every_axis_has_a_name() -> None:
    """A shape without names for its axes is refused."""
    with pytest.raises(ValueError, match="keys"):
        CacheTensor(name="keys", shape=(8, 40), axes=("heads",), role=Role.KEY, span=Full())

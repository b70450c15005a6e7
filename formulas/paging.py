"""Slots that a cache in blocks of equally many tokens holds, and sums over lengths.

A block is there as long as one of its tokens is kept. States are not paged, since they have no tokens.
"""

from __future__ import annotations

from hwcalc.formulas.tensor import Chunk, Encoder, Full, Kept, Remainder, Sink, Span, Strided, Window

__all__ = ["most_unused", "paged_positions", "paged_sum", "stored_sum"]


def paged_positions(span: Span, tokens: int, block_tokens: int, encoder_tokens: int = 0) -> int:
    """Positions in the blocks of ``block_tokens`` tokens that hold what is kept of ``tokens`` tokens.

    >>> [paged_positions(span, 4, 3) for span in (Full(), Window(2), Sink(1, 1), Strided(2))]
    [6, 6, 6, 2]

    Blocks [ABC] [D..]: all tokens, or [CD], or [A] and [D], touch both. The entries of [AB] and [CD] have a block each, since three
    tokens have room for one entry. A window of 2 behind five tokens ABCDE keeps [DE], and the first block is free:

    >>> paged_positions(Window(2), 5, 3)
    3
    """
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        freed = max(0, max(0, tokens - last) // block_tokens - _blocks(first, block_tokens))
        return (_blocks(tokens, block_tokens) - freed) * block_tokens
    if isinstance(span, (Full, Kept, Encoder)):
        return _blocks(span.positions(tokens, encoder_tokens), block_tokens) * block_tokens
    if isinstance(span, Strided):
        entries = _entries(span, block_tokens)
        return _blocks(span.positions(tokens), entries) * entries
    return span.positions(tokens, encoder_tokens)


def paged_sum(span: Span, tokens: int, block_tokens: int, encoder_tokens: int = 0) -> int:
    """The sum of :func:`paged_positions` over 1, 2, ... ``tokens`` tokens.

    >>> paged_sum(Full(), 4, 3), paged_sum(Window(2), 5, 3), paged_sum(Sink(1, 1), 4, 3), paged_sum(Strided(2), 4, 3)
    (15, 18, 15, 4)

    3 + 3 + 3 + 6; 3 + 3 + 3 + 6 + 3; 3 + 3 + 3 + 6; 0 + 1 + 1 + 2.
    """
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        behind = max(0, tokens - last - _blocks(first, block_tokens) * block_tokens)
        return (_blocks_sum(tokens, block_tokens) - _floors_sum(behind, block_tokens)) * block_tokens
    if isinstance(span, (Full, Kept)):
        rising = tokens if isinstance(span, Full) else min(tokens, span.numbers[0])
        return (_blocks_sum(rising, block_tokens) + (tokens - rising) * _blocks(rising, block_tokens)) * block_tokens
    if isinstance(span, Strided):
        stride, entries = span.numbers[0], _entries(span, block_tokens)
        whole, rest = divmod(tokens, stride)
        if not whole:
            return 0
        return (stride * _blocks_sum(whole - 1, entries) + (rest + 1) * _blocks(whole, entries)) * entries
    if isinstance(span, Encoder):
        return tokens * paged_positions(span, tokens, block_tokens, encoder_tokens)
    return stored_sum(span, tokens, encoder_tokens)


def most_unused(span: Span, block_tokens: int, encoder_tokens: int = 0) -> int:
    """The most positions of one sequence's blocks that hold nothing that is kept, whatever its length.

    >>> [most_unused(span, 3) for span in (Full(), Window(2), Sink(1, 1), Strided(1))]
    [2, 4, 4, 2]

    [A..] has two empty places; a window [CD] lies in two blocks of three; [A..] and [D..] keep two of six; [D..] again has two.
    """
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        # A window begins at the last place of a block in the worst case: one token there, and the others behind it.
        blocks = _blocks(first, block_tokens) + 1 + _blocks(last - 1, block_tokens)
        return max(blocks * block_tokens - first - last, block_tokens - 1)
    if isinstance(span, (Full, Kept)):
        return block_tokens - 1
    if isinstance(span, Strided):
        return _entries(span, block_tokens) - 1
    return paged_positions(span, 1, block_tokens, encoder_tokens) - span.positions(1, encoder_tokens)


def stored_sum(span: Span, tokens: int, encoder_tokens: int = 0) -> int:
    """The sum of the positions that are kept after 1, 2, ... ``tokens`` tokens.

    >>> stored_sum(Full(), 4), stored_sum(Window(2), 4), stored_sum(Strided(2), 5), stored_sum(Remainder(3), 5)
    (10, 7, 6, 6)

    1 + 2 + 3 + 4; 1 + 2 + 2 + 2; 0 + 1 + 1 + 2 + 2; 1 + 2 + 0 + 1 + 2.
    """
    if isinstance(span, (Full, Kept, Window, Chunk, Sink)):
        rising = min(tokens, sum(span.numbers)) if span.numbers else tokens
        return rising * (rising + 1) // 2 + (tokens - rising) * rising
    if isinstance(span, Strided):
        return _floors_sum(tokens, span.numbers[0])
    if isinstance(span, Remainder):
        stride = span.numbers[0]
        whole, rest = divmod(tokens, stride)
        return whole * (stride * (stride - 1) // 2) + rest * (rest + 1) // 2
    return tokens * span.positions(tokens, encoder_tokens)


def _ends(span: Window | Chunk | Sink) -> tuple[int, int]:
    """The first and the last tokens that are kept. Those of a chunk are counted at its end, as its span counts them."""
    return (span.numbers[0], span.numbers[1]) if isinstance(span, Sink) else (0, span.numbers[0])


def _entries(span: Strided, block_tokens: int) -> int:
    """Entries in a block: one at least."""
    return max(1, block_tokens // span.numbers[0])


def _blocks(positions: int, block_tokens: int) -> int:
    return -(-positions // block_tokens)


def _blocks_sum(tokens: int, block_tokens: int) -> int:
    """The sum of ceil(t / block_tokens) for t = 1, 2, ... ``tokens``."""
    whole, rest = divmod(tokens, block_tokens)
    return block_tokens * (whole * (whole + 1) // 2) + rest * (whole + 1)


def _floors_sum(tokens: int, size: int) -> int:
    """The sum of t // size for t = 1, 2, ... ``tokens``."""
    whole, rest = divmod(tokens, size)
    return size * (whole * (whole - 1) // 2) + whole * (rest + 1)

"""The basic idea: a cache is a list of tensors, and a tensor is a shape times a number of positions.

A :class:`CacheTensor` says what one layer keeps *per position*. Its :class:`Span` says how many positions are kept
after ``n`` tokens. A :class:`DType` turns elements into bytes. Everything is an integer.
Below are the slots that a cache in blocks of equally many tokens holds, and sums over lengths: a block is there as long as one of its
tokens is kept. States are not paged, since they have no tokens.
"""

from __future__ import annotations

import enum
from math import prod
from typing import Any

from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, stairs_at


class Shown:
    """A value that JSON and tables show as its :attr:`text`. The program itself works with the value."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The value in words."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Tell pydantic that the JSON Schema of this value is that of a string."""
        return handler.generate_schema(str)


class Role(enum.StrEnum):
    """What a tensor is for. The role decides its dtype."""

    KEY = "key"
    """Attention keys, in the KV-cache dtype (keys and values may have different ones)."""
    VALUE = "value"
    """Attention values, in the KV-cache dtype (keys and values may have different ones)."""
    LATENT = "latent"
    """A compressed vector that is key and value at once, in the KV-cache dtype."""
    ROPE = "rope"
    """The rotary part of a latent key, in the KV-cache dtype. Packed layouts do not quantise it."""
    INDEX = "index"
    """Keys of a sparse-attention indexer, which have a dtype of their own."""
    STATE = "state"
    """A recurrent state that is accumulated over the sequence, in the state dtype (usually fp32)."""
    CONV = "conv"
    """The last inputs of a short convolution or token shift, in the model dtype."""


class DType(Record):
    """A storage format made of blocks: ``block_elements`` numbers take ``block_bytes`` bytes.

    A block of bf16 is one element of 2 bytes. A block of a sub-byte format has several elements (int4: 2 elements in 1 byte).
    A block of a block-quantised format includes the scales (q8_0: 32 elements in 34 bytes).
    """

    name: str
    block_elements: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of one contiguous row, rounded up to whole blocks: four elements of q8_0 take 34 bytes."""
        return -(-elements // self.block_elements) * self.block_bytes

    @property
    def bits_per_element(self) -> float:
        """Average bits per element with scales. It is for display only; arithmetic uses the integers."""
        return 8 * self.block_bytes / self.block_elements


class Span(Shown):
    """How many positions of a tensor are kept after ``tokens`` tokens (and ``encoder_tokens`` of encoder input).

    A span is immutable. Two spans are equal if they have the same class and the same numbers.
    """

    __slots__ = ("numbers",)

    numbers: tuple[int, ...]

    def __init__(self, *numbers: int) -> None:
        object.__setattr__(self, "numbers", numbers)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a span is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and type(other) is type(self) and other.numbers == self.numbers

    def __hash__(self) -> int:
        return hash((type(self), self.numbers))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.numbers))})"

    def __reduce__(self) -> tuple[type[Span], tuple[int | str, ...]]:
        """Copies and pickles are made anew from class and numbers."""
        return type(self), self.numbers

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        """The number of positions that are kept: the sum of the stairs. It is written anew only where a rule has no stairs."""
        return stairs_at(self.stairs(encoder_tokens), tokens)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        """The rule: :meth:`positions` for one token or more, as a sum of stairs. ``None`` encoder tokens are as many as the sequence has."""
        raise NotImplementedError

    def of_first(self, first: int, tokens: int) -> int:
        """How many of the positions that are kept of ``tokens`` tokens depend on the first ``first`` of them alone.

        Sequences that begin with the same tokens can keep these positions once. A state depends on all tokens.
        """
        return 0

    @property
    def text(self) -> str:
        """The rule in words; ``n`` is the number of tokens."""
        raise NotImplementedError


class Full(Span):
    """Every token: ``n``."""

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(),)

    @property
    def text(self) -> str:
        return "n"


class Kept(Span):
    """What a cache policy leaves of all tokens: ``min(n, kept)``."""

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"{self.numbers[0]:,} kept of n"


class Window(Span):
    """The last ``window`` tokens: ``min(n, window)``. A window of 3 keeps [BCD] of ABCD."""

    def of_first(self, first: int, tokens: int) -> int:
        """A window of 3 keeps [BCD] of ABCD; two sequences that begin with ABC have [BC] in common."""
        return max(0, min(first, tokens) - max(0, tokens - self.numbers[0]))

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"min(n, {self.numbers[0]:,})"


class Sink(Span):
    """The first ``sink`` tokens and the last ``window``: ``min(n, sink + window)``. Sink 1, window 2: [A_CD]."""

    def of_first(self, first: int, tokens: int) -> int:
        sink, window = self.numbers
        first, gone = min(first, tokens), max(0, tokens - sink - window)
        return min(first, sink) + max(0, first - sink - gone)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=sum(self.numbers)),)

    @property
    def text(self) -> str:
        sink, window = self.numbers
        return f"min(n, {sink:,} + {window:,})"


class Chunk(Span):
    """The tokens of the current chunk, at most ``chunk``: ``min(n, chunk)``.

    The count is that of the end of a chunk, when most memory is needed. It does not fall when a new chunk begins.
    """

    def of_first(self, first: int, tokens: int) -> int:
        """A chunk begins at a multiple of its size, wherever the sequences part."""
        begins = (tokens - 1) // self.numbers[0] * self.numbers[0]
        return max(0, min(first, tokens) - max(0, begins))

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"min(n, {self.numbers[0]:,})"


class Strided(Span):
    """One entry for every complete group of ``stride`` tokens: ``n // stride``. Stride 4 makes one entry of [ABCD]."""

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens) // self.numbers[0]

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(per=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"n // {self.numbers[0]:,}"


class Remainder(Span):
    """The tokens that have not yet filled a group of ``stride``: ``n % stride``. Not monotone in ``n``."""

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return Stair(), Stair(times=-self.numbers[0], per=self.numbers[0])

    @property
    def text(self) -> str:
        return f"n % {self.numbers[0]:,}"


class Latest(Span):
    """The newest complete group of ``size`` tokens, once there is one. Of ABCDEF with groups of 4: [ABCD]."""

    def of_first(self, first: int, tokens: int) -> int:
        """The group is shared if all of it lies in the common beginning: of ABCDEF and ABCDXY, [ABCD]."""
        size = self.numbers[0]
        return size if tokens >= size and first >= tokens // size * size else 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], per=self.numbers[0], most=1),)

    @property
    def text(self) -> str:
        return f"min(n // {self.numbers[0]:,}, 1) x {self.numbers[0]:,}"


class Once(Span):
    """A fixed state: one position for a sequence of any length, and none before the first token."""

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=1),)

    @property
    def text(self) -> str:
        return "1"


class Fixed(Span):
    """A buffer of ``count`` positions. The first token allocates all of it."""

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], most=1),)

    @property
    def text(self) -> str:
        return f"{self.numbers[0]:,}"


class Encoder(Span):
    """One position for each token of the encoder input, computed once: ``encoder_tokens``."""

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair() if encoder_tokens is None else Stair(times=encoder_tokens, most=1),)

    @property
    def text(self) -> str:
        return "encoder tokens"


class CacheTensor(Record):
    """One tensor that a layer keeps for one sequence.

    ``shape`` counts elements per position, outermost axis first. ``axes`` names each axis, for example
    ``("num_key_value_heads", "head_dim")``. The last axis is contiguous; blocks of quantised dtypes run along it.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    role: Role
    span: Span

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise ValueError(f"tensor {self.name!r} has {len(self.shape)} axes but {len(self.axes)} names")

    @property
    def elements_per_position(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    def bytes_per_position(self, dtype: DType) -> int:
        """Bytes of one position in ``dtype``. Each row is padded to whole blocks."""
        return prod(self.shape[:-1]) * dtype.row_bytes(self.shape[-1])

    def bytes(self, dtype: DType, tokens: int, encoder_tokens: int = 0) -> int:
        """Bytes after ``tokens`` tokens of one sequence."""
        return self.bytes_per_position(dtype) * self.span.positions(tokens, encoder_tokens)


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

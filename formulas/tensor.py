"""The basic idea: a cache is a list of tensors, and a tensor is a shape times a number of positions.

A :class:`CacheTensor` says what one layer keeps *per position*. Its :class:`Span` says how many positions are kept
after ``n`` tokens. A :class:`DType` turns elements into bytes. Everything is an integer.
Below are the slots that a cache in blocks of equally many tokens holds, and sums over lengths: a block is there as long as one of its
tokens is kept. States are not paged, since they have no tokens.
"""

from __future__ import annotations

import enum
from math import prod
from typing import Any, ClassVar

from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, blocks_stair, stairs_at, stairs_sum


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
    rule: ClassVar[str]
    """The rule in words, with the numbers in braces; ``n`` is the number of tokens."""

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
        """The number of positions kept of ``tokens`` tokens that depend on the first ``first`` of them alone.

        Sequences that begin with the same tokens can keep these positions once. A state depends on all tokens.
        """
        return 0

    @property
    def text(self) -> str:
        """The rule in words."""
        return self.rule.format(*self.numbers)


class Full(Span):
    """Every token: ``n``."""

    rule = "n"

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(),)


class Limited(Span):
    """Every token up to as many as the numbers of the span add up to."""

    rule = "min(n, {0:,})"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=sum(self.numbers)),)


class Kept(Limited):
    """What a cache policy leaves of all tokens: ``min(n, kept)``."""

    rule = "{0:,} kept of n"


class Window(Limited):
    """The last ``window`` tokens: ``min(n, window)``. A window of 3 keeps [BCD] of ABCD."""

    def of_first(self, first: int, tokens: int) -> int:
        """A window of 3 keeps [BCD] of ABCD; two sequences that begin with ABC have [BC] in common."""
        return max(0, min(first, tokens) - max(0, tokens - self.numbers[0]))


class Sink(Limited):
    """The first ``sink`` tokens and the last ``window``: ``min(n, sink + window)``. Sink 1, window 2: [A_CD]."""

    rule = "min(n, {0:,} + {1:,})"

    def of_first(self, first: int, tokens: int) -> int:
        sink, window = self.numbers
        first, gone = min(first, tokens), max(0, tokens - sink - window)
        return min(first, sink) + max(0, first - sink - gone)


class Chunk(Limited):
    """The tokens of the current chunk, at most ``chunk``: ``min(n, chunk)``.

    The count is that of the end of a chunk, when most memory is needed. It does not fall when a new chunk begins.
    """

    def of_first(self, first: int, tokens: int) -> int:
        """A chunk begins at a multiple of its size, wherever the sequences part."""
        begins = (tokens - 1) // self.numbers[0] * self.numbers[0]
        return max(0, min(first, tokens) - max(0, begins))


class Strided(Span):
    """One entry for every complete group of ``stride`` tokens: ``n // stride``. Stride 4 makes one entry of [ABCD]."""

    rule = "n // {0:,}"

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens) // self.numbers[0]

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(per=self.numbers[0]),)


class Remainder(Span):
    """The tokens that have not yet filled a group of ``stride``: ``n % stride``. Not monotone in ``n``."""

    rule = "n % {0:,}"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return Stair(), Stair(times=-self.numbers[0], per=self.numbers[0])


class Latest(Span):
    """The newest complete group of ``size`` tokens, once there is one. Of ABCDEF with groups of 4: [ABCD]."""

    rule = "min(n // {0:,}, 1) x {0:,}"

    def of_first(self, first: int, tokens: int) -> int:
        """The group is shared if all of it lies in the common beginning: of ABCDEF and ABCDXY, [ABCD]."""
        size = self.numbers[0]
        return size if tokens >= size and first >= tokens // size * size else 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], per=self.numbers[0], most=1),)


class Once(Span):
    """A fixed state: one position for a sequence of any length, and none before the first token."""

    rule = "1"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=1),)


class Fixed(Span):
    """A buffer of ``count`` positions. The first token allocates all of it."""

    rule = "{0:,}"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], most=1),)


class Later(Span):
    """A buffer of ``count`` positions that a sequence gets with its token in place ``first``. Of ABCD, from C on: none, none, all, all."""

    rule = "{0:,} from n = {1:,} on"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        count, first = self.numbers
        return (Stair(times=count, per=first, most=1),)


class Pooled(Span):
    """One entry for each ``kernel`` tokens, a ``stride`` apart, once there are ``first`` tokens: ``(n - kernel) // stride + 1``.

    Kernel 4, stride 2, from the sixth token on: none of ABCDE, [ABCD] and [CDEF] of ABCDEF, and [EFGH] more of ABCDEFGH.
    """

    rule = "(n - {0:,}) // {1:,} + 1, from n = {2:,} on"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        kernel, stride, first = self.numbers
        at_once = max(0, (first - kernel) // stride + 1)
        # What comes behind the first ones: all groups of a stride but those of the first tokens.
        behind = Stair(per=stride), Stair(times=-1, per=stride, most=first // stride)
        return Stair(times=at_once, per=first, most=1), *behind


class Encoder(Span):
    """One position for each token of the encoder input, computed once: ``encoder_tokens``."""

    rule = "encoder tokens"

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair() if encoder_tokens is None else Stair(times=encoder_tokens, most=1),)


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
    freed = 0
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        freed = max(0, max(0, tokens - last) // block_tokens - ceil_div(first, block_tokens)) * block_tokens
    return stairs_at(_in_blocks(span, block_tokens, encoder_tokens), tokens) - freed


def paged_sum(span: Span, tokens: int, block_tokens: int, encoder_tokens: int = 0) -> int:
    """The sum of :func:`paged_positions` over 1, 2, ... ``tokens`` tokens.

    >>> paged_sum(Full(), 4, 3), paged_sum(Window(2), 5, 3), paged_sum(Sink(1, 1), 4, 3), paged_sum(Strided(2), 4, 3)
    (15, 18, 15, 4)

    3 + 3 + 3 + 6; 3 + 3 + 3 + 6 + 3; 3 + 3 + 3 + 6; 0 + 1 + 1 + 2.
    """
    freed = 0
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        behind = max(0, tokens - last - ceil_div(first, block_tokens) * block_tokens)
        freed = stairs_sum([Stair(times=block_tokens, per=block_tokens)], behind)
    return stairs_sum(_in_blocks(span, block_tokens, encoder_tokens), tokens) - freed


def most_unused(span: Span, block_tokens: int, encoder_tokens: int = 0) -> int:
    """The most positions of one sequence's blocks that hold nothing that is kept, whatever its length.

    >>> [most_unused(span, 3) for span in (Full(), Window(2), Sink(1, 1), Strided(1))]
    [2, 4, 4, 2]

    [A..] has two empty places; a window [CD] lies in two blocks of three; [A..] and [D..] keep two of six; [D..] again has two.
    """
    if isinstance(span, (Window, Chunk, Sink)):
        first, last = _ends(span)
        # A window begins at the last place of a block in the worst case: one token there, and the others behind it.
        blocks = ceil_div(first, block_tokens) + 1 + ceil_div(last - 1, block_tokens)
        return max(blocks * block_tokens - first - last, block_tokens - 1)
    if isinstance(span, (Full, Kept, Strided)):
        return _block_positions(span, block_tokens) - 1
    return paged_positions(span, 1, block_tokens, encoder_tokens) - span.positions(1, encoder_tokens)


def _ends(span: Window | Chunk | Sink) -> tuple[int, int]:
    """The first and the last tokens that are kept. Those of a chunk are counted at its end, as its span counts them."""
    return (span.numbers[0], span.numbers[1]) if isinstance(span, Sink) else (0, span.numbers[0])


def _block_positions(span: Span, block_tokens: int) -> int:
    """Positions in a block: of groups of tokens one at least."""
    return max(1, block_tokens // span.numbers[0]) if isinstance(span, Strided) else block_tokens


def _in_blocks(span: Span, block_tokens: int, encoder_tokens: int) -> tuple[Stair, ...]:
    """Positions in the blocks that hold what is kept, before any block gets free. What has no tokens is in no block."""
    size = _block_positions(span, block_tokens)
    if isinstance(span, Strided):
        stride = span.numbers[0]
        return (Stair(times=size, per=stride * size, add=stride * (size - 1)),)
    if isinstance(span, Encoder):
        return (Stair(times=ceil_div(encoder_tokens, size) * size, most=1),)
    if isinstance(span, (Full, Limited)):
        return (blocks_stair(size, span.numbers[0] if isinstance(span, Kept) else None, times=size),)
    return span.stairs(encoder_tokens)

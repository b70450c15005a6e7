"""The basic idea: a cache is a list of tensors, and a tensor is a shape times a number of positions.

A :class:`CacheTensor` says what one layer keeps *per position*. Its :class:`Span` says how many positions are kept
after ``n`` tokens. A :class:`DType` turns elements into bytes. Everything is an integer.
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

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(),)

    @property
    def text(self) -> str:
        return "n"


class Kept(Span):
    """What a cache policy leaves of all tokens: ``min(n, kept)``."""

    __slots__ = ()

    def __init__(self, kept: int) -> None:
        super().__init__(kept)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"{self.numbers[0]:,} kept of n"


class Window(Span):
    """The last ``window`` tokens: ``min(n, window)``. A window of 3 keeps [BCD] of ABCD."""

    __slots__ = ()

    def __init__(self, window: int) -> None:
        super().__init__(window)

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

    __slots__ = ()

    def __init__(self, sink: int, window: int) -> None:
        super().__init__(sink, window)

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

    __slots__ = ()

    def __init__(self, chunk: int) -> None:
        super().__init__(chunk)

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

    __slots__ = ()

    def __init__(self, stride: int) -> None:
        super().__init__(stride)

    def of_first(self, first: int, tokens: int) -> int:
        return min(first, tokens) // self.numbers[0]

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(per=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"n // {self.numbers[0]:,}"


class Remainder(Span):
    """The tokens that have not yet filled a group of ``stride``: ``n % stride``. Not monotone in ``n``."""

    __slots__ = ()

    def __init__(self, stride: int) -> None:
        super().__init__(stride)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return Stair(), Stair(times=-self.numbers[0], per=self.numbers[0])

    @property
    def text(self) -> str:
        return f"n % {self.numbers[0]:,}"


class Latest(Span):
    """The newest complete group of ``size`` tokens, once there is one. Of ABCDEF with groups of 4: [ABCD]."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size)

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

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(most=1),)

    @property
    def text(self) -> str:
        return "1"


class Fixed(Span):
    """A buffer of ``count`` positions. The first token allocates all of it."""

    __slots__ = ()

    def __init__(self, count: int) -> None:
        super().__init__(count)

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], most=1),)

    @property
    def text(self) -> str:
        return f"{self.numbers[0]:,}"


class Encoder(Span):
    """One position for each token of the encoder input, computed once: ``encoder_tokens``."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

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

"""What one layer asks of the pool: the bytes of a block, the tokens in it, and how many a request needs. A class for each rule.

A page is the bytes of one block of one layer on one rank: heads x (block size / tokens per state) x bytes per head and token.

>>> spec = FullSpec.of(block_size=16, heads=8, row=512, tag="bf16")
>>> spec.page
65536

Source: vLLM 0.33, v1/kv_cache_interface.py.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Self

from hwcalc.formulas.frozen import fields, frozen, replace

__all__ = [
    "ChunkSpec",
    "CrossSpec",
    "FullSpec",
    "LatentSpec",
    "LatentWindowSpec",
    "LayerSpec",
    "Limits",
    "StateSpec",
    "WindowSpec",
    "ceil_div",
]


def ceil_div(number: int, divisor: int) -> int:
    """Division of whole numbers, rounded up."""
    return -(-number // divisor)


@frozen
class Limits:
    """The numbers of the engine that blocks per request depend on, beside the length."""

    in_flight: int
    """Tokens that are scheduled and not yet settled: batches in flight x the largest batch."""
    retained: int
    """Tokens below the window that draft modules may read again."""
    dcp: int
    encoder_tokens: int


@frozen
class LayerSpec:
    """The cache of one layer on one rank. ``tag`` is what else must be equal for two layers to be merged."""

    form: ClassVar[str]
    """What people call it."""
    is_latent: ClassVar[bool] = False
    """Whether its page cannot be padded."""

    block_size: int
    page: int
    tag: str = ""

    @classmethod
    def of(cls, *, block_size: int, heads: int, row: int, tag: str, per_state: int = 1, alignment: int = 1, **more: Any) -> Self:
        """``row`` is the bytes of one head and state; ``per_state`` tokens make one state; pages are rounded up to ``alignment``."""
        page = ceil_div(heads * (block_size // per_state) * row, alignment) * alignment
        return cls(block_size=block_size, page=page, tag=tag, **more)

    @abstractmethod
    def blocks(self, length: int, limits: Limits) -> int:
        """Blocks that one request of ``length`` tokens may hold at once."""

    @property
    def family(self) -> tuple[object, ...]:
        """Specs of one family always need the same number of token slots."""
        return self.form, self.block_size

    def whole(self, block_size: int | None) -> LayerSpec:
        """The same without its window, in blocks of this size, or of its own; itself where it has none."""
        return self

    def widened(self, page: int) -> LayerSpec | None:
        """The same with a larger page: by more tokens in a block where that divides, else by padding; ``None`` if neither can be."""
        ratio, rest = divmod(page, self.page)
        if not rest:
            return replace(self, block_size=self.block_size * ratio, page=page)
        return None if self.is_latent else replace(self, page=page)

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *(vars(self)[each.name] for each in fields(self) if each.compare)))

    def __hash__(self) -> int:
        return self._hash


class FullSpec(LayerSpec):
    """Every token stays."""

    form: ClassVar[str] = "full"

    def blocks(self, length: int, limits: Limits) -> int:
        return ceil_div(ceil_div(length, limits.dcp), self.block_size)

    @property
    def family(self) -> tuple[object, ...]:
        return "full", self.block_size


class LatentSpec(FullSpec):
    """Every token's latent stays."""

    form: ClassVar[str] = "mla"
    is_latent: ClassVar[bool] = True


@frozen
class WindowSpec(LayerSpec):
    """The last ``limit`` tokens stay."""

    form: ClassVar[str] = "sliding"
    without_window: ClassVar[type[LayerSpec]] = FullSpec

    limit: int
    __hash__ = LayerSpec.__hash__

    def blocks(self, length: int, limits: Limits) -> int:
        """A window of three may start inside a block: with blocks of two, BCD of ABCD lies in [AB][CD], so one block more."""
        kept = min(self.limit - 1 + limits.retained + limits.in_flight, length)
        return ceil_div(kept, self.block_size) + 1

    @property
    def family(self) -> tuple[object, ...]:
        return self.form, self.block_size, self.limit

    def whole(self, block_size: int | None) -> LayerSpec:
        size = block_size or self.block_size
        return self.without_window(block_size=size, page=self.page * size // self.block_size, tag=self.tag)


class LatentWindowSpec(WindowSpec):
    """The latents of the last ``limit`` tokens stay."""

    form: ClassVar[str] = "sliding_mla"
    is_latent: ClassVar[bool] = True
    without_window: ClassVar[type[LayerSpec]] = LatentSpec


class ChunkSpec(WindowSpec):
    """The tokens of the chunk of ``limit`` stay."""

    form: ClassVar[str] = "chunked"

    def blocks(self, length: int, limits: Limits) -> int:
        return ceil_div(min(self.limit + limits.in_flight, length), self.block_size)


class CrossSpec(LayerSpec):
    """The encoder's output stays, however long the sequence."""

    form: ClassVar[str] = "cross"

    def blocks(self, length: int, limits: Limits) -> int:
        return ceil_div(limits.encoder_tokens, self.block_size)

    @property
    def family(self) -> tuple[object, ...]:
        return self.form, self.block_size, 0


@frozen
class StateSpec(LayerSpec):
    """A recurrent state, of which a request holds ``states`` whatever its length."""

    form: ClassVar[str] = "state"

    states: int
    __hash__ = LayerSpec.__hash__

    def blocks(self, length: int, limits: Limits) -> int:
        return self.states

    @property
    def family(self) -> tuple[object, ...]:
        return self.form, self.block_size, self.page, self.states

    def widened(self, page: int) -> LayerSpec:
        """By padding: a block holds one state."""
        return replace(self, page=page)

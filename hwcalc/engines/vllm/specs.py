"""Cache specs: the bytes of a block of one layer, the tokens in a block, and the blocks per request. Each rule is a class.

A page is a block of one layer on one rank. Its bytes are heads x (block size / tokens per state) x bytes per head and state.

>>> spec = FullSpec.of(block_size=16, heads=8, row=512, tag="bf16")
>>> spec.page
65536

Source: vLLM 0.33, v1/kv_cache_interface.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from msgspec.structs import replace

from hwcalc.engines.steps import Step, step
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, blocks_stair

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules

_UNBOUNDED: Final = 2**63
_Steps = tuple[tuple[int, int, int, int], ...]


def ceil_div(number: int, divisor: int) -> int:
    """Divide whole numbers and round up."""
    return -(-number // divisor)


class Limits(Record):
    """The settings on which the number of blocks per request depends, besides the length."""

    batches: int
    """Batches that are scheduled and not finished."""
    batched_tokens: int
    """Tokens of the largest batch."""
    retained: int
    """Tokens before the window that draft layers may still read."""
    dcp: int
    encoder_tokens: int

    @property
    def in_flight(self) -> int:
        """Tokens that are scheduled and not finished."""
        return self.batches * self.batched_tokens

    @property
    def scheduled(self) -> tuple[str, dict[str, int]]:
        """Formula and numbers of :attr:`in_flight`."""
        if self.batches == 1:
            return "batched_tokens", {"batched_tokens": self.batched_tokens}
        return "batches_in_flight x batched_tokens", {"batches_in_flight": self.batches, "batched_tokens": self.batched_tokens}


class LayerSpec(Record, cache_hash=True):
    """The cache of one layer on one rank. ``tag`` holds what else must be equal for layers to share a group."""

    form: ClassVar[str]
    """The name of the rule in a plan."""
    is_latent: ClassVar[bool] = False
    """True if it holds latents, whose pages cannot be padded."""

    block_size: int
    page: int
    tag: str = ""
    alignment: int = 1
    """Bytes of which a page is a multiple."""
    unaligned: int = 0
    """Bytes of a page before that."""

    @classmethod
    def of(cls, *, block_size: int, heads: int, row: int, tag: str, per_state: int = 1, alignment: int = 1, **more: Any) -> Self:
        """Compute the page. ``row`` is the bytes per head and state, a state covers ``per_state`` tokens, and ``alignment`` is in bytes."""
        unaligned = heads * (block_size // per_state) * row
        page = ceil_div(unaligned, alignment) * alignment
        return cls(block_size=block_size, page=page, tag=tag, alignment=alignment, unaligned=unaligned, **more)

    @abstractmethod
    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        """The most blocks that one request holds at once, as a sum of stairs over its length."""

    def blocks(self, length: int, limits: Limits) -> int:
        """The most blocks that one request of ``length`` tokens holds at once."""
        known: tuple[Limits, _Steps] | None = vars(self).get("_known")
        if known is None or known[0] is not limits:
            # Kept: blocks are counted at very many lengths, all with the limits of one layout.
            steps = tuple(
                (times, per, add, _UNBOUNDED if most is None else most) for times, per, add, most in self.stairs(limits)
            )
            known = vars(self)["_known"] = limits, steps
        return sum([times * min((length + add) // per, most) for times, per, add, most in known[1]])

    @abstractmethod
    def counted(self, length: int, limits: Limits) -> Step:
        """The formula of :meth:`blocks` with its numbers filled in."""

    def _counted(self, formula: str, length: int, limits: Limits, **terms: int) -> Step:
        blocks = self.blocks(length, limits)
        return step("blocks_per_request", formula, blocks, unit="blocks", **terms, block_size=self.block_size)

    @property
    def family(self) -> tuple[object, ...]:
        """A key that is equal for specs that need the same number of token slots at every length."""
        return self.form, self.block_size

    def whole(self, block_size: int | None) -> LayerSpec:
        """The spec without its window, in blocks of ``block_size`` or of the same size; unchanged if it has no window."""
        return self

    def widened(self, page: int, rules: Rules) -> LayerSpec | None:
        """The spec with a larger page: more tokens per block if that divides evenly, or else padding; ``None`` if neither works."""
        ratio, rest = divmod(page, self.page)
        if ratio == 1 and not rest:
            return self
        if not rest and rules.pages_grow:
            return replace(self, block_size=self.block_size * ratio, page=page)
        return replace(self, page=page) if rules.pads_attention and not self.is_latent else None


class FullSpec(LayerSpec):
    """Keeps every token."""

    form: ClassVar[str] = "full"

    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        return (blocks_stair(limits.dcp * self.block_size),)

    def counted(self, length: int, limits: Limits) -> Step:
        if limits.dcp == 1:
            return self._counted("ceil(seq / block_size)", length, limits, seq=length)
        return self._counted("ceil(ceil(seq / dcp) / block_size)", length, limits, seq=length, dcp=limits.dcp)

    @property
    def family(self) -> tuple[object, ...]:
        return "full", self.block_size


class LatentSpec(FullSpec):
    """Keeps the latent of every token."""

    form: ClassVar[str] = "mla"
    is_latent: ClassVar[bool] = True


class WindowSpec(LayerSpec):
    """Keeps the last ``limit`` tokens."""

    form: ClassVar[str] = "sliding"
    without_window: ClassVar[type[LayerSpec]] = FullSpec

    limit: int

    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        """A window may start inside a block, which takes one more block: with blocks of two, the window BCD of ABCD lies in [AB][CD]."""
        return blocks_stair(self.block_size, self.limit - 1 + limits.retained + limits.in_flight), Stair(add=1, most=1)

    def counted(self, length: int, limits: Limits) -> Step:
        scheduled, sizes = limits.scheduled
        kept, terms = f"window - 1 + {scheduled}", {"window": self.limit, **sizes, "seq": length}
        if limits.retained:
            kept, terms = f"{kept} + retained_tokens", terms | {"retained_tokens": limits.retained}
        return self._counted(f"ceil(min({kept}, seq) / block_size) + 1", length, limits, **terms)

    @property
    def family(self) -> tuple[object, ...]:
        return self.form, self.block_size, self.limit

    def whole(self, block_size: int | None) -> LayerSpec:
        size = block_size or self.block_size
        unaligned = self.unaligned * size // self.block_size
        return self.without_window(
            block_size=size,
            page=ceil_div(unaligned, self.alignment) * self.alignment,
            tag=self.tag,
            alignment=self.alignment,
            unaligned=unaligned,
        )


class LatentWindowSpec(WindowSpec):
    """Keeps the latents of the last ``limit`` tokens."""

    form: ClassVar[str] = "sliding_mla"
    is_latent: ClassVar[bool] = True
    without_window: ClassVar[type[LayerSpec]] = LatentSpec


class ChunkSpec(WindowSpec):
    """Keeps the tokens of the current chunk of ``limit`` tokens."""

    form: ClassVar[str] = "chunked"

    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        return (blocks_stair(self.block_size, self.limit + limits.in_flight),)

    def counted(self, length: int, limits: Limits) -> Step:
        scheduled, sizes = limits.scheduled
        formula = f"ceil(min(chunk + {scheduled}, seq) / block_size)"
        return self._counted(formula, length, limits, chunk=self.limit, **sizes, seq=length)


class CrossSpec(LayerSpec):
    """Keeps the encoder's output, however long the sequence is."""

    form: ClassVar[str] = "cross"

    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        return (Stair(times=ceil_div(limits.encoder_tokens, self.block_size), add=1, most=1),)

    def counted(self, length: int, limits: Limits) -> Step:
        return self._counted("ceil(encoder_tokens / block_size)", length, limits, encoder_tokens=limits.encoder_tokens)


class StateSpec(LayerSpec):
    """Keeps recurrent states: ``states`` of them per request, whatever its length, or one more for each block of tokens."""

    form: ClassVar[str] = "state"

    states: int
    every: bool = False

    def stairs(self, limits: Limits) -> tuple[Stair, ...]:
        return (Stair(times=self.states, add=1, most=1), *((blocks_stair(self.block_size),) if self.every else ()))

    def counted(self, length: int, limits: Limits) -> Step:
        if self.every:
            return self._counted("states + ceil(seq / block_size)", length, limits, states=self.states, seq=length)
        return step("blocks_per_request", "states", self.states, unit="blocks", states=self.states)

    @property
    def family(self) -> tuple[object, ...]:
        return self.form, self.block_size, self.page, self.states

    def widened(self, page: int, rules: Rules) -> LayerSpec | None:
        """A block holds one state, so that its page can only be padded."""
        return self if page == self.page else replace(self, page=page) if rules.pads_states else None

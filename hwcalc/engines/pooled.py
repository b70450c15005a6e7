"""A cache in blocks of a pool, which an engine makes of all bytes that are left when it starts. Every sequence takes whole blocks.

One place says how many blocks sequences take (:meth:`BlockPool.demand`), and one how many a budget has for them (:meth:`BlockPool.free`). The
plan, the log's figures, the limits, sweeps and the steps of explanations ask these two. ``tgi/`` is the shortest example.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.general import GeneralDeployment, GeneralOccupancy
from hwcalc.engines.pool import PoolInfo, PoolShare
from hwcalc.engines.setup import Load
from hwcalc.engines.steps import Step, figure
from hwcalc.engines.subjects import without_policy
from hwcalc.formulas.arithmetic import either
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.formulas.tensor import Span
from hwcalc.model import Noted

if TYPE_CHECKING:
    from hwcalc.engines.forms import MemoryForm


class Pages(Span):
    """Every token, in whole pages of ``size`` tokens.

    >>> [Pages(32).positions(tokens) for tokens in (0, 1, 32, 33)]
    [0, 32, 32, 64]
    """

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size)

    @property
    def pages(self) -> Stair:
        """The pages of so many tokens."""
        return blocks_stair(self.numbers[0])

    def of_first(self, first: int, tokens: int) -> int:
        """Pages that have only tokens of the first ones can be kept once for several sequences."""
        return min(first, tokens) // self.numbers[0] * self.numbers[0]

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (self.pages._replace(times=self.numbers[0]),)

    @property
    def text(self) -> str:
        return "n" if self.numbers[0] == 1 else f"roundup(n, {self.numbers[0]:,})"


class BlockPool(Record):
    """Blocks of ``block_size`` tokens, of which a sequence takes as many as ``sequence_blocks`` says by its tokens.

    Nobody gets the ``reserved`` ones, which are there for what ``reserved_for`` names. All methods take whole numbers, and arrays of them alike.

    >>> pool = BlockPool(block_size=16, block_bytes=1000, sequence_blocks=blocks_stair(16), reserved=1)
    >>> pool.demand(tokens=33, sequences=2), pool.usable(7_999), pool.hold(7_999, 33, 2), pool.longest(7_999, 2, 4_096)
    (6, 6, True, 48)
    """

    block_size: int
    block_bytes: int
    sequence_blocks: Stair
    reserved: int = 0
    reserved_for: str = "reserved"

    def demand(self, tokens: int, sequences: int) -> int:
        """Blocks that so many sequences of so many tokens take."""
        return sequences * self.sequence_blocks.at(tokens)

    def blocks(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        """Blocks that the engine makes of a budget on each GPU."""
        return figure(
            steps,
            "blocks",
            "max(0, floor(budget / bytes_per_block))",
            unit="blocks",
            budget=budget_bytes,
            bytes_per_block=self.block_bytes,
        )

    def free(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        """Those of them that sequences can take."""
        blocks = self.blocks(budget_bytes, steps)
        if steps is not None:
            figure(steps, "tokens", "blocks x block_size", unit="tokens", blocks=blocks, block_size=self.block_size)
        kept = {self.reserved_for: self.reserved}
        return figure(steps, "usable_blocks", f"max(0, blocks - {self.reserved_for})", unit="blocks", blocks=blocks, **kept)

    def starts(self, budget_bytes: int) -> bool:
        """True if the engine starts with a budget."""
        return budget_bytes >= 0

    def usable(self, budget_bytes: int) -> int:
        """Blocks that sequences can take; -1 where the engine does not start, which holds nothing."""
        usable: int = either(self.starts(budget_bytes), self.free(budget_bytes), -1)
        return usable

    def hold(self, budget_bytes: int, tokens: int, sequences: int, demand: int | None = None) -> bool:
        """True if so many sequences of so many tokens fit. ``demand`` are their blocks where not all are alike."""
        return (self.demand(tokens, sequences) if demand is None else demand) <= self.usable(budget_bytes)

    def longest(self, budget_bytes: int, sequences: int, bound: int) -> int:
        """The most tokens, up to ``bound``, that each of so many sequences can have."""
        return bisect_right(range(1, bound + 1), self.usable(budget_bytes), key=lambda tokens: self.demand(tokens, sequences))


class PooledDeployment(GeneralDeployment):
    """A server with a pool of blocks. A subclass needs at least :attr:`block_size` and :attr:`dtypes`."""

    reserved_blocks: int = 0
    """Blocks that no sequence gets."""
    reserved_for: str = "reserved"
    """What they are for, in a word of formulas."""
    budget_is_fixed: bool = False
    """True if the same bytes are left for the pool under every load."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        raise NotImplementedError

    @cached_property
    def pages(self) -> Pages:
        """The span of tensors in blocks."""
        return Pages(self.block_size)

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block on the fullest GPU: the cache of one sequence of one token, whatever a policy would drop of it."""
        return without_policy(self.at(Load(seq=1)).replica).needed_bytes

    @cached_property
    def block_pool(self) -> BlockPool | None:
        """The pool; ``None`` for a model without one."""
        return BlockPool(
            block_size=self.block_size,
            block_bytes=self.block_bytes,
            sequence_blocks=self.pages.pages,
            reserved=self.reserved_blocks,
            reserved_for=self.reserved_for,
        )


class PooledOccupancy(GeneralOccupancy):
    """What a pool of blocks holds. A subclass needs at least :meth:`tensors`, whose span is :attr:`PooledDeployment.pages`."""

    deployment: PooledDeployment

    @property
    def block_pool(self) -> BlockPool | None:
        """The pool of the deployment, under this load."""
        return self.deployment.block_pool

    @property
    def unlike_blocks(self) -> int | None:
        """Blocks of the sequences of the fullest replica where their lengths are unlike; ``None`` where they are alike."""
        pool, request = self.deployment.block_pool, self.replica.request
        if pool is None or not request.load.lengths:
            return None
        branches = request.load.sharing.branches
        return sum(pool.demand(tokens, count * branches) for tokens, count in request.load.lengths_of)

    def holds(self, budget_bytes: int) -> bool:
        pool = self.block_pool
        if pool is None:
            return super().holds(budget_bytes)
        return pool.hold(budget_bytes, self.tokens, self.request.replica_batch, self.unlike_blocks)

    def pool_shares(self, budget_bytes: int) -> tuple[PoolShare, ...] | None:
        pool = self.block_pool
        if pool is None:
            return super().pool_shares(budget_bytes)
        return (PoolShare(name="blocks", total=pool.usable(budget_bytes), of_sequence=lambda tokens: pool.demand(tokens, 1)),)

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        pool = self.block_pool
        return Noted(None if pool is None else self.pool_info(pool, budget_bytes))

    def pool_info(self, pool: BlockPool, budget_bytes: int) -> PoolInfo:
        """The figures of a pool for requests of the planned length."""
        steps: list[Step] = []
        usable, per_request, branches = pool.free(budget_bytes, steps), self.request_blocks, self.load.sharing.branches
        requests = self.most_requests(usable, steps)
        blocks = pool.blocks(budget_bytes)
        message = self.pool_message(pool, budget_bytes, requests)
        return PoolInfo(
            budget_bytes=budget_bytes,
            tokens=blocks * pool.block_size,
            bytes_per_token=pool.block_bytes // pool.block_size,
            blocks=blocks,
            block_size=pool.block_size,
            bytes_per_block=pool.block_bytes,
            blocks_per_request=per_request,
            max_requests=requests,
            max_seq=pool.longest(budget_bytes, branches, max(self.tokens, self.model.max_position_embeddings or 0)),
            needed_bytes=(per_request + pool.reserved) * pool.block_bytes,
            fits=message is None,
            message=message,
            steps=tuple(steps),
        )

    @property
    def request_blocks(self) -> int:
        """Blocks of one request of the planned length."""
        assert self.block_pool is not None
        return self.block_pool.demand(self.tokens, self.load.sharing.branches)

    def most_requests(self, usable: int, steps: list[Step]) -> int:
        """Requests of the planned length that so many blocks hold at once."""
        return figure(
            steps,
            "max_requests",
            "floor(usable_blocks / blocks_per_request)",
            unit="requests",
            usable_blocks=usable,
            blocks_per_request=self.request_blocks,
        )

    def pool_message(self, pool: BlockPool, budget_bytes: int, requests: int) -> str | None:
        """The reason why the engine does not start, or runs no request of the planned length, in its words; ``None`` if it does.

        ``requests`` are as many as fit at once.
        """
        return (
            None if requests else f"The pool of {pool.blocks(budget_bytes):,} blocks holds no sequence of {self.tokens:,} tokens."
        )

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.forms import Blocks
        from hwcalc.engines.general_form import form_with, growing_parts

        pool = self.block_pool
        if pool is None:
            return super().form()
        parts = None if self.deployment.budget_is_fixed else lambda: growing_parts(self, self.chunks()[1])
        form = form_with(self, parts, blocks=Blocks(bytes=pool.block_bytes, null=pool.reserved), pools=pool)
        return None if form is None else replace(form, in_blocks=type(pool) is BlockPool)

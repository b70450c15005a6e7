"""What sequences need of the manager's pools, whether a budget holds it, and the smallest budget that does.

:class:`Needs` is the only place that says how many slots and bytes sequences take (:meth:`Needs.demand`, :attr:`Needs.on_stages`), and
whether a budget holds them (:meth:`Needs.holds`): for one length and number of sequences, or for arrays of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from hwcalc.engines.tensorrt_llm.pools import FOREVER, PAGE, Sequences, in_pages, page_bytes
from hwcalc.formulas.arithmetic import either, every, larger, largest, smaller, some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.tensorrt_llm.pools import Dealt, Layout


class Needs:
    """What ``batch`` sequences of so many tokens need, were they all on this replica. ``blocks`` are all theirs for each window."""

    def __init__(self, layout: Layout, tokens: int, batch: int, blocks: Mapping[int | None, int]) -> None:
        self.layout = layout
        self.tokens = tokens
        self.batch = batch
        self.blocks = blocks

    @classmethod
    def alike(cls, layout: Layout, tokens: int, sequences: int) -> Self:
        """The same of sequences that are all alike."""
        return cls(layout, tokens, sequences, {window: sequences * layout.blocks(window, tokens) for window in layout.windows})

    @cached_property
    def storages(self) -> tuple[Dealt, ...]:
        """V2: the pools of every stage."""
        return self.layout.storages(self.tokens)

    def demand(self, storage: Dealt, *, reading: bool = True) -> tuple[int, ...]:
        """V2: the slots of each pool for all sequences, while one of them is read in."""
        settings, pool_slots = self.layout.settings, []
        prompt = Sequences(smaller(self.tokens, settings.batched_tokens), 0)
        for _, cycles in storage.pools:
            slots = 0
            for cycle in cycles:
                held = self.batch if cycle.state else self.blocks[cycle.window]
                alone = 1 if cycle.state else self.layout.blocks(cycle.window, self.tokens)
                read = cycle.slots(prompt, settings.block, scratch=settings.scratch) - alone if reading else 0
                slots = slots + held + larger(0, read)
            pool_slots.append(slots)
        return tuple(pool_slots)

    @cached_property
    def _demands(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(self.demand, self.storages))

    def holds_in(self, budget: int, *, capped: bool = True) -> bool:
        """V2: whether the pools of a budget hold the sequences."""
        held = True
        quotas = self.layout.quotas(budget, capped=capped)
        for storage, demand, quota in zip(self.storages, self._demands, quotas, strict=True):
            slots, enough = storage.held(quota)
            held = held & enough
            for have, want in zip(slots, demand, strict=True):
                held = held & (have >= want)
            if held is False:
                return False
        return held

    @cached_property
    def least_budget(self) -> int:
        """V2: the smallest budget, in whole pages, whose pools hold the sequences."""
        alone = self._bytes_of_one_pool
        if alone is not None:
            missing, pages = alone > FOREVER // 2, in_pages(alone)
        else:
            low, high, step, missing = 0, 0, 1, True
            while some(missing) and step * PAGE < FOREVER:
                held = missing & self.holds_in(step * PAGE, capped=False)
                low, high = either(held, step // 2, low), either(held, step, high)
                missing, step = missing & (held ^ True), 2 * step
            pages = in_pages(self._between(low, high) * PAGE)
        least: int = either(missing, FOREVER, pages)
        return least

    @property
    def _bytes_of_one_pool(self) -> int | None:
        """The bytes that the sequences take where there is one pool with slots of one size, which has the whole quota; ``None`` elsewhere."""
        first, *others = self.storages
        if others or len(first.pools) > 1 or len(first.pools[0][0]) > 1 or self.layout.settings.interval is not None:
            return None
        most: int = larger(self._demands[0][0], first.floor[0])
        return most * first.pools[0][0][0]

    def _between(self, low: int, high: int) -> int:
        """The fewest steps that hold the sequences: more than ``low``, and at most ``high``."""
        while some(between := low + 1 < high):
            middle = (low + high) // 2
            held = self.holds_in(middle * PAGE, capped=False)
            low, high = either(between & (held ^ True), middle, low), either(between & held, middle, high)
        return high

    @cached_property
    def on_stages(self) -> tuple[int, ...]:
        """The budget that holds the sequences on each stage."""
        layout = self.layout
        if not layout.settings.v2:
            return tuple(layout.needed(stage, self.blocks) for stage in layout.stages)
        return tuple(map(in_pages, layout.quotas(self.least_budget, capped=False)))

    @cached_property
    def most(self) -> int:
        """The same on the stage that needs most."""
        most: int = largest(self.on_stages) if self.on_stages else 0
        return most

    def holds(self, budget: int) -> bool:
        """Whether the sequences fit into the budget, and into ``max_tokens`` where it is given."""
        layout, cap = self.layout, self.layout.settings.most_tokens
        if layout.settings.v2:
            # What the last page has beyond the budget is not ours: the manager rounds up.
            whole = budget - budget % page_bytes(budget)
            return self.holds_in(whole) & (cap is None or self.tokens <= cap)
        held = (budget >= 0) & (self.most <= budget)
        if cap is None or layout.several:
            return held
        most: int = largest(self.blocks.values())
        return held & (most <= cap // layout.settings.block)


class AllNeeds:
    """The needs of sequences of several lengths, each in the layout of its length."""

    def __init__(self, layouts: tuple[tuple[int | None, Layout], ...], tokens: int, sequences: int) -> None:
        self._parts: list[tuple[bool, Needs]] = []
        above = True
        for last, layout in layouts:
            here = above if last is None else above & (tokens <= last)
            if some(here):
                self._parts.append((here, Needs.alike(layout, tokens, sequences)))
            above = above & (here ^ True)

    def needed_bytes(self) -> int:
        """The cache on the fullest GPU."""
        return self._joined([needs.most for _, needs in self._parts])

    def total_bytes(self, sequences: int, dp: int) -> int:
        """Bytes of the cache on all stages, for ``sequences`` sequences on ``dp`` replicas."""
        return self._joined([_total(needs, sequences, dp) for _, needs in self._parts])

    def holds(self, budget: int) -> bool:
        """Whether they fit."""
        return self._joined([needs.holds(budget) * 1 for _, needs in self._parts]) == 1

    def _joined(self, values: list[int]) -> int:
        (first, most), *others = zip((here for here, _ in self._parts), values, strict=True)
        if every(first):
            return most
        for here, value in others:
            most = either(here, value, most)
        return most


def _total(needs: Needs, sequences: int, dp: int) -> int:
    """The bytes that all replicas store: what sequences hold, and what the manager keeps besides."""
    layout, settings, total = needs.layout, needs.layout.settings, 0
    every_block = Needs.alike(layout, needs.tokens, sequences).blocks
    for stage, needed in zip(layout.stages, needs.on_stages, strict=True):
        held = sum(blocks * settings.block * layout.rows(stage, window) for window, blocks in every_block.items())
        if not settings.v2:
            total = total + larger(held, layout.needed(stage, every_block))
            continue
        idle = layout.slots * stage.state
        held_by_sequences = sum(blocks * settings.block * layout.rows(stage, window) for window, blocks in needs.blocks.items())
        manager_bytes = larger(0, needed - held_by_sequences - larger(idle, needs.batch * stage.state))
        total = total + held + larger(sequences * stage.state, dp * idle) + dp * manager_bytes
    return total

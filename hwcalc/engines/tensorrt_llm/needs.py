"""What sequences take of the manager's pools, and the smallest budget that holds them; of one length and number of sequences, or of arrays."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from hwcalc.engines.tensorrt_llm.layout import FOREVER
from hwcalc.formulas.arithmetic import ceil_div, either, larger, largest, smaller, some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.tensorrt_llm.layout import Layout
    from hwcalc.engines.tensorrt_llm.storage import Dealt

_STEP: Final = 2**21
"""The smallest page of V2."""


def in_pages(quota: int) -> int:
    """A quota in whole pages."""
    from hwcalc.engines.tensorrt_llm.storage import page_bytes

    page = page_bytes(quota)
    return ceil_div(quota, page) * page


class Needs:
    """What ``batch`` sequences of so many tokens need, were they all on this replica. ``blocks`` are all theirs for each window."""

    def __init__(self, layout: Layout, tokens: int, batch: int, blocks: Mapping[int | None, int]) -> None:
        self.layout = layout
        self.tokens = tokens
        self.batch = batch
        self.blocks = blocks

    @cached_property
    def storages(self) -> tuple[Dealt, ...]:
        """V2: the pools of every stage."""
        return self.layout.storages(self.tokens)

    def demand(self, storage: Dealt, *, reading: bool = True) -> tuple[int, ...]:
        """V2: the slots of each pool for all sequences, while one of them is read in."""
        from hwcalc.engines.tensorrt_llm.storage import Sequences

        one, found = self.layout.settings, []
        prompt = Sequences(smaller(self.tokens, one.batched_tokens), 0)
        for _, cycles in storage.pools:
            slots = 0
            for cycle in cycles:
                held = self.batch if cycle.state else self.blocks[cycle.window]
                alone = 1 if cycle.state else self.layout.blocks(cycle.window, self.tokens)
                read = cycle.slots(prompt, one.block, scratch=one.scratch) - alone if reading else 0
                slots = slots + held + larger(0, read)
            found.append(slots)
        return tuple(found)

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
            while some(missing) and step * _STEP < FOREVER:
                held = missing & self.holds_in(step * _STEP, capped=False)
                low, high = either(held, step // 2, low), either(held, step, high)
                missing, step = missing & (held ^ True), 2 * step
            pages = in_pages(self._between(low, high) * _STEP)
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
            held = self.holds_in(middle * _STEP, capped=False)
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
            from hwcalc.engines.tensorrt_llm.storage import page_bytes

            # What the last page has beyond the budget is not ours: the manager rounds up.
            whole = budget - budget % page_bytes(budget)
            return self.holds_in(whole) & (cap is None or self.tokens <= cap)
        held = (budget >= 0) & (self.most <= budget)
        if cap is None or layout.several:
            return held
        most: int = largest(self.blocks.values())
        return held & (most <= cap // layout.settings.block)

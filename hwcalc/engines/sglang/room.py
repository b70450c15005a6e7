"""The memory that SGLang needs for some sequences: the least budget whose pools hold them.

It is searched for among whole bytes, by the rules that make pools of a budget; all of it takes integers, or arrays of them. Where states have
a share, a little more memory may mean one slot more and fewer tokens: then it is the budget to which halving 0 to 2^60 bytes comes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

from hwcalc.engines.sglang.layout import PoolLayout, StageCells
from hwcalc.engines.sglang.settings import SglangSettings
from hwcalc.engines.sglang.sizes import (
    LEAST_REQUESTS,
    Figures,
    Sizes,
    capped_windows,
    cell_size,
    checks,
    most_running,
    plan_figures,
    plan_sizes,
    slots_of_budget,
    slots_per_request,
    token_stages,
    window_tokens,
)
from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, smaller, some
from hwcalc.formulas.record import Record

__all__ = ["Demand", "PoolRoom", "Room", "around", "with_a_window"]

_LARGEST_BUDGET: Final = 2**60
_PROBE: Final = 2**50
"""A budget from which what is taken of every budget is read."""
_ROUNDED: Final = 2.0**-44
"""Floating point is off by less, of any number of bytes here."""
_FEW_BYTES: Final = 64


class Demand(NamedTuple):
    """What the sequences of a replica take: requests at once, places in the pool of tokens, and in that of windows."""

    requests: int
    places: int
    window_places: int


class Room(Record):
    """The pools of any budget, for requests of one family."""

    settings: SglangSettings

    @abstractmethod
    def sizes(self, budget: int) -> Sizes:
        """The pools of one budget on each rank."""

    @abstractmethod
    def figures(self, budget: int) -> Figures:
        """The same before anything is refused."""

    @abstractmethod
    def checks(self, found: Figures, budget: int) -> Iterator[tuple[bool, str]]:
        """What SGLang checks of them before it starts."""

    @cached_property
    @abstractmethod
    def keeps_tokens(self) -> bool:
        """Whether tokens take memory. Where no layer keeps any, a pool has as many as one request may have."""

    @property
    @abstractmethod
    def has_windows(self) -> bool:
        """Whether windows have a pool."""

    @abstractmethod
    def windows_of(self, tokens: int) -> int | None:
        """Places in the pool of windows beside so many tokens; ``None`` without that pool, or where stages differ."""

    @abstractmethod
    def bounds(self, demand: Demand) -> tuple[int, int]:
        """A budget that holds too little, as all smaller ones do, and one that holds it all, as all larger ones do."""

    def held(self, budget: int, demand: Demand) -> bool:
        """Whether the pools of a budget hold all that is asked."""
        return self.enough(self.figures(budget), demand, budget)

    def enough(self, found: Figures, demand: Demand, budget: int) -> bool:
        """Whether these pools hold it."""
        held = demand.requests <= found.running
        if self.keeps_tokens:
            held = held & (demand.places <= found.tokens)
        if found.swa_tokens is not None:
            held = held & (demand.window_places <= found.swa_tokens)
        for passed, _ in self.checks(found, budget):
            held = held & passed
        return held

    def least(self, demand: Demand, own_bytes: int) -> int:
        """The least budget that holds what is asked.

        Where none does, because SGLang runs fewer requests or was allowed fewer tokens, it is what the sequences themselves take.
        """
        most = larger(2 * own_bytes, _LARGEST_BUDGET)
        ever = self.held(most, demand) & (own_bytes > 0)
        # What is never held is not searched for.
        low, high = self.bounds(Demand(*(either(ever, asked, 1) for asked in demand)))
        low, high = larger(low, 0), smaller(high, most)
        while some(low + 1 < high):
            middle = _roundest(low, high)
            held = self.held(middle, demand)
            low, high = either(held, low, middle), either(held, middle, high)
        found: int = either(ever, high, own_bytes)
        return found

    def least_tokens(self, demand: Demand, ratio: float) -> int:
        """The fewest tokens, in whole pages, with which all is held if there is memory, and there are slots.

        There is a place for a window in every ``ratio`` of the tokens; if that is 0, the tokens do not follow from the windows.
        """
        own, page = self.settings, self.settings.page_size
        tokens = larger(demand.places, 2 * demand.requests) if self.keeps_tokens else 2 * demand.requests
        if own.own_requests is None:
            many = demand.requests > LEAST_REQUESTS
            tokens = larger(tokens, either(many, ceiled(demand.requests * (own.context / 512)), 1))
        if ratio:
            tokens = larger(tokens, ceiled(demand.window_places / ratio))
        tokens = -(-tokens // page) * page
        # A product in floating point may be a page off.
        more = either(self._suffice(tokens, demand), tokens, tokens + page)
        fewest: int = either(self._suffice(tokens - page, demand), tokens - page, more)
        return fewest

    def _suffice(self, tokens: int, demand: Demand) -> bool:
        running = most_running(self.settings, tokens, None)
        found = Figures(
            tokens=tokens, swa_tokens=self.windows_of(tokens), slots=None, running=running, after_states_bytes=1, fullest=0
        )
        return self.enough(found, demand, 1)


def _roundest(low: int, high: int) -> int:
    """The number above ``low`` and below ``high`` to which halving a range from 0 to a power of two comes first.

    >>> _roundest(5, 14), _roundest(5, 8)
    (8, 6)
    """
    last = high - 1
    below = low ^ last
    for shift in (1, 2, 4, 8, 16, 32):
        below = below | (below >> shift)
    return last & ~(below >> 1)


def with_a_window(demand: Demand, window: int, page: int) -> Demand:
    """The same, and at least the whole pages without which SGLang does not start: they hold more than a window and a page."""
    least = ((window + page) // page + 1) * page
    return demand._replace(window_places=larger(demand.window_places, least))


def around(size: Any) -> tuple[int, int]:
    """Whole bytes below and above a size in floating point."""
    spread = size * _ROUNDED
    return floored(size - spread) - _FEW_BYTES, floored(size + spread) + _FEW_BYTES


class PoolRoom(Room):
    """The pools of a model other than DeepSeek-V4."""

    layout: PoolLayout

    def sizes(self, budget: int) -> Sizes:
        return plan_sizes(self.layout, self.settings, budget)

    def figures(self, budget: int) -> Figures:
        return plan_figures(self.layout, self.settings, budget)

    def checks(self, found: Figures, budget: int) -> Iterator[tuple[bool, str]]:
        return checks(self.layout, self.settings, found)

    def windows_of(self, tokens: int) -> int | None:
        return window_tokens(self.layout, self._stages[0], self.settings, tokens) if self._alike else None

    @cached_property
    def _stages(self) -> tuple[StageCells, ...]:
        return token_stages(self.layout)

    @cached_property
    def _cells(self) -> tuple[float, ...]:
        return tuple(cell_size(stage, self.settings) for stage in self._stages)

    @cached_property
    def keeps_tokens(self) -> bool:
        return any(self._cells)

    @property
    def has_windows(self) -> bool:
        return self.layout.window is not None

    @cached_property
    def _alike(self) -> bool:
        """Whether windows have the same share on all stages, so that it does not matter which one has the fewest tokens."""
        return len({(stage.swa_layers > 0, stage.full_layers > 0) for stage in self._stages}) == 1

    def bounds(self, demand: Demand) -> tuple[int, int]:
        least = self._least_left(demand)
        if self.layout.has_states:
            low, high = self._with_states(demand.requests, least)
        else:
            low, high = (least - 1, least) if all(isinstance(cell, int) for cell in self._cells) else around(least)
        return low, high if self._alike else high * 0 + _LARGEST_BUDGET

    def _least_left(self, demand: Demand) -> Any:
        """Bytes that must be left for tokens."""
        own, layout, stage = self.settings, self.layout, self._stages[0]
        ratio: float = 0
        if self._alike and stage.swa_layers:
            ratio = 1 if not stage.full_layers else own.swa_ratio or 0
            if own.swa_ratio is not None and layout.window is not None:
                demand = with_a_window(demand, layout.window, own.page_size)
        tokens = self.least_tokens(demand, ratio)
        sizes = (tokens * cell + self._capped(stage) for stage, cell in zip(self._stages, self._cells, strict=True))
        return larger(largest(sizes), 1)

    def _capped(self, stage: StageCells) -> int:
        """Bytes of the windows of a stage that are no share of its tokens."""
        capped = stage.swa_layers and stage.full_layers and self.settings.swa_ratio is None
        return capped_windows(self.layout, self.settings) * stage.swa_bytes if capped else 0

    def _with_states(self, requests: int, least: Any) -> tuple[int, int]:
        """The bounds of a budget of which ``least`` bytes must be left for tokens."""
        own, slot = self.settings, self.layout.slot_bytes
        if own.mamba_slots is not None or (not own.radix and own.requests is not None):
            # So many slots take the same of every budget.
            return around(least + _PROBE - slots_of_budget(self.layout, own, _PROBE)[1])
        each, drafted, share = slots_per_request(own), own.draft_tokens if own.drafts else 0, 1 + own.mamba_ratio
        for_slots = slot * (requests * (each + drafted) + 1 + drafted) * (share / own.mamba_ratio)
        # States leave less than a slot of their share, or more where there are fewer requests than drafts have slots for.
        low = least if own.drafts else (least - slot) * share
        return around(larger(for_slots, low))[0], around(larger(for_slots, least * share))[1]

"""The memory that SGLang needs for some sequences of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from hwcalc.engines.sglang.deepseek_v4 import (
    CompressedLayout,
    compressed_checks,
    compressed_figures,
    compressed_sizes,
    fixed_bytes,
    window_places,
)
from hwcalc.engines.sglang.room import Demand, Room, around, with_a_window
from hwcalc.engines.sglang.sizes import MOST_REQUESTS, Figures, Sizes
from hwcalc.formulas.arithmetic import largest

__all__ = ["CompressedRoom"]


class CompressedRoom(Room):
    """The pools of DeepSeek-V4."""

    layout: CompressedLayout

    def sizes(self, budget: int) -> Sizes:
        return compressed_sizes(self.layout, self.settings, budget)

    def figures(self, budget: int) -> Figures:
        return compressed_figures(self.layout, self.settings, budget)

    def checks(self, found: Figures, budget: int) -> Iterator[tuple[bool, str]]:
        return compressed_checks(self.layout, self.settings, found, budget)

    def windows_of(self, tokens: int) -> int:
        return window_places(self.layout, self.settings, tokens)

    @cached_property
    def keeps_tokens(self) -> bool:
        return True

    @property
    def has_windows(self) -> bool:
        return True

    def bounds(self, demand: Demand) -> tuple[int, int]:
        own, layout = self.settings, self.layout
        if own.swa_ratio is not None:
            demand = with_a_window(demand, layout.window, layout.page_size)
        tokens = self.least_tokens(demand, own.swa_ratio or 0)
        few, many = (0, MOST_REQUESTS) if own.own_requests is None else (own.own_requests,) * 2
        low, high = (
            largest(
                tokens * layout.token_bytes(stage, own.swa_ratio) + fixed_bytes(layout, stage, own, requests)
                for stage in layout.stages
            )
            for requests in (few, many)
        )
        return around(low)[0], around(high)[1]

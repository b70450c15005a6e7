"""A request that SGLang has opened, with its settings and the layout of its pools."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.sglang.layout import PoolLayout, plan_layout, stage_spans
from hwcalc.engines.sglang.models import is_compressed
from hwcalc.engines.sglang.room import Demand, PoolRoom, Room
from hwcalc.engines.sglang.settings import SglangSettings, read_settings
from hwcalc.engines.sglang.sizes import EVICTION_INTERVAL, Sizes, slots_per_request
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas.stairs import Stair, blocks_stair

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout

__all__ = ["SglangOpened", "of_sglang"]


class SglangOpened(Opened):
    """An opened request with the values that the rules of SGLang use again and again."""

    @cached_property
    def settings(self) -> SglangSettings:
        """The settings with every default filled in."""
        return self.shared("settings", lambda: read_settings(self.model, self.request))

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in pools, of a model other than DeepSeek-V4."""
        return self.shared("layout", lambda: plan_layout(self.model, self.plain_stack, self.settings))

    @cached_property
    def compressed(self) -> CompressedLayout | None:
        """The pools of DeepSeek-V4; ``None`` for every other model."""
        if not is_compressed(self.model):
            return None
        from hwcalc.engines.sglang.deepseek_v4 import compressed_layout

        return self.shared("compressed", lambda: compressed_layout(self.plain_stack, self.settings))

    @cached_property
    def room(self) -> Room:
        """The pools of any budget."""
        return self.shared("room", self._room)

    def _room(self) -> Room:
        if self.compressed is not None:
            from hwcalc.engines.sglang.deepseek_v4_room import CompressedRoom

            return CompressedRoom(settings=self.settings, layout=self.compressed)
        return PoolRoom(settings=self.settings, layout=self.layout)

    def sizes(self, budget: int) -> Sizes:
        """The pools of a budget on each rank."""
        return self.room.sizes(budget)

    def paged(self, tokens: int) -> int:
        """Tokens in whole pages."""
        page = self.settings.page_size
        return -(-tokens // page) * page

    @property
    def window(self) -> int | None:
        """The window as SGLang counts it, where windows have a pool; else ``None``."""
        return self.layout.window if self.compressed is None else self.compressed.window

    @cached_property
    def pages(self) -> tuple[Stair, Stair]:
        """Pages of a sequence in the pool of tokens, and in that of windows, if there is one.

        What has left a window is freed every 128 tokens, in whole pages.
        """
        page = self.settings.page_size
        if self.window is None:
            return blocks_stair(page), Stair(times=0)
        beyond = EVICTION_INTERVAL * max(1, self.settings.draft_tokens) + page
        return blocks_stair(page), blocks_stair(page, self.window + beyond)

    def window_tokens(self, tokens: int) -> int:
        """Places that a sequence takes in the pool of windows."""
        return self.settings.page_size * self.pages[1].at(tokens)

    def held_tokens(self, *, windows: bool) -> int:
        """Places that all sequences together take in the pool of windows, or in the other one; what they share is kept once."""
        together = self.together
        count = self.window_tokens if windows else self.paged
        if windows or not together.unlike:
            return together.branches * sum(many * count(tokens) for tokens, many in together.lengths)
        prefix, prompt = self.engine.shared_tokens(self)
        common = prefix * together.copies
        for tokens, many in together.lengths:
            own = min(prefix, tokens), min(prompt, tokens)
            common += many * (together.prompts * (own[1] - own[0]) + together.branches * (count(tokens) - own[1]))
        return common

    @property
    def slots(self) -> int:
        """Slots for states that a request takes."""
        return slots_per_request(self.settings) if self.compressed is None and self.layout.has_states else 0

    @cached_property
    def demand(self) -> Demand:
        """What the planned sequences of a replica take of the pools."""
        replica: SglangOpened = self.replica
        return Demand(replica.batch, replica.held_tokens(windows=False), replica.held_tokens(windows=True))

    def held_in(self, sizes: Sizes) -> bool:
        """Whether these pools hold the planned sequences of a replica."""
        demand = self.demand
        if sizes.error is not None or demand.requests > sizes.running:
            return False
        if self.room.keeps_tokens and demand.places > sizes.tokens:
            return False
        return sizes.swa_tokens is None or demand.window_places <= sizes.swa_tokens

    def at_once(self, sizes: Sizes) -> int:
        """How many requests of the planned length these pools hold."""
        request = replace(self.replica.request, lengths=(), batch=1)
        one: SglangOpened = self.with_request(request)
        if one.together.unlike:
            from bisect import bisect_left

            return bisect_left(
                range(1, sizes.running // request.sharing.branches + 1), x=True, key=partial(one.lacks_room, sizes)
            )
        if sizes.error is not None:
            return 0
        pools = [sizes.running, sizes.tokens if self.room.keeps_tokens else None, sizes.swa_tokens]
        return min(places // each for places, each in zip(pools, one.demand, strict=True) if places is not None and each)

    def lacks_room(self, sizes: Sizes, requests: int) -> bool:
        """Whether these pools do not hold so many requests."""
        many: SglangOpened = self.with_request(replace(self.request, batch=requests))
        return not many.held_in(sizes)

    @cached_property
    def least_bytes(self) -> int:
        """The smallest budget of a rank whose pools hold the planned sequences of a replica.

        Where no budget does, because SGLang runs fewer requests or was allowed fewer tokens, it is what the sequences themselves take.
        """
        return self.room.least(self.demand, self._own_bytes())

    def _own_bytes(self) -> int:
        """What the sequences of a replica have in the pools of a rank of the fullest stage."""
        stack, tensors = self.plain_stack, self.replica.kind_tensors
        stages = (stack.groups,) if self.settings.pp == 1 else map(stack.groups_of, stage_spans(len(stack), self.settings.pp))
        sizes = (sum(group.count * bytes_of(tensors[group.kind]) for group in groups) for groups in stages)
        return max(sizes) // self.settings.tp


def of_sglang(opened: Opened) -> SglangOpened:
    """The request with its SGLang type. Only requests that SGLang has opened reach its rules."""
    assert isinstance(opened, SglangOpened)
    return opened

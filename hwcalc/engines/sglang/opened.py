"""A request that SGLang has opened, with its settings and the layout of its pools."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from hwcalc.engines.base import Opened
from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout, compressed_layout, compressed_sizes
from hwcalc.engines.sglang.layout import PoolLayout, plan_layout, stage_spans
from hwcalc.engines.sglang.models import is_compressed
from hwcalc.engines.sglang.settings import SglangSettings, read_settings
from hwcalc.engines.sglang.sizes import EVICTION_INTERVAL, Sizes, plan_sizes, slots_per_request
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas.frozen import replace

__all__ = ["SglangOpened", "of_sglang"]

_LARGEST_BUDGET = 2**60


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
        return self.shared("compressed", lambda: compressed_layout(self.plain_stack, self.settings))

    def sizes(self, budget: int) -> Sizes:
        """The pools of a budget on each rank."""
        if self.compressed is not None:
            return compressed_sizes(self.compressed, self.settings, budget)
        return plan_sizes(self.layout, self.settings, budget)

    def paged(self, tokens: int) -> int:
        """Tokens in whole pages."""
        page = self.settings.page_size
        return -(-tokens // page) * page

    @property
    def window(self) -> int | None:
        """The window as SGLang counts it, where windows have a pool; else ``None``."""
        return self.layout.window if self.compressed is None else self.compressed.window

    def window_tokens(self, tokens: int) -> int:
        """Places that a sequence takes in the pool of windows: what has left the window is freed every 128 tokens, in whole pages."""
        if self.window is None:
            return 0
        beyond = EVICTION_INTERVAL * max(1, self.settings.draft_tokens) + self.settings.page_size
        return min(self.paged(tokens), self.paged(self.window + beyond))

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

    def held_in(self, sizes: Sizes) -> bool:
        """Whether these pools hold the planned sequences of a replica."""
        replica: SglangOpened = self.replica
        if sizes.error is not None or replica.batch > sizes.running:
            return False
        # Where no layer keeps tokens, a pool has as many as one request may have, and they take nothing.
        if sizes.cell and replica.held_tokens(windows=False) > sizes.tokens:
            return False
        return sizes.swa_tokens is None or replica.held_tokens(windows=True) <= sizes.swa_tokens

    def at_once(self, sizes: Sizes) -> int:
        """How many requests of the planned length these pools hold."""
        request = replace(self.replica.request, lengths=())

        def too_many(requests: int) -> bool:
            one: SglangOpened = self.with_request(replace(request, batch=requests))
            return not one.held_in(sizes)

        return bisect_left(range(1, sizes.running // request.sharing.branches + 1), x=True, key=too_many)

    @cached_property
    def least_bytes(self) -> int:
        """The smallest budget of a rank whose pools hold the planned sequences of a replica.

        Where no budget does, because SGLang runs fewer requests or was allowed fewer tokens, it is what the sequences themselves take.
        """
        own_bytes = self._own_bytes()
        low, high = 0, max(_LARGEST_BUDGET, 2 * own_bytes)
        if not own_bytes or not self.held_in(self.sizes(high)):
            return own_bytes
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.held_in(self.sizes(middle)) else (middle, high)
        return high

    def _own_bytes(self) -> int:
        """What the sequences of a replica have in the pools of a rank of the fullest stage."""
        replica = self.replica
        layers = [sum(bytes_of(replica.kind_tensors[kind]) for kind in layer) for layer in replica.plain_stack]
        return (
            max(sum(layers[layer] for layer in span) for span in stage_spans(len(layers), self.settings.pp)) // self.settings.tp
        )


def of_sglang(opened: Opened) -> SglangOpened:
    """The request with its SGLang type. Only requests that SGLang has opened reach its rules."""
    assert isinstance(opened, SglangOpened)
    return opened

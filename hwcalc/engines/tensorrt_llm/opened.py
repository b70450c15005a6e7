"""A request that TensorRT-LLM has opened, with its settings, its layout and the blocks of its sequences."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from hwcalc.engines.base import Opened
from hwcalc.engines.sharing import Blocks, Held, held_blocks
from hwcalc.engines.tensorrt_llm.layout import FOREVER, Layout, Stage
from hwcalc.engines.tensorrt_llm.pieces import Piece, pieces_of
from hwcalc.engines.tensorrt_llm.settings import Settings, read_settings
from hwcalc.engines.tensorrt_llm.storage import Sequences, Storage, ceil_div, page_bytes
from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LayerKind, SlidingAttention

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Group

__all__ = ["TensorrtOpened", "in_pages", "of_tensorrt"]

_STEP: Final = 2**21
"""The smallest page of V2."""


class TensorrtOpened(Opened):
    """An opened request with the values that the rules use again and again."""

    @cached_property
    def settings(self) -> Settings:
        """The settings, which no length or batch changes."""
        return self.told(self.shared("settings", lambda: read_settings(self.model, self.request)))

    @cached_property
    def kind_pieces(self) -> dict[LayerKind, tuple[Piece, ...]]:
        """The buffers of one layer of each kind, each with its window."""
        return self.shared(("pieces", self._windows), self._plan_pieces)

    def _plan_pieces(self) -> dict[LayerKind, tuple[Piece, ...]]:
        groups = zip(self.stack.groups, self._windows, strict=True)
        return {group.kind: pieces_of(group.kind, self.settings, window) for group, window in groups}

    @cached_property
    def _windows(self) -> tuple[int | None, ...]:
        """The window of each kind: all of the length that the buffers depend on."""
        return tuple(self._window(group) for group in self.stack.groups)

    def _window(self, group: Group) -> int | None:
        """The window of the layers of one kind, cut to the longest sequence; ``None`` keeps all tokens."""
        one, length = self.settings, self.tokens
        if one.window_pattern is not None:
            pattern = one.window_pattern
            found = {min(length, pattern[number % len(pattern)]) for number in group.layers}
            if len(found) > 1:
                raise UsageError(
                    f"max_attention_window gives layers of one kind ({group.kind.title}) different windows.",
                    hint="Give one window for all layers, or one for each kind.",
                )
            (window,) = found
            return None if window == length else window
        if one.v2 and one.derives_windows and isinstance(group.kind, SlidingAttention) and group.kind.window < length:
            return group.kind.window
        return None

    @cached_property
    def layout(self) -> Layout:
        """The layers of every stage. It depends on the length only where that is shorter than a window."""
        return self.shared(("layout", self._windows), self._plan_layout)

    def _plan_layout(self) -> Layout:
        from hwcalc.engines.ranks import stage_groups

        pieces = self.kind_pieces
        stages = tuple(Stage(kinds=tuple((pieces[group.kind], group.count) for group in groups)) for groups in stage_groups(self))
        compressed = any(isinstance(kind, CompressedAttention) for kind in pieces)
        return Layout(stages=stages, settings=self.settings, kinds=tuple(pieces.items()), compressed=compressed)

    def held(self, window: int | None) -> Held:
        """The blocks that all sequences together take in the pool of one window."""
        size, together, layout = self.settings.block, self.together, self.layout
        parts = []
        for tokens, requests in together.lengths:
            most = layout.blocks(window, tokens)
            prefix = min(together.prefix, tokens - 1) // size
            prompt = max(prefix, min(together.prompt, tokens) // size) if together.forks else prefix
            blocks = Blocks(max(most, ceil_div(tokens, size)), most, prefix, prompt)
            parts.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(parts, together.copies)

    def blocks_of(self, window: int | None) -> int:
        """The same, in all."""
        if not self.together.unlike:
            return self.batch * self.layout.blocks(window, self.tokens)
        return self.held(window).total

    @cached_property
    def all_blocks(self) -> dict[int | None, int]:
        """The blocks of all sequences for the layers of each window."""
        return {window: self.blocks_of(window) for window in self.layout.windows}

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """V2: the pools of every stage."""
        return self.layout.storages(self.tokens)

    def demand(self, storage: Storage, *, reading: bool = True) -> tuple[int, ...]:
        """V2: the slots of each pool for all sequences, while one of them is read in."""
        one, found = self.settings, []
        prompt = Sequences(min(self.tokens, one.batched_tokens), 0)
        for _, cycles in storage.pools:
            slots = 0
            for cycle in cycles:
                held = self.batch if cycle.state else self.all_blocks[cycle.window]
                alone = 1 if cycle.state else self.layout.blocks(cycle.window, self.tokens)
                read = cycle.slots(prompt, one.block, scratch=one.scratch) - alone if reading else 0
                slots += held + max(0, read)
            found.append(slots)
        return tuple(found)

    def holds_in(self, budget: int, *, capped: bool = True) -> bool:
        """V2: whether the pools of a budget hold the planned sequences, were they all on this replica."""
        for storage, quota in zip(self.storages, self.layout.quotas(budget, capped=capped), strict=True):
            slots = storage.slots(quota)
            if slots is None or any(have < want for have, want in zip(slots, self.demand(storage), strict=True)):
                return False
        return True

    @cached_property
    def least_budget(self) -> int:
        """V2: the smallest budget, in whole pages, whose pools hold the planned sequences."""
        low, high = 0, 1
        while not self.holds_in(high * _STEP, capped=False):
            low, high = high, 2 * high
            if high * _STEP >= FOREVER:
                return FOREVER
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds_in(middle * _STEP, capped=False) else (middle, high)
        return in_pages(high * _STEP)

    def needed_on(self, stage: Stage) -> int:
        """The budget that holds the planned sequences on a stage, were they all on this replica."""
        if not self.settings.v2:
            return self.layout.needed(stage, self.all_blocks)
        quotas = self.layout.quotas(self.least_budget, capped=False)
        return next(in_pages(quota) for one, quota in zip(self.layout.stages, quotas, strict=True) if one is stage)


def in_pages(quota: int) -> int:
    """A quota in whole pages."""
    page = page_bytes(quota)
    return ceil_div(quota, page) * page


def of_tensorrt(opened: Opened) -> TensorrtOpened:
    """The request with its own type. Only requests that TensorRT-LLM has opened reach its rules."""
    assert isinstance(opened, TensorrtOpened)
    return opened

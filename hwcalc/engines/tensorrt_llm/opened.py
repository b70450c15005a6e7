"""A request that TensorRT-LLM has opened, with its settings, its layout and the blocks of its sequences."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

from hwcalc.engines.base import Opened
from hwcalc.engines.sharing import Blocks, Held, held_blocks
from hwcalc.engines.tensorrt_llm.layout import FOREVER, Layout, Stage
from hwcalc.engines.tensorrt_llm.needs import Needs
from hwcalc.engines.tensorrt_llm.pieces import Piece, pieces_of
from hwcalc.engines.tensorrt_llm.settings import Settings, read_settings
from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LayerKind, SlidingAttention
from hwcalc.formulas.arithmetic import ceil_div

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.storage import Storage
    from hwcalc.formulas.hybrid import Group

__all__ = ["TensorrtOpened", "of_tensorrt"]


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

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows of sequences that are longer than any of them, the smallest first."""
        forever = of_tensorrt(self.sized(seq=FOREVER))
        found = {forever._window(group) for group in forever.stack.groups}  # noqa: SLF001 - a request of the same family
        return tuple(sorted(window for window in found if window is not None))

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
        return cast("tuple[Storage, ...]", self.layout.storages(self.tokens))

    @cached_property
    def needs(self) -> Needs:
        """What the planned sequences take of the pools, were they all on this replica."""
        return Needs(self.layout, self.tokens, self.batch, self.all_blocks)


def of_tensorrt(opened: Opened) -> TensorrtOpened:
    """The request with its own type. Only requests that TensorRT-LLM has opened reach its rules."""
    assert isinstance(opened, TensorrtOpened)
    return opened

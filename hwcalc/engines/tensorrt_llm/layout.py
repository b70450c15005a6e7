"""The layers of each pipeline stage as the cache manager sees them, and how many tokens a budget holds.

V1 makes one pool of blocks, or with several windows one for each, of equal shares of the budget. V2 divides a quota as ``storage`` says.
Its cost in tokens is affine, and only limits the quota, by ``max_tokens`` and by the rank with least: bytes for each token, and for each of
``max_batch_size`` requests the blocks of its windows and its states; while prompts are read, windowed layers cost each token of a batch too.

Read, not run: pyexecutor/resource_manager.py calculate_max_num_blocks, vswa.py calculate_max_num_blocks_for_vswa,
kv_cache/kv_cache_manager_v2.py _get_max_tokens_from_quota and _get_quota_from_max_tokens, mamba_cache_manager_v2.py and
sparse/deepseek_v4/cache_manager.py (the same names) of the sources of 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from hwcalc.engines.tensorrt_llm.pieces import Piece
from hwcalc.engines.tensorrt_llm.settings import Settings
from hwcalc.formulas import LayerKind
from hwcalc.formulas.arithmetic import ceil_div, ceiled, either, floored, largest, picked, smaller, some
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.storage import Dealt, Storage

__all__ = ["FOREVER", "Layout", "Stage"]

FOREVER = 2**62
"""More tokens than any pool has: no layer grows with them."""
_PADDING = 7 * 2**21
"""DeepSeek-V4's manager adds 2 MiB for each of its kinds of buffers."""
_RESUMED = 0.95
"""``max_util_for_resume``: the share of a quota that counts where it is said in tokens."""


class Stage(Record):
    """The layers of one pipeline stage: the pieces of each kind, and how many layers have them."""

    kinds: tuple[tuple[tuple[Piece, ...], int], ...]

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, int], ...]:
        """Each piece and how many layers have it."""
        return tuple((piece, count) for pieces, count in self.kinds for piece in pieces)

    @cached_property
    def growing(self) -> int:
        """Bytes for each token, in layers that keep all of them."""
        return sum(count * piece.row for piece, count in self.pieces if piece.window is None)

    @cached_property
    def windows(self) -> dict[int, int]:
        """Window -> bytes for each token in the layers with that window, the smallest first."""
        found: dict[int, int] = {}
        for piece, count in self.pieces:
            if piece.window is not None:
                found[piece.window] = found.get(piece.window, 0) + count * piece.row
        return dict(sorted(found.items()))

    @cached_property
    def state(self) -> int:
        """Bytes of a slot of all recurrent states."""
        return sum(count * piece.state for piece, count in self.pieces)

    def reading(self, scratch: bool) -> int:
        """Bytes of windowed layers for each token of a prompt that is read; with scratch blocks one layer of each kind."""
        sliding = [(piece, count) for piece, count in self.pieces if piece.window is not None]
        if not scratch:
            return sum(count * piece.row for piece, count in sliding)
        return sum({piece.key: piece.row for piece, _ in sliding}.values())


class Layout(Record):
    """What the manager knows: the stages, the settings, and the kinds with their pieces."""

    stages: tuple[Stage, ...]
    settings: Settings
    kinds: tuple[tuple[LayerKind, tuple[Piece, ...]], ...]
    compressed: bool

    @cached_property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of all stages, the smallest first; ``None`` is every token."""
        found = sorted({window for stage in self.stages for window in stage.windows})
        return (*found, None) if any(stage.growing for stage in self.stages) or not found else tuple(found)

    @property
    def several(self) -> bool:
        """Whether V1 divides its budget over windows."""
        return not self.settings.v2 and len(self.windows) > 1

    @cached_property
    def slots(self) -> int:
        """Slots of states without those of snapshots: for all requests of all stages, a padded one for graphs, one for attention DP."""
        one = self.settings
        return one.sequences * one.pp + 1 + one.attention_dp if any(stage.state for stage in self.stages) else 0

    def storages(self, length: int) -> tuple[Dealt, ...]:
        """V2: the pools of every stage. The longest sequence divides them where the model has states, or where it says so itself."""
        by_length = self.compressed or self.slots or self.settings.expected is not None
        if not by_length:
            return self._usual_storages
        return tuple(storage.sized(self.settings, length, compressed=self.compressed) for storage in self._usual_storages)

    @cached_property
    def _usual_storages(self) -> tuple[Storage, ...]:
        from hwcalc.engines.tensorrt_llm.storage import storage_of

        return tuple(storage_of(stage.kinds, self.settings, 1, compressed=self.compressed) for stage in self.stages)

    def rows(self, stage: Stage, window: int | None) -> int:
        """Bytes for each token of the layers of a stage with this window."""
        return stage.growing if window is None else stage.windows.get(window, 0)

    def blocks(self, window: int | None, tokens: int) -> int:
        """The most blocks that a sequence holds in the pool of a window.

        V1 keeps one more, so that the window is always whole (kSWAExtraBlock); V2 those that tokens of a window lie in wherever it begins.
        """
        size = self.settings.block
        whole = ceil_div(tokens, size)
        if window is None:
            return whole
        kept = smaller(whole, ceil_div(window - 1, size) + 1) if self.settings.v2 else ceil_div(window, size) + 1
        blocks: int = either(tokens <= window, whole, kept)
        return blocks

    def window_bytes(self, stage: Stage) -> int:
        """Bytes of one request's windows under V2."""
        size = self.settings.block
        return sum(ceil_div(window, size) * size * row for window, row in stage.windows.items())

    def snapshots(self, tokens: int) -> int:
        """Slots of kept states for a pool of so many tokens."""
        one = self.settings
        return tokens // one.interval if one.interval is not None and one.reuse and self.slots else 0

    def _cost(self, stage: Stage, tokens: float) -> int:
        """V2: the bytes that a stage takes for so many tokens, as the manager reckons."""
        one = self.settings
        kept = 0 if one.interval is None else self.snapshots(int(tokens))
        cost: int = floored(
            tokens * stage.growing
            + smaller(tokens, one.batched_tokens) * stage.reading(one.scratch)
            + one.sequences * self.window_bytes(stage)
            + ((self.slots + kept) * stage.state if stage.state else 0)
            + (one.sequences * one.pp * stage.growing * one.block if kept else 0)
            + (_PADDING if self.compressed else 0)
        )
        return cost

    def _tokens_for(self, stage: Stage, quota: int) -> float:
        """V2: the tokens that a quota holds on one stage, by the same reckoning. It is exact where there are no kept states."""
        one, fixed = self.settings, self._cost(stage, 0)
        each = stage.growing + stage.reading(one.scratch)
        few: float = (quota - fixed) / each if each else math.inf
        many: float = math.inf
        if stage.growing:
            many = one.batched_tokens + (quota - fixed - one.batched_tokens * each) / stage.growing
        found: float = picked(quota <= one.batched_tokens * each + fixed, few, many)
        if one.interval is not None and stage.state and stage.growing and self.snapshots(FOREVER) and found is many:
            from bisect import bisect_right

            found = bisect_right(
                range(1, (quota - fixed) // stage.growing + 1), quota, key=lambda count: self._cost(stage, count)
            )
        tokens: float = picked(fixed > quota, 0.0, found)
        return tokens

    def quotas(self, budget: int, *, capped: bool = True) -> tuple[int, ...]:
        """V2: the quota of each stage: the budget, less where ``max_tokens`` or the rank with fewest tokens needs less."""
        one, cap = self.settings, self.settings.most_tokens if capped else None
        found = [budget for _ in self.stages]
        if cap is not None:
            found = [smaller(budget, ceiled(self._cost(stage, cap) / _RESUMED)) for stage in self.stages]
        if one.ranks > 1:
            each = [self._tokens_for(stage, floored(quota * _RESUMED)) for stage, quota in zip(self.stages, found, strict=True)]
            fewest = -largest(-tokens for tokens in each)
            ends = fewest < math.inf
            if some(ends):
                tokens = picked(ends, fewest, 0.0)
                needs = [ceiled(self._cost(stage, tokens) / _RESUMED) for stage in self.stages]
                found = [either(ends, smaller(*pair), pair[0]) for pair in zip(found, needs, strict=True)]
        return tuple(found)

    def pool_blocks(self, budget: int) -> dict[int | None, int]:
        """V1: the blocks of each pool."""
        size, cap = self.settings.block, self.settings.most_tokens
        if self.several:
            share = 1.0 / len(self.windows)
            return {window: min(self._shared(stage, window, budget, share) for stage in self.stages) for window in self.windows}
        (window,) = self.windows
        rows = [row for row in (self.rows(stage, window) for stage in self.stages) if row]
        tokens = min((budget // row for row in rows), default=FOREVER)
        return {window: (tokens if cap is None else min(tokens, cap)) // size}

    def _shared(self, stage: Stage, window: int | None, budget: int, share: float) -> int:
        """V1 counts in floating point. Its figure for NVFP4 leaves out the scales, as the manager does."""
        row = self.rows(stage, window)
        if self.settings.kv_dtype == "nvfp4":
            row = row * 8 // 9
        return int(budget * share / row // self.settings.block) if row else FOREVER

    def needed(self, stage: Stage, blocks: Mapping[int | None, int]) -> int:
        """V1: the budget that holds so many blocks in each pool."""
        size = self.settings.block
        each = [blocks[window] * size * self.rows(stage, window) for window in self.windows]
        if self.settings.kv_dtype == "nvfp4" and self.several:
            each = [ceil_div(bytes_ * 8, 9) for bytes_ in each]
        most: int = largest(each) if each else 0
        return len(each) * most

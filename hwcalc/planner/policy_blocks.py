"""What a policy gives back of the blocks of one sequence: :func:`policy_blocks`."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.evicting import Evicted
from hwcalc.engines.policies import PagedGroup
from hwcalc.engines.steps import Step, step
from hwcalc.formulas.frozen import frozen
from hwcalc.model import Definition
from hwcalc.planner.policy_result import PolicyBlocks
from hwcalc.policies.base import Choice, Chosen
from hwcalc.policies.blocks import (
    Ranges,
    blocks_of,
    expected_copies,
    expected_free_of,
    expected_rewritten,
    free_of_ranges,
    free_range_of,
    moves_of_ranges,
    rewritten_of_ranges,
)

__all__ = ["policy_blocks"]

_DIGITS: Final = 3


@frozen
class _Cut:
    """The largest cut of one group: tokens before it, and behind it in each layer."""

    group: PagedGroup
    before: int
    kept: tuple[int, ...]
    choosers: dict[int, int]
    ranges: Ranges | None
    growing: bool
    chunk: int

    @property
    def most_kept(self) -> int:
        return max(self.kept)

    @property
    def held(self) -> int:
        return blocks_of(self.before, self.group.block_size)

    @property
    def nominal(self) -> int:
        return sum(self.before - kept for kept in self.kept) // (len(self.kept) * self.group.block_size)

    @property
    def compacted(self) -> int:
        return self.held - blocks_of(self.most_kept, self.group.block_size) if self.group.whole else 0

    def free(self) -> tuple[float, int, int]:
        """Blocks that are free without compaction: as expected, at the least and at the most."""
        if not self.group.whole:
            return 0, 0, 0
        block = self.group.block_size
        if self.ranges is not None:
            exact = free_of_ranges(self.before, self.ranges, block, growing=self.growing)
            return exact, exact, exact
        ends = free_range_of(self.before, self.choosers, block, growing=self.growing)
        return expected_free_of(self.before, self.choosers, block, chunk=self.chunk, growing=self.growing), ends.low, ends.high

    def copies(self, *, fill: bool) -> int:
        """Slots that a compaction copies in the layer that keeps most."""
        if self.ranges is not None:
            return moves_of_ranges(self.ranges, fill=fill)
        return round(expected_copies(self.before, self.most_kept, fill=fill))

    @property
    def rewritten(self) -> int:
        if self.ranges is not None:
            return rewritten_of_ranges(self.before, self.ranges)
        return round(expected_rewritten(self.before, self.most_kept))

    @property
    def slot_bytes(self) -> int:
        return self.group.page_bytes // self.group.block_size


def policy_blocks(opened: Opened, evicted: Evicted) -> PolicyBlocks | None:
    """Blocks at the largest cut; ``None`` if the cache has no blocks, or nothing is dropped."""
    asked, groups = opened.request.policy, opened.engine.paged_groups(opened)
    if asked is None or not groups:
        return None
    cuts = [_largest_cut(opened, evicted, asked.chosen, group) for group in groups]
    if all(cut.most_kept >= cut.before for cut in cuts):
        return None
    frees = [cut.free() for cut in cuts]
    exact = all(cut.ranges is not None or not cut.group.whole for cut in cuts)
    free = sum(one for one, _, _ in frees)
    steady = sum(group.steady for group in groups)
    # What others need too lies ahead of all that the policy sees.
    held = sum(cut.held + blocks_of(evicted.ahead, cut.group.block_size) for cut in cuts)
    return PolicyBlocks(
        block_size=groups[0].block_size,
        before=evicted.ahead + max(cut.before for cut in cuts),
        held=held,
        nominal=sum(cut.nominal for cut in cuts),
        choosers=max(sum(cut.choosers.values()) for cut in cuts),
        free=int(free) if exact else round(free, _DIGITS),
        free_low=sum(low for _, low, _ in frees),
        free_high=sum(high for _, _, high in frees),
        free_compacted=sum(cut.compacted for cut in cuts),
        repack_copies=sum(cut.copies(fill=False) for cut in cuts),
        fill_copies=sum(cut.copies(fill=True) for cut in cuts),
        rewritten_slots=sum(cut.rewritten for cut in cuts),
        repack_bytes=sum(cut.copies(fill=False) * cut.slot_bytes for cut in cuts),
        fill_bytes=sum(cut.copies(fill=True) * cut.slot_bytes for cut in cuts),
        steady=steady,
        most=max(held, steady),
        definition=Definition.EXACT if exact else Definition.ESTIMATE,
        steps=tuple(one for cut, (free, low, high) in zip(cuts, frees, strict=True) for one in _steps(cut, free, low, high)),
    )


def _largest_cut(opened: Opened, evicted: Evicted, chosen: Chosen, group: PagedGroup) -> _Cut:
    """The cut of the prompt, or the largest one while text is generated."""
    prompt, behind = evicted.prompt, evicted.behind_prompt
    before, kept, ranges = prompt, tuple(behind[layer] for layer in group.layers), evicted.state.ranges
    if group.prompt_tokens is not None:
        before = min(before, group.prompt_tokens)
    steps = [evicted.ends[layer].largest for layer in group.layers]
    largest = [one for one in steps if one is not None]
    if before <= max(kept) and len(largest) == len(steps):
        before, kept, ranges = max(one[0] for one in largest), tuple(one[1] for one in largest), None
    heads = evicted.kv_heads
    counts: Counter[int] = Counter()
    for layer, count in zip(group.layers, kept, strict=True):
        if chosen.chooses is Choice.HEADS_TOGETHER:
            counts[count] = heads[layer]
        else:
            counts[count] += 1 if chosen.chooses is Choice.EACH_LAYER else heads[layer]
    return _Cut(
        group=group,
        before=before,
        kept=kept,
        choosers=dict(counts),
        ranges=ranges,
        growing=opened.tokens > prompt,
        chunk=1 if chosen.policy.chunk_option is None else chosen[chosen.policy.chunk_option],
    )


def _steps(cut: _Cut, free: float, low: int, high: int) -> tuple[Step, ...]:
    """How each number of a group comes about."""
    block, terms = cut.group.block_size, {"tokens": cut.before, "block_size": cut.group.block_size}
    held = step("held", "ceil(tokens / block_size)", cut.held, unit="blocks", **terms)
    dropped = sum(cut.before - kept for kept in cut.kept)
    nominal = step(
        "nominal",
        "floor(dropped / (layers x block_size))",
        cut.nominal,
        unit="blocks",
        dropped=dropped,
        layers=len(cut.kept),
        block_size=block,
    )
    compacted = step(
        "free_compacted",
        "held - ceil(kept / block_size)",
        cut.compacted,
        unit="blocks",
        held=cut.held,
        kept=cut.most_kept if cut.group.whole else cut.before,
        block_size=block,
    )
    if cut.ranges is not None or len(cut.choosers) != 1 or cut.chunk != 1 or not cut.group.whole:
        return held, nominal, compacted
    chance = free / max(1, cut.before // block)
    random = step(
        "free",
        "tokens / block_size x chance",
        (low, free, high),
        unit="blocks",
        **terms,
        chance=(low / max(1, cut.before // block), chance, high / max(1, cut.before // block)),
    )
    return held, nominal, random, compacted

"""What a policy gives back of the blocks of one sequence: :func:`policy_blocks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.evicting import Evicted
from hwcalc.engines.policies import PagedGroup
from hwcalc.engines.steps import Step, step
from hwcalc.formulas.record import Record
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

_DIGITS: Final = 3


class _Cut(Record):
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


def policy_blocks(opened: Occupancy, evicted: Evicted) -> PolicyBlocks | None:
    """Blocks at the largest cut; ``None`` if the cache has no blocks, or nothing is dropped."""
    asked, groups = opened.request.policy, opened.paged_groups()
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
        steps=tuple(
            one for cut, (free, low, high) in zip(cuts, frees, strict=True) for one in _steps(cut, evicted.ahead, free, low, high)
        ),
    )


def _largest_cut(opened: Occupancy, evicted: Evicted, chosen: Chosen, group: PagedGroup) -> _Cut:
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


def _steps(cut: _Cut, ahead: int, free: float, low: int, high: int) -> tuple[Step, ...]:
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
    later = (compacted, *_copied(cut), *_later(cut, ahead))
    if cut.ranges is not None and len(cut.ranges) == 2 and cut.ranges[0][0] == 0 and cut.ranges[1][1] == cut.before:
        (_, sinks), (window, _) = cut.ranges
        if free == max(0, window // block - blocks_of(sinks, block)):
            formula = "max(0, floor(window_start / block_size) - ceil(sinks / block_size))"
            exact = step("free", formula, int(free), unit="blocks", window_start=window, sinks=sinks, block_size=block)
            return held, nominal, exact, *later
    if cut.ranges is not None or not cut.group.whole:
        return held, nominal, *later
    random = _random(cut, free, low, high)
    return held, nominal, random, *later


def _random(cut: _Cut, free: float, low: int, high: int) -> Step:
    """Free blocks on average: full ones are all alike, and a last one that is not full goes more easily, if nothing follows it."""
    block, full = cut.group.block_size, cut.before // cut.group.block_size
    name = "chance" if len(cut.choosers) == 1 and cut.chunk == 1 else "average_chance"
    formula, of_last = f"floor(tokens / block_size) x {name}", bool(cut.before % block) and not cut.growing
    ends = [min(low, full), free, min(high, full)]
    last: dict[str, tuple[float, float, float]] = {}
    if of_last:
        ends[1] = expected_free_of(cut.before, cut.choosers, block, chunk=cut.chunk, growing=True)
        formula += " + last_chance"
        last["last_chance"] = (low - ends[0], max(0.0, free - ends[1]), high - ends[2])
    small, each, large = (one / max(1, full) for one in ends)
    return step(
        "free",
        formula,
        (low, free, high),
        unit="blocks",
        tokens=cut.before,
        block_size=block,
        **{name: (small, each, large)},
        **last,
    )


def _copied(cut: _Cut) -> Iterator[Step]:
    """What compaction moves in the layer that keeps most: on average where survivors lie at random, else those that must move."""
    sizes = {"tokens": cut.before, "kept": cut.most_kept}
    counts = (
        ("repack_copies", "repack_bytes", "kept - kept / (tokens - kept + 1)", cut.copies(fill=False)),
        ("rewritten_slots", "", "tokens - kept / (tokens - kept + 1) - (tokens - kept) / (kept + 1)", cut.rewritten),
        ("fill_copies", "fill_bytes", "kept x (tokens - kept) / tokens", cut.copies(fill=True)),
    )
    for name, size, formula, count in counts:
        if cut.ranges is None:
            dropped = cut.most_kept < cut.before
            yield step(name, f"round({formula})" if dropped else "max(0, tokens - kept)", count, unit="slots", **sizes)
        else:
            whole = "tokens" if name == "rewritten_slots" else "kept"
            yield step(
                name, f"{whole} - in_place", count, unit="slots", **{whole: sizes[whole], "in_place": sizes[whole] - count}
            )
        if size:
            yield step(
                size,
                "slots_copied x bytes_of_slot",
                count * cut.slot_bytes,
                unit="bytes",
                slots_copied=count,
                bytes_of_slot=cut.slot_bytes,
            )


def _later(cut: _Cut, ahead: int) -> Iterator[Step]:
    """Blocks behind the prompt, and at any time; those of a prefix that others need too are counted in both."""
    yield replace(cut.group.counted, name="steady")
    shared = blocks_of(ahead, cut.group.block_size)
    most, sizes = max(cut.held + shared, cut.group.steady), {"held": cut.held, "steady": cut.group.steady}
    if shared:
        yield step("most", "max(held + shared_blocks, steady)", most, unit="blocks", **sizes, shared_blocks=shared)
    else:
        yield step("most", "max(held, steady)", most, unit="blocks", **sizes)

"""The blocks of a paged cache under a policy, counted on a device and set beside the plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import sqrt
from time import monotonic
from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.evicting import Evicted
from hwcalc.formulas.record import Record
from hwcalc.planner.result import PolicyBlocks
from hwcalc.policies.base import COMPACTIONS, FILL, NO_COMPACTION, REPACK
from hwcalc.probe.devices import Device
from hwcalc.probe.policy_cut import Lengths, lengths_of
from hwcalc.probe.policy_pages import Layer, Paging, Ranges, free_blocks, places_of
from hwcalc.probe.policy_result import BLOCKS, SLOTS, PolicyFigure

if TYPE_CHECKING:
    from hwcalc.engines.policies import PagedGroup

__all__ = ["Pages", "pages_for_real", "planned_blocks"]

_MOST_STEPS: Final = 4096
"""Decode steps that are followed."""
_MOST_DRAWS: Final = 32
_DRAWN: Final = 2**26
"""Random numbers that are drawn in all to count free blocks."""
_DEVIATIONS: Final = 5
"""A mean of random choices may be so many of its standard deviations off."""


HELD, COMPACTED = "blocks before the cut", "free after compaction"
MOST, STEADY = "blocks at the most", "blocks at the most, behind the prompt"


def planned_blocks(planned: PolicyBlocks) -> dict[str, float]:
    """What the plan says of the figures that must be met exactly, by their names."""
    return {HELD: planned.held, COMPACTED: planned.free_compacted, MOST: planned.most, STEADY: planned.steady}


class Pages(Record):
    """What was counted: ``heads`` of ``all_heads`` of a layer in each group were really moved, in ``steps`` of the decode steps."""

    figures: tuple[PolicyFigure, ...]
    copied: int
    in_place: bool
    heads: int
    all_heads: int
    steps: int


class _Group(Record):
    """The largest cut of a group, as the policy says it: tokens before it, and what stays in each layer.

    ``loaded`` tokens of the prompt are in the cache before the first cut, and ``first`` behind it.
    """

    block: int
    loaded: int
    first: int
    before: int
    kept: Mapping[int, int]
    heads: Mapping[int, int]
    slot_bytes: int
    whole: bool
    ranges: Ranges | None
    lengths: Lengths

    @property
    def layer(self) -> int:
        """The layer that keeps most: its tokens say how many blocks stay."""
        return max(self.kept, key=lambda number: self.kept[number])

    @property
    def stay(self) -> int:
        """The tokens that it keeps."""
        return self.kept[self.layer]

    def choosers(self, planned: int) -> list[tuple[int, int]]:
        """How many heads choose on their own, and how many tokens; ``planned`` is their number in all."""
        if planned == len(self.kept):
            return [(stay, 1) for stay in self.kept.values()]
        if planned == self.heads[self.layer]:
            return [(self.stay, planned)]
        return [(stay, self.heads[number]) for number, stay in self.kept.items()]


def pages_for_real(
    opened: Occupancy,
    evicted: Evicted,
    planned: PolicyBlocks,
    device: Device,
    *,
    usable_bytes: int,
    share: Fraction,
    seed: int,
    until: float,
) -> Pages:
    """Count and move the blocks of each group of one sequence."""
    asked = opened.request.policy
    assert asked is not None
    steps = min(opened.tokens - opened.request.prompt_tokens, _MOST_STEPS)
    groups = [_group(opened, evicted, group, steps) for group in opened.paged_groups()]
    growing = opened.tokens > opened.request.prompt_tokens
    told = planned_blocks(planned)
    figures = [
        PolicyFigure.exact(HELD, BLOCKS, told[HELD], sum(-(-one.before // one.block) for one in groups)),
        _free(groups, planned, device, growing=growing, seed=seed),
    ]
    moved = [_moved(group, device, usable_bytes, share, seed) for group in groups]
    figures.append(PolicyFigure.exact(COMPACTED, BLOCKS, told[COMPACTED], sum(one.freed for one in moved)))
    for how, slots in ((REPACK, planned.repack_copies), (FILL, planned.fill_copies)):
        figures.append(_copies(how, slots, groups, [one.copies[how] for one in moved]))
    in_place, followed = all(one.in_place for one in moved), steps
    if asked.compaction != NO_COMPACTION:
        walks = [_walked(group, device, asked.compaction, seed, until) for group in groups]
        followed = min(walk.steps for walk in walks)
        in_place = in_place and all(walk.in_place for walk in walks)
        most, steady = sum(walk.most for walk in walks), sum(walk.steady for walk in walks)
        judged = PolicyFigure.exact if followed == opened.tokens - opened.request.prompt_tokens else PolicyFigure.known
        figures.append(judged(MOST, BLOCKS, told[MOST], most))
        figures.append(judged(STEADY, BLOCKS, told[STEADY], steady))
    return Pages(
        figures=tuple(figures),
        copied=sum(sum(one.copies[asked.compaction]) for one in moved if asked.compaction in one.copies),
        in_place=in_place,
        heads=sum(one.heads for one in moved),
        all_heads=sum(group.heads[group.layer] for group in groups),
        steps=followed,
    )


def _group(opened: Occupancy, evicted: Evicted, group: PagedGroup, steps: int) -> _Group:
    """The cut of the prompt; where the prompt is not cut, the largest one that follows."""
    asked, prompt = opened.request.policy, opened.request.prompt_tokens
    assert asked is not None
    stored = {shape.index: left.stored.high for shape, left in zip(evicted.setting.layers, evicted.state.layers, strict=True)}
    kept = {number: stored[number] for number in group.layers}
    lengths = lengths_of(asked.chosen, evicted.setting, kept, prompt, steps)
    first = max(kept.values())
    loaded = before = prompt if group.prompt_tokens is None else min(prompt, group.prompt_tokens)
    ranges = evicted.state.ranges
    if before <= first:
        largest = max(lengths, key=lambda one: max(one[0].values()) - max(one[1].values()), default=None)
        if largest is not None and max(largest[1].values()) < max(largest[0].values()):
            before, kept, ranges = max(largest[0].values()), largest[1], None
    return _Group(
        block=group.block_size,
        loaded=max(loaded, first),
        first=first,
        before=before,
        kept=kept,
        heads={shape.index: shape.kv_heads for shape in evicted.setting.layers if shape.index in kept},
        slot_bytes=group.page_bytes // group.block_size // len(kept),
        whole=group.whole,
        ranges=ranges,
        lengths=lengths,
    )


def _free(groups: Sequence[_Group], planned: PolicyBlocks, device: Device, *, growing: bool, seed: int) -> PolicyFigure:
    """Blocks that are free without compaction: the mean of as many draws as are affordable."""
    random = sum(group.before * sum(heads for _, heads in group.choosers(planned.choosers)) for group in groups)
    draws = 1 if planned.free_low == planned.free_high else max(1, min(_MOST_DRAWS, _DRAWN // max(1, random)))
    counts = [
        sum(
            free_blocks(
                device,
                group.before,
                group.block,
                group.choosers(planned.choosers),
                growing=growing,
                seed=seed + draw,
                ranges=group.ranges,
            )
            for group in groups
            if group.whole
        )
        for draw in range(draws)
    ]
    mean = sum(counts) / draws
    spread = 0.0
    if planned.free_low != planned.free_high:
        spread = _DEVIATIONS * sqrt(max(planned.free, sum((count - mean) ** 2 for count in counts) / draws) / draws)
    return PolicyFigure(
        name="free without compaction",
        unit=BLOCKS,
        predicted=planned.free,
        measured=mean,
        least=max(planned.free_low, planned.free - spread),
        most=min(planned.free_high, planned.free + spread),
        remark=f"mean of {draws:,} choices by {planned.choosers:,} heads" if spread else "",
    )


class _Moved(Record):
    heads: int
    freed: int
    copies: Mapping[str, tuple[int, ...]]
    in_place: bool


def _moved(group: _Group, device: Device, usable: int, share: Fraction, seed: int) -> _Moved:
    """One layer in blocks, compacted in each way; of as many heads as fit."""
    torch = device.torch
    width = max(1, group.slot_bytes // group.heads[group.layer])
    heads = max(1, min(int(group.heads[group.layer] * share), usable // (2 * width * group.before)))
    places = places_of(torch, heads, group.before, group.stay, seed, group.ranges)
    copies, in_place, freed = {}, True, 0
    for how in COMPACTIONS:
        if how == NO_COMPACTION:
            continue
        paging = Paging(device, Layer(heads=heads, width=width), group.block, group.before, seed=seed)
        paging.write(0, group.before)
        cut = paging.cut(places, how)
        copies[how], freed = cut.copies, cut.freed
        in_place = in_place and paging.in_place()
        del paging
        device.release()
    return _Moved(heads=heads, freed=freed if group.whole else 0, copies=copies, in_place=in_place)


def _copies(how: str, planned: int, groups: Sequence[_Group], copies: Sequence[tuple[int, ...]]) -> PolicyFigure:
    """Slots that a compaction copies of a head: the mean of the heads."""
    measured = sum(sum(one) / len(one) for one in copies)
    spread = sum(_deviation(how, group) / sqrt(len(one)) for group, one in zip(groups, copies, strict=True))
    spread = _DEVIATIONS * spread + 1 if spread else 0
    return PolicyFigure(
        name=f"copies of a {how}",
        unit=SLOTS,
        predicted=planned,
        measured=measured,
        least=planned - spread,
        most=planned + spread,
        remark=f"of a head: mean of {sum(map(len, copies)):,} that chose" if spread else "of a head",
    )


def _deviation(how: str, group: _Group) -> float:
    """The standard deviation of the copies of one head, if survivors lie at random.

    Filling copies those behind the new end, which is a hypergeometric number; a repack leaves those before the first that goes alone.
    """
    n, k = group.before, group.stay
    if group.ranges is not None or k >= n or n < 2:
        return 0.0
    if how == FILL:
        return sqrt(k * (k / n) * (1 - k / n) * (n - k) / (n - 1))
    alone = k / (n - k + 1)
    return sqrt(alone * (alone + 1))


class _Walk(Record):
    most: int
    steady: int
    steps: int
    in_place: bool


def _walked(group: _Group, device: Device, how: str, seed: int, until: float) -> _Walk:
    """One head through prefill and decode steps: blocks are taken as it grows and given back at each cut."""
    torch, width = device.torch, max(1, group.slot_bytes // group.heads[group.layer])
    longest = max([group.loaded, *(max(grown.values()) for grown, _ in group.lengths)])
    paging = Paging(device, Layer(heads=1, width=width), group.block, longest, seed=seed)
    paging.write(0, group.loaded)
    if group.first < group.loaded:
        paging.cut(places_of(torch, 1, group.loaded, group.first, seed), how)
    steady, steps = len(paging.table), 0
    for steps, (grown, after) in enumerate(group.lengths, start=1):
        paging.write(group.loaded + steps - 1, 1)
        steady = max(steady, len(paging.table))
        if max(after.values()) < max(grown.values()):
            paging.cut(places_of(torch, 1, paging.length, max(after.values()), seed + steps), how)
        if monotonic() > until:
            break
    return _Walk(most=paging.most, steady=steady, steps=steps, in_place=paging.in_place())

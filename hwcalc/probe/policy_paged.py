"""A policy at work on a paged cache: a pool of blocks, a block table, and survivors that are moved from slot to slot.

The blocks are counted on a device and set beside the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import sqrt
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.policies import Evicted
from hwcalc.formulas.record import Record
from hwcalc.planner.result import PolicyBlocks
from hwcalc.policies.base import COMPACTIONS, FILL, NO_COMPACTION, REPACK
from hwcalc.probe.devices import Device
from hwcalc.probe.policy_cut import PRIME, SEED, Lengths, Ran, Ranges, lengths_of, places_of
from hwcalc.probe.result import BLOCKS, SLOTS, PolicyFigure

if TYPE_CHECKING:
    from hwcalc.engines.stored import PagedGroup

_PATTERNS: Final = 251
_HEAD_STEP: Final = 31
"""Marks of a token in neighbouring heads are so far apart."""
_SPARE_BLOCKS: Final = 5
_AT_ONCE: Final = 2**24
"""Random numbers that are drawn at once."""


class Layer(Record):
    """One layer of a paged cache: heads that choose each for itself, and the bytes of a head in a slot."""

    heads: int
    width: int


class Cut(Record):
    """What a compaction did: slots copied of each head, and blocks given back."""

    copies: tuple[int, ...]
    freed: int


class Paging:
    """One layer in a pool of blocks that lie in no order, with its block table and the marks that its slots should hold."""

    def __init__(self, device: Device, layer: Layer, block: int, most_tokens: int, *, seed: int) -> None:
        torch = device.torch
        self.torch, self.device, self.layer, self.block, self.seed = torch, device, layer, block, seed
        blocks = -(-most_tokens // block) + _SPARE_BLOCKS
        self.pool = torch.zeros((blocks * block, layer.heads, layer.width), dtype=torch.uint8, device=device.label)
        self.free: list[int] = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).tolist()
        self.table: list[int] = []
        self.length = self.most = 0
        self.lost = False
        self.marks = torch.zeros((layer.heads, 0), dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """The bytes of the pool."""
        return int(self.pool.untyped_storage().nbytes())

    def slots(self, places: Any) -> Any:
        """The slots of the pool in which tokens ``places`` lie."""
        table = self.torch.tensor(self.table, device=self.device.label)
        places = places.to(self.device.label)
        return table[places // self.block] * self.block + places % self.block

    def write(self, first: int, count: int) -> None:
        """Append ``count`` tokens, the first of which is number ``first`` of the text; blocks are taken as they are needed."""
        torch = self.torch
        while len(self.table) * self.block < self.length + count:
            self.table.append(self.free.pop())
        self.most = max(self.most, len(self.table))
        heads = torch.arange(self.layer.heads).unsqueeze(1) * _HEAD_STEP
        marks = ((torch.arange(first, first + count) + heads) % _PATTERNS).to(torch.uint8)
        slots = self.slots(torch.arange(self.length, self.length + count))
        self.pool[slots] = marks.T.to(self.device.label).unsqueeze(-1).expand(-1, -1, self.layer.width)
        self.marks = torch.cat([self.marks, marks], dim=1)
        self.length += count

    def cut(self, places: Any, how: str) -> Cut:
        """Keep only these places of each head; ``how`` says how they come to lie together. Blocks behind the last one go."""
        torch, stay = self.torch, places.shape[1]
        copies, order = [], places.clone()
        for head in range(self.layer.heads):
            source, target = _moves(torch, places[head], stay, how)
            held = self.pool[self.slots(source), head]
            self.pool[self.slots(target), head] = held
            copies.append(len(source))
            if how == FILL:
                layout = torch.arange(stay)
                layout[target] = source
                self.lost = self.lost or not bool((layout.sort().values == places[head]).all())
                order[head] = layout
        self.marks = self.marks.gather(1, order)
        self.length = stay
        kept = -(-stay // self.block)
        gone, self.table = self.table[kept:], self.table[:kept]
        self.free.extend(reversed(gone))
        for block in gone:
            # Whoever gets the block next writes over it.
            self.pool[block * self.block : (block + 1) * self.block] = _PATTERNS
        return Cut(copies=tuple(copies), freed=len(gone))

    def in_place(self) -> bool:
        """True if the table leads to every survivor, with all its bytes: in the order of the text, or as holes were filled."""
        held = self.pool[self.slots(self.torch.arange(self.length))].permute(1, 0, 2).cpu()
        whole = bool((held == held[..., :1]).all())
        return whole and not self.lost and bool((held[..., 0] == self.marks).all())


def _moves(torch: Any, places: Any, stay: int, how: str) -> tuple[Any, Any]:
    """From where to where survivors of a head move."""
    if how == REPACK:
        targets = torch.arange(stay)
        moved = places != targets
        return places[moved], targets[moved]
    assert how == FILL
    taken = torch.zeros(stay, dtype=torch.bool)
    taken[places[places < stay]] = True
    return places[places >= stay], (~taken).nonzero().squeeze(1)


def free_blocks(
    device: Device,
    tokens: int,
    block: int,
    choosers: Sequence[tuple[int, int]],
    *,
    growing: bool,
    seed: int,
    ranges: Ranges | None = None,
) -> int:
    """Blocks without a survivor, if ``heads`` heads keep ``stay`` tokens each, for each pair of ``choosers``: at random, or ``ranges``.

    A last block that is not full stays where the sequence grows.
    """
    torch = device.torch
    blocks = -(-tokens // block)
    table = torch.randperm(blocks + _SPARE_BLOCKS, generator=torch.Generator().manual_seed(seed))[:blocks].to(device.label)
    alive = torch.zeros((blocks + _SPARE_BLOCKS) * block, dtype=torch.bool, device=device.label)
    for places in _drawn(torch, tokens, choosers, seed, ranges):
        here = places.to(device.label).view(-1)
        alive[table[here // block] * block + here % block] = True
        if bool(alive.view(-1, block).any(dim=1)[table].all()):
            break
    dead = ~alive.view(-1, block).any(dim=1)[table]
    if growing and tokens % block:
        dead[-1] = False
    return int(dead.sum())


def _drawn(torch: Any, tokens: int, choosers: Sequence[tuple[int, int]], seed: int, ranges: Ranges | None) -> Iterator[Any]:
    """The survivors of some heads at a time."""
    if ranges is not None:
        yield places_of(torch, 1, tokens, 0, seed, ranges)
        return
    number = 0
    for stay, heads in choosers:
        some = max(1, _AT_ONCE // tokens)
        for start in range(0, heads, some):
            number += 1
            yield places_of(torch, min(some, heads - start), tokens, stay, seed * PRIME + number)


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
    """The planned figures that must be met exactly, by their names."""
    return {HELD: planned.held, COMPACTED: planned.free_compacted, MOST: planned.most, STEADY: planned.steady}


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
        """Pairs of kept tokens and the heads that choose so many on their own; ``planned`` is the number of heads in all."""
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
    until: float,
) -> Ran:
    """Count and move the blocks of each group of one sequence: of a layer in each group, with as many heads as fit."""
    asked, output = opened.setup.policy, opened.tokens - opened.load.prompt_tokens
    assert asked is not None
    steps = min(output, _MOST_STEPS)
    groups = [_group(opened, evicted, group, steps) for group in opened.policies.paged_groups()]
    growing = output > 0
    told = planned_blocks(planned)
    figures = [
        PolicyFigure.exact(HELD, BLOCKS, told[HELD], sum(-(-one.before // one.block) for one in groups)),
        _free(groups, planned, device, growing=growing),
    ]
    moved = [_moved(group, device, usable_bytes, share) for group in groups]
    figures.append(PolicyFigure.exact(COMPACTED, BLOCKS, told[COMPACTED], sum(one.freed for one in moved)))
    for how, slots in ((REPACK, planned.repack_copies), (FILL, planned.fill_copies)):
        figures.append(_copies(how, slots, groups, [one.copies[how] for one in moved]))
    in_place, followed = all(one.in_place for one in moved), steps
    if asked.compaction != NO_COMPACTION:
        walks = [_walked(group, device, asked.compaction, until) for group in groups]
        most, steady, taken, right = zip(*walks, strict=True)
        followed = min(taken)
        in_place = in_place and all(right)
        judged = PolicyFigure.exact if followed == output else PolicyFigure.known
        figures.append(judged(MOST, BLOCKS, told[MOST], sum(most)))
        figures.append(judged(STEADY, BLOCKS, told[STEADY], sum(steady)))
    heads, all_heads = sum(one.heads for one in moved), sum(group.heads[group.layer] for group in groups)
    return Ran(
        figures=tuple(figures),
        copied=sum(sum(one.copies[asked.compaction]) for one in moved if asked.compaction in one.copies),
        in_place=in_place,
        steps=followed,
        parts=((1, opened.batch, "sequences"), (heads, all_heads, "heads"), (followed, output, "decode steps")),
    )


def _group(opened: Occupancy, evicted: Evicted, group: PagedGroup, steps: int) -> _Group:
    """The cut of the prompt; where the prompt is not cut, the largest one that follows."""
    asked, prompt = opened.setup.policy, opened.load.prompt_tokens
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


def _free(groups: Sequence[_Group], planned: PolicyBlocks, device: Device, *, growing: bool) -> PolicyFigure:
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
                seed=SEED + draw,
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


def _moved(group: _Group, device: Device, usable: int, share: Fraction) -> _Moved:
    """One layer in blocks, compacted in each way; of as many heads as fit."""
    torch = device.torch
    width = max(1, group.slot_bytes // group.heads[group.layer])
    heads = max(1, min(int(group.heads[group.layer] * share), usable // (2 * width * group.before)))
    places = places_of(torch, heads, group.before, group.stay, SEED, group.ranges)
    copies, in_place, freed = {}, True, 0
    for how in COMPACTIONS:
        if how == NO_COMPACTION:
            continue
        paging = Paging(device, Layer(heads=heads, width=width), group.block, group.before, seed=SEED)
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


def _walked(group: _Group, device: Device, how: str, until: float) -> tuple[int, int, int, bool]:
    """One head through prefill and decode steps: blocks are taken as it grows and given back at each cut.

    Returns the most blocks, the most behind the prompt, the steps that were taken, and whether every survivor is in its place.
    """
    torch, width = device.torch, max(1, group.slot_bytes // group.heads[group.layer])
    longest = max([group.loaded, *(max(grown.values()) for grown, _ in group.lengths)])
    paging = Paging(device, Layer(heads=1, width=width), group.block, longest, seed=SEED)
    paging.write(0, group.loaded)
    if group.first < group.loaded:
        paging.cut(places_of(torch, 1, group.loaded, group.first, SEED), how)
    steady, steps = len(paging.table), 0
    for steps, (grown, after) in enumerate(group.lengths, start=1):
        paging.write(group.loaded + steps - 1, 1)
        steady = max(steady, len(paging.table))
        if max(after.values()) < max(grown.values()):
            paging.cut(places_of(torch, 1, paging.length, max(after.values()), SEED + steps), how)
        if monotonic() > until:
            break
    return paging.most, steady, steps, paging.in_place()

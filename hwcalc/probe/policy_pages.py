"""A policy at work on a paged cache: a pool of blocks, a block table, and survivors that are moved from slot to slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.policies.base import FILL, REPACK
from hwcalc.probe.devices import Device

__all__ = ["Cut", "Layer", "Paging", "free_blocks", "places_of"]

_PATTERNS: Final = 251
_HEAD_STEP: Final = 31
"""Marks of a token in neighbouring heads are so far apart."""
_SPARE_BLOCKS: Final = 5
_PRIME: Final = 1_000_003
_AT_ONCE: Final = 2**24
"""Random numbers that are drawn at once."""

Ranges = Sequence[tuple[int, int]]
"""Positions from start to end."""


class Layer(Record):
    """One layer of a paged cache: heads that choose each for itself, and the bytes of a head in a slot."""

    heads: int
    width: int


class Cut(Record):
    """What a compaction did: slots copied of each head, and blocks given back."""

    copies: tuple[int, ...]
    freed: int


def places_of(torch: Any, heads: int, of: int, stay: int, seed: int, ranges: Ranges | None = None) -> Any:
    """The places that stay of each head, in their order: by the rule where it says which, else at random."""
    if ranges is not None:
        return torch.cat([torch.arange(start, end) for start, end in ranges]).expand(heads, -1)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((heads, of), generator=generator).topk(stay, dim=1).indices.sort(dim=1).values


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
        """Where tokens lie, by the block table."""
        table = self.torch.tensor(self.table, device=self.device.label)
        places = places.to(self.device.label)
        return table[places // self.block] * self.block + places % self.block

    def write(self, first: int, count: int) -> None:
        """``count`` tokens more, the first of which is number ``first`` of the text; blocks are taken as they are needed."""
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
        """Only these places of each head stay; ``how`` says how they come to lie together. Blocks behind the last one go."""
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
        """Whether the table leads to every survivor, with all its bytes: in the order of the text, or as holes were filled."""
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
            yield places_of(torch, min(some, heads - start), tokens, stay, seed * _PRIME + number)

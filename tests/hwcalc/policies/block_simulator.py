"""A pool of blocks with reference counts, written without the arithmetic of the package: slots hold tokens, and are moved one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

Grid = list[list[set[int]]]
"""Positions that stay, by layer and head."""


@dataclass
class Pool:
    """Blocks by number, with those who hold them."""

    size: int
    holders: dict[int, int] = field(default_factory=dict)
    made: int = 0

    def take(self) -> int:
        """A new block with one holder."""
        self.made += 1
        self.holders[self.made] = 1
        return self.made

    def drop(self, block: int) -> bool:
        """One holder less; whether the block is free then."""
        self.holders[block] -= 1
        if self.holders[block]:
            return False
        del self.holders[block]
        return True


@dataclass
class Sequence:
    """The block table of one sequence, and how many tokens are in it."""

    pool: Pool
    table: list[int] = field(default_factory=list)
    tokens: int = 0

    def append(self, count: int) -> None:
        """Write so many tokens."""
        for _ in range(count):
            if self.tokens == len(self.table) * self.pool.size:
                self.table.append(self.pool.take())
            self.tokens += 1

    def fork(self, blocks: int) -> Sequence:
        """Another sequence with the same first blocks."""
        for block in self.table[:blocks]:
            self.pool.holders[block] += 1
        return Sequence(self.pool, self.table[:blocks], min(self.tokens, blocks * self.pool.size))

    def shared(self) -> list[int]:
        """Numbers in the table of blocks that others hold too."""
        return [place for place, block in enumerate(self.table) if self.pool.holders[block] > 1]

    def evict(self, stay: Grid) -> int:
        """Give back each block of which no head of any layer needs a slot. Blocks that are freed by it are counted."""
        freed, living = 0, {slot for layer in stay for head in layer for slot in head}
        for place, block in enumerate(self.table):
            slots = range(place * self.pool.size, min(self.tokens, (place + 1) * self.pool.size))
            needed = any(slot in living for slot in slots)
            freed += not needed and self.pool.drop(block)
        return freed


def compact(sequence: Sequence, stay: set[int], *, in_order: bool) -> tuple[int, int, int, list[int]]:
    """Move the survivors of one head together in blocks that nobody shares.

    Returns freed blocks, copies, slots of the table with another token than before, and the tokens in their new order.
    """
    size, common = sequence.pool.size, set(sequence.shared())
    slots = [slot for slot in range(sequence.tokens) if slot // size not in common]
    content = {slot: slot for slot in slots}
    survivors = [slot for slot in slots if slot in stay]
    copies = 0
    if in_order:
        dead = [slot for slot in slots if slot not in stay]
        for slot, token in zip(slots, survivors + dead, strict=True):
            copies += slot != token and token in stay
            content[slot] = token
    else:
        ahead = slots[: len(survivors)]
        holes = [slot for slot in ahead if slot not in stay]
        late = [slot for slot in survivors if slot not in set(ahead)]
        for hole, token in zip(holes, late, strict=True):
            content[hole] = token
            copies += 1
    changed = sum(content[slot] != slot for slot in slots)
    order = [content[slot] for slot in slots[: len(survivors)]]
    assert set(order) == set(survivors)
    own = [place for place in range(len(sequence.table)) if place not in common]
    filled = -(-len(survivors) // size)
    return sum(sequence.pool.drop(sequence.table[place]) for place in own[filled:]), copies, changed, order

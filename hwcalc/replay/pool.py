"""The blocks of a server: how many are free, which of them hold content that can be found again, and in which order they are given away.

Blocks have no numbers here. Free blocks without a name are all alike, so that they are counted; a block with content that can be found
again is known by its name, an integer. That is the whole state on which vLLM's decisions depend:

- free blocks without a name are given away first. vLLM puts them at the front of its queue, and named ones at the end;
- named blocks are given away least recently released first, of one request the last first, and lose their name then;
- a named block that is free can be found, and is taken out of the queue wherever it is. Blocks with tokens that no other request has are
  not looked for when their request has ended, so that these are counted in their place of the queue.

Source: vLLM 0.33, v1/core/block_pool.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

_STALE: Final = 4096


class BlockPool:
    """``blocks`` blocks. With ``caching``, blocks may be named and found again.

    >>> pool = BlockPool(3)
    >>> pool.take(2)
    >>> pool.name([71, 72])
    [71, 72]
    >>> pool.release([71, 72])
    >>> pool.free, pool.find(71), pool.find(73)
    (3, 71, None)
    >>> pool.take(2)                 # the block that was never used, and the last one of the request
    >>> pool.find(71), pool.find(72)
    (71, None)
    """

    __slots__ = ("_copied", "_copies", "_held", "_last_copy", "_queue", "_stale", "_stales", "free", "total", "unnamed")

    def __init__(self, blocks: int) -> None:
        self.total = self.free = blocks
        self.unnamed = blocks
        """Free blocks without a name."""
        self._held: dict[int, int] = {}
        """Each named block -> how many requests hold it; 0 if it is free."""
        self._queue: deque[_Released] = deque()
        """The blocks in the order in which they were released. A block that was held again stays in it as a stale entry."""
        self._stale: dict[int, int] = {}
        """A block -> how many of its entries in the queue are stale: the foremost ones."""
        self._stales = 0
        self._copies: dict[int, list[int]] = {}
        """A name -> further blocks with the same content, in the order in which they were named. Their own names are negative."""
        self._copied: dict[int, int] = {}
        self._last_copy = 0

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.total - self.free

    def names(self) -> Collection[int]:
        """The names of all named blocks; copies have those of the block that they are copies of."""
        return {self._copied.get(name, name) for name in self._held} if self._copied else self._held.keys()

    def find(self, name: int) -> int | None:
        """The block with this content that was named first; ``None`` if there is none."""
        if name in self._held:
            return name
        copies = self._copies.get(name)
        return None if copies is None else copies[0]

    def found(self, names: Iterable[int]) -> list[int]:
        """The blocks with these contents, up to the first that is not there."""
        held, copies, out = self._held, self._copies, list[int]()
        for name in names:
            if name in held:
                out.append(name)
            elif name in copies:
                out.append(copies[name][0])
            else:
                break
        return out

    def idle(self, blocks: Iterable[int]) -> int:
        """The number of these named blocks that are free."""
        held = self._held
        return sum([not held[block] for block in blocks])

    def take(self, count: int) -> None:
        """Give away ``count`` free blocks, which must be there. They have no name now."""
        self.free -= count
        if count <= self.unnamed:
            self.unnamed -= count
            return
        count -= self.unnamed
        self.unnamed = 0
        queue, held, stale = self._queue, self._held, self._stale
        while count:
            first = queue[0]
            if first.ended:
                counted = min(first.ended, count)
                first.ended -= counted
                count -= counted
                continue
            given = first.blocks[-count:]
            if not given:
                queue.popleft()
                continue
            del first.blocks[-count:]
            if stale and not stale.keys().isdisjoint(given):
                given = self._not_stale(given)
            for block in given:
                del held[block]
            if self._copied:
                for block in given:
                    if block < 0:
                        self._forget_copy(block)
            count -= len(given)

    def name(self, names: Sequence[int]) -> Sequence[int]:
        """Name as many blocks, which one request holds, by their content; returns the blocks, of which copies have names of their own."""
        held, copies = self._held, self._copies
        if held.keys().isdisjoint(names) and (not copies or copies.keys().isdisjoint(names)):
            held.update(dict.fromkeys(names, 1))
            return names
        return [self._named(name) for name in names]

    def hold(self, blocks: Iterable[int]) -> None:
        """Let one more request hold these named blocks."""
        held, stale = self._held, self._stale
        for block in blocks:
            count = held[block]
            if not count:
                self.free -= 1
                self._stales += 1
                stale[block] = stale.get(block, 0) + 1
            held[block] = count + 1
        if self._stales > _STALE + (self.free - self.unnamed) // 2:
            # So that the queue is not longer than the pool.
            for entry in self._queue:
                entry.blocks = self._not_stale(entry.blocks)

    def release(self, blocks: Sequence[int], unnamed: int = 0, ended: int = 0) -> None:
        """Let a request go of named blocks, of which the last is given away first, and of ``unnamed`` others.

        ``ended`` blocks behind the named ones have tokens that only this request had, which has ended.
        """
        held = self._held
        freed = [block for block in blocks if held[block] == 1]
        if len(freed) < len(blocks):
            for block in blocks:
                held[block] -= 1
        else:
            held.update(dict.fromkeys(freed, 0))
        if freed or ended:
            self._queue.append(_Released(freed, ended))
        self.unnamed += unnamed
        self.free += unnamed + len(freed) + ended

    def _named(self, name: int) -> int:
        if name in self._held or name in self._copies:
            self._last_copy -= 1
            self._copies.setdefault(name, []).append(self._last_copy)
            self._copied[self._last_copy] = name
            name = self._last_copy
        self._held[name] = 1
        return name

    def _forget_copy(self, block: int) -> None:
        name = self._copied.pop(block)
        copies = self._copies[name]
        copies.remove(block)
        if not copies:
            del self._copies[name]

    def _was_stale(self, block: int) -> bool:
        """True if an entry that was just taken from the queue is stale, which it counts no longer."""
        times = self._stale.get(block)
        if times is None:
            return False
        if times == 1:
            del self._stale[block]
        else:
            self._stale[block] = times - 1
        self._stales -= 1
        return True

    def _not_stale(self, blocks: list[int]) -> list[int]:
        """The entries at the end of the foremost part of the queue that are not stale."""
        left = [block for block in reversed(blocks) if not self._was_stale(block)]
        left.reverse()
        return left


class _Released:
    """Blocks that were released at once: first of all ``ended`` blocks are given away, then ``blocks`` from the last on."""

    __slots__ = ("blocks", "ended")

    def __init__(self, blocks: list[int], ended: int) -> None:
        self.blocks = blocks
        self.ended = ended

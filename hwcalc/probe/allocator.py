"""PyTorch's caching allocator on CUDA and ROCm, as arithmetic: what it hands out, what it takes from the driver.

========================  ==========================================  ==========================================
rule                      segments as they are                        ``expandable_segments:True``
========================  ==========================================  ==========================================
a request is rounded to   512 B                                       512 B
small pool, up to 1 MiB   segments of 2 MiB                           one segment that grows by pages of 2 MiB
large pool, below 10 MiB  segments of 20 MiB                          one segment that grows by pages of 20 MiB
large pool, from 10 MiB   the request, rounded up to 2 MiB            the same
a block is split where    512 B (small), more than 1 MiB (large) are  512 B are left over
                          left over
========================  ==========================================  ==========================================

A free block of the pool is used first, the smallest that is large enough. A freed block is merged with free neighbours, and
nothing goes back to the driver before ``empty_cache``.

Source: pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp; the constants are those of torch 2.13 and 2.15, c10/core/AllocatorConfig.h.
One stream and no graph pools: what a probe has. The driver is taken to give rising addresses, which decides only between equal blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.probe.settings import AllocatorSettings
from hwcalc.units import MIB

__all__ = ["Allocator", "AllocatorFullError", "Statistics", "predict"]

BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_FROM_BYTES: Final = 10 * MIB
LARGE_ROUND_BYTES: Final = 2 * MIB
_ADDRESS_SPACE: Final = 2**60
"""Between the segments of the model, so that none touch: more than any device has."""


class AllocatorFullError(MemoryError):
    """The device has no room for another segment, not even after every unused one went back."""


@frozen
class Statistics:
    """``torch.cuda.memory_stats`` in bytes: blocks handed out, segments held, and what was asked for."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int


class _Block:
    """A run of addresses of one segment, between its neighbours."""

    __slots__ = ("address", "after", "before", "mapped", "pool", "requested", "size", "used")

    def __init__(self, address: int, size: int, pool: _Pool, *, mapped: bool = True) -> None:
        self.address, self.size, self.pool, self.mapped = address, size, pool, mapped
        self.requested = 0
        self.used = False
        self.before: _Block | None = None
        self.after: _Block | None = None

    @property
    def split(self) -> bool:
        return self.before is not None or self.after is not None

    @property
    def reach(self) -> int:
        """Its bytes, and the unmapped ones behind it that it could grow into."""
        return self.size + (self.after.size if self.after is not None and not self.after.mapped else 0)

    def cut(self, size: int) -> _Block:
        """Keep the first ``size`` bytes; the rest is a new block behind it."""
        rest = _Block(self.address + size, self.size - size, self.pool, mapped=self.mapped)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after, self.size = rest, size
        return rest


class _Pool:
    """The free blocks of the small or the large pool, by size and then address, and the unmapped ones by address."""

    def __init__(self, *, small: bool, page: int) -> None:
        self.small = small
        self.page = page
        self.free: list[tuple[int, int]] = []
        self.unmapped: list[int] = []
        self.blocks: dict[int, _Block] = {}

    def add(self, block: _Block) -> None:
        self.blocks[block.address] = block
        if block.mapped:
            insort(self.free, (block.size, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: _Block) -> None:
        del self.blocks[block.address]
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]

    def merged(self, block: _Block) -> _Block:
        """The block together with free neighbours of its sort, which leave the pool; it is not in the pool itself."""
        for other in (block.before, block.after):
            if other is None or other.used or other.mapped != block.mapped:
                continue
            self.remove(other)
            first, second = (other, block) if other is block.before else (block, other)
            block.address, block.before, block.after = first.address, first.before, second.after
            block.size += other.size
            if block.before is not None:
                block.before.after = block
            if block.after is not None:
                block.after.before = block
        return block


class Allocator:
    """One device's caching allocator. Addresses mean nothing but their order.

    >>> allocator = Allocator()
    >>> address = allocator.allocate(21 * 2**20)
    >>> allocator.statistics.allocated_bytes == allocator.statistics.reserved_bytes == 22 * 2**20
    True

    ``total_bytes`` is what the driver can give; without it there is no end. Raises :class:`AllocatorFullError` beyond it.
    """

    def __init__(self, settings: AllocatorSettings | None = None, *, total_bytes: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.total_bytes = total_bytes
        self._pools = (
            _Pool(small=True, page=SMALL_SEGMENT_BYTES),
            _Pool(small=False, page=self.settings.large_segment_bytes),
        )
        self._used: dict[int, _Block] = {}
        self._next = 0
        self._allocated = self._reserved = self._requested = 0

    @property
    def statistics(self) -> Statistics:
        """The counters as they stand."""
        return Statistics(allocated_bytes=self._allocated, reserved_bytes=self._reserved, requested_bytes=self._requested)

    def allocate(self, size: int) -> int:
        """The address of a block for ``size`` bytes, at least one (torch asks for none where a tensor is empty)."""
        if size < 1:
            raise ValueError(f"an allocation is of at least one byte (got {size:,})")
        rounded = self.rounded(size)
        pool = self._pools[0 if rounded <= SMALL_BYTES else 1]
        block = self._free_block(pool, rounded) or self._grown(pool, rounded)
        if block is None:
            self.empty_cache()
            block = self._grown(pool, rounded)
        if block is None:
            raise AllocatorFullError(f"{size:,} bytes beside {self._reserved:,} reserved of {self.total_bytes or 0:,}")
        if self._splits(pool, block.size, rounded):
            pool.add(block.cut(rounded))
        block.used, block.requested = True, size
        self._used[block.address] = block
        self._allocated += block.size
        self._requested += size
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to its pool."""
        block = self._used.pop(address)
        self._allocated -= block.size
        self._requested -= block.requested
        block.used = False
        block.pool.add(block.pool.merged(block))

    def empty_cache(self) -> None:
        """Give the driver every segment without a used block; of expandable ones every page."""
        for pool in self._pools:
            for _, address in list(pool.free):
                block = pool.blocks[address]
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif not block.split:
                    pool.remove(block)
                    self._reserved -= block.size

    def rounded(self, size: int) -> int:
        """What a request counts as: whole blocks of 512 bytes, or a division of a power of two where that is set."""
        divisions = self.settings.roundup_power2_divisions
        if size < BLOCK_BYTES:
            return BLOCK_BYTES
        if divisions <= 1 or size <= BLOCK_BYTES * divisions:
            return _up(size, BLOCK_BYTES)
        floor = 1 << (size.bit_length() - 1)
        step = floor >> (divisions.bit_length() - 1)
        return _up(size, step) if step else 2 * floor

    def _segment(self, rounded: int) -> int:
        """Bytes that the driver is asked for."""
        if rounded <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded < LARGE_FROM_BYTES:
            return self.settings.large_segment_bytes
        return _up(rounded, LARGE_ROUND_BYTES)

    def _splits(self, pool: _Pool, size: int, rounded: int) -> bool:
        rest = size - rounded
        if pool.small or self.settings.expandable_segments:
            return rest >= BLOCK_BYTES
        return self._splittable(rounded) and rest > SMALL_BYTES

    def _splittable(self, rounded: int) -> bool:
        return self.settings.max_split_bytes is None or rounded < self.settings.max_split_bytes

    def _free_block(self, pool: _Pool, rounded: int) -> _Block | None:
        """The smallest free block that is large enough, out of its pool."""
        place = bisect_left(pool.free, (rounded, -1))
        if place == len(pool.free):
            return None
        block = pool.blocks[pool.free[place][1]]
        if self.settings.expandable_segments:
            # A block that can grow counts as large as it can become.
            while place + 1 < len(pool.free) and pool.blocks[pool.free[place + 1][1]].reach < block.reach:
                place += 1
                block = pool.blocks[pool.free[place][1]]
        limit = self.settings.max_split_bytes
        # A large block that may not be split goes only to a request of nearly its size.
        oversize = limit is not None and block.size >= limit
        if oversize and (self._splittable(rounded) or block.size >= rounded + self.settings.max_non_split_rounding_bytes):
            return None
        pool.remove(block)
        return block

    def _grown(self, pool: _Pool, rounded: int) -> _Block | None:
        """A block of new memory; ``None`` if the driver has none."""
        if self.settings.expandable_segments:
            return self._mapped(pool, rounded)
        size = self._segment(rounded)
        if not self._takes(size):
            return None
        return _Block(self._new_segment(size, pool.page), size, pool)

    def _takes(self, size: int) -> bool:
        if self.total_bytes is not None and self._reserved + size > self.total_bytes:
            return False
        self._reserved += size
        return True

    def _new_segment(self, size: int, page: int) -> int:
        address = _up(self._next, page)
        self._next = address + 2 * max(size, _ADDRESS_SPACE)
        return address

    def _mapped(self, pool: _Pool, rounded: int) -> _Block | None:
        """The lowest free addresses that suffice, with pages behind those that have none yet."""
        block = self._room(pool, rounded)
        if not block.mapped and not self._map(block, min(block.size, rounded)):
            return None
        while block.size < rounded:
            rest = block.after
            assert rest is not None
            if not self._map(rest, min(rounded - block.size, rest.size)):
                return None
            # The newly mapped one has taken in what was free before it.
            block = rest
        pool.remove(block)
        return block

    def _room(self, pool: _Pool, rounded: int) -> _Block:
        """The first of the free and unmapped blocks in a row that are large enough together; a new segment where there are none."""
        for address in pool.unmapped:
            first = pool.blocks[address]
            if first.before is not None and not first.before.used:
                first = first.before
            found, block = 0, first
            while found < rounded:
                found += block.size
                if found >= rounded or block.after is None or block.after.used:
                    break
                block = block.after
            if found >= rounded:
                return first
        total = _ADDRESS_SPACE if self.total_bytes is None else self.total_bytes + self.total_bytes // 8
        size = _up(max(total, rounded), pool.page)
        block = _Block(self._new_segment(size, pool.page), size, pool, mapped=False)
        pool.add(block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        """Put whole pages behind the first ``size`` bytes of an unmapped block."""
        pool, mapped = block.pool, _up(size, block.pool.page)
        if not self._takes(mapped):
            return False
        pool.remove(block)
        if mapped < block.size:
            pool.add(block.cut(mapped))
        block.mapped = True
        pool.add(pool.merged(block))
        return True

    def _unmap(self, block: _Block) -> None:
        """Take the whole pages out of a free block; what is left of it at either end stays."""
        pool = block.pool
        start = _up(block.address, pool.page)
        end = (block.address + block.size) // pool.page * pool.page
        if start >= end:
            return
        pool.remove(block)
        if start > block.address:
            head, block = block, block.cut(start - block.address)
            pool.add(head)
        if block.address + block.size > end:
            pool.add(block.cut(end - block.address))
        block.mapped = False
        self._reserved -= block.size
        pool.add(pool.merged(block))


def predict(sizes: Iterable[int], settings: AllocatorSettings | None = None) -> Statistics:
    """The counters after a fresh allocator has given out these sizes, in order; empty tensors take nothing.

    >>> predict([20971520 - 524288]).allocated_bytes
    20971520
    """
    allocator = Allocator(settings)
    for size in sizes:
        if size:
            allocator.allocate(size)
    return allocator.statistics


def _up(size: int, step: int) -> int:
    return -(-size // step) * step

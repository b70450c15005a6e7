"""A model of PyTorch's caching allocator on CUDA and ROCm: the bytes it hands out, and the bytes it takes from the driver.

========================  ==========================================  ==========================================
rule                      fixed segments (default)                    ``expandable_segments:True``
========================  ==========================================  ==========================================
a request is rounded to   512 B                                       512 B
small pool, up to 1 MiB   segments of 2 MiB                           one segment that grows by pages of 2 MiB
large pool, below 10 MiB  segments of 20 MiB                          one segment that grows by pages of 20 MiB
large pool, from 10 MiB   the request, rounded up to 2 MiB            the same
a block is split where    512 B (small), more than 1 MiB (large) are  512 B are left over
                          left over
========================  ==========================================  ==========================================

An allocation takes the smallest free block of the pool that is large enough, if there is one. A freed block is merged with free
neighbours. Nothing goes back to the driver before ``empty_cache``.

Source: pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp; the constants are those of torch 2.13 and 2.15, c10/core/AllocatorConfig.h.
The model has one stream and no graph pools, like a probe. It assumes that the driver returns rising addresses, which matters only for
the choice between blocks of equal size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import asdict

from hwcalc.formulas.record import Record
from hwcalc.units import MIB

VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The variables that torch 2.13 reads, older names first. The first one that is set decides, even if it is empty."""
_UNCACHED: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_WITHOUT_EFFECT: Final = frozenset({
    "garbage_collection_threshold", "per_process_memory_fraction", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom", "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register", "pinned_use_background_threads", "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
    "pinned_max_power2_size_mb",
})  # fmt: skip
"""Settings that do not change the bytes of tensors that stay allocated."""
_LONGEST: Final = 4096
_LEAST_LIMIT_MB: Final = 20
"""torch refuses smaller values."""


class AllocatorSettings(Record):
    """Settings of the allocator. ``unmodelled`` lists settings that the model does not know; with any, predictions are not exact."""

    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_power2_divisions: int = 1
    unmodelled: tuple[str, ...] = ()


def environment_words(environment: Mapping[str, str]) -> str:
    """The value of the variable that decides; empty if none is set.

    >>> environment_words({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    'max_split_size_mb:64'
    """
    return next((environment[name] for name in VARIABLES if name in environment), "")


def environment_settings(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings that torch would read from these environment variables."""
    settings = parse_settings(environment_words(environment))
    if _UNCACHED in environment:
        return AllocatorSettings(**asdict(settings) | {"unmodelled": (*settings.unmodelled, _UNCACHED)})
    return settings


def parse_settings(text: str) -> AllocatorSettings:
    """Parse ``expandable_segments:True,large_segment_size_mb:40``. Settings that are not understood go into ``unmodelled``.

    >>> parse_settings("expandable_segments:True").expandable_segments
    True
    >>> parse_settings("backend:cudaMallocAsync").unmodelled
    ('backend:cudaMallocAsync',)
    """
    # Split at commas, except inside brackets.
    text, words, depth, start = text[:_LONGEST], [], 0, 0
    for place, sign in enumerate(text + ","):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth <= 0:
            words.append(text[start:place].strip())
            start = place + 1
    words.append(text[start:].strip())
    values: dict[str, object] = {}
    unmodelled: list[str] = []
    for word in filter(None, words):
        name, _, value = (part.strip() for part in word.partition(":"))
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
        if name in _WITHOUT_EFFECT or (name == "backend" and value == "native"):
            continue
        if name == "expandable_segments" and value in {"True", "False", "true", "false"}:
            values["expandable_segments"] = value.lower() == "true"
        elif name == "large_segment_size_mb" and number:
            values["large_segment_bytes"] = number * MIB
        elif name == "max_split_size_mb" and number >= _LEAST_LIMIT_MB:
            values["max_split_bytes"] = number * MIB
        elif name == "max_non_split_rounding_mb" and number >= _LEAST_LIMIT_MB:
            values["max_non_split_rounding_bytes"] = number * MIB
        elif name == "roundup_power2_divisions" and number and number & (number - 1) == 0:
            values["roundup_power2_divisions"] = number
        else:
            unmodelled.append(word[:80])
    return AllocatorSettings(**values, unmodelled=tuple(unmodelled))  # type: ignore[arg-type]


BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_FROM_BYTES: Final = 10 * MIB
LARGE_ROUND_BYTES: Final = 2 * MIB
_ADDRESS_SPACE: Final = 2**60
"""Distance between the segments of the model, larger than any device, so that segments never touch."""


class AllocatorFullError(MemoryError):
    """The device has no room for another segment, even after all unused segments went back to the driver."""


class Statistics(Record):
    """The counters of ``torch.cuda.memory_stats``: bytes of blocks handed out, of segments held, and of requests."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int


class _Block:
    """A range of addresses in a segment, linked to its neighbours."""

    __slots__ = ("address", "after", "before", "mapped", "pool", "requested", "size", "used")

    def __init__(self, address: int, size: int, pool: _Pool, *, mapped: bool = True) -> None:
        self.address, self.size, self.pool, self.mapped = address, size, pool, mapped
        self.requested = 0
        self.used = False
        self.before: _Block | None = None
        self.after: _Block | None = None

    @property
    def reach(self) -> int:
        """The bytes of the block, and of the unmapped block behind it into which it could grow."""
        return self.size + (self.after.size if self.after is not None and not self.after.mapped else 0)

    def cut(self, size: int) -> _Block:
        """Keep the first ``size`` bytes; the rest becomes a new block, which is returned."""
        rest = _Block(self.address + size, self.size - size, self.pool, mapped=self.mapped)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after, self.size = rest, size
        return rest


class _Pool:
    """The small or the large pool: its free blocks, sorted by size and address, and its unmapped blocks, sorted by address."""

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
        """Merge a block that is not in the pool with its free neighbours, which leave the pool."""
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
    """The caching allocator of one device. Only the order of addresses has a meaning.

    >>> allocator = Allocator()
    >>> address = allocator.allocate(21 * 2**20)
    >>> allocator.statistics.allocated_bytes == allocator.statistics.reserved_bytes == 22 * 2**20
    True

    ``total_bytes`` is the memory that the driver can give, unlimited by default. Beyond it, :class:`AllocatorFullError` is raised.
    """

    def __init__(self, settings: AllocatorSettings | None = None, *, total_bytes: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.total_bytes = total_bytes
        self._pools = (_Pool(small=True, page=SMALL_SEGMENT_BYTES), _Pool(small=False, page=self.settings.large_segment_bytes))
        self._used: dict[int, _Block] = {}
        self._next = 0
        self._allocated = self._reserved = self._requested = 0

    @property
    def statistics(self) -> Statistics:
        """The current counters."""
        return Statistics(allocated_bytes=self._allocated, reserved_bytes=self._reserved, requested_bytes=self._requested)

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes and return their address. ``size`` is at least 1: torch allocates nothing for empty tensors."""
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
        rest = block.size - rounded
        if pool.small or self.settings.expandable_segments:
            splits = rest >= BLOCK_BYTES
        else:
            splits = self._splittable(rounded) and rest > SMALL_BYTES
        if splits:
            pool.add(block.cut(rounded))
        block.used, block.requested = True, size
        self._used[block.address] = block
        self._allocated += block.size
        self._requested += size
        return block.address

    def free(self, address: int) -> None:
        """Return a block to its pool."""
        block = self._used.pop(address)
        self._allocated -= block.size
        self._requested -= block.requested
        block.used = False
        block.pool.add(block.pool.merged(block))

    def empty_cache(self) -> None:
        """Return every unused segment to the driver; of expandable segments, every unused page."""
        for pool in self._pools:
            for _, address in list(pool.free):
                block = pool.blocks[address]
                if not self.settings.expandable_segments:
                    if block.before is None and block.after is None:
                        pool.remove(block)
                        self._reserved -= block.size
                    continue
                # The whole pages inside the block are unmapped; partial pages at its ends stay mapped.
                start = _up(block.address, pool.page)
                end = (block.address + block.size) // pool.page * pool.page
                if start >= end:
                    continue
                pool.remove(block)
                if start > block.address:
                    head, block = block, block.cut(start - block.address)
                    pool.add(head)
                if block.address + block.size > end:
                    pool.add(block.cut(end - block.address))
                block.mapped = False
                self._reserved -= block.size
                pool.add(pool.merged(block))

    def rounded(self, size: int) -> int:
        """The size of a request, rounded up to 512 bytes, or to a division of a power of two if that is configured."""
        divisions = self.settings.roundup_power2_divisions
        if size < BLOCK_BYTES:
            return BLOCK_BYTES
        if divisions <= 1 or size <= BLOCK_BYTES * divisions:
            return _up(size, BLOCK_BYTES)
        floor = 1 << (size.bit_length() - 1)
        step = floor >> (divisions.bit_length() - 1)
        return _up(size, step) if step else 2 * floor

    def _splittable(self, rounded: int) -> bool:
        return self.settings.max_split_bytes is None or rounded < self.settings.max_split_bytes

    def _free_block(self, pool: _Pool, rounded: int) -> _Block | None:
        """Take the smallest free block that is large enough out of its pool; ``None`` if there is none."""
        place = bisect_left(pool.free, (rounded, -1))
        if place == len(pool.free):
            return None
        block = pool.blocks[pool.free[place][1]]
        if self.settings.expandable_segments:
            # A block that can grow counts with the size that it can reach.
            while place + 1 < len(pool.free) and pool.blocks[pool.free[place + 1][1]].reach < block.reach:
                place += 1
                block = pool.blocks[pool.free[place][1]]
        limit = self.settings.max_split_bytes
        # A large block that may not be split is given only to a request of nearly its size.
        oversize = limit is not None and block.size >= limit
        if oversize and (self._splittable(rounded) or block.size >= rounded + self.settings.max_non_split_rounding_bytes):
            return None
        pool.remove(block)
        return block

    def _grown(self, pool: _Pool, rounded: int) -> _Block | None:
        """A block of new memory, in no pool; ``None`` if the driver has none left."""
        if not self.settings.expandable_segments:
            middling = SMALL_SEGMENT_BYTES if rounded <= SMALL_BYTES else self.settings.large_segment_bytes
            size = middling if rounded < LARGE_FROM_BYTES else _up(rounded, LARGE_ROUND_BYTES)
            return _Block(self._new_segment(size, pool.page), size, pool) if self._takes(size) else None
        # Map pages until the lowest suitable range is large enough.
        block = self._room(pool, rounded)
        if not block.mapped and not self._map(block, min(block.size, rounded)):
            return None
        while block.size < rounded:
            rest = block.after
            assert rest is not None
            if not self._map(rest, min(rounded - block.size, rest.size)):
                return None
            # The newly mapped block has merged with the free block before it.
            block = rest
        pool.remove(block)
        return block

    def _takes(self, size: int) -> bool:
        if self.total_bytes is not None and self._reserved + size > self.total_bytes:
            return False
        self._reserved += size
        return True

    def _new_segment(self, size: int, page: int) -> int:
        address = _up(self._next, page)
        self._next = address + 2 * max(size, _ADDRESS_SPACE)
        return address

    def _room(self, pool: _Pool, rounded: int) -> _Block:
        """The first of neighbouring free and unmapped blocks that are large enough together; a new segment if there are none."""
        for address in pool.unmapped:
            first = pool.blocks[address]
            if first.before is not None and not first.before.used:
                first = first.before
            size, block = 0, first
            while size < rounded:
                size += block.size
                if size >= rounded or block.after is None or block.after.used:
                    break
                block = block.after
            if size >= rounded:
                return first
        total = _ADDRESS_SPACE if self.total_bytes is None else self.total_bytes + self.total_bytes // 8
        size = _up(max(total, rounded), pool.page)
        block = _Block(self._new_segment(size, pool.page), size, pool, mapped=False)
        pool.add(block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        """Map whole pages for the first ``size`` bytes of an unmapped block; false if the driver has too little memory."""
        pool, mapped = block.pool, _up(size, block.pool.page)
        if not self._takes(mapped):
            return False
        pool.remove(block)
        if mapped < block.size:
            pool.add(block.cut(mapped))
        block.mapped = True
        pool.add(pool.merged(block))
        return True


def predict(sizes: Iterable[int], settings: AllocatorSettings | None = None) -> Statistics:
    """The counters of a fresh allocator after it has allocated these sizes, in order. Empty tensors take nothing.

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

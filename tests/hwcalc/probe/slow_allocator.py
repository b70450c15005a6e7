"""The caching allocator's rules a second time, slowly: intervals in use, and everything else looked up anew each time."""

from __future__ import annotations

__all__ = ["SlowAllocator"]

MIB = 2**20


class SlowAllocator:
    """Segments with the intervals in use; a free block is a gap between them. ``pages`` are mapped, of expandable segments."""

    def __init__(self, *, expandable: bool = False, large: int = 20 * MIB, total: int | None = None) -> None:
        self.expandable = expandable
        self.large = large
        self.total = total
        self.segments: dict[str, list[tuple[int, int]]] = {"small": [], "large": []}
        self.used: dict[int, tuple[int, int, str]] = {}
        self.pages: dict[str, set[int]] = {"small": set(), "large": set()}
        self.place = {"small": 0, "large": large * 2**50}

    @property
    def allocated(self) -> int:
        return sum(size for size, _, _ in self.used.values())

    @property
    def requested(self) -> int:
        return sum(wanted for _, wanted, _ in self.used.values())

    @property
    def reserved(self) -> int:
        if self.expandable:
            return sum(len(pages) * self.page(pool) for pool, pages in self.pages.items())
        return sum(size for segments in self.segments.values() for _, size in segments)

    def page(self, pool: str) -> int:
        return 2 * MIB if pool == "small" else self.large

    def gaps(self, pool: str) -> list[tuple[int, int]]:
        """Free blocks as (size, start), smallest first."""
        segments = [(start, start + size) for start, size in self.segments[pool]]
        bounds = self.runs(pool) if self.expandable else segments
        found = []
        for start, end in bounds:
            at = start
            for begin, size in sorted((begin, size) for begin, (size, _, _) in self.used.items() if start <= begin < end):
                if begin > at:
                    found.append((begin - at, at))
                at = begin + size
            if end > at:
                found.append((end - at, at))
        return sorted(found)

    def runs(self, pool: str) -> list[tuple[int, int]]:
        """Mapped addresses without a hole."""
        out: list[tuple[int, int]] = []
        page = self.page(pool)
        for number in sorted(self.pages[pool]):
            if out and out[-1][1] == number * page:
                out[-1] = (out[-1][0], (number + 1) * page)
            else:
                out.append((number * page, (number + 1) * page))
        return out

    def end(self, pool: str) -> int:
        """Where the addresses of an expandable segment end: room for nine eighths of the device."""
        page = self.page(pool)
        return self.place[pool] + (2**60 if self.total is None else -(-self.total * 9 // (8 * page)) * page)

    def unmapped_behind(self, pool: str, end: int) -> int:
        """Unmapped bytes from ``end`` on."""
        if end % self.page(pool) or end // self.page(pool) in self.pages[pool]:
            return 0
        later = [number for number in self.pages[pool] if number * self.page(pool) > end]
        return min(later) * self.page(pool) - end if later else self.end(pool) - end

    def allocate(self, wanted: int) -> int:
        """The address, or -1 without memory."""
        size = 512 * max(1, (wanted + 511) // 512)
        pool = "small" if size <= MIB else "large"
        place = self.best(pool, size)
        if place is None:
            place = self.new(pool, size)
        if place is None:
            self.empty_cache()
            place = self.new(pool, size)
        if place is None:
            return -1
        room, start = place
        rest = room - size
        whole = rest < 512 if pool == "small" or self.expandable else rest <= MIB
        self.used[start] = (room if whole else size, wanted, pool)
        return start

    def best(self, pool: str, size: int) -> tuple[int, int] | None:
        gaps = [gap for gap in self.gaps(pool) if gap[0] >= size]
        if not gaps:
            return None
        if not self.expandable:
            return gaps[0]
        reach = [room + self.unmapped_behind(pool, start + room) for room, start in gaps]
        number = 0
        while number + 1 < len(gaps) and reach[number + 1] < reach[number]:
            number += 1
        return gaps[number]

    def room_for(self, more: int) -> bool:
        return self.total is None or self.reserved + more <= self.total

    def new(self, pool: str, size: int) -> tuple[int, int] | None:
        if self.expandable:
            return self.grow(pool, size)
        wanted = 2 * MIB if pool == "small" else self.large if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if not self.room_for(wanted):
            return None
        start = self.place[pool]
        self.place[pool] += wanted + 2**50
        self.segments[pool].append((start, wanted))
        return wanted, start

    def grow(self, pool: str, size: int) -> tuple[int, int] | None:
        """Start at the first free or unmapped address behind which ``size`` bytes are not in use; map what is missing."""
        page = self.page(pool)
        own = sorted((start, start + used[0]) for start, used in self.used.items() if used[2] == pool)
        starts = []
        for candidate in sorted(
            {self.place[pool], *(end for _, end in self.runs(pool)), *(page * (n + 1) for n in self.pages[pool])}
        ):
            if candidate // page in self.pages[pool]:
                continue
            free = [start for room, start in self.gaps(pool) if start + room == candidate]
            starts.append(free[0] if free else candidate)
        for start in starts:
            if start + size > self.end(pool) or any(begin < start + size and start < end for begin, end in own):
                continue
            at = start
            while at < start + size:
                if at // page in self.pages[pool]:
                    at = (at // page + 1) * page
                    continue
                run_end = at
                while run_end < start + size and run_end // page not in self.pages[pool]:
                    run_end += page
                if not self.room_for(run_end - at):
                    return None
                self.pages[pool] |= set(range(at // page, run_end // page))
                at = run_end
            return next(gap for gap in self.gaps(pool) if gap[1] == start)
        return None

    def free(self, address: int) -> None:
        del self.used[address]

    def empty_cache(self) -> None:
        for pool in ("small", "large"):
            held = [(start, start + used[0]) for start, used in self.used.items() if used[2] == pool]
            page = self.page(pool)
            self.segments[pool] = [
                (start, size) for start, size in self.segments[pool] if any(start <= begin < start + size for begin, _ in held)
            ]
            self.pages[pool] = {
                number
                for number in self.pages[pool]
                if any(begin < (number + 1) * page and number * page < end for begin, end in held)
            }

"""How the V2 cache manager divides the quota of a rank over its pools of slots, in whole pages.

Layers whose blocks come and go together are a cycle: those with one window, or the recurrent states. Cycles whose slots have the same sizes
share a pool. The quota, rounded up to pages of 2 to 32 MiB, is divided by what a typical batch would take: one sequence of 2,049 tokens unless
``avg_seq_len`` says otherwise, DeepSeek-V4's longest sequence, or for models with states ``max_batch_size`` sequences of half the longest. No
pool gets fewer slots than the constraints ask.

Read, not run: runtime/kv_cache_manager_v2/_storage_manager.py, _storage/_core.py ratio_to_slot_count_list, _life_cycle_registry.py, and the
batches of kv_cache_manager_v2.py _build_base_config of the sources of 1.4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.formulas.arithmetic import Table, ceil_div, either, larger, last_good, mapped, nearest, smaller, some
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.tensorrt_llm.layout import Piece
    from hwcalc.engines.tensorrt_llm.settings import Settings

FOREVER = 2**62
"""More tokens than any pool has: no layer grows with them."""
PAGE: Final = 2**21
"""The smallest page of V2."""
_GIB: Final = 2**30
_WIDEST: Final = 4
WIDEST_PAGE: Final = PAGE << _WIDEST
_USUAL: Final = 2049
"""Tokens of the one sequence by which pools are divided where nothing else says how long sequences are."""


def page_bytes(quota: int) -> int:
    """The size of a page: 2 MiB, doubled for each doubling of the quota over 1 GiB, up to 32 MiB."""
    return PAGE << _doubled(quota)


def _doubled(quota: int) -> int:
    """The number of times that the size of a page is doubled for this quota."""
    if isinstance(quota, int):
        return min(_WIDEST, max(0, (max(0, quota) // _GIB).bit_length() - 1))
    return sum((quota >= _GIB << doubled) * 1 for doubled in range(1, _WIDEST + 1))


class Sequences(NamedTuple):
    """A number of ``requests``, each with slots for ``capacity`` tokens, of which ``history`` are computed already."""

    capacity: int
    history: int
    requests: int = 1


class Cycle(Record):
    """Layers whose blocks come and go together. ``sizes`` are the bytes of a slot in each of its pools, the largest first.

    ``alone`` is the largest share that one layer has in a pool: prompts that are read may keep old tokens of one layer at a time.
    """

    window: int | None
    state: bool
    sizes: tuple[int, ...]
    alone: Fraction

    def gone(self, history: int, block: int) -> int:
        """Blocks that have left the window after ``history`` tokens of a sequence."""
        gone: int = 0 if self.window is None else larger(0, (history + 1 - self.window) // block)
        return gone

    def slots(self, one: Sequences, block: int, *, scratch: bool) -> int:
        """The slots of one sequence."""
        if self.state:
            return 1
        held: int = larger(0, ceil_div(one.capacity, block) - self.gone(one.history, block))
        if not scratch or self.window is None:
            return held
        passing = smaller(held, larger(0, self.gone(one.capacity, block) - ceil_div(one.history, block)))
        kept: int = held - passing + ceil_div(passing * self.alone.numerator, self.alone.denominator)
        return kept


class Division(NamedTuple):
    """How pages of one size are divided.

    ``least`` are the pages of what must fit. Pools get theirs in this order; ``ratio`` is what each gets of all pages, and ``shares`` of
    those that are left when its turn comes.
    """

    least: int
    order: tuple[int, ...]
    ratio: tuple[float, ...]
    shares: tuple[float, ...]


def _shares(order: tuple[int, ...], ratio: Sequence[float], active: Sequence[int]) -> tuple[float, ...]:
    """The share that each active pool gets of what is left when its turn comes, by place."""
    shares = []
    for place, pool in enumerate(order):
        others = sum(ratio[other] * active[other] for other in order[place:])
        shares.append(ratio[pool] / (others + (others == 0)))
    return tuple(shares)


class Dealt:
    """The pools of a rank and the rule by which a quota is divided over them; lengths may be integers or arrays."""

    pools: tuple[tuple[tuple[int, ...], tuple[Cycle, ...]], ...]
    block: int
    scratch: bool

    @property
    def floor(self) -> Sequence[int]:
        """The fewest slots of each pool."""
        raise NotImplementedError

    def divisions(self, doubled: int) -> Iterable[tuple[Division, bool]]:
        """The divisions of pages whose size has been doubled ``doubled`` times, each with where it applies."""
        raise NotImplementedError

    def usual_pages(self, page: int) -> list[int]:
        """The pages of each pool for the batch by which the quota of one length is divided."""
        raise NotImplementedError

    def pages(self, slots: Sequence[int], page: int) -> list[int]:
        """The pages of so many slots of each pool."""
        return [_pages(count, sizes, page) for count, (sizes, _) in zip(slots, self.pools, strict=True)]

    def pool_of(self, window: int | None, *, state: bool = False) -> int | None:
        """The place of the pool with this cycle."""
        for place, (_, cycles) in enumerate(self.pools):
            if any(cycle.state is state and cycle.window == window for cycle in cycles):
                return place
        return None

    def longest(self, slots: Sequence[int]) -> int | None:
        """The tokens that one sequence could have in so many slots, in whole blocks; ``None`` where no layer keeps all."""
        if all(cycle.window is not None or cycle.state for _, cycles in self.pools for cycle in cycles):
            return None

        def fits(blocks: int) -> bool:
            tokens = blocks * self.block
            need = (
                sum(blocks - cycle.gone(tokens, self.block) for cycle in cycles if not cycle.state) for _, cycles in self.pools
            )
            return all(count <= have for count, have in zip(need, slots, strict=True))

        blocks: int = last_good(max(slots, default=0), fits)
        return blocks * self.block

    def held(self, quota: int) -> tuple[list[int], bool]:
        """The slots of each pool, and whether the quota holds what must fit; integers or arrays."""
        pool_slots, enough, doubled = [0] * len(self.pools), False, _doubled(quota)
        page = PAGE << doubled
        total = ceil_div(quota, page)
        for division, true in self.divisions(doubled):
            slots, held = self._dealt(division, total, page, (quota > 0) & (division.least <= total) & true)
            pool_slots = [either(held, new, old) for new, old in zip(slots, pool_slots, strict=True)]
            enough = enough | held
        return pool_slots, enough

    def slots(self, quota: int) -> list[int] | None:
        """The slots of each pool of one quota; ``None`` where it is smaller than what must fit."""
        slots, enough = self.held(quota)
        return slots if enough else None

    def _dealt(self, division: Division, total: int, page: int, fits: bool) -> tuple[list[int], bool]:
        """The slots of each pool of so many pages, where these fit; a pool that would get less than it must have gets just that."""
        _, order, ratio, shares = division
        pools, floor, left = range(len(ratio)), self.floor, total
        slots, active, open_, enough = [0 for _ in pools], [True for _ in pools], fits, False
        while some(open_):
            dealt, rest = list(slots), left
            for pool, share in zip(order, shares, strict=True):
                sizes = self.pools[pool][0]
                dealt[pool] = active[pool] * _slots(nearest(rest * share), sizes, page)
                rest = rest - _pages(dealt[pool], sizes, page)
            short = [active[pool] & (dealt[pool] <= floor[pool]) for pool in pools]
            lacking = open_ & reduce(or_, short)
            done = open_ & (lacking ^ True)
            if some(done):
                slots = [either(done & active[pool], dealt[pool], slots[pool]) for pool in pools]
                enough = enough | done
            if not some(lacking):
                return slots, enough
            for pool in pools:
                sizes, now = self.pools[pool][0], lacking & short[pool]
                pages = _pages(floor[pool], sizes, page)
                slots[pool] = either(now, _slots(pages, sizes, page), slots[pool])
                left, active[pool] = left - now * pages, active[pool] & (now ^ True)
            others = reduce(or_, active)
            enough, open_ = enough | (lacking & (others ^ True)), lacking & others & (left > 0)
            shares = _shares(order, ratio, active)
        return slots, enough


class Storage(Dealt, Record):
    """The pools of one rank: for each its sizes and its cycles; ``typical`` divides the quota, and ``least`` must fit."""

    pools: tuple[tuple[tuple[int, ...], tuple[Cycle, ...]], ...]
    block: int
    scratch: bool
    typical: tuple[Sequences, ...]
    least: tuple[tuple[Sequences, ...], ...]

    def _taken(self, batch: Iterable[Sequences]) -> list[int]:
        """The slots of a batch in each pool."""
        return [
            sum(each.requests * cycle.slots(each, self.block, scratch=self.scratch) for cycle in cycles for each in batch)
            for _, cycles in self.pools
        ]

    @cached_property
    def floor(self) -> list[int]:
        """The fewest slots of each pool: one for each cycle, and those of the constraints."""
        fewest = [len(cycles) for _, cycles in self.pools]
        for batch in self.least:
            fewest = [max(pair) for pair in zip(fewest, self._taken(batch), strict=True)]
        return fewest

    @cached_property
    def _usual(self) -> list[int]:
        return self._taken(self.typical)

    def usual_pages(self, page: int) -> list[int]:
        return self.pages(self._usual, page)

    @cached_property
    def by_page(self) -> tuple[Division, ...]:
        """The divisions of pages of each size."""
        made = []
        for doubled in range(_WIDEST + 1):
            weights = self.usual_pages(PAGE << doubled)
            ratio = tuple(weight / sum(weights) for weight in weights)
            order = tuple(sorted(range(len(ratio)), key=ratio.__getitem__))
            shares = _shares(order, ratio, [1] * len(order))
            made.append(Division(sum(self.pages(self.floor, PAGE << doubled)), order, ratio, shares))
        return tuple(made)

    def divisions(self, doubled: int) -> Iterable[tuple[Division, bool]]:
        return ((self.by_page[doubled], True),) if isinstance(doubled, int) else self._divisions.at(doubled)

    @cached_property
    def _divisions(self) -> _Divisions:
        return _Divisions([[one] for one in self.by_page])

    def sized(self, settings: Settings, length: int, *, compressed: bool) -> Dealt:
        """The pools for a longest sequence of so many tokens, or for an array of lengths."""

        def made(tokens: int) -> Storage:
            typical, least = _batches(settings, tokens, states=states, compressed=compressed)
            return replace(self, typical=typical, least=least)

        states = any(cycle.state for _, cycles in self.pools for cycle in cycles)
        return made(length) if isinstance(length, int) else _Lengths(made, length)


class _Lengths(Dealt):
    """The pools of many lengths: the same, but divided otherwise."""

    def __init__(self, made: Callable[[int], Storage], lengths: Any) -> None:
        self._places: dict[int, int] = {}
        for length in lengths.ravel().tolist():
            self._places.setdefault(length, len(self._places))
        self._each = [made(length) for length in self._places]
        self._place = mapped(self._places.__getitem__, lengths)
        first = self._each[0]
        self.pools, self.block, self.scratch = first.pools, first.block, first.scratch

    @cached_property
    def floor(self) -> Sequence[int]:
        return [Table(storage.floor[pool] for storage in self._each).at(self._place) for pool in range(len(self.pools))]

    @cached_property
    def _divisions(self) -> _Divisions:
        return _Divisions([[storage.by_page[doubled] for storage in self._each] for doubled in range(_WIDEST + 1)])

    def divisions(self, doubled: int) -> Iterable[tuple[Division, bool]]:
        return self._divisions.at(doubled, self._place)


class _Divisions:
    """A table of divisions: a row for each doubling of the page size, a column for each place. Both may be arrays."""

    def __init__(self, rows: Sequence[Sequence[Division]]) -> None:
        every = [division for row in rows for division in row]
        pools = range(len(every[0].order))
        self._width = len(rows[0])
        self._orders = tuple(dict.fromkeys(division.order for division in every))
        self._least = Table(division.least for division in every)
        self._ratios = [Table(division.ratio[pool] for division in every) for pool in pools]
        self._shares = [Table(division.shares[pool] for division in every) for pool in pools]
        self._order = Table(self._orders.index(division.order) for division in every)

    def at(self, doubled: int, place: int = 0) -> Iterator[tuple[Division, bool]]:
        """A division for each order in which pools get their pages, with where it applies."""
        at = doubled * self._width + place
        least = self._least.at(at)
        ratio, shares = (tuple(table.at(at) for table in tables) for tables in (self._ratios, self._shares))
        for number, order in enumerate(self._orders):
            yield Division(least, order, ratio, shares), len(self._orders) == 1 or self._order.at(at) == number


def _pages(slots: int, sizes: tuple[int, ...], page: int) -> int:
    if len(sizes) == 1:
        return -(-slots * sizes[0] // page)
    return sum(ceil_div(slots * size, page) for size in sizes)


def _slots(pages: int, sizes: tuple[int, ...], page: int) -> int:
    """The most slots that so many pages hold, each size in pages of its own."""
    if len(sizes) == 1:
        return pages * page // sizes[0]
    # Each size leaves less than a page unused.
    least, most = larger(0, (pages - len(sizes)) * page // sum(sizes)), pages * page // sum(sizes)
    held: int = least + last_good(most - least, lambda more: _pages(least + more, sizes, page) <= pages)
    return held


def storage_of(kinds: Sequence[tuple[tuple[Piece, ...], int]], settings: Settings, *, compressed: bool) -> Storage:
    """The pools of the layers of a stage, so many of each kind, for sequences of one token; :meth:`Storage.sized` is of longer ones."""
    from fractions import Fraction

    buffers: dict[tuple[int | None, bool], Counter[int]] = defaultdict(Counter)
    alone: dict[tuple[int | None, bool], dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for place, (pieces, count) in enumerate(kinds):
        for piece in pieces:
            key = (piece.window, bool(piece.state))
            for size in (piece.state,) if piece.state else _buffers(piece.row * settings.block, settings.kv_dtype):
                buffers[key][size] += count
                alone[key][size, place] += 1
    pools: dict[tuple[int, ...], list[Cycle]] = defaultdict(list)
    for key, sizes in buffers.items():
        most = max(Fraction(held, sizes[size]) for (size, _), held in alone[key].items())
        slot = tuple(sorted((size * count for size, count in sizes.items()), reverse=True))
        pools[slot].append(Cycle(window=key[0], state=key[1], sizes=slot, alone=most))
    states = any(state for _, state in buffers)
    typical, least = _batches(settings, 1, states=states, compressed=compressed)
    return Storage(
        pools=tuple((sizes, tuple(cycles)) for sizes, cycles in pools.items()),
        block=settings.block,
        scratch=settings.scratch,
        typical=typical,
        least=least,
    )


def _buffers(size: int, dtype: str) -> tuple[int, ...]:
    """NVFP4 has its scales, a ninth, in a buffer of their own."""
    return (size // 9 * 8, size // 9) if dtype == "nvfp4" else (size,)


def _batches(
    one: Settings, length: int, *, states: bool, compressed: bool
) -> tuple[tuple[Sequences, ...], tuple[tuple[Sequences, ...], ...]]:
    """The batch that divides the quota, and the batches that must fit."""
    expected = min(one.expected or length, length) if one.expected is not None or compressed else None
    dummies = Sequences(0, 0, 1 + one.attention_dp)
    least: tuple[tuple[Sequences, ...], ...] = ()
    typical: tuple[Sequences, ...] = (Sequences(_USUAL, _USUAL - 1),)
    if expected is not None:
        others = one.sequences - 1
        typical = (Sequences(one.batched_tokens, 0), Sequences(expected, max(0, expected - 1), others))
        least = ((Sequences(length, length - 1), Sequences(1, 0, others)), (Sequences(one.batched_tokens, 0),))
    if states:
        resident, half = one.sequences * one.pp, expected or max(1, length // 2)
        typical = (Sequences(half, half - 1, resident), dummies)
        least = (*((*batch, dummies) for batch in least), (Sequences(0, 0, resident + dummies.requests),))
    return typical, least


def in_pages(quota: int) -> int:
    """The quota, in bytes, rounded up to whole pages."""
    page = page_bytes(quota)
    return ceil_div(quota, page) * page

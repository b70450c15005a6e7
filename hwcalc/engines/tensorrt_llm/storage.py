"""The pools of the V2 manager on one rank: how a quota is divided over them, in whole pages of the driver.

Layers whose blocks come and go together are a cycle: those with one window, or the recurrent states. Cycles whose slots have the same
sizes share a pool. The quota, rounded up to pages of 2 to 32 MiB, is divided by what a typical batch would take: one sequence of 2,049
tokens unless ``avg_seq_len`` says otherwise, DeepSeek-V4's longest sequence, or for models with states ``max_batch_size`` sequences of
half the longest. No pool gets fewer slots than the constraints ask.

Read, not run: runtime/kv_cache_manager_v2/_storage_manager.py, _storage/_core.py ratio_to_slot_count_list, _life_cycle_registry.py, and
the batches of kv_cache_manager_v2.py _build_base_config, mamba_cache_manager_v2.py and deepseek_v4/cache_manager.py _build_cache_config.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.named import NamedTuple

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.pieces import Piece
    from hwcalc.engines.tensorrt_llm.settings import Settings

__all__ = ["Cycle", "Sequences", "Storage", "ceil_div", "page_bytes", "storage_of"]

_PAGE: Final = 2**21
_PAGES: Final = 512
_WIDEST: Final = 4
_USUAL: Final = 2049
"""Tokens of the one sequence by which pools are divided where nothing else says how long sequences are."""


def ceil_div(number: int, by: int) -> int:
    """Divide and round up."""
    return -(-number // by)


def page_bytes(quota: int) -> int:
    """The size of a page: 2 MiB, doubled for each doubling of the quota over 1 GiB, up to 32 MiB."""
    return _PAGE << min(_WIDEST, max(0, int(math.log2(quota / (_PAGE * _PAGES))))) if quota > 0 else _PAGE


class Sequences(NamedTuple):
    """So many sequences with room for ``capacity`` tokens, of which ``history`` are behind them."""

    capacity: int
    history: int
    requests: int = 1


@frozen
class Cycle:
    """Layers whose blocks come and go together. ``sizes`` are the bytes of a slot in each of its pools, the largest first.

    ``alone`` is the largest share that one layer has in a pool: prompts that are read may keep old tokens of one layer at a time.
    """

    window: int | None
    state: bool
    sizes: tuple[int, ...]
    alone: Fraction

    def gone(self, history: int, block: int) -> int:
        """Blocks that no token behind ``history`` sees."""
        return 0 if self.window is None else max(0, (history + 1 - self.window) // block)

    def slots(self, one: Sequences, block: int, *, scratch: bool) -> int:
        """The slots of one sequence."""
        if self.state:
            return 1
        held = max(0, ceil_div(one.capacity, block) - self.gone(one.history, block))
        passing = self.gone(one.capacity, block) - ceil_div(one.history, block) if scratch and self.window is not None else 0
        passing = min(held, max(0, passing))
        return held - passing + math.ceil(passing * self.alone)


@frozen
class Storage:
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
        found = [len(cycles) for _, cycles in self.pools]
        for batch in self.least:
            found = [max(pair) for pair in zip(found, self._taken(batch), strict=True)]
        return found

    @cached_property
    def _usual(self) -> list[int]:
        return self._taken(self.typical)

    def pages(self, slots: Sequence[int], page: int) -> list[int]:
        """The pages of so many slots of each pool."""
        return [_pages(count, sizes, page) for count, (sizes, _) in zip(slots, self.pools, strict=True)]

    def usual_pages(self, page: int) -> list[int]:
        """The pages of each pool for the batch by which the quota is divided."""
        return self.pages(self._usual, page)

    def slots(self, quota: int) -> list[int] | None:
        """The slots of each pool; ``None`` where the quota is smaller than what must fit."""
        page = page_bytes(quota)
        total = ceil_div(quota, page)
        if quota <= 0 or sum(self.pages(self.floor, page)) > total:
            return None
        weights = self.usual_pages(page)
        ratio = [weight / sum(weights) for weight in weights]
        found, active, left = [0] * len(ratio), list(range(len(ratio))), total
        while active:
            dealt, rest = {}, left
            order = sorted(active, key=lambda pool: ratio[pool])
            for place, pool in enumerate(order):
                share = ratio[pool] / sum(ratio[other] for other in order[place:])
                dealt[pool] = _slots(round(rest * share), self.pools[pool][0], page)
                rest -= _pages(dealt[pool], self.pools[pool][0], page)
            short = [pool for pool in active if dealt[pool] <= self.floor[pool]]
            if not short:
                found = [dealt.get(pool, count) for pool, count in enumerate(found)]
                break
            for pool in short:
                pages = _pages(self.floor[pool], self.pools[pool][0], page)
                found[pool] = _slots(pages, self.pools[pool][0], page)
                left -= pages
            active = [pool for pool in active if pool not in short]
            if active and left <= 0:
                return None
        return found

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

        low, high = 0, max(slots, default=0) + 1
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low * self.block


def _pages(slots: int, sizes: tuple[int, ...], page: int) -> int:
    return sum(ceil_div(slots * size, page) for size in sizes)


def _slots(pages: int, sizes: tuple[int, ...], page: int) -> int:
    """The most slots that so many pages hold, each size in pages of its own."""
    low, high = 0, pages * page // max(sizes) + 1
    if len(sizes) == 1:
        return high - 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if _pages(middle, sizes, page) <= pages else (low, middle)
    return low


def storage_of(kinds: Sequence[tuple[tuple[Piece, ...], int]], settings: Settings, length: int, *, compressed: bool) -> Storage:
    """The pools of the layers of a stage, so many of each kind, for a longest sequence of so many tokens."""
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
    typical, least = _batches(settings, length, states=states, compressed=compressed)
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
        least = (
            (Sequences(length, length - 1), Sequences(1, 0, others)),
            (Sequences(one.batched_tokens, 0),),
        )
    if states:
        resident, half = one.sequences * one.pp, expected or max(1, length // 2)
        typical = (Sequences(half, half - 1, resident), dummies)
        least = (*((*batch, dummies) for batch in least), (Sequences(0, 0, resident + dummies.requests),))
    return typical, least

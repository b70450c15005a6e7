"""What sequences need of the manager's pools, whether a budget holds it, the smallest budget that does, and a pool in the figures of the log.

:class:`Needs` is the only place that says how many slots and bytes sequences take (:meth:`Needs.demand`, :attr:`Needs.on_stages`), and
whether a budget holds them (:meth:`Needs.holds`): for one length and number of sequences, or for arrays of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import Step, figure
from hwcalc.engines.tensorrt_llm.storage import FOREVER, PAGE, WIDEST_PAGE, Sequences, in_pages, page_bytes
from hwcalc.formulas.arithmetic import ceil_div, either, every, larger, largest, smaller, some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.tensorrt_llm.engine import TensorrtOccupancy
    from hwcalc.engines.tensorrt_llm.layout import Layout
    from hwcalc.engines.tensorrt_llm.storage import Dealt


def _but_not(first: bool, second: bool) -> bool:
    """True if the first holds and the second does not; of arrays, at each place."""
    return first & (second ^ True)


class Needs:
    """What ``batch`` sequences of so many tokens need, were they all on this replica. ``blocks`` are all theirs for each window."""

    def __init__(self, layout: Layout, tokens: int, batch: int, blocks: Mapping[int | None, int]) -> None:
        self.layout = layout
        self.tokens = tokens
        self.batch = batch
        self.blocks = blocks

    @classmethod
    def alike(cls, layout: Layout, tokens: int, sequences: int) -> Self:
        """The needs of ``sequences`` sequences that all have ``tokens`` tokens."""
        return cls(layout, tokens, sequences, {window: sequences * layout.blocks(window, tokens) for window in layout.windows})

    @cached_property
    def storages(self) -> tuple[Dealt, ...]:
        """V2: the pools of every stage."""
        return self.layout.storages(self.tokens)

    def demand(self, storage: Dealt, *, reading: bool = True) -> tuple[int, ...]:
        """V2: the slots of each pool for all sequences, while one of them is read in."""
        settings, pool_slots = self.layout.settings, []
        prompt = Sequences(smaller(self.tokens, settings.batched_tokens), 0)
        for _, cycles in storage.pools:
            slots = 0
            for cycle in cycles:
                held = self.batch if cycle.state else self.blocks[cycle.window]
                alone = 1 if cycle.state else self.layout.blocks(cycle.window, self.tokens)
                read = cycle.slots(prompt, settings.block, scratch=settings.scratch) - alone if reading else 0
                slots = slots + held + larger(0, read)
            pool_slots.append(slots)
        return tuple(pool_slots)

    @cached_property
    def _demands(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(self.demand, self.storages))

    def holds_in(self, budget: int, *, capped: bool = True) -> bool:
        """V2: whether the pools of a budget hold the sequences."""
        held = True
        quotas = self.layout.quotas(budget, capped=capped)
        for storage, demand, quota in zip(self.storages, self._demands, quotas, strict=True):
            slots, enough = storage.held(quota)
            held = held & enough
            for have, want in zip(slots, demand, strict=True):
                held = held & (have >= want)
            if held is False:
                return False
        return held

    @cached_property
    def least_budget(self) -> int:
        """V2: the smallest budget, in whole pages, whose pools hold the sequences."""
        first, *others = self.storages
        if not any(storage.pools for storage in self.storages):
            return 0  # no layer keeps anything
        if not others and len(first.pools) == len(first.pools[0][0]) == 1 and self.layout.settings.interval is None:
            # One pool with slots of one size has the whole quota.
            most = larger(self._demands[0][0], first.floor[0]) * first.pools[0][0][0]
            alone: int = either(most > FOREVER // 2, FOREVER, in_pages(most))
            return alone
        # Shares are whole pages of unlike sizes, and pools have least sizes: what holds is searched for. No less than the slots themselves do.
        slots = (
            sum(count * sum(sizes) for count, (sizes, _) in zip(demand, storage.pools, strict=True))
            for storage, demand in zip(self.storages, self._demands, strict=True)
        )
        least = largest(slots) - WIDEST_PAGE

        def held(pages: int) -> bool:
            enough: bool = pages * PAGE >= least
            return enough & self.holds_in(pages * PAGE, capped=False) if some(enough) else enough

        low, high, step, missing = 0, 0, 1, True
        while some(missing) and step * PAGE < FOREVER:
            found = missing & held(step)
            low, high = either(found, step // 2, low), either(found, step, high)
            missing, step = _but_not(missing, found), 2 * step
        while some(between := low + 1 < high):
            middle = (low + high) // 2
            found = held(middle)
            low, high = either(_but_not(between, found), middle, low), either(between & found, middle, high)
        budget: int = either(missing, FOREVER, in_pages(high * PAGE))
        return budget

    @cached_property
    def on_stages(self) -> tuple[int, ...]:
        """The budget that holds the sequences on each stage."""
        layout = self.layout
        if not layout.settings.v2:
            return tuple(layout.needed(stage, self.blocks) for stage in layout.stages)
        return tuple(map(in_pages, layout.quotas(self.least_budget, capped=False)))

    @cached_property
    def largest_budget(self) -> int:
        """The largest of :attr:`on_stages`, the budget that decides; 0 without stages."""
        budget: int = largest(self.on_stages) if self.on_stages else 0
        return budget

    def holds(self, budget: int) -> bool:
        """True if the sequences fit into the budget, and into ``max_tokens`` where it is given."""
        layout, cap = self.layout, self.layout.settings.most_tokens
        if layout.settings.v2:
            # What the last page has beyond the budget is not ours: the manager rounds up.
            whole = budget - budget % page_bytes(budget)
            return self.holds_in(whole) & (cap is None or self.tokens <= cap)
        held = (budget >= 0) & (self.largest_budget <= budget)
        if cap is None or layout.several:
            return held
        most: int = largest(self.blocks.values())
        return held & (most <= cap // layout.settings.block)


class AllNeeds:
    """The needs of sequences of several lengths, each in the layout of its length."""

    def __init__(self, layouts: tuple[tuple[int | None, Layout], ...], tokens: int, sequences: int) -> None:
        self._parts: list[tuple[bool, Needs]] = []
        above = True
        for last, layout in layouts:
            here = above if last is None else above & (tokens <= last)
            if some(here):
                self._parts.append((here, Needs.alike(layout, tokens, sequences)))
            above = _but_not(above, here)

    def needed_bytes(self) -> int:
        """The cache on the fullest GPU."""
        return self._joined([needs.largest_budget for _, needs in self._parts])

    def total_bytes(self, sequences: int, dp: int) -> int:
        """Bytes of the cache on all stages, for ``sequences`` sequences on ``dp`` replicas."""
        return self._joined([_total(needs, sequences, dp) for _, needs in self._parts])

    def holds(self, budget: int) -> bool:
        """True if they fit."""
        return self._joined([needs.holds(budget) * 1 for _, needs in self._parts]) == 1

    def _joined(self, values: list[int]) -> int:
        (first, most), *others = zip((here for here, _ in self._parts), values, strict=True)
        if every(first):
            return most
        for here, value in others:
            most = either(here, value, most)
        return most


def _total(needs: Needs, sequences: int, dp: int) -> int:
    """The bytes that all replicas store: what sequences hold, and what the manager keeps besides."""
    layout, settings, total = needs.layout, needs.layout.settings, 0
    every_block = Needs.alike(layout, needs.tokens, sequences).blocks
    for stage, needed in zip(layout.stages, needs.on_stages, strict=True):
        held = sum(blocks * settings.block * layout.rows(stage, window) for window, blocks in every_block.items())
        if not settings.v2:
            total = total + larger(held, layout.needed(stage, every_block))
            continue
        idle = layout.slots * stage.state
        held_by_sequences = sum(blocks * settings.block * layout.rows(stage, window) for window, blocks in needs.blocks.items())
        manager_bytes = larger(0, needed - held_by_sequences - larger(idle, needs.batch * stage.state))
        total = total + held + larger(sequences * stage.state, dp * idle) + dp * manager_bytes
    return total


def plan_pool(occupancy: TensorrtOccupancy, budget: int) -> PoolInfo:
    """The pool of one replica."""
    layout, settings, deployment, tokens = occupancy.layout, occupancy.settings, occupancy.deployment, occupancy.tokens
    single, replica = deployment.needs(tokens, 1), occupancy.replica
    bound = max(tokens, occupancy.model.max_position_embeddings or 0)
    bound = bound if deployment.most_tokens is None else min(bound, deployment.most_tokens)
    longest = _last(bound, lambda length: deployment.needs(length, 1).holds(budget))
    # Requests of the planned length that run at once: no more than ``max_batch_size``.
    most = settings.sequences // occupancy.load.sharing.branches
    pool = (_v2 if settings.v2 else _v1)(
        occupancy,
        PoolInfo(
            budget_bytes=budget,
            block_size=settings.block,
            blocks_per_request=layout.blocks(None if None in layout.windows else layout.windows[-1], tokens),
            max_requests=_last(most, lambda requests: replica.sized(batch=requests).needs.holds(budget)),
            max_seq=longest,
            needed_bytes=single.largest_budget,
            fits=single.holds(budget),
        ),
    )
    if pool.fits:
        return pool
    # What the manager says where the longest sequence does not fit.
    if not pool.blocks or not longest:
        message = "Impossible to fit in any sequence in kvCache"
    elif settings.v2:
        message = (
            f"max_seq_len {tokens} is greater than max_num_tokens {longest} that can be allocated in kv cache manager, "
            f"setting max_seq_len to {longest}"
        )
    else:
        message = f"Attention window size {tokens} exceeds upper bound {longest} for available blocks. Reducing to {longest}."
    return replace(pool, message=message)


def _last(most: int, good: Callable[[int], bool]) -> int:
    """The last number from 1 to ``most`` up to which all are good."""
    return most if most < 1 or good(most) else bisect_left(range(1, most), 1, key=lambda number: int(not good(number)))


def _v1(occupancy: TensorrtOccupancy, info: PoolInfo) -> PoolInfo:
    """The pool with its sizes under V1: one pool, or one for each window."""
    layout, size, steps = occupancy.layout, occupancy.settings.block, list[Step]()
    pools = layout.pool_blocks(info.budget_bytes, steps)
    whole = max(pools, key=lambda window: FOREVER if window is None else window)
    blocks, row = pools[whole], max((layout.rows(stage, whole) for stage in layout.stages), default=0)
    if layout.several:
        info = replace(info, swa_tokens=min(pools.values()) * size)
    else:
        info = replace(info, bytes_per_token=row, bytes_per_block=row * size)
    # Where no layer keeps all tokens there is no end.
    if blocks >= FOREVER // size:
        return info
    share = blocks / layout.blocks(whole, occupancy.tokens)
    return replace(info, tokens=blocks * size, blocks=min(pools.values()), max_concurrency=share, steps=tuple(steps))


def _v2(occupancy: TensorrtOccupancy, info: PoolInfo) -> PoolInfo:
    """The pool with its sizes under V2: those of the stage that has fewest of each."""
    layout, size, single = occupancy.layout, occupancy.settings.block, occupancy.deployment.needs(occupancy.tokens, 1)
    stages = []
    for storage, quota in zip(single.storages, layout.quotas(info.budget_bytes), strict=True):
        stages.append((storage, quota, storage.slots(quota) or [0] * len(storage.pools)))
    whole = [(storage, quota, slots[place]) for storage, quota, slots in stages if (place := storage.pool_of(None)) is not None]
    longest = (storage.longest(slots) for storage, _, slots in stages)
    tokens = min((length for length in longest if length is not None), default=None)
    blocks = min((count for *_, count in whole), default=None)
    states = [slots[place] for storage, _, slots in stages if (place := storage.pool_of(None, state=True)) is not None]
    windows = [
        slots[place]
        for storage, _, slots in stages
        for window in layout.windows
        if window is not None and (place := storage.pool_of(window)) is not None and place != storage.pool_of(None)
    ]
    shares = [
        have / want
        for storage, _, slots in stages
        for have, want in zip(slots, single.demand(storage, reading=False), strict=True)
        if want
    ]
    steps: list[Step] = []
    if blocks is not None:
        storage, quota, _ = min(whole, key=lambda each: each[2])
        _tell_slots(storage, quota, steps)
        sizes, cycles = storage.pools[storage.pool_of(None) or 0]
        if steps and len(cycles) == len(sizes) == 1 and tokens == blocks * size:
            figure(steps, "tokens", "blocks x tokens_per_block", unit="tokens", blocks=blocks, tokens_per_block=size)
    return replace(
        info,
        tokens=tokens,
        bytes_per_token=max((stage.growing for stage in layout.stages), default=0),
        blocks=blocks,
        bytes_per_block=max((sum(storage.pools[storage.pool_of(None) or 0][0]) for storage, *_ in whole), default=None),
        max_concurrency=min(shares, default=None),
        swa_tokens=min(windows) * size if windows else None,
        state_slots=min(states, default=None),
        steps=tuple(steps),
    )


def _tell_slots(storage: Dealt, quota: int, steps: list[Step]) -> None:
    """Keep the steps that give the pages and slots of each pool, with that of the layers that keep all tokens at the end."""
    page, place, slots = page_bytes(quota), storage.pool_of(None) or 0, storage.slots(quota)
    if slots is None:
        return
    pages, usual, in_all, others = storage.pages(slots, page), storage.usual_pages(page), {"quota": quota, "page_bytes": page}, 0
    for number in sorted(range(len(slots)), key=lambda number: number == place):
        sizes, cycles = storage.pools[number]
        others += number != place
        name = "" if number == place else "state_" if any(cycle.state for cycle in cycles) else f"window_{others}_"
        if len(sizes) > 1:
            continue
        mine, unit = f"{name}pages", "slots" if name else "blocks"
        size = f"{name}slot_bytes" if name else "bytes_per_block"
        if len(slots) == 1:
            count = figure(steps, mine, "ceil(quota / page_bytes)", unit="pages", **in_all)
        elif round(ceil_div(quota, page) * usual[number] / sum(usual)) == pages[number]:
            formula = f"round(ceil(quota / page_bytes) x {name}usual_pages / all_usual_pages)"
            terms = {f"{name}usual_pages": usual[number], "all_usual_pages": sum(usual)}
            count = figure(steps, mine, formula, unit="pages", **in_all, **terms)
        else:
            count = figure(steps, mine, "pages_of_this_pool", unit="pages", pages_of_this_pool=pages[number])
        formula, terms = f"floor({mine} x page_bytes / {size})", {mine: count, "page_bytes": page, size: sizes[0]}
        figure(steps, f"{name}{unit}", formula, unit=unit, **terms)

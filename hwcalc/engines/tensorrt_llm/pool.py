"""The pool for a byte budget, in the figures of the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import Step, step
from hwcalc.engines.tensorrt_llm.pools import FOREVER, page_bytes
from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy
    from hwcalc.engines.tensorrt_llm.pools import Dealt


class _Sizes(Record):
    """The sizes of the pools that a budget gives; ``tokens`` and ``blocks`` are those of the layers that keep all, ``None`` without end."""

    tokens: int | None
    blocks: int | None
    window_tokens: int | None
    states: int | None
    concurrency: float | None
    row: int
    block_bytes: int | None
    steps: tuple[Step, ...]


def _v1(occupancy: TensorrtOccupancy, budget: int) -> _Sizes:
    """One pool, or one for each window."""
    layout, size, steps = occupancy.layout, occupancy.settings.block, list[Step]()
    pools = layout.pool_blocks(budget, steps)
    whole = max(pools, key=lambda window: FOREVER if window is None else window)
    blocks = pools[whole]
    endless = blocks >= FOREVER // size
    row = max((layout.rows(stage, whole) for stage in layout.stages), default=0)
    return _Sizes(
        tokens=None if endless else blocks * size,
        blocks=None if endless else min(pools.values()),
        window_tokens=min(pools.values()) * size if layout.several else None,
        states=None,
        concurrency=None if endless else blocks / layout.blocks(whole, occupancy.tokens),
        row=row,
        block_bytes=None if layout.several else row * size,
        steps=() if endless else tuple(steps),
    )


def _v2(occupancy: TensorrtOccupancy, budget: int) -> _Sizes:
    """The pools of the stage that has fewest of each."""
    layout, size, single = occupancy.layout, occupancy.settings.block, occupancy.deployment.needs(occupancy.tokens, 1)
    stages = []
    for storage, quota in zip(single.storages, layout.quotas(budget), strict=True):
        slots = storage.slots(quota) or [0] * len(storage.pools)
        stages.append((storage, quota, slots))
    whole = [(storage, quota, slots[place]) for storage, quota, slots in stages if (place := storage.pool_of(None)) is not None]
    tokens = [longest for storage, _, slots in stages if (longest := storage.longest(slots)) is not None]
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
    return _Sizes(
        tokens=min(tokens, default=None),
        blocks=blocks,
        window_tokens=min(windows) * size if windows else None,
        states=min(states, default=None),
        concurrency=min(shares, default=None),
        row=max((stage.growing for stage in layout.stages), default=0),
        block_bytes=max((sum(storage.pools[storage.pool_of(None) or 0][0]) for storage, *_ in whole), default=None),
        steps=() if blocks is None else _v2_steps(occupancy, whole, blocks, min(tokens, default=0)),
    )


def plan_pool(occupancy: TensorrtOccupancy, budget: int) -> PoolInfo:
    """The pool of one replica."""
    layout, settings, deployment = occupancy.layout, occupancy.settings, occupancy.deployment
    sizes = (_v2 if settings.v2 else _v1)(occupancy, budget)
    single = deployment.needs(occupancy.tokens, 1)
    fits = single.holds(budget)
    longest = _longest(occupancy, budget)
    whole = None if None in layout.windows else layout.windows[-1]
    return PoolInfo(
        budget_bytes=budget,
        tokens=sizes.tokens,
        bytes_per_token=None if layout.several else sizes.row,
        blocks=sizes.blocks,
        block_size=settings.block,
        bytes_per_block=sizes.block_bytes,
        blocks_per_request=layout.blocks(whole, occupancy.tokens),
        max_concurrency=sizes.concurrency,
        max_requests=_most(occupancy, budget),
        max_seq=longest,
        swa_tokens=sizes.window_tokens,
        state_slots=sizes.states,
        needed_bytes=single.most,
        fits=fits,
        message=None if fits else _message(occupancy, sizes.blocks or 0, longest),
        requires=(),
        definition=Definition.ENGINE,
        steps=sizes.steps,
    )


def _last(most: int, good: Callable[[int], bool]) -> int:
    """The last number from 1 to ``most`` up to which all are good."""
    return bisect_left(range(1, most + 1), 1, key=lambda number: int(not good(number)))


def _longest(occupancy: TensorrtOccupancy, budget: int) -> int:
    """The longest sequence that one request could have."""
    deployment, bound = occupancy.deployment, max(occupancy.tokens, occupancy.model.max_position_embeddings or 0)
    bound = bound if deployment.most_tokens is None else min(bound, deployment.most_tokens)

    def fits(length: int) -> bool:
        return deployment.needs(length, 1).holds(budget)

    return bound if fits(bound) else _last(bound - 1, fits)


def _most(occupancy: TensorrtOccupancy, budget: int) -> int:
    """Requests of the planned length that one replica runs at once: no more than ``max_batch_size``."""
    replica, most = occupancy.replica, occupancy.settings.sequences // occupancy.load.sharing.branches
    return _last(most, lambda requests: replica.sized(batch=requests).needs.holds(budget))


def _message(occupancy: TensorrtOccupancy, blocks: int, longest: int) -> str:
    """What the manager says where the longest sequence does not fit."""
    if not blocks or not longest:
        return "Impossible to fit in any sequence in kvCache"
    if occupancy.settings.v2:
        return (
            f"max_seq_len {occupancy.tokens} is greater than max_num_tokens {longest} that can be allocated in kv cache manager, "
            f"setting max_seq_len to {longest}"
        )
    return f"Attention window size {occupancy.tokens} exceeds upper bound {longest} for available blocks. Reducing to {longest}."


def _v2_steps(occupancy: TensorrtOccupancy, whole: list[tuple[Dealt, int, int]], blocks: int, tokens: int) -> tuple[Step, ...]:
    """The steps that give the blocks and states of each pool, on the stage that has fewest blocks."""
    storage, quota, _ = min(whole, key=lambda each: each[2])
    page, place, slots = page_bytes(quota), storage.pool_of(None) or 0, storage.slots(quota)
    if slots is None:
        return ()
    pages, usual, total = storage.pages(slots, page), storage.usual_pages(page), ceil_div(quota, page)
    found: list[Step] = []
    others = 0
    # The pool of the growing layers comes last, and its tokens follow.
    for number in sorted(range(len(slots)), key=lambda number: number == place):
        sizes, cycles = storage.pools[number]
        others += number != place
        name = "" if number == place else "state_" if any(cycle.state for cycle in cycles) else f"window_{others}_"
        if len(sizes) > 1:
            continue
        if len(slots) == 1:
            found.append(step("pages", "ceil(quota / page_bytes)", total, unit="pages", quota=quota, page_bytes=page))
        elif round(total * usual[number] / sum(usual)) == pages[number]:
            found.append(
                step(
                    f"{name}pages",
                    f"round(ceil(quota / page_bytes) x {name}usual_pages / all_usual_pages)",
                    pages[number],
                    unit="pages",
                    quota=quota,
                    page_bytes=page,
                    **{f"{name}usual_pages": usual[number]},
                    all_usual_pages=sum(usual),
                )
            )
        else:
            found.append(
                step(f"{name}pages", "pages_of_this_pool", pages[number], unit="pages", pages_of_this_pool=pages[number])
            )
        size = {f"{name}slot_bytes" if name else "bytes_per_block": sizes[0]}
        count = {f"{name}pages": total if len(slots) == 1 else pages[number], "page_bytes": page}
        unit = "slots" if name else "blocks"
        found.append(
            step(
                f"{name}{unit}",
                f"floor({name}pages x page_bytes / {next(iter(size))})",
                slots[number],
                unit=unit,
                **count,
                **size,
            )
        )
    size_ = occupancy.settings.block
    if len(storage.pools[place][1]) == 1 and len(storage.pools[place][0]) == 1 and tokens == blocks * size_:
        found.append(step("tokens", "blocks x tokens_per_block", tokens, unit="tokens", blocks=blocks, tokens_per_block=size_))
    return tuple(found)

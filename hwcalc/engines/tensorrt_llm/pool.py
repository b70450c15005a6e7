"""The pool for a byte budget, in the figures of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.steps import Step, step
from hwcalc.engines.tensorrt_llm.layout import FOREVER, Layout
from hwcalc.engines.tensorrt_llm.opened import TensorrtOpened, of_tensorrt
from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.storage import Storage

__all__ = ["holds", "plan_pool"]


def holds(opened: TensorrtOpened, budget: int) -> bool:
    """Whether the planned sequences of the fullest replica fit into the budget, and into ``max_tokens`` where it is given."""
    return of_tensorrt(opened.replica).needs.holds(budget)


class _Sizes(Record):
    """How large the pools of a budget are; ``tokens`` and ``blocks`` are those of the layers that keep all, ``None`` without end."""

    tokens: int | None
    blocks: int | None
    window_tokens: int | None
    states: int | None
    concurrency: float | None
    row: int
    block_bytes: int | None
    steps: tuple[Step, ...]


def _v1(opened: TensorrtOpened, budget: int) -> _Sizes:
    """One pool, or one for each window."""
    layout, size = opened.layout, opened.settings.block
    pools = layout.pool_blocks(budget)
    whole = max(pools, key=lambda window: FOREVER if window is None else window)
    blocks = pools[whole]
    endless = blocks >= FOREVER // size
    row = max((layout.rows(stage, whole) for stage in layout.stages), default=0)
    return _Sizes(
        tokens=None if endless else blocks * size,
        blocks=None if endless else min(pools.values()),
        window_tokens=min(pools.values()) * size if layout.several else None,
        states=None,
        concurrency=None if endless else blocks / layout.blocks(whole, opened.tokens),
        row=row,
        block_bytes=None if layout.several else row * size,
        steps=() if endless else _v1_steps(layout, budget, blocks),
    )


def _v2(opened: TensorrtOpened, budget: int) -> _Sizes:
    """The pools of the stage that has fewest of each."""
    layout, size, single = opened.layout, opened.settings.block, of_tensorrt(opened.single)
    stages = []
    for storage, quota in zip(opened.storages, layout.quotas(budget), strict=True):
        slots = storage.slots(quota) or [0] * len(storage.pools)
        stages.append((storage, quota, slots))
    whole = [(storage, quota, slots[place]) for storage, quota, slots in stages if (place := storage.pool_of(None)) is not None]
    tokens = [found for storage, _, slots in stages if (found := storage.longest(slots)) is not None]
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
        for have, want in zip(slots, single.needs.demand(storage, reading=False), strict=True)
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
        steps=() if blocks is None else _v2_steps(opened, whole, blocks, min(tokens, default=0)),
    )


def plan_pool(opened: TensorrtOpened, budget: int) -> PoolInfo:
    """The pool of one replica."""
    layout, one = opened.layout, opened.settings
    found = (_v2 if one.v2 else _v1)(opened, budget)
    single = of_tensorrt(opened.single)
    fits = holds(single, budget)
    longest = _longest(single, budget, max(opened.tokens, opened.model.max_position_embeddings or 0))
    whole = None if None in layout.windows else layout.windows[-1]
    return PoolInfo(
        budget_bytes=budget,
        tokens=found.tokens,
        bytes_per_token=None if layout.several else found.row,
        blocks=found.blocks,
        block_size=one.block,
        bytes_per_block=found.block_bytes,
        blocks_per_request=layout.blocks(whole, opened.tokens),
        max_concurrency=found.concurrency,
        max_requests=_most(opened, budget),
        max_seq=longest,
        swa_tokens=found.window_tokens,
        state_slots=found.states,
        needed_bytes=single.needs.most,
        fits=fits,
        message=None if fits else _message(opened, found.blocks or 0, longest),
        requires=(),
        definition=Definition.ENGINE,
        steps=found.steps,
    )


def _last(most: int, good: Callable[[int], bool]) -> int:
    """The last number from 1 to ``most`` up to which all are good."""
    from bisect import bisect_left

    return bisect_left(range(1, most + 1), 1, key=lambda number: int(not good(number)))


def _longest(single: TensorrtOpened, budget: int, bound: int) -> int:
    """The longest sequence that one request could have."""

    def fits(length: int) -> bool:
        return holds(of_tensorrt(single.sized(seq=length)), budget)

    return bound if fits(bound) else _last(bound - 1, fits)


def _most(opened: TensorrtOpened, budget: int) -> int:
    """Requests of the planned length that one replica runs at once: no more than ``max_batch_size``."""
    replica, most = of_tensorrt(opened.replica), opened.settings.sequences
    branches = opened.request.sharing.branches
    if opened.together.unlike or opened.settings.most_tokens is not None or opened.layout.several:
        return _last(most // branches, lambda requests: holds(of_tensorrt(replica.sized(batch=requests)), budget))
    if opened.settings.v2:
        return max(0, min(most // branches, _most_in(of_tensorrt(replica.sized(batch=1)), budget)))
    pools = opened.layout.pool_blocks(budget)
    each = {window: branches * opened.layout.blocks(window, opened.tokens) for window in pools}
    return min(most // branches, *(pools[window] // each[window] for window in pools))


def _most_in(one: TensorrtOpened, budget: int) -> int:
    """V2: how many such requests the pools of whole pages hold, while one of them is read in."""
    from hwcalc.engines.tensorrt_llm.storage import page_bytes

    found = []
    for storage, quota in zip(one.storages, one.layout.quotas(budget - budget % page_bytes(budget)), strict=True):
        slots = storage.slots(quota)
        if slots is None:
            return 0
        pairs = zip(slots, one.needs.demand(storage, reading=False), one.needs.demand(storage), strict=True)
        found += [(have - (read - each)) // each for have, each, read in pairs if each]
    return min(found, default=FOREVER)


def _message(opened: TensorrtOpened, blocks: int, longest: int) -> str:
    """What the manager says where the longest sequence does not fit."""
    if not blocks or not longest:
        return "Impossible to fit in any sequence in kvCache"
    if opened.settings.v2:
        return (
            f"max_seq_len {opened.tokens} is greater than max_num_tokens {longest} that can be allocated in kv cache manager, "
            f"setting max_seq_len to {longest}"
        )
    return f"Attention window size {opened.tokens} exceeds upper bound {longest} for available blocks. Reducing to {longest}."


def _v1_steps(layout: Layout, budget: int, blocks: int) -> tuple[Step, ...]:
    """How many tokens and blocks there are, of the stage that has fewest."""
    one = layout.settings
    if one.most_tokens is not None:
        return ()
    if layout.several:
        return _window_steps(layout, budget, blocks)
    (window,) = layout.windows
    row = max(layout.rows(stage, window) for stage in layout.stages)
    tokens = budget // row
    return (
        step("tokens", "floor(budget / bytes_per_token)", tokens, unit="tokens", budget=budget, bytes_per_token=row),
        step("blocks", "floor(tokens / tokens_per_block)", blocks, unit="blocks", tokens=tokens, tokens_per_block=one.block),
    )


def _window_steps(layout: Layout, budget: int, blocks: int) -> tuple[Step, ...]:
    """The blocks of each window, of the stage that has fewest; those of the longest window, ``blocks``, say the tokens."""
    if layout.settings.kv_dtype == "nvfp4":
        return ()
    size, steps = layout.settings.block, []
    for number, (window, found) in enumerate(layout.pool_blocks(budget).items(), start=1):
        row = max(layout.rows(stage, window) for stage in layout.stages)
        steps.append(
            step(
                f"window_blocks_{number}",
                "floor(budget / windows / window_block_bytes)",
                found,
                unit="blocks",
                budget=budget,
                windows=len(layout.windows),
                window_block_bytes=row * size,
            )
        )
    pools = {one.name: one.expected for one in steps}
    whole = {one.name: blocks for one in steps if one.expected == blocks}
    return (
        *steps,
        step("blocks", f"min({', '.join(pools)})", min(pools.values()), unit="blocks", **pools),
        step(
            "tokens",
            f"{next(iter(whole))} x tokens_per_block",
            blocks * size,
            unit="tokens",
            **dict([*whole.items()][:1]),
            tokens_per_block=size,
        ),
    )


def _v2_steps(opened: TensorrtOpened, whole: list[tuple[Storage, int, int]], blocks: int, tokens: int) -> tuple[Step, ...]:
    """How many blocks and states the pages of each pool hold, on the stage that has fewest blocks."""
    from hwcalc.engines.tensorrt_llm.storage import page_bytes

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
    size_ = opened.settings.block
    if len(storage.pools[place][1]) == 1 and len(storage.pools[place][0]) == 1 and tokens == blocks * size_:
        found.append(step("tokens", "blocks x tokens_per_block", tokens, unit="tokens", blocks=blocks, tokens_per_block=size_))
    return tuple(found)

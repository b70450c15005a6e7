"""The pool for a byte budget, in the figures of the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.steps import Step, step
from hwcalc.engines.tensorrt_llm.layout import FOREVER, Layout
from hwcalc.engines.tensorrt_llm.opened import TensorrtOpened, of_tensorrt
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition

__all__ = ["group_infos", "holds", "plan_pool"]


def holds(opened: TensorrtOpened, budget: int) -> bool:
    """Whether the planned sequences of the fullest replica fit into the budget, and into ``max_tokens`` where it is given."""
    replica = of_tensorrt(opened.replica)
    if budget < 0 or any(replica.needed_on(stage) > budget for stage in replica.layout.stages):
        return False
    cap = opened.settings.most_tokens
    return cap is None or replica.layout.several or max(replica.all_blocks.values()) <= cap // opened.settings.block


def plan_pool(opened: TensorrtOpened, budget: int) -> PoolInfo:
    """The pool of one replica."""
    layout, one, size = opened.layout, opened.settings, opened.settings.block
    pools = layout.pool_blocks(budget)
    whole = max(pools, key=lambda window: FOREVER if window is None else window)
    blocks, per_request = pools[whole], layout.blocks(whole, opened.tokens)
    endless = blocks >= FOREVER // size
    single = of_tensorrt(opened.single)
    fits = holds(single, budget)
    longest = _longest(single, budget, max(opened.tokens, opened.model.max_position_embeddings or 0))
    growing = max((layout.rows(stage, None if one.v2 else whole) for stage in layout.stages), default=0)
    tokens = None if endless else blocks * size
    return PoolInfo(
        budget_bytes=budget,
        tokens=tokens,
        bytes_per_token=None if layout.several else growing,
        blocks=None if endless else min(pools.values()),
        block_size=size,
        bytes_per_block=None if layout.several else growing * size,
        blocks_per_request=per_request,
        max_concurrency=None if endless else blocks / per_request,
        max_requests=_most(opened, budget),
        max_seq=longest,
        swa_tokens=min(pools.values()) * size if layout.several else None,
        state_slots=layout.slots + layout.snapshots(tokens or 0) if layout.slots else None,
        needed_bytes=max((single.needed_on(stage) for stage in layout.stages), default=0),
        fits=fits,
        message=None if fits else _message(opened, blocks, longest),
        requires=(),
        definition=Definition.ENGINE,
        steps=() if endless else _steps(layout, budget, blocks),
    )


def _last(most: int, good: Callable[[int], bool]) -> int:
    """The last number from 1 to ``most`` up to which all are good."""
    return bisect_left(range(1, most + 1), 1, key=lambda number: int(not good(number)))


def _longest(single: TensorrtOpened, budget: int, bound: int) -> int:
    """The longest sequence that one request could have."""
    return _last(bound, lambda length: holds(of_tensorrt(single.sized(seq=length)), budget))


def _most(opened: TensorrtOpened, budget: int) -> int:
    """Requests of the planned length that one replica runs at once: no more than ``max_batch_size``."""
    replica, most = of_tensorrt(opened.replica), opened.settings.sequences
    branches = opened.request.sharing.branches
    if not opened.together.unlike and opened.settings.most_tokens is None and not opened.layout.several:
        pools = opened.layout.pool_blocks(budget)
        each = {window: branches * opened.layout.blocks(window, opened.tokens) for window in pools}
        return min(most // branches, *(pools[window] // each[window] for window in pools))
    return _last(most // branches, lambda requests: holds(of_tensorrt(replica.sized(batch=requests)), budget))


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


def _steps(layout: Layout, budget: int, blocks: int) -> tuple[Step, ...]:
    """How many tokens and blocks there are, of the stage that has fewest."""
    one = layout.settings
    if layout.several or one.most_tokens is not None or one.interval is not None:
        return ()
    if not one.v2:
        (window,) = layout.windows
        row = max(layout.rows(stage, window) for stage in layout.stages)
        tokens = budget // row
        first = step("tokens", "floor(budget / bytes_per_token)", tokens, unit="tokens", budget=budget, bytes_per_token=row)
    else:
        stage = min(layout.stages, key=lambda each: layout.tokens_for(each, budget))
        fixed, tokens, reading = layout.quota(stage, 0), layout.tokens_for(stage, budget), stage.reading(one.scratch)
        if tokens <= one.batched_tokens:
            first = step(
                "tokens",
                "max(0, floor((budget - fixed) / (bytes_per_token + window_bytes_per_token)))",
                tokens,
                unit="tokens",
                budget=budget,
                fixed=fixed,
                bytes_per_token=stage.growing,
                window_bytes_per_token=reading,
            )
        else:
            first = step(
                "tokens",
                "floor((budget - fixed - max_num_tokens x window_bytes_per_token) / bytes_per_token)",
                tokens,
                unit="tokens",
                budget=budget,
                fixed=fixed,
                max_num_tokens=one.batched_tokens,
                window_bytes_per_token=reading,
                bytes_per_token=stage.growing,
            )
    return (
        first,
        step("blocks", "floor(tokens / tokens_per_block)", blocks, unit="blocks", tokens=tokens, tokens_per_block=one.block),
    )


def group_infos(opened: TensorrtOpened) -> tuple[PoolGroup, ...]:
    """The pools as a plan reports them, each with the layers that have it, and the states."""
    layout, size, infos = opened.layout, opened.settings.block, []
    windows: dict[int | None, list[int]] = {}
    states: list[int] = []
    for group in opened.stack.groups:
        for piece in opened.kind_pieces[group.kind]:
            (states if piece.state else windows.setdefault(piece.window, [])).extend(group.layers)
    for window, layers in windows.items():
        block = size * max(layout.rows(stage, window) for stage in layout.stages)
        infos.append(_info("full" if window is None else "window", layers, size, block, layout.blocks(window, opened.tokens)))
    if states:
        infos.append(_info("state", states, size, max(stage.state for stage in layout.stages), 1))
    return tuple(infos)


def _info(kind: str, layers: list[int], size: int, block: int, blocks: int) -> PoolGroup:
    numbers = LayerNumbers(sorted(dict.fromkeys(layers)))
    return PoolGroup(
        kind=kind,
        count=len(numbers),
        layers=numbers,
        block_size=size,
        page_bytes=None,
        block_bytes=block,
        blocks_per_request=blocks,
    )

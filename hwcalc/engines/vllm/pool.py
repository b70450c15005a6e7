"""What a byte budget per GPU holds: blocks, the figures of the start-up log, and the check before it.

One block is the null block, which stands for tokens that left their window: it counts in the log, and not in the check.
Source: vLLM 0.33, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from __future__ import annotations

from hwcalc.engines.pool import PoolGroup, PoolInfo, Try
from hwcalc.engines.vllm import versions
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.layout import PoolLayout
from hwcalc.engines.vllm.settings import VllmSettings
from hwcalc.engines.vllm.specs import FullSpec, StateSpec
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition
from hwcalc.units import GIB

__all__ = ["group_infos", "plan_pool", "usable_blocks"]


def plan_pool(layout: PoolLayout, settings: VllmSettings, budget: int, length: int, bound: int) -> PoolInfo:
    """The pool of one data-parallel replica. ``bound`` limits the search for the longest request."""
    stages = [size for size in layout.stage_bytes if size]
    if not stages:
        return _without_cache(budget)
    wanted = layout.total_blocks(length)
    blocks = min(budget // size for size in stages)
    if settings.override is not None:
        blocks = settings.override
    usable = usable_blocks(layout, settings, budget)
    message = _message(layout, settings, budget, length, bound)
    concurrency = blocks / wanted
    fits = message is None
    plain = len(layout.groups) == 1 and isinstance(layout.groups[0].specs[0], FullSpec)
    return PoolInfo(
        budget_bytes=budget,
        tokens=_logged(layout, settings, blocks, concurrency, length) if fits else None,
        bytes_per_token=max(stages) // (layout.block_size * settings.dcp) if plain else None,
        blocks=blocks,
        block_size=layout.block_size,
        bytes_per_block=max(stages),
        blocks_per_request=wanted,
        max_concurrency=concurrency if fits else None,
        max_requests=usable // wanted,
        max_seq=layout.longest(usable, bound),
        swa_tokens=None,
        state_slots=None,
        needed_bytes=max(stages) * wanted,
        fits=fits,
        message=message,
        requires=_mamba_limit(layout, settings, blocks) if fits else (),
        definition=Definition.ENGINE,
    )


def usable_blocks(layout: PoolLayout, settings: VllmSettings, budget: int) -> int:
    """Blocks that requests can have on the stage that has fewest: all but the null block."""
    if settings.override is not None:
        return max(0, settings.override - 1)
    return max(0, min(budget // size for size in layout.stage_bytes if size) - 1)


def _without_cache(budget: int) -> PoolInfo:
    """A model without any cache: the pool is the null block alone."""
    return PoolInfo(
        budget_bytes=budget,
        tokens=None,
        bytes_per_token=None,
        blocks=1,
        block_size=None,
        bytes_per_block=0,
        blocks_per_request=0,
        max_concurrency=None,
        max_requests=None,
        max_seq=None,
        swa_tokens=None,
        state_slots=None,
        needed_bytes=0,
        fits=True,
        message=None,
        requires=(),
        definition=Definition.ENGINE,
    )


def _logged(layout: PoolLayout, settings: VllmSettings, blocks: int, concurrency: float, length: int) -> int:
    """The token figure of the log. vLLM computes it in floating point, so that a product may fall just below a whole number."""
    if settings.version >= versions.GROUP_AWARE_LOG_SINCE:
        return int(concurrency * length)
    smallest = min(spec.block_size for group in layout.groups for spec in group.specs)
    return blocks // len(layout.groups) * smallest * settings.dcp


def _message(layout: PoolLayout, settings: VllmSettings, budget: int, length: int, bound: int) -> str | None:
    """Why it does not start, in the engine's own words; the first pipeline stage that lacks memory speaks."""
    wanted = layout.total_blocks(length)
    for size in layout.stage_bytes:
        if not size:
            continue
        available = (size * settings.override if settings.override is not None else budget) - size
        if available <= 0:
            return "No available memory for the cache blocks."
        if size * wanted > available:
            longest = layout.longest(available // size, min(length, bound))
            estimate = f" Based on the available memory, the estimated maximum model length is {longest}." if longest else ""
            return (
                f"To serve at least one request with the model's max seq len ({length}), ({_gib(size * wanted)} GiB KV cache is "
                f"needed, which is larger than the available KV cache memory ({_gib(available)} GiB).{estimate}"
            )
    return None


def _gib(size: int) -> str:
    return f"{round(size / GIB, 2)}"


def _mamba_limit(layout: PoolLayout, settings: VllmSettings, blocks: int) -> tuple[Try, ...]:
    """Since 0.19 CUDA graphs of decoding are captured for ``max_num_seqs`` requests, each with a block for its states.

    Source: vLLM, config/compilation.py (pull request 38270): "max_num_seqs exceeds available Mamba cache blocks".
    """
    states = any(isinstance(spec, StateSpec) for group in layout.groups for spec in group.distinct)
    if not states or settings.version < versions.STATES_CHECKED_SINCE or settings.sequences <= blocks:
        return ()
    return (Try(flag=f"--max-num-seqs {blocks}", effect=f"{settings.sequences:,} requests need a state block each"),)


def group_infos(layout: PoolLayout, length: int) -> tuple[PoolGroup, ...]:
    """The groups as they are reported."""
    return tuple(_group_info(layout, group, length) for group in layout.groups)


def _group_info(layout: PoolLayout, group: BlockGroup, length: int) -> PoolGroup:
    pages = [spec.page for spec in group.specs]
    parts = [layout.caches[member] for member in group.members]
    layers = [part.layer for part in parts if part.layer >= 0]
    forms = dict.fromkeys(spec.form for spec in group.specs)
    return PoolGroup(
        kind="+".join(forms),
        count=len(group.members),
        layers=LayerNumbers(dict.fromkeys(layers)),
        block_size=group.specs[0].block_size,
        page_bytes=pages[0] if len(set(pages)) == 1 else None,
        block_bytes=sum(pages),
        blocks_per_request=layout.blocks(group, length),
    )

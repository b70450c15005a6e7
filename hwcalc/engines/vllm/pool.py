"""The pool for a byte budget per GPU: its blocks, the figures of the start-up log, and the check before start-up.

One block is the null block, which stands for tokens that have left their window. The log counts it, but the check does not.
Source: vLLM 0.33, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.pool import PoolGroup, PoolInfo, Try
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.layout import PoolLayout, bytes_of_pages
from hwcalc.engines.vllm.rules import Rules
from hwcalc.engines.vllm.settings import VllmSettings
from hwcalc.engines.vllm.specs import FullSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition
from hwcalc.units import GIB

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["group_infos", "plan_pool", "starts_with", "usable_blocks"]

_NO_MEMORY: Final = "No available memory for the cache blocks."


def plan_pool(layout: PoolLayout, settings: VllmSettings, budget: int, length: int, bound: int) -> PoolInfo:
    """The pool of one data-parallel replica, for requests of ``length`` tokens. The longest request is searched up to ``bound`` tokens."""
    stages = [size for size in layout.stage_bytes if size]
    if not stages:
        return _without_cache(budget)
    blocks = min(budget // size for size in stages)
    if settings.override is not None:
        blocks = settings.override
    message = _message(layout, settings, budget, length, bound)
    fits = message is None
    per_request = layout.total_blocks(length)
    logged = budget // layout.stage_bytes[0] if layout.rules.logs_own_blocks and settings.override is None else blocks
    concurrency = float(logged / _logged_blocks(layout, length))
    is_full = len(layout.groups) == 1 and isinstance(layout.groups[0].specs[0], FullSpec)
    tokens = _logged(layout, settings, logged, concurrency, length)
    requests = layout.schedulers * (usable_blocks(layout, settings, budget) // layout.schedulers // per_request)
    return PoolInfo(
        budget_bytes=budget,
        tokens=tokens if fits else None,
        bytes_per_token=max(stages) // (layout.block_size * settings.dcp) if is_full else None,
        blocks=blocks,
        block_size=layout.block_size,
        bytes_per_block=max(stages),
        blocks_per_request=per_request,
        max_concurrency=concurrency if fits else None,
        max_requests=requests,
        max_seq=_longest(layout, settings, budget, bound),
        swa_tokens=None,
        state_slots=None,
        needed_bytes=max(layout.needed(length, stage) for stage in range(settings.pp)),
        fits=fits,
        message=message,
        requires=_mamba_limit(layout, settings, blocks) if fits else (),
        definition=Definition.ENGINE,
        at_once=None,
        steps=_steps(layout, settings, budget, logged, (concurrency, tokens), length, fits=fits),
    )


def _steps(
    layout: PoolLayout,
    settings: VllmSettings,
    budget: int,
    blocks: int,
    figures: tuple[float, int],
    length: int,
    *,
    fits: bool,
) -> tuple[Step, ...]:
    """How the figures of a pool come about."""
    logged = _logged_steps(layout, settings, blocks, figures, length) if fits else ()
    return (*_block_steps(layout, settings, budget, length), *logged)


def _block_steps(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> tuple[Step, ...]:
    """How many blocks there are, how many of them requests may take, and how many requests they hold."""
    size, usable, per_request = max(layout.stage_bytes), usable_blocks(layout, settings, budget), layout.total_blocks(length)
    blocks = budget // size if settings.override is None else settings.override
    made = step("blocks", "floor(budget / bytes_per_block)", blocks, unit="blocks", budget=budget, bytes_per_block=size)
    if settings.override is not None:
        made = step("blocks", "num_gpu_blocks_override", blocks, unit="blocks", num_gpu_blocks_override=blocks)
    held = "floor(usable_blocks / blocks_per_request)"
    if layout.schedulers > 1:
        held = "schedulers x floor(floor(usable_blocks / schedulers) / blocks_per_request)"
    return (
        made,
        step(
            "usable_blocks",
            "max(0, blocks - null_block)",
            usable,
            unit="blocks",
            blocks=blocks,
            null_block=int(layout.rules.engine == "V1"),
        ),
        step(
            "max_requests",
            held,
            layout.schedulers * (usable // layout.schedulers // per_request),
            unit="requests",
            schedulers=layout.schedulers,
            usable_blocks=usable,
            blocks_per_request=per_request,
        ),
    )


def _logged_steps(
    layout: PoolLayout, settings: VllmSettings, blocks: int, figures: tuple[float, int], length: int
) -> tuple[Step, ...]:
    """The concurrency and the tokens that the log prints. In releases that log the blocks of the first stage, ``blocks`` are those."""
    concurrency, tokens = figures
    name = "logged_blocks" if layout.rules.logs_own_blocks else "blocks"
    if layout.rules.concurrency == "length":
        times = f"{name} x block_size / seq"
        sizes: dict[str, int] = {name: blocks, "block_size": layout.block_size, "seq": length}
    else:
        times = f"{name} / blocks_per_request"
        sizes = {name: blocks, "blocks_per_request": int(_logged_blocks(layout, length))}
    first = step("max_concurrency", times, concurrency, unit="x", **sizes)
    if layout.rules.logged_tokens == "request":
        return first, step("tokens", f"floor({times} x seq)", tokens, unit="tokens", **sizes | {"seq": length})
    groups = len(layout.stage_groups[0])
    each = tokens // (blocks // groups) if blocks >= groups else 0
    second = step(
        "tokens",
        f"floor({name} / groups) x group_tokens",
        tokens,
        unit="tokens",
        **{name: blocks, "groups": groups, "group_tokens": each},
    )
    return first, second


def usable_blocks(layout: PoolLayout, settings: VllmSettings, budget: int) -> int:
    """Blocks for requests on the stage with the fewest blocks: all except the null block, which V0 has not."""
    blocks = min(budget // size for size in layout.stage_bytes if size) if settings.override is None else settings.override
    return max(0, blocks - (layout.rules.engine == "V1"))


def _without_cache(budget: int) -> PoolInfo:
    """The pool of a model without any cache, which is only the null block."""
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


def _logged_blocks(layout: PoolLayout, length: int) -> int | Fraction:
    """The blocks of one request as the log's concurrency counts them."""
    if layout.rules.concurrency == "length":
        from fractions import Fraction

        return Fraction(length, layout.block_size)
    if layout.rules.packed == "pages" or not layout.packed:
        return layout.total_blocks(length)
    # DeepSeek-V4 before 0.27: the bytes of all groups' blocks, in blocks of the first group. A group without a layer on the first stage
    # counts as if all its layers were there (_project_kv_cache_groups_to_worker).
    pages = [bytes_of_pages(own) or group.block_bytes for own, group in zip(layout.stage_pages[0], layout.groups, strict=True)]
    needed = sum(page * layout.blocks(group, length) for page, group in zip(pages, layout.groups, strict=True))
    return ceil_div(needed, pages[0])


def _logged(layout: PoolLayout, settings: VllmSettings, blocks: int, concurrency: float, length: int) -> int:
    """The number of tokens in the log. vLLM computes it in floating point, so it may be one below the exact product."""
    if layout.rules.logged_tokens == "request":
        return int(concurrency * length)
    groups = layout.stage_groups[0]
    smallest = min(spec.block_size for group in groups for spec in group.distinct)
    if len(groups) == 1 and layout.rules.logged_block == "config":
        smallest = layout.block_size
    return blocks // len(groups) * smallest * settings.dcp


def _checked_bytes(layout: PoolLayout, settings: VllmSettings, budget: int, stage: int) -> int:
    """The bytes with which the check compares what a request needs."""
    size = layout.stage_bytes[stage]
    if settings.override is not None and layout.rules.override_checked:
        budget = settings.override * size
    return budget - size if layout.rules.null_block_reserved else budget


def starts_with(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> bool:
    """Whether vLLM starts with a pool of so many bytes, to serve requests of ``length`` tokens."""
    return _lacking(layout, settings, budget, length) is None


def _lacking(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> tuple[int, int, int] | None:
    """The first pipeline stage that lacks memory, the bytes that it has, and those that a request needs; ``None`` if vLLM starts."""
    for stage in _checked_stages(layout):
        available, needed = _checked_bytes(layout, settings, budget, stage), layout.needed(length, stage)
        if available <= 0 or needed > available:
            return stage, available, needed
    return None


def _checked_stages(layout: PoolLayout) -> list[int]:
    return [stage for stage, size in enumerate(layout.stage_bytes) if size]


def _longest(layout: PoolLayout, settings: VllmSettings, budget: int, bound: int) -> int:
    """The longest sequence with which vLLM starts, and which one scheduler holds."""
    starts = min(
        layout.longest_checked(_checked_bytes(layout, settings, budget, stage), bound, stage) for stage in _checked_stages(layout)
    )
    if layout.schedulers == 1:
        return starts
    return layout.longest(usable_blocks(layout, settings, budget) // layout.schedulers, starts)


def _message(layout: PoolLayout, settings: VllmSettings, budget: int, length: int, bound: int) -> str | None:
    """The error message of vLLM if it does not start, for the first pipeline stage that lacks memory; else ``None``."""
    rules, lacking = layout.rules, _lacking(layout, settings, budget, length)
    if lacking is None:
        return None
    stage, available, needed = lacking
    if available <= 0:
        return _NO_MEMORY
    if rules.check == "tokens":
        held = available // layout.stage_bytes[stage] * layout.block_size
        said = f"The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored in KV cache ({held})."
        return said if held else _NO_MEMORY
    estimate = _estimate(layout.longest_checked(available, min(length, bound), stage), rules)
    return (
        f"To serve at least one request with the {rules.possessive} max seq len ({length}), ({_gib(needed, rules)} {rules.gib_unit} "
        "KV cache is needed, which is larger than the available KV cache memory "
        f"({_gib(available, rules)} {rules.gib_unit}).{estimate}"
    )


def _estimate(longest: int, rules: Rules) -> str:
    """The sentence of the error that names the longest length. Up to 0.13 its space stays when there is no sentence."""
    if rules.estimate == "none":
        return ""
    if not longest:
        return " " if rules.gib_digits == "fixed" else ""
    told = f"the estimated maximum model length is {longest}." if rules.estimate == "told" else ""
    return f" Based on the available memory, {told}"


def _gib(size: int, rules: Rules) -> str:
    return f"{size / GIB:.2f}" if rules.gib_digits == "fixed" else f"{round(size / GIB, 2)}"


def _mamba_limit(layout: PoolLayout, settings: VllmSettings, blocks: int) -> tuple[Try, ...]:
    """A lower ``max_num_seqs``, if there are fewer blocks than that. Since 0.19 decoding needs a state block for each of them.

    Source: vLLM, config/compilation.py (pull request 38270): "max_num_seqs exceeds available Mamba cache blocks".
    """
    states = any(isinstance(spec, StateSpec) for group in layout.groups for spec in group.distinct)
    if not states or not layout.rules.states_checked or settings.sequences <= blocks:
        return ()
    return (Try(flag=f"--max-num-seqs {blocks}", effect=f"{settings.sequences:,} requests need a state block each"),)


def group_infos(layout: PoolLayout, length: int) -> tuple[PoolGroup, ...]:
    """The groups as a plan reports them."""
    # Kept beside the layout: the groups as they are at every length.
    alike: list[dict[str, Any]] | None = vars(layout).get("_infos")
    if alike is None:
        alike = vars(layout)["_infos"] = [_group_info(layout, group) for group in layout.groups]
    return tuple(
        PoolGroup(**info, blocks_per_request=layout.blocks(group, length), steps=_group_steps(layout, group, length))
        for group, info in zip(layout.groups, alike, strict=True)
    )


def _group_steps(layout: PoolLayout, group: BlockGroup, length: int) -> tuple[Step, ...]:
    return (layout.counted(group, length),)


def _group_info(layout: PoolLayout, group: BlockGroup) -> dict[str, Any]:
    sizes = {spec.page for spec in group.distinct}
    layers = [layer for layer in (layout.caches[member].layer for member in group.members) if layer >= 0]
    return {
        "kind": group.form,
        "count": len(group.members),
        "layers": LayerNumbers(dict.fromkeys(layers)),
        "block_size": group.specs[0].block_size,
        "page_bytes": group.specs[0].page if len(sizes) == 1 else None,
        "block_bytes": group.block_bytes,
    }

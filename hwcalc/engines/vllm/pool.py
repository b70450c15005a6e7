"""The pool for a byte budget per GPU: its blocks, the figures of the start-up log, and the check before start-up.

One block is the null block, which stands for tokens that have left their window. The log counts it, but the check does not.
Source: vLLM 0.33, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from hwcalc.engines.pool import PoolGroup, PoolInfo, Try
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.layout import PoolLayout, bytes_of_pages, longest
from hwcalc.engines.vllm.specs import FullSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.engines.vllm.layout import BlockGroup
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.engines.vllm.settings import VllmSettings

_NO_MEMORY: Final = "No available memory for the cache blocks."


class BlockPool(Record):
    """The pool that vLLM allocates in a budget: blocks of ``block_bytes``, or ``override`` of them, of which requests get all but the null block.

    Each of the ``schedulers`` has its share of the blocks, and of the requests.
    """

    block_bytes: int
    null_blocks: int
    schedulers: int
    override: int | None

    @classmethod
    def of(cls, layout: PoolLayout, override: int | None) -> Self | None:
        """The pool for these layers, whose blocks are those of the stage with the fewest; ``None`` if nothing has a cache."""
        width = max(layout.stage_bytes, default=0)
        if not width:
            return None
        # The null block stands for tokens that have left their window. V0 has none.
        return cls(
            block_bytes=width, null_blocks=int(layout.rules.engine == "V1"), schedulers=layout.schedulers, override=override
        )

    def blocks(self, budget_bytes: int) -> int:
        """All blocks."""
        return budget_bytes // self.block_bytes if self.override is None else self.override

    def usable_blocks(self, budget_bytes: int) -> int:
        """Blocks for requests."""
        usable: int = larger(self.blocks(budget_bytes) - self.null_blocks, 0)
        return usable

    def scheduler_blocks(self, budget_bytes: int) -> int:
        """Blocks for the requests of one scheduler."""
        return self.usable_blocks(budget_bytes) // self.schedulers

    def holds(self, budget_bytes: int, blocks: int) -> bool:
        """Whether the pool of ``budget_bytes`` holds ``blocks`` blocks for one scheduler; an array for arrays."""
        return blocks <= self.scheduler_blocks(budget_bytes)

    def figures(self, budget_bytes: int) -> tuple[Step, Step]:
        """:meth:`blocks` and :meth:`usable_blocks`, with their formulas."""
        blocks = self.blocks(budget_bytes)
        made = step(
            "blocks",
            "floor(budget / bytes_per_block)",
            blocks,
            unit="blocks",
            budget=budget_bytes,
            bytes_per_block=self.block_bytes,
        )
        if self.override is not None:
            made = step("blocks", "num_gpu_blocks_override", blocks, unit="blocks", num_gpu_blocks_override=blocks)
        usable = self.usable_blocks(budget_bytes)
        return made, step(
            "usable_blocks", "max(0, blocks - null_block)", usable, unit="blocks", blocks=blocks, null_block=self.null_blocks
        )


def plan_pool(occupancy: VllmOccupancy, pool: BlockPool | None, budget: int) -> PoolInfo:
    """The pool of one data-parallel replica for a budget per GPU, in the figures of the log."""
    if pool is None:
        return _without_cache(budget)
    layout, settings, length = occupancy.layout, occupancy.settings, occupancy.tokens
    bound = max(length, occupancy.model.max_position_embeddings or 0)
    made, usable = pool.figures(budget)
    message = _message(layout, settings, budget, length, bound)
    concurrency, tokens = _logged(layout, settings, int(made.expected), budget, length)
    requests = pool.schedulers * occupancy.most_requests(pool.scheduler_blocks(budget))
    fits = message is None
    is_full = len(layout.groups) == 1 and isinstance(layout.groups[0].specs[0], FullSpec)
    info = PoolInfo(
        budget_bytes=budget,
        tokens=int(tokens.expected) if fits else None,
        bytes_per_token=pool.block_bytes // (layout.block_size * settings.dcp) if is_full else None,
        blocks=int(made.expected),
        block_size=layout.block_size,
        bytes_per_block=pool.block_bytes,
        blocks_per_request=occupancy.blocks,
        max_concurrency=float(concurrency.expected) if fits else None,
        max_requests=requests,
        max_seq=_longest(layout, settings, pool, budget, bound),
        swa_tokens=None,
        state_slots=None,
        needed_bytes=max(layout.needed(length, stage) for stage in range(settings.pp)),
        fits=fits,
        message=message,
        requires=_mamba_limit(layout, settings, int(made.expected)) if fits else (),
        definition=Definition.ENGINE,
        steps=(made, usable, *((concurrency, tokens) if fits else ())),
    )
    if occupancy.evicted is not None:
        from hwcalc.engines.vllm.policies import under_policy

        info = under_policy(occupancy, pool, info, bound)
    return _with_requests(occupancy, pool, info)


def _with_requests(occupancy: VllmOccupancy, pool: BlockPool, info: PoolInfo) -> PoolInfo:
    """The pool with a step for the requests that it holds: behind its blocks, or at the end where that is a rule of the load."""
    if occupancy.together.unlike or occupancy.together.branches > 1:
        from hwcalc.engines.vllm.sharing import requests_figure

        return replace(info, steps=(*info.steps, *requests_figure(occupancy, pool, info)))
    if occupancy.evicted is not None:
        from hwcalc.engines.vllm.policies import requests_figure

        return replace(info, steps=(*info.steps, *requests_figure(occupancy, pool, info)))
    formula = "floor(usable_blocks / blocks_per_request)"
    if pool.schedulers > 1:
        formula = "schedulers x floor(floor(usable_blocks / schedulers) / blocks_per_request)"
    requests = step(
        "max_requests",
        formula,
        info.max_requests or 0,
        unit="requests",
        schedulers=pool.schedulers,
        usable_blocks=pool.usable_blocks(info.budget_bytes),
        blocks_per_request=info.blocks_per_request or 0,
    )
    return replace(info, steps=(*info.steps[:2], requests, *info.steps[2:]))


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


def _logged(layout: PoolLayout, settings: VllmSettings, blocks: int, budget: int, length: int) -> tuple[Step, Step]:
    """The concurrency and the tokens that the log prints. vLLM computes them in floating point, so tokens may be one below the product."""
    rules, name = layout.rules, "blocks"
    if rules.logs_own_blocks:
        # Each stage logs its own blocks, and these are those of the first.
        name = "logged_blocks"
        blocks = budget // layout.stage_bytes[0] if settings.override is None else blocks
    if rules.concurrency == "length":
        from fractions import Fraction

        formula, terms = f"{name} x block_size / seq", {"block_size": layout.block_size, "seq": length}
        times = float(blocks / Fraction(length, layout.block_size))
    else:
        per_request = _logged_blocks(layout, length)
        formula, terms = f"{name} / blocks_per_request", {"blocks_per_request": per_request}
        times = float(blocks / per_request)
    concurrency = step("max_concurrency", formula, times, unit="x", **{name: blocks}, **terms)
    if rules.logged_tokens == "request":
        terms = {name: blocks, **terms, "seq": length}
        return concurrency, step("tokens", f"floor({formula} x seq)", int(times * length), unit="tokens", **terms)
    groups = layout.stage_groups[0]
    smallest = min(spec.block_size for group in groups for spec in group.distinct)
    if len(groups) == 1 and rules.logged_block == "config":
        smallest = layout.block_size
    each = smallest * settings.dcp if blocks >= len(groups) else 0
    return concurrency, step(
        "tokens",
        f"floor({name} / groups) x group_tokens",
        blocks // len(groups) * each,
        unit="tokens",
        **{name: blocks, "groups": len(groups), "group_tokens": each},
    )


def _logged_blocks(layout: PoolLayout, length: int) -> int:
    """The blocks of one request as the log's concurrency counts them."""
    if layout.rules.packed == "pages" or not layout.packed:
        return layout.total_blocks(length)
    # DeepSeek-V4 before 0.27: the bytes of all groups' blocks, in blocks of the first group. A group without a layer on the first stage
    # counts as if all its layers were there (_project_kv_cache_groups_to_worker).
    pages = [bytes_of_pages(own) or group.block_bytes for own, group in zip(layout.stage_pages[0], layout.groups, strict=True)]
    needed = sum(page * layout.blocks(group, length) for page, group in zip(pages, layout.groups, strict=True))
    return ceil_div(needed, pages[0])


def _checked_bytes(layout: PoolLayout, settings: VllmSettings, budget: int, stage: int) -> int:
    """The bytes with which the check compares what a request needs."""
    size = layout.stage_bytes[stage]
    if settings.override is not None and layout.rules.override_checked:
        budget = settings.override * size
    return budget - size if layout.rules.null_block_reserved else budget


def _lacking(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> tuple[int, int, int] | None:
    """The first pipeline stage that lacks memory, the bytes that it has, and those that a request needs; ``None`` if vLLM starts."""
    for stage in _checked_stages(layout):
        available, needed = _checked_bytes(layout, settings, budget, stage), layout.needed(length, stage)
        if available <= 0 or needed > available:
            return stage, available, needed
    return None


def _checked_stages(layout: PoolLayout) -> list[int]:
    return [stage for stage, size in enumerate(layout.stage_bytes) if size]


def starts_with(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> bool:
    """Whether vLLM starts with a pool of so many bytes, to serve requests of ``length`` tokens."""
    return _lacking(layout, settings, budget, length) is None


def longest_start(layout: PoolLayout, settings: VllmSettings, budget: int, bound: int) -> int:
    """The longest sequence, up to ``bound`` tokens, to serve which vLLM starts; 0 if none."""
    return min(
        layout.longest_checked(_checked_bytes(layout, settings, budget, stage), bound, stage) for stage in _checked_stages(layout)
    )


def _longest(layout: PoolLayout, settings: VllmSettings, pool: BlockPool, budget: int, bound: int) -> int:
    """The longest sequence with which vLLM starts, and which one scheduler holds."""
    starts = longest_start(layout, settings, budget, bound)
    return starts if pool.schedulers == 1 else longest(layout.total_blocks, pool.scheduler_blocks(budget), starts)


def check_asks_for_blocks(layout: PoolLayout, settings: VllmSettings) -> bool:
    """Whether the check before start-up asks for no more than the blocks of a request, of as many as there is memory for."""
    rules = layout.rules
    if settings.override is not None and not rules.override_checked:
        return False
    return (rules.check != "model" or settings.pp == 1) and (rules.checks_packed_width or not layout.packed)


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
    return tuple(
        PoolGroup(**_group_info(layout, group), blocks_per_request=int(counted.expected), steps=(counted,))
        for group, counted in ((group, layout.counted(group, length)) for group in layout.groups)
    )


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

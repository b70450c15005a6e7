"""The pool for a byte budget per GPU: its blocks, the figures of the start-up log, the check before start-up, and its form at all lengths.

One block is the null block, which stands for tokens that have left their window. The log counts it, but the check does not.
Source: vLLM 0.33, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from hwcalc.engines.forms import ENDS, Amount, Asked, AskedCurve, Blocks, Constant, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.engines.pool import PoolGroup, PoolInfo, Try
from hwcalc.engines.setup import Load
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.layout import PoolLayout, bytes_of_pages, longest
from hwcalc.engines.vllm.memory import follows_batch, follows_rest
from hwcalc.engines.vllm.policies import under_policy
from hwcalc.engines.vllm.specs import FullSpec, LayerSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
    from hwcalc.engines.vllm.layout import Sums
    from hwcalc.engines.vllm.settings import VllmSettings

LIMITED_BY: Final = "max_num_seqs"
"""What limits the sequences that run at once, whatever the memory."""
_NO_MEMORY: Final = "No available memory for the cache blocks."
_MOST_KEPT: Final = 65_536
"""Lengths of which the parts are kept at a time: as many as a sweep asks about at once."""


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
        """True if the pool of ``budget_bytes`` holds ``blocks`` blocks for one scheduler; an array for arrays."""
        return blocks <= self.scheduler_blocks(budget_bytes)


def plan_pool(occupancy: VllmOccupancy, pool: BlockPool | None, budget: int) -> PoolInfo:
    """The pool of one data-parallel replica for a budget per GPU, in the figures of the log."""
    if pool is None:
        return _without_cache(budget)
    layout, settings, length = occupancy.layout, occupancy.settings, occupancy.length
    bound = max(length, occupancy.model.max_position_embeddings or 0)
    blocks, usable, available = pool.blocks(budget), pool.usable_blocks(budget), pool.scheduler_blocks(budget)
    if pool.override is None:
        formula = "floor(budget / bytes_per_block)"
        made = step("blocks", formula, blocks, unit="blocks", budget=budget, bytes_per_block=pool.block_bytes)
    else:
        made = step("blocks", "num_gpu_blocks_override", blocks, unit="blocks", num_gpu_blocks_override=blocks)
    for_requests = step(
        "usable_blocks", "max(0, blocks - null_block)", usable, unit="blocks", blocks=blocks, null_block=pool.null_blocks
    )
    message = _message(layout, settings, budget, length, bound)
    concurrency, tokens = _logged(layout, settings, blocks, budget, length, longest=length != occupancy.tokens)
    fits = message is None
    starts = longest_start(layout, settings, budget, bound)
    is_full = len(layout.groups) == 1 and isinstance(layout.groups[0].specs[0], FullSpec)
    info = PoolInfo(
        budget_bytes=budget,
        tokens=int(tokens.expected) if fits else None,
        bytes_per_token=pool.block_bytes // (layout.block_size * settings.dcp) if is_full else None,
        blocks=blocks,
        block_size=layout.block_size,
        bytes_per_block=pool.block_bytes,
        blocks_per_request=occupancy.blocks,
        max_concurrency=float(concurrency.expected) if fits else None,
        max_requests=pool.schedulers * occupancy.most_requests(available),
        max_seq=starts if pool.schedulers == 1 else longest(layout.total_blocks, available, starts),
        needed_bytes=max(layout.needed(length, stage) for stage in range(settings.pp)),
        fits=fits,
        message=message,
        requires=_requires(layout, settings, blocks) if fits else (),
        steps=(made, for_requests, *((concurrency, tokens) if fits else ())),
    )
    if occupancy.evicted is not None:
        info = under_policy(occupancy, pool, info, bound)
    return replace(info, steps=tuple(_with_requests(occupancy, pool, info)))


def _without_cache(budget: int) -> PoolInfo:
    """The pool of a model without any cache, which is only the null block."""
    return PoolInfo(
        budget_bytes=budget,
        blocks=1,
        bytes_per_block=0,
        blocks_per_request=0,
        needed_bytes=0,
        fits=True,
    )


def _with_requests(occupancy: VllmOccupancy, pool: BlockPool, info: PoolInfo) -> Iterator[Step]:
    """The steps of a pool with that of the requests that it holds: behind its blocks, or at the end where that is a rule of the load.

    There is no such step where no single division gives the number.
    """
    most, usable, per_request = info.max_requests or 0, pool.usable_blocks(info.budget_bytes), occupancy.blocks
    if not (occupancy.together.unlike or occupancy.together.branches > 1 or occupancy.evicted is not None):
        formula = "floor(usable_blocks / blocks_per_request)"
        if pool.schedulers > 1:
            formula = "schedulers x floor(floor(usable_blocks / schedulers) / blocks_per_request)"
        terms = {"schedulers": pool.schedulers, "usable_blocks": usable, "blocks_per_request": per_request}
        requests = step("max_requests", formula, most, unit="requests", **terms)
        yield from (*info.steps[:2], requests, *info.steps[2:])
        return
    yield from info.steps
    if pool.schedulers > 1:
        return
    terms, formula = {"usable_blocks": usable, "blocks_per_request": per_request}, "floor(usable_blocks / blocks_per_request)"
    if occupancy.together.unlike or occupancy.together.branches > 1:
        held, more = (occupancy.blocks_for(requests) for requests in (max(1, most), max(1, most) + 1))
        each, shared = more - held, held - (more - held) * max(1, most)
        # The first requests may share less than the later ones.
        if max(0, usable - shared) // each != most:
            return
        formula = "floor((usable_blocks - shared_blocks) / blocks_of_each)"
        terms = {"usable_blocks": usable, "shared_blocks": shared, "blocks_of_each": each}
    elif occupancy.prompt_peak is not None:
        peak = occupancy.prompt_peak
        if usable // peak.blocks < peak.at_once:
            formula, terms = "floor(usable_blocks / prompt_blocks)", {"usable_blocks": usable, "prompt_blocks": peak.blocks}
        else:
            terms |= {"prompts": peak.at_once, "prompt_blocks": peak.blocks}
            formula = "prompts + floor((usable_blocks - prompts x prompt_blocks) / blocks_per_request)"
    yield step("max_requests", formula, most, unit="requests", **terms)


def _requires(layout: PoolLayout, settings: VllmSettings, blocks: int) -> tuple[Try, ...]:
    """A lower ``max_num_seqs``, if there are fewer blocks than that. Since 0.19 decoding needs a state block for each of them.

    Source: vLLM, config/compilation.py (pull request 38270): "max_num_seqs exceeds available Mamba cache blocks".
    """
    states = any(isinstance(spec, StateSpec) for group in layout.groups for spec in group.distinct)
    if not states or not layout.rules.states_checked or settings.sequences <= blocks:
        return ()
    return (Try(flag=f"--max-num-seqs {blocks}", effect=f"{settings.sequences:,} requests need a state block each"),)


def _logged(
    layout: PoolLayout, settings: VllmSettings, blocks: int, budget: int, length: int, *, longest: bool
) -> tuple[Step, Step]:
    """The concurrency and the tokens that the log prints. vLLM computes them in floating point, so tokens may be one below the product.

    ``longest`` says that they are of requests that are longer than the planned ones: those that the server allows.
    """
    rules, groups, name = layout.rules, layout.stage_groups[0], "blocks"
    seq, of_request, unit = ("max_model_len", "blocks_of_longest", "longest") if longest else ("seq", "blocks_per_request", "x")
    if rules.logs_own_blocks:
        # Each stage logs its own blocks, and these are those of the first.
        name = "logged_blocks"
        blocks = budget // layout.stage_bytes[0] if settings.override is None else blocks
    if rules.concurrency == "length":
        from fractions import Fraction

        formula, terms = f"{name} x block_size / {seq}", {"block_size": layout.block_size, seq: length}
        times = float(blocks / Fraction(length, layout.block_size))
    else:
        per_request = layout.total_blocks(length)
        if layout.packed and rules.packed != "pages":
            # DeepSeek-V4 before 0.27: the bytes of all groups' blocks, in blocks of the first group. A group without a layer on the first
            # stage counts as if all its layers were there (_project_kv_cache_groups_to_worker).
            paged = zip(layout.stage_pages[0], layout.groups, strict=True)
            pages = [bytes_of_pages(own) or group.block_bytes for own, group in paged]
            needed = sum(page * layout.blocks(group, length) for page, group in zip(pages, layout.groups, strict=True))
            per_request = ceil_div(needed, pages[0])
        formula, terms = f"{name} / {of_request}", {of_request: per_request}
        times = float(blocks / per_request)
    concurrency = step("max_concurrency", formula, times, unit=unit, **{name: blocks}, **terms)
    if rules.logged_tokens == "request":
        terms = {name: blocks, **terms, seq: length}
        return concurrency, step("tokens", f"floor({formula} x {seq})", int(times * length), unit="tokens", **terms)
    smallest = min(spec.block_size for group in groups for spec in group.distinct)
    if len(groups) == 1 and rules.logged_block == "config":
        smallest = layout.block_size
    each = smallest * settings.dcp if blocks >= len(groups) else 0
    terms = {name: blocks, "groups": len(groups), "group_tokens": each}
    tokens = blocks // len(groups) * each
    return concurrency, step("tokens", f"floor({name} / groups) x group_tokens", tokens, unit="tokens", **terms)


def _checked_bytes(layout: PoolLayout, settings: VllmSettings, budget: int, stage: int) -> int:
    """The bytes with which the check compares what a request needs."""
    size = layout.stage_bytes[stage]
    if settings.override is not None and layout.rules.override_checked:
        budget = settings.override * size
    return budget - size if layout.rules.null_block_reserved else budget


def lacking(layout: PoolLayout, settings: VllmSettings, budget: int, length: int) -> tuple[int, int, int] | None:
    """The first pipeline stage that lacks memory to serve requests of ``length`` tokens, the bytes that it has, and those that a request needs.

    ``None`` if vLLM starts.
    """
    for stage, size in enumerate(layout.stage_bytes):
        available = _checked_bytes(layout, settings, budget, stage)
        needed = layout.needed(length, stage) if size else 0
        if size and (available <= 0 or needed > available):
            return stage, available, needed
    return None


def longest_start(layout: PoolLayout, settings: VllmSettings, budget: int, bound: int) -> int:
    """The longest sequence, up to ``bound`` tokens, to serve which vLLM starts; 0 if none."""
    stages = [stage for stage, size in enumerate(layout.stage_bytes) if size]
    return min(layout.longest_checked(_checked_bytes(layout, settings, budget, stage), bound, stage) for stage in stages)


def _message(layout: PoolLayout, settings: VllmSettings, budget: int, length: int, bound: int) -> str | None:
    """The error message of vLLM if it does not start, for the first pipeline stage that lacks memory; else ``None``."""
    rules, short = layout.rules, lacking(layout, settings, budget, length)
    if short is None:
        return None
    stage, available, needed = short
    if available <= 0:
        return _NO_MEMORY
    if rules.check == "tokens":
        held = available // layout.stage_bytes[stage] * layout.block_size
        said = f"The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored in KV cache ({held})."
        return said if held else _NO_MEMORY
    # Up to 0.13 the space of the last sentence stays when there is no sentence.
    most, estimate = layout.longest_checked(available, min(length, bound), stage), ""
    if rules.estimate != "none":
        told = f"the estimated maximum model length is {most}." if rules.estimate == "told" else ""
        nothing = " " if rules.gib_digits == "fixed" else ""
        estimate = f" Based on the available memory, {told}" if most else nothing
    needed_gib, available_gib = (
        f"{size / GIB:.2f}" if rules.gib_digits == "fixed" else f"{round(size / GIB, 2)}" for size in (needed, available)
    )
    return (
        f"To serve at least one request with the {rules.possessive} max seq len ({length}), ({needed_gib} {rules.gib_unit} "
        "KV cache is needed, which is larger than the available KV cache memory "
        f"({available_gib} {rules.gib_unit}).{estimate}"
    )


def group_infos(layout: PoolLayout, length: int) -> tuple[PoolGroup, ...]:
    """The groups as a plan reports them."""
    infos = []
    for group in layout.groups:
        counted = layout.counted(group, length)
        layers = [layer for layer in (layout.caches[member].layer for member in group.members) if layer >= 0]
        infos.append(
            PoolGroup(
                kind=group.form,
                count=len(group.members),
                layers=LayerNumbers(dict.fromkeys(layers)),
                block_size=group.specs[0].block_size,
                page_bytes=group.specs[0].page if len({spec.page for spec in group.distinct}) == 1 else None,
                block_bytes=group.block_bytes,
                blocks_per_request=int(counted.expected),
                steps=(counted,),
            )
        )
    return tuple(infos)


class SequencePool(Record):
    """The blocks of a budget, for sequences that take ``blocks_of`` their tokens each."""

    pool: BlockPool
    blocks_of: Callable[[int], int]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """True if so many sequences of a replica fit."""
        return self.pool.holds(budget_bytes, ceil_div(sequences, self.pool.schedulers) * self.blocks_of(tokens))


def plan_form(deployment: VllmDeployment) -> MemoryForm | None:
    """The memory form for sequences that are alike and keep every token; ``None`` if there is none.

    There is none where the budget is unknown, or where vLLM checks more than its blocks before it starts.
    """
    hardware, layout, settings = deployment.setup.hardware, deployment.layout, deployment.settings
    curve, given = deployment.curve, hardware.kv_memory
    budget = deployment.at(Load(seq=settings.full_from)).budget if given is None and hardware.gpu is not None else None
    if curve is None or (budget is None and given is None) or not deployment.checks_blocks:
        return None
    pool = deployment.block_pool
    blocks, pools = Blocks(), None
    if pool is not None and pool.override is None and pool.schedulers == 1 and not layout.encodes:
        blocks = Blocks(bytes=pool.block_bytes, null=pool.null_blocks)
    elif pool is not None:
        pools = SequencePool(pool=pool, blocks_of=deployment.blocks_of)
    size = given or 0
    return MemoryForm(
        curve=curve,
        parts=() if budget is None else _parts(deployment, budget),
        usable=(size, size, size) if budget is None else budget.usable,
        total_bytes=size if budget is None else budget.total_bytes,
        blocks=blocks,
        pools=pools,
        most_sequences=settings.sequences * deployment.setup.parallel.dp,
        limited_by=LIMITED_BY,
        dp=deployment.setup.parallel.dp,
    )


def plan_curve(deployment: VllmDeployment) -> Curve:
    """The cache of sequences that are alike and keep everything, at every length.

    Blocks are as wide as the widest group, so that there is one term for each group: Gemma-3 has six windowed groups and a full one, and
    each takes so many blocks of the same bytes.
    """
    layout, pool, tp = deployment.layout, deployment.block_pool, deployment.setup.parallel.tp
    if pool is None:
        return Curve(gpus=((),), total=())
    width, whole_width = pool.block_bytes, tp * sum(layout.stage_bytes)
    if layout.encodes:
        return AskedCurve(
            one=lambda tokens: width * deployment.blocks_of(tokens),
            whole=lambda tokens: whole_width * deployment.blocks_of(tokens),
        )

    def groups(block_bytes: int) -> tuple[Term, ...]:
        """The groups of the first stage: a unit is a block of the pool."""
        return _terms(
            (
                group.form,
                block_bytes,
                group.specs[0],
                layout.sums(group),
                [layout.caches[member].layer for member in group.members],
                1,
            )
            for group in layout.stage_groups[0]
        )

    if layout.rules.groups_by_stage and deployment.settings.pp > 1:
        # All stages have as many blocks as the first, in groups of its own layers.
        return Curve(gpus=(groups(width),), total=groups(whole_width))
    return Curve(gpus=(groups(width),), total=_terms(_pages(deployment, tp)))


_Grown = tuple[str, int, LayerSpec, "Sums", Sequence[int], int]
"""Layers that grow alike: their kind, the bytes of a unit, the spec of one, its stairs, their numbers, and how many there are."""


def _pages(deployment: VllmDeployment, tp: int) -> Iterator[_Grown]:
    """The pages of all layers, on all ranks together, and what blocks have beyond the pages of their group.

    Every block is as wide as the widest group of its stage.
    """
    layout, kinds = deployment.layout, [group.kind.name for group in deployment.plain_stack.groups]
    stairs = [layout.sums(group) for group in layout.groups]
    for group, sums in zip(layout.groups, stairs, strict=True):
        layers = defaultdict[tuple[int, LayerSpec], list[int]](list)
        for member, spec in zip(group.members, group.specs, strict=True):
            cache = layout.caches[member]
            layers[cache.kind, spec].append(cache.layer)
        for (kind, spec), numbers in layers.items():
            name = "draft" if kind < 0 else kinds[kind]
            yield name, tp * spec.page, spec, sums, numbers, len(numbers)
    for group, sums in zip(layout.groups, stairs, strict=True):
        unused = sum(layout.stage_bytes) - group.block_bytes
        if unused:
            yield "unused block space", tp * unused, group.specs[0], sums, (), 1


def _terms(grown: Iterable[_Grown]) -> tuple[Term, ...]:
    """A term for all layers that grow alike."""
    alike: dict[tuple[str, int, int, Sums], list[tuple[Sequence[int], int]]] = {}
    for kind, unit_bytes, spec, stairs, layers, count in grown:
        is_state = isinstance(spec, StateSpec) and not spec.every
        alike.setdefault((kind, unit_bytes, 1 if is_state else spec.block_size, stairs), []).append((layers, count))
    return tuple(
        Term(
            kind=kind,
            layers=LayerNumbers(sorted({layer for layers, _ in own for layer in layers if layer >= 0})),
            count=sum(count for _, count in own),
            unit_bytes=unit_bytes,
            stairs=stairs,
            rule=_words(stairs),
            unit_tokens=unit_tokens,
        )
        for (kind, unit_bytes, unit_tokens, stairs), own in alike.items()
    )


def _parts(deployment: VllmDeployment, budget: Budget) -> tuple[PartForm, ...]:
    """The parts of the equation. They follow from the length where a batch is not full, and in V0, whose batch is a whole prompt."""
    before, is_v0 = deployment.settings.full_from, deployment.settings.rules.engine == "V0"

    @lru_cache(maxsize=_MOST_KEPT)
    def sizes(tokens: int) -> Mapping[tuple[str, str], int]:
        """The bytes of the parts by name and end of the range, where the longest sequence has so many tokens."""
        out: defaultdict[tuple[str, str], int] = defaultdict(int)
        at_length = deployment.at(Load(seq=tokens)).budget
        for part, end in product(() if at_length is None else at_length.parts, ENDS):
            out[part.name, end] += getattr(part, end)
        return out

    def amount(part: BudgetPart, end: str) -> Amount:
        def of_length(tokens: int) -> int:
            return sizes(tokens)[part.name, end]

        if is_v0:
            return Asked(rule=of_length, alone=True)
        return Early(before=before, early=of_length, rule=Constant.of(getattr(part, end)))

    forms = []
    for part in budget.parts:
        form = PartForm.constant(part)
        if follows_batch(part) and (before > 1 or is_v0):
            low, expected, high = (amount(part, end) for end in ENDS)
            form = replace(form, low=low, expected=expected, high=high)
        forms.append(replace(form, of_rest=True) if follows_rest(part, deployment.model) else form)
    return tuple(forms)


def _words(stairs: Sums) -> str:
    """The blocks of ``n`` tokens in words; of several sums the largest counts."""

    def words(stair: Stair) -> str:
        if stair.per == stair.add == stair.most == 1:
            return f"{stair.times:,}"
        blocks = f"ceil(n / {stair.per:,})" if stair.per > 1 else "n"
        return blocks if stair.most is None else f"min({stair.most:,}, {blocks})"

    sums = [" + ".join(map(words, each)) for each in stairs]
    return sums[0] if len(sums) == 1 else f"max({', '.join(sums)})"

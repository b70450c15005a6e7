"""Cache policies in vLLM: what it supports, the blocks of requests under a policy, and how many of them the pool holds.

vLLM has no policy of its own; TriAttention comes as a plug-in, which wraps methods of the scheduler, the worker, the block manager and the
start-up check. It fits the releases that have what it asks for: ``_prepare_inputs`` with two arguments, and positions and lengths with a
NumPy side (from 0.12), and the list of caches in each layer (to 0.18); with async scheduling or pipeline stages it needs
``log_iteration_details`` too (from 0.14).

Windows, chunks and states keep what they keep: a policy acts on caches that hold every token. A group of layers shares one block table,
so that it holds as many blocks as the member that needs most. A step that reads prompts has all their tokens in blocks before a policy of
the prefill can score them.

Source: WeianMao/triattention c3744ee, triattention/vllm/runtime, with vLLM 0.10.0 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.options import is_on
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import PagedGroup, Support
from hwcalc.engines.vllm.layout import longest
from hwcalc.engines.vllm.rules import since
from hwcalc.engines.vllm.specs import FullSpec
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.policies.base import FILL, NO_COMPACTION, Chosen, Effect
from hwcalc.policies.blocks import blocks_of, free_of_ranges
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.policies import Evicted
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
    from hwcalc.engines.vllm.layout import BlockGroup, LayerCache, PoolLayout
    from hwcalc.engines.vllm.pool import BlockPool
    from hwcalc.formulas import Stack

_PLUGIN: Final = "triattention"


def is_plugin(chosen: Chosen) -> bool:
    """Whether the plug-in does this policy. It cuts while a long prompt is read in chunks, and not behind the whole prompt."""
    return chosen.policy.name == _PLUGIN


def chunked_tokens(chosen: Chosen, prompt: int, chunk: int) -> int:
    """Tokens of slots that the plug-in's scheduler gives a sequence at the most, while its prompt is read in chunks.

    Blocks of a chunk are allocated before the cut, and the cut leaves the chunk behind it alone: a budget and two chunks, or an interval
    less one and a chunk. A prompt in one chunk lies there whole. Source: its hook_runtime_context.py (``effective_tokens``) and runner.py
    (``execute_model``).

    >>> from hwcalc.policies.parse import parse_policy
    >>> chunked_tokens(parse_policy("triattention"), 32_768, 2048), chunked_tokens(parse_policy("triattention"), 32_768, 64)
    (6144, 2239)
    """
    budget: int = chosen["kv_budget"] + (prompt if chosen["prefill_outside_budget"] else 0)
    trigger: int = budget + chosen["divide_length"]
    return min(prompt + 1, max(trigger - 1, budget + chunk) + chunk)


_FIRST, _FIRST_QUEUED, _AFTER = since("0.12"), since("0.14"), since("0.19")
_COMMON: Final = "kernels that move survivors together, and a scheduler that frees blocks of a running request"


def policy_support(deployment: VllmDeployment, chosen: Chosen) -> Support:
    """Whether vLLM has a policy, and how; else what it would take."""
    policy = deployment.setup.policy
    if is_plugin(chosen):
        lacking = _lacking(deployment)
        if lacking is None and policy is not None and policy.compaction in (FILL, NO_COMPACTION):
            lacking = f"the plug-in repacks in order, always: --compaction {policy.compaction} is switched off in it"
        if lacking is not None:
            return Support(offered=False, how=f"TriAttention's plug-in: {lacking}")
        how = (
            f"TriAttention's plug-in (WeianMao/triattention c3744ee) with --enforce-eager, --no-enable-prefix-caching and "
            f"{' '.join(_variables(chosen))}; it warns where the start-up check would refuse, and a smaller --max-num-batched-tokens lowers "
            "what a long prompt takes"
        )
        options = {"enforce_eager": "true", "enable_prefix_caching": "false"}
        return Support(offered=True, how=how, options=options, environment=_variables(chosen))
    how = f"vLLM {deployment.version} drops no tokens, but for windows and chunks of the model; it would take {_needs(chosen)}"
    return Support(offered=False, how=how)


def _variables(chosen: Chosen) -> tuple[str, ...]:
    """The environment variables that tell the plug-in its budget."""
    told = {"KV_BUDGET": chosen["kv_budget"], "DIVIDE_LENGTH": chosen["divide_length"]}
    if chosen["prefill_outside_budget"]:
        told |= {"PROTECT_PREFILL": "true", "INCLUDE_PREFILL_IN_BUDGET": "false"}
    return tuple(f"TRIATTN_RUNTIME_{name}={value}" for name, value in told.items())


def _lacking(deployment: VllmDeployment) -> str | None:
    """What keeps the plug-in from working in this release, with these options; ``None`` if nothing does."""
    version, setup = planned_version(deployment.version), deployment.setup
    queued = setup.parallel.pp > 1 or is_on(setup.options.get("async_scheduling"))
    if setup.parallel.dcp > 1:
        return "it knows nothing of --decode-context-parallel-size"
    if not _FIRST <= version < _AFTER:
        return f"it fits vLLM 0.12 to 0.18, and not {deployment.version}. Use: --engine vllm@0.18"
    if version < _FIRST_QUEUED and queued:
        return "its engine loop fits vLLM 0.14 to 0.18 where batches are queued. Use: --engine vllm@0.18"
    if any(len(group.distinct) > 1 for group in deployment.layout.groups) or len(deployment.layout.groups) > 1:
        return "it cuts all groups of layers to one length, and windows and states with them"
    return None


def _needs(chosen: Chosen) -> str:
    """What an engine with blocks would need for a policy."""
    effects = {one.policy.effect for one in chosen.whole}
    if Effect.MASKS in effects:
        return "a block table for each head, and attention that reads them: with one table for all heads masked tokens stay"
    if Effect.ZEROES in effects:
        return "pages of fewer channels; zeroes are stored"
    if Effect.READS_LESS in effects:
        return "least and greatest keys of each page, and attention over the chosen pages; nothing comes back"
    if any(one.policy.needs == "eager" for one in chosen.whole):
        return f"attention that gives its scores, which flash attention never writes, and {_COMMON}"
    if chosen.policy.by_place:
        return "a scheduler that frees blocks between sinks and window, and positions inside the cache"
    return f"scores of the keys, and {_COMMON}"


class PromptPeak(Record):
    """Blocks of a request while its prompt is read, and how many requests there can be at that point at once."""

    blocks: int
    at_once: int


def cut_members(layout: PoolLayout, group: BlockGroup, evicted: Evicted, plain: Stack) -> Iterator[tuple[int, FullSpec, int]]:
    """The caches of a group that a policy cuts, by number, with their specs and layers."""
    kinds = plain.groups
    for member, spec in zip(group.members, group.specs, strict=True):
        cache = layout.caches[member]
        acted = cache.layer in evicted.most and cache.kind >= 0 and kinds[cache.kind].kind.acts_by_token
        if acted and isinstance(spec, FullSpec) and cache.name != "indexer_keys":
            yield member, spec, cache.layer


def held_layout(layout: PoolLayout, occupancy: Occupancy, evicted: Evicted) -> PoolLayout:
    """The layout with the most blocks that a request holds after its prompt."""
    cut = {member: counted for group in layout.groups for member, counted in _held(layout, group, occupancy, evicted)}
    return replace(layout, cut=cut)


def _held(layout: PoolLayout, group: BlockGroup, occupancy: Occupancy, evicted: Evicted) -> Iterator[tuple[int, Step]]:
    policy, dcp = occupancy.setup.policy, layout.limits.dcp
    members = list(cut_members(layout, group, evicted, occupancy.plain_stack))
    assert policy is not None
    if policy.compaction != NO_COMPACTION:
        if members:
            # The member that needs most counts for all. A prefix that others have too stays whole.
            each = ((occupancy.ahead + evicted.most[layer], spec.block_size) for _, spec, layer in members)
            most, block = max(each, key=lambda one: blocks_of(blocks_of(one[0], dcp), one[1]))
            counted = _blocks("kept", most, block, dcp)
            for member, _, _ in members:
                yield member, counted
        return
    if members:
        spec = members[0][1]
        counted = _uncompacted(occupancy, evicted, spec.block_size * dcp, members, whole=len(members) == len(group.members))
        for member, _, _ in members:
            yield member, counted


def _blocks(name: str, tokens: int, block: int, dcp: int) -> Step:
    """The blocks of so many consecutive tokens, as a step with its formula."""
    blocks = blocks_of(blocks_of(tokens, dcp), block)
    if dcp == 1:
        return step("blocks_per_request", f"ceil({name} / block_size)", blocks, unit="blocks", **{name: tokens}, block_size=block)
    formula = f"ceil(ceil({name} / dcp) / block_size)"
    return step("blocks_per_request", formula, blocks, unit="blocks", **{name: tokens}, dcp=dcp, block_size=block)


def _uncompacted(
    occupancy: Occupancy, evicted: Evicted, block: int, members: list[tuple[int, FullSpec, int]], *, whole: bool
) -> Step:
    """Blocks of all tokens, but for those that come back for certain: of ranges, else as many as survivors cannot lie in."""
    seq, prompt, policy = occupancy.tokens, occupancy.load.prompt_tokens, occupancy.setup.policy
    assert policy is not None
    ranges, sinks = evicted.state.ranges, policy.chosen.get("n_sink")
    if occupancy.ahead:
        # Where the survivors lie is told from the first token that the policy sees, which need not begin a block.
        return step(
            "blocks_per_request", "ceil(seq / block_size)", blocks_of(seq, block), unit="blocks", seq=seq, block_size=block
        )
    if ranges is not None and sinks is not None and evicted.cuts:
        most = max(evicted.most[layer] for _, _, layer in members)
        window = min(blocks_of(seq, block), blocks_of(sinks, block) + blocks_of(max(0, most - sinks - 1), block) + 1)
        return step(
            "blocks_per_request",
            "min(ceil(seq / block_size), ceil(sinks / block_size) + ceil((kept - sinks - 1) / block_size) + 1)",
            window,
            unit="blocks",
            seq=seq,
            sinks=sinks,
            kept=most,
            block_size=block,
        )
    if ranges is not None:
        free = free_of_ranges(prompt, ranges, block, growing=seq > prompt)
    else:
        kept, heads = evicted.behind_prompt, evicted.kv_heads
        survivors = sum(kept[layer] * heads[layer] for _, _, layer in members)
        free = max(0, prompt // block - survivors)
    free = free if whole else 0
    return step(
        "blocks_per_request",
        "ceil(seq / block_size) - freed_blocks",
        blocks_of(seq, block) - free,
        unit="blocks",
        seq=seq,
        block_size=block,
        freed_blocks=free,
    )


def prompts_at_once(batched_tokens: int, prompt: int) -> int:
    """Prompts that one batch of so many tokens ends: the rest of one, and others whole."""
    return 1 + (batched_tokens - 1) // max(1, prompt)


def prompt_peak(held: PoolLayout, occupancy: Occupancy) -> PromptPeak | None:
    """The blocks of a request whose prompt is in the cache before it is cut; ``None`` if they are no more than it holds later.

    A batch holds the rest of one prompt, and others whole.
    """
    prompt, chunked = occupancy.load.prompt_tokens, _chunked(held, occupancy)
    tokens, at_once = prompt, prompts_at_once(held.limits.batched_tokens, max(1, prompt - occupancy.ahead))
    if chunked is not None:
        # The cut of one step is made in the next one.
        tokens, at_once = min(occupancy.tokens, chunked), 2 * at_once
    specs = {
        member: spec
        for group in held.groups
        for member, spec in zip(group.members, group.specs, strict=True)
        if member in held.cut
    }
    sizes = {spec.block_size: _blocks("prompt", tokens, spec.block_size, held.limits.dcp) for spec in specs.values()}
    cut = {member: sizes[spec.block_size] for member, spec in specs.items()}
    blocks = replace(held, cut=cut).total_blocks(occupancy.tokens)
    return PromptPeak(blocks=blocks, at_once=at_once) if blocks > held.total_blocks(occupancy.tokens) else None


def _chunked(layout: PoolLayout, occupancy: Occupancy) -> int | None:
    """The most tokens of a prompt in its blocks, where the policy cuts while it is read."""
    policy, prompt = occupancy.setup.policy, occupancy.load.prompt_tokens
    if policy is None or not is_plugin(policy.chosen):
        return None
    return chunked_tokens(policy.chosen, prompt, layout.limits.batched_tokens)


def paged_groups(layout: PoolLayout, held: PoolLayout, occupancy: Occupancy, evicted: Evicted) -> tuple[PagedGroup, ...]:
    """The groups of layers that the policy of the request cuts."""
    groups = []
    for group in layout.groups:
        members = list(cut_members(layout, group, evicted, occupancy.plain_stack))
        if members:
            groups.append(
                PagedGroup(
                    block_size=members[0][1].block_size * layout.limits.dcp,
                    layers=tuple(layer for _, _, layer in members),
                    whole=len(members) == len(group.members),
                    page_bytes=group.block_bytes,
                    counted=held.counted(group, occupancy.tokens),
                    prompt_tokens=_chunked(layout, occupancy),
                )
            )
    return tuple(groups)


def renumbered(layout: PoolLayout, occupancy: Occupancy, evicted: Evicted) -> tuple[LayerCache, ...]:
    """The caches with the numbers of their kinds among the layers of the request, which a policy makes unlike."""
    plain, cut = occupancy.plain_stack, evicted.stack
    numbers = {group.kind: number for number, group in enumerate(cut.groups)}
    kinds = [group.kind for group in plain.groups]

    def number(layer: int, kind: int) -> int:
        return numbers[cut.layers[layer][plain.layers[layer].index(kinds[kind])]]

    known: dict[tuple[int, int], int] = {}
    for layer_cache in layout.caches:
        if layer_cache.kind >= 0 and (layer_cache.layer, layer_cache.kind) not in known:
            known[layer_cache.layer, layer_cache.kind] = number(layer_cache.layer, layer_cache.kind)
    return tuple(
        layer_cache if layer_cache.kind < 0 else replace(layer_cache, kind=known[layer_cache.layer, layer_cache.kind])
        for layer_cache in layout.caches
    )


def under_policy(occupancy: VllmOccupancy, pool: BlockPool, info: PoolInfo, bound: int) -> PoolInfo:
    """The figures of a pool for requests of which a policy drops tokens. One sequence must fit with its prompt.

    Its blocks, and the figures of the log, are those of the same pool without a policy: the log knows nothing of one. A request of which
    nothing goes is checked as without a policy. The engine has no words for one that a policy cuts.
    """
    layout, available_blocks = occupancy.layout, pool.scheduler_blocks(info.budget_bytes)
    alone = _alone(occupancy, occupancy.tokens) or 0
    whole, starts = alone == layout.total_blocks(occupancy.tokens), info.max_seq or 0

    @cache
    def fits(length: int) -> bool:
        blocks = _alone(occupancy, length)
        if blocks is None:
            return length < occupancy.tokens
        return length <= starts if blocks == layout.total_blocks(length) else blocks <= available_blocks

    most = bound if fits(bound) else longest(lambda length: not fits(length), 0, bound)
    return replace(
        info,
        max_seq=0 if most and _alone(occupancy, most) is None else most,
        needed_bytes=info.needed_bytes if whole else alone * pool.block_bytes,
        fits=info.fits if whole else alone <= available_blocks,
        message=info.message if whole else None,
        steps=tuple(map(_renamed, info.steps)),
    )


def _alone(occupancy: VllmOccupancy, length: int) -> int | None:
    """Blocks of one sequence at its fullest; ``None`` if the policy cannot work at this length, as on a prompt that is too short."""
    try:
        changed = occupancy.sized(seq=length)
        blocks, peak = changed.blocks, changed.prompt_peak
    except UsageError:
        return None
    return blocks if peak is None else peak.blocks


def requests_figure(occupancy: VllmOccupancy, pool: BlockPool, info: PoolInfo) -> tuple[Step, ...]:
    """The requests that the pool holds under a policy, as a step; none where schedulers have shares of the blocks."""
    peak, usable = occupancy.prompt_peak, pool.usable_blocks(info.budget_bytes)
    sizes = {"usable_blocks": usable, "blocks_per_request": occupancy.blocks}
    formula = "floor(usable_blocks / blocks_per_request)"
    if peak is not None and usable // peak.blocks < peak.at_once:
        formula, sizes = "floor(usable_blocks / prompt_blocks)", {"usable_blocks": usable, "prompt_blocks": peak.blocks}
    elif peak is not None:
        sizes |= {"prompts": peak.at_once, "prompt_blocks": peak.blocks}
        formula = "prompts + floor((usable_blocks - prompts x prompt_blocks) / blocks_per_request)"
    return () if pool.schedulers > 1 else (step("max_requests", formula, info.max_requests or 0, unit="requests", **sizes),)


def _renamed(figure: Step) -> Step:
    """A step of the log, which counts the blocks of a request without the policy, by another name."""
    terms = tuple(
        replace(term, name="blocks_without_policy") if term.name == "blocks_per_request" else term for term in figure.terms
    )
    return replace(figure, terms=terms, formula=figure.formula.replace("blocks_per_request", "blocks_without_policy"))

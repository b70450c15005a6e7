"""Loads of other shapes: requests under a cache policy, and sequences that have blocks in common.

vLLM has no policy of its own; TriAttention comes as a plug-in, which wraps methods of the scheduler, the worker, the block manager and the
start-up check. It fits the releases that have what it asks for: ``_prepare_inputs`` with two arguments, and positions and lengths with a
NumPy side (from 0.12), and the list of caches in each layer (to 0.18); with async scheduling or pipeline stages it needs
``log_iteration_details`` too (from 0.14).

Windows, chunks and states keep what they keep: a policy acts on caches that hold every token. A group of layers shares one block table,
so that it holds as many blocks as the member that needs most. A step that reads prompts has all their tokens in blocks before a policy of
the prefill can score them.

Source: WeianMao/triattention c3744ee, triattention/vllm/runtime, with vLLM 0.10.0 to 0.33.0.

What sequences have in common are whole blocks of prompts, looked up by the hash of their tokens. Samples and beams are requests of their
own, which find the blocks of their prompt. At least one token of a prompt is computed anew, so that of a prompt of whole blocks the last
block is not reused. Until 0.6.3 samples were forked from one request, and the last block copied.

Source: vLLM 0.33, v1/core/kv_cache_coordinator.py (lengths of hits), v1/core/single_type_kv_cache_manager.py (what is cached of windows and
states), v1/engine/parallel_sampling.py, entrypoints/generate/beam_search; 0.6.2, core/block_manager_v1.py (fork).
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.options import is_on
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import PagedGroup, Support
from hwcalc.engines.subjects import PolicyRules
from hwcalc.engines.vllm.layout import longest
from hwcalc.engines.vllm.specs import CrossSpec, FullSpec, StateSpec, WindowSpec
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.policies.base import FILL, NO_COMPACTION, Chosen, Effect
from hwcalc.policies.blocks import blocks_of, free_of_ranges
from hwcalc.profiles.engines import planned_version, since

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.policies import Evicted
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.setup import Request
    from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
    from hwcalc.engines.vllm.layout import BlockGroup, LayerCache, PoolLayout
    from hwcalc.engines.vllm.pool import BlockPool
    from hwcalc.engines.vllm.settings import VllmSettings


def is_plugin(chosen: Chosen) -> bool:
    """True if the plug-in does this policy. It cuts while a long prompt is read in chunks, and not behind the whole prompt."""
    return chosen.policy.name == "triattention"


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


class VllmPolicies(PolicyRules):
    """The plug-in runs a few policies. Prompts lie in the blocks of the pool from the start."""

    occupancy: VllmOccupancy

    def support(self, chosen: Chosen) -> Support:
        return policy_support(self.occupancy.deployment, chosen)

    def prefill_bytes(self, stage: int) -> int:
        """Prompts that are read lie in the blocks of the pool, which the plan counts; all stages have as many blocks."""
        return self.occupancy.needed_bytes

    def scored_at_once(self) -> tuple[int, int]:
        """The prompts that end in one batch, which begins with the rest of one."""
        occupancy = self.occupancy
        batch, tokens = occupancy.request.replica_batch, occupancy.settings.batched_tokens
        prompt = max(1, occupancy.load.prompt_tokens - self.ahead)
        return min(batch, prompts_at_once(tokens, prompt)), min(tokens, batch * prompt)

    def paged_groups(self) -> tuple[PagedGroup, ...]:
        return () if self.occupancy.evicted is None else paged_groups(self.occupancy, self.occupancy.evicted)


def policy_support(deployment: VllmDeployment, chosen: Chosen) -> Support:
    """The support for a policy: how vLLM runs it, or what it would need."""
    if not is_plugin(chosen):
        how = f"vLLM {deployment.version} keeps all tokens that the model attends to; for this policy it would take {_needs(chosen)}"
        return Support(offered=False, how=how)
    version, setup, groups = planned_version(deployment.version), deployment.setup, deployment.layout.groups
    queued = setup.parallel.pp > 1 or is_on(setup.options.get("async_scheduling"))
    lacking = None
    if setup.parallel.dcp > 1:
        lacking = "it knows nothing of --decode-context-parallel-size"
    elif not since("0.12") <= version < since("0.19"):
        lacking = f"it fits vLLM 0.12 to 0.18, and not {deployment.version}. Use: --engine vllm@0.18"
    elif version < since("0.14") and queued:
        lacking = "its engine loop fits vLLM 0.14 to 0.18 where batches are queued. Use: --engine vllm@0.18"
    elif len(groups) > 1 or any(len(group.distinct) > 1 for group in groups):
        lacking = "it cuts all groups of layers to one length, and windows and states with them"
    elif setup.policy is not None and setup.policy.compaction in (FILL, NO_COMPACTION):
        lacking = f"the plug-in repacks in order, always: --compaction {setup.policy.compaction} is switched off in it"
    if lacking is not None:
        return Support(offered=False, how=f"TriAttention's plug-in: {lacking}")
    told = {"KV_BUDGET": chosen["kv_budget"], "DIVIDE_LENGTH": chosen["divide_length"]}
    if chosen["prefill_outside_budget"]:
        told |= {"PROTECT_PREFILL": "true", "INCLUDE_PREFILL_IN_BUDGET": "false"}
    variables = tuple(f"TRIATTN_RUNTIME_{name}={value}" for name, value in told.items())
    how = (
        f"TriAttention's plug-in (WeianMao/triattention c3744ee) with --enforce-eager, --no-enable-prefix-caching and "
        f"{' '.join(variables)}; it warns where the start-up check would refuse, and a smaller --max-num-batched-tokens lowers "
        "what a long prompt takes"
    )
    options = {"enforce_eager": "true", "enable_prefix_caching": "false"}
    return Support(offered=True, how=how, options=options, environment=variables)


def _needs(chosen: Chosen) -> str:
    """The change that an engine with blocks would need for a policy, in words."""
    effects = {one.policy.effect for one in chosen.whole}
    common = "kernels that move survivors together, and a scheduler that frees blocks of a running request"
    if Effect.MASKS in effects:
        return "a block table for each head, and attention that reads them: with one table for all heads masked tokens stay"
    if Effect.ZEROES in effects:
        return "pages of fewer channels; zeroes are stored"
    if Effect.READS_LESS in effects:
        return "least and greatest keys of each page, and attention over the chosen pages; nothing comes back"
    if any(one.policy.needs == "eager" for one in chosen.whole):
        return f"attention that gives its scores, which flash attention never writes, and {common}"
    if chosen.policy.by_place:
        return "a scheduler that frees blocks between sinks and window, and positions inside the cache"
    return f"scores of the keys, and {common}"


class PromptPeak(Record):
    """Blocks of a request while its prompt is read, and how many requests there can be at that point at once."""

    blocks: int
    at_once: int


def cut_members(occupancy: VllmOccupancy, group: BlockGroup, evicted: Evicted) -> list[tuple[int, FullSpec, int]]:
    """The caches of a group that a policy cuts, by number, with their specs and layers."""
    caches, kinds, cut = occupancy.layout.caches, occupancy.deployment.plain_stack.groups, []
    for member, spec in zip(group.members, group.specs, strict=True):
        cache = caches[member]
        acted = cache.layer in evicted.most and cache.kind >= 0 and kinds[cache.kind].kind.acts_by_token
        if acted and isinstance(spec, FullSpec) and cache.name != "indexer_keys":
            cut.append((member, spec, cache.layer))
    return cut


def held_layout(occupancy: VllmOccupancy, evicted: Evicted) -> PoolLayout:
    """The layout with the most blocks that a request holds after its prompt."""
    layout, policy, cut = occupancy.layout, occupancy.setup.policy, dict[int, Step]()
    dcp = layout.limits.dcp
    assert policy is not None
    for group in layout.groups:
        members = cut_members(occupancy, group, evicted)
        if not members:
            continue
        if policy.compaction == NO_COMPACTION:
            block, whole = members[0][1].block_size * dcp, len(members) == len(group.members)
            counted = _uncompacted(occupancy, evicted, block, [layer for _, _, layer in members], whole=whole)
        else:
            # The member that needs most counts for all. A prefix that others have too stays whole.
            each = [(occupancy.policies.ahead + evicted.most[layer], spec.block_size) for _, spec, layer in members]
            most, block = max(each, key=lambda one: blocks_of(blocks_of(one[0], dcp), one[1]))
            counted = _blocks_of_tokens("kept", most, block, dcp)
        cut |= dict.fromkeys([member for member, _, _ in members], counted)
    return replace(layout, cut=cut)


def _blocks_of_tokens(name: str, tokens: int, block: int, dcp: int) -> Step:
    """The blocks of so many consecutive tokens, as a step with its formula."""
    blocks = blocks_of(blocks_of(tokens, dcp), block)
    if dcp == 1:
        return step("blocks_per_request", f"ceil({name} / block_size)", blocks, unit="blocks", **{name: tokens}, block_size=block)
    formula = f"ceil(ceil({name} / dcp) / block_size)"
    return step("blocks_per_request", formula, blocks, unit="blocks", **{name: tokens}, dcp=dcp, block_size=block)


def _uncompacted(occupancy: Occupancy, evicted: Evicted, block: int, layers: list[int], *, whole: bool) -> Step:
    """Blocks of all tokens, but for those that come back for certain: of ranges, else as many as survivors cannot lie in."""
    seq, prompt, policy = occupancy.tokens, occupancy.load.prompt_tokens, occupancy.setup.policy
    assert policy is not None
    name, unit, blocks = "blocks_per_request", "blocks", blocks_of(seq, block)
    ranges, sinks = evicted.state.ranges, policy.chosen.get("n_sink")
    if occupancy.policies.ahead:
        # Where the survivors lie is told from the first token that the policy sees, which need not begin a block.
        return step(name, "ceil(seq / block_size)", blocks, unit=unit, seq=seq, block_size=block)
    if ranges is not None and sinks is not None and evicted.cuts:
        most = max(evicted.most[layer] for layer in layers)
        window = min(blocks, blocks_of(sinks, block) + blocks_of(max(0, most - sinks - 1), block) + 1)
        formula = "min(ceil(seq / block_size), ceil(sinks / block_size) + ceil((kept - sinks - 1) / block_size) + 1)"
        return step(name, formula, window, unit=unit, seq=seq, sinks=sinks, kept=most, block_size=block)
    free = 0
    if whole and ranges is not None:
        free = free_of_ranges(prompt, ranges, block, growing=seq > prompt)
    elif whole:
        free = max(0, prompt // block - sum(evicted.behind_prompt[layer] * evicted.kv_heads[layer] for layer in layers))
    formula = "ceil(seq / block_size) - freed_blocks"
    return step(name, formula, blocks - free, unit=unit, seq=seq, block_size=block, freed_blocks=free)


def prompts_at_once(batched_tokens: int, prompt: int) -> int:
    """Prompts that one batch of so many tokens ends: the rest of one, and others whole."""
    return 1 + (batched_tokens - 1) // max(1, prompt)


def prompt_peak(occupancy: VllmOccupancy) -> PromptPeak | None:
    """The blocks of a request whose prompt is in the cache before it is cut; ``None`` if they are no more than it holds later.

    A batch holds the rest of one prompt, and others whole.
    """
    held, prompt = occupancy.held, occupancy.load.prompt_tokens
    tokens, chunked = prompt, _chunked(occupancy)
    at_once = prompts_at_once(held.limits.batched_tokens, max(1, prompt - occupancy.policies.ahead))
    if chunked is not None:
        # The cut of one step is made in the next one.
        tokens, at_once = min(occupancy.tokens, chunked), 2 * at_once
    members = chain.from_iterable(zip(group.members, group.specs, strict=True) for group in held.groups)
    blocks_of_member = {member: spec.block_size for member, spec in members if member in held.cut}
    sizes = {size: _blocks_of_tokens("prompt", tokens, size, held.limits.dcp) for size in set(blocks_of_member.values())}
    cut = {member: sizes[size] for member, size in blocks_of_member.items()}
    blocks = replace(held, cut=cut).total_blocks(occupancy.tokens)
    return PromptPeak(blocks=blocks, at_once=at_once) if blocks > held.total_blocks(occupancy.tokens) else None


def _chunked(occupancy: VllmOccupancy) -> int | None:
    """The most tokens of a prompt in its blocks, where the policy cuts while it is read."""
    policy = occupancy.setup.policy
    if policy is None or not is_plugin(policy.chosen):
        return None
    return chunked_tokens(policy.chosen, occupancy.load.prompt_tokens, occupancy.layout.limits.batched_tokens)


def paged_groups(occupancy: VllmOccupancy, evicted: Evicted) -> tuple[PagedGroup, ...]:
    """The groups of layers that the policy of the request cuts."""
    layout = occupancy.layout
    cut = [(group, cut_members(occupancy, group, evicted)) for group in layout.groups]
    return tuple(
        PagedGroup(
            block_size=members[0][1].block_size * layout.limits.dcp,
            layers=tuple(layer for _, _, layer in members),
            whole=len(members) == len(group.members),
            page_bytes=group.block_bytes,
            counted=occupancy.held.counted(group, occupancy.tokens),
            prompt_tokens=_chunked(occupancy),
        )
        for group, members in cut
        if members
    )


def renumbered(occupancy: VllmOccupancy, evicted: Evicted) -> tuple[LayerCache, ...]:
    """The caches with the numbers of their kinds among the layers of the request, which a policy makes unlike."""
    plain, cut, caches = occupancy.deployment.plain_stack, evicted.stack, occupancy.layout.caches
    numbers = {group.kind: number for number, group in enumerate(cut.groups)}
    known: dict[tuple[int, int], int] = {}
    for layer, kind in dict.fromkeys((each.layer, each.kind) for each in caches if each.kind >= 0):
        place = plain.layers[layer].index(plain.groups[kind].kind)
        known[layer, kind] = numbers[cut.layers[layer][place]]
    return tuple(each if each.kind < 0 else replace(each, kind=known[each.layer, each.kind]) for each in caches)


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
    new_name, steps = "blocks_without_policy", []
    for figure in info.steps:
        # The log counts the blocks of a request without the policy.
        terms = [replace(term, name=new_name) if term.name == "blocks_per_request" else term for term in figure.terms]
        steps.append(replace(figure, terms=tuple(terms), formula=figure.formula.replace("blocks_per_request", new_name)))
    return replace(
        info,
        max_seq=0 if most and _alone(occupancy, most) is None else most,
        needed_bytes=info.needed_bytes if whole else alone * pool.block_bytes,
        fits=info.fits if whole else alone <= available_blocks,
        message=info.message if whole else None,
        steps=tuple(steps),
    )


def _alone(occupancy: VllmOccupancy, length: int) -> int | None:
    """Blocks of one sequence at its fullest; ``None`` if the policy cannot work at this length, as on a prompt that is too short."""
    try:
        changed = occupancy.sized(seq=length)
        blocks, peak = changed.blocks, changed.prompt_peak
    except UsageError:
        return None
    return blocks if peak is None else peak.blocks


def sharing_support(settings: VllmSettings, request: Request) -> Support:
    """The support of this release for blocks that these sequences share: how, or the reason why not."""
    sharing, rules = request.load.sharing, settings.rules
    if caches_prefixes(settings, request):
        return Support(offered=True, how="prefix caching: whole blocks that begin alike are kept once")
    forks = (sharing.samples > 1 and rules.forks_samples) or (sharing.beams > 1 and rules.forks_beams)
    if forks and not sharing.prefix:
        how = "sequences of one request are forked: whole blocks are kept once, the last one is copied"
        return Support(offered=True, how=how)
    for_model = settings.state_caching == "none" and not settings.prefix_caching and rules.engine == "V1"
    off = "prefix caching is off for this model" if for_model else "prefix caching is off"
    asked = "it takes --engine-option enable_prefix_caching=true"
    return Support(offered=False, how=f"{off}, and without it every sequence is computed and kept by itself; {asked}")


def check_sharing(settings: VllmSettings, request: Request) -> None:
    """Raise an error for the plug-in with prefix caching: it overwrites slots that other sequences would read."""
    policy = request.setup.policy
    if policy is not None and is_plugin(policy.chosen) and request.load.sharing.asked and caches_prefixes(settings, request):
        raise UsageError(
            "TriAttention's plug-in moves tokens in blocks that other sequences share: it needs prefix caching off.",
            hint="Use: --engine-option enable_prefix_caching=false, with which nothing is shared",
        )


def caches_prefixes(settings: VllmSettings, request: Request) -> bool:
    """True if prefixes are cached. V0 does so only where an option says so."""
    return settings.prefix_caching and (settings.rules.engine == "V1" or "enable_prefix_caching" in request.setup.options)


class Hits(Struct, frozen=True):
    """Tokens whose blocks are already in the cache: of the prefix, and of a whole prompt. ``copies`` is how often the prefix lies in the pool of a replica."""

    prefix: int
    prompt: int
    copies: int


def hits_of(layout: PoolLayout, settings: VllmSettings, prefix: int, prompt: int) -> Hits:
    """The tokens of a prompt that another request has left in the cache. A prefix that is shorter than a block leaves none."""
    if layout.rules.engine == "V0":
        block = layout.block_size
        return Hits(prefix // block * block, prompt // block * block, 1)
    specs = [spec for group in layout.groups for spec in group.distinct]
    sizes = {group.specs[0].block_size for group in layout.groups if not isinstance(group.specs[0], CrossSpec)}
    aligned = lcm(*sizes) * settings.dcp if sizes else 1
    drafts = settings.speculation is not None and settings.speculation.reads_hidden_states

    def found(tokens: int) -> int:
        if drafts:
            # The last block is computed again, for the hidden states that the draft reads.
            tokens -= min(sizes, default=0) * settings.dcp
        return max(0, tokens) // aligned * aligned

    whole, common = found(prompt - 1), found(min(prefix, prompt - 1))
    states = any(isinstance(spec, StateSpec) and not spec.every for spec in specs)
    windows = any(isinstance(spec, WindowSpec) for spec in specs)
    kept = settings.rules.kept_states
    if states and kept != "sparse" and prompt % aligned == 0:
        # The state is kept where the prompt ends, which is one token too far.
        return Hits(0, 0, 1)
    if common == whole or not (states or (windows and kept == "sparse")):
        return Hits(common, whole, 1)
    if kept == "ends" or len(layout.groups) == 1:
        return Hits(0, whole, 1)
    # Windows and states are kept where a prompt ends. The second request sees that the first one had only a part of its prompt, computes
    # that part once more and keeps it, and all others find it.
    return Hits(common, whole, 2)

"""How vLLM keeps what sequences have in common: whole blocks of prompts, looked up by the hash of their tokens.

Samples and beams are requests of their own, which find the blocks of their prompt. At least one token of a prompt is computed anew, so
that of a prompt of whole blocks the last block is not reused. Until 0.6.3 samples were forked from one request, and the last block copied.

Source: vLLM 0.33, v1/core/kv_cache_coordinator.py (lengths of hits), v1/core/single_type_kv_cache_manager.py (what is cached of windows and
states), v1/engine/parallel_sampling.py, entrypoints/generate/beam_search; 0.6.2, core/block_manager_v1.py (fork).
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import Blocks, Held, SharedBlocks, Support, Together, blocks_in_common, held_blocks
from hwcalc.engines.vllm.policies import is_plugin
from hwcalc.engines.vllm.specs import CrossSpec, StateSpec, WindowSpec, ceil_div
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.setup import Request
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.engines.vllm.layout import BlockGroup, PoolLayout
    from hwcalc.engines.vllm.pool import BlockPool
    from hwcalc.engines.vllm.settings import VllmSettings

_ENDS: Final = "ends"
_SPARSE: Final = "sparse"
_ASK: Final = "--engine-option enable_prefix_caching=true"


def sharing_support(settings: VllmSettings, request: Request) -> Support:
    """Whether this release shares blocks between these sequences, and how."""
    sharing, rules = request.load.sharing, settings.rules
    forks = (sharing.samples > 1 and rules.forks_samples) or (sharing.beams > 1 and rules.forks_beams)
    caches = caches_prefixes(settings, request)
    if caches:
        return Support(offered=True, how="prefix caching: whole blocks that begin alike are kept once")
    if forks and not sharing.prefix:
        return Support(
            offered=True, how="sequences of one request are forked: whole blocks are kept once, the last one is copied"
        )
    if settings.state_caching == "none" and not settings.prefix_caching and rules.engine == "V1":
        how = "prefix caching is off for this model, and without it every sequence is computed and kept by itself"
    else:
        how = "prefix caching is off, and without it every sequence is computed and kept by itself"
    return Support(offered=False, how=f"{how}; it takes {_ASK}")


def check_sharing(settings: VllmSettings, request: Request) -> None:
    """Raise an error for the plug-in with prefix caching: it overwrites slots that other sequences would read."""
    policy = request.setup.policy
    if policy is not None and is_plugin(policy.chosen) and request.load.sharing.asked and caches_prefixes(settings, request):
        raise UsageError(
            "TriAttention's plug-in moves tokens in blocks that other sequences share: it needs prefix caching off.",
            hint="Use: --engine-option enable_prefix_caching=false, with which nothing is shared",
        )


def caches_prefixes(settings: VllmSettings, request: Request) -> bool:
    """Whether prefixes are cached. V0 does so only where an option says so."""
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
    if states and kept != _SPARSE and prompt % aligned == 0:
        # The state is kept where the prompt ends, which is one token too far.
        return Hits(0, 0, 1)
    if common == whole or not (states or (windows and kept == _SPARSE)):
        return Hits(common, whole, 1)
    if kept == _ENDS or len(layout.groups) == 1:
        return Hits(0, whole, 1)
    # Windows and states are kept where a prompt ends. The second request sees that the first one had only a part of its prompt, computes
    # that part once more and keeps it, and all others find it.
    return Hits(common, whole, 2)


def group_held(layout: PoolLayout, settings: VllmSettings, group: BlockGroup, together: Together) -> Held:
    """The blocks that all sequences take in one group."""
    parts, copies = [], 1
    for tokens, requests in together.lengths:
        hits = hits_of(layout, settings, min(together.prefix, tokens), min(together.prompt, tokens))
        copies = max(copies, hits.copies)
        blocks = _blocks(layout, group, tokens, hits.prefix, hits.prompt if together.forks else hits.prefix)
        parts.append((blocks, requests * together.prompts, requests * together.branches))
    return held_blocks(parts, min(together.requests * together.prompts, copies * together.copies * layout.schedulers))


def _blocks(layout: PoolLayout, group: BlockGroup, tokens: int, prefix: int, prompt: int) -> Blocks:
    most = layout.blocks(group, tokens)
    spec = group.specs[0]
    if isinstance(spec, CrossSpec) or (isinstance(spec, StateSpec) and not spec.every):
        return Blocks(most, most, 0, 0)
    size = spec.block_size * layout.limits.dcp
    # What a policy leaves of a sequence begins with the prefix too.
    cut = any(member in layout.cut for member in group.members)
    return Blocks(most if cut else max(most, ceil_div(tokens, size)), most, prefix // size, prompt // size)


def blocks_of_groups(layout: PoolLayout, settings: VllmSettings, together: Together) -> tuple[SharedBlocks, ...]:
    """The blocks of each group, as a plan reports them: of the longest sequence."""
    return tuple(_reported(layout, settings, group, together) for group in layout.groups)


def _reported(layout: PoolLayout, settings: VllmSettings, group: BlockGroup, together: Together) -> SharedBlocks:
    held, kind = group_held(layout, settings, group, together), group.form
    return blocks_in_common(kind, group.specs[0].block_size, held, together, ranks=layout.limits.dcp)


def requests_figure(occupancy: VllmOccupancy, pool: BlockPool, info: PoolInfo) -> tuple[Step, ...]:
    """The requests that the pool holds with all their branches, as a step; none where no single division gives the number."""
    most, blocks = (info.max_requests or 0) // pool.schedulers, pool.scheduler_blocks(info.budget_bytes)
    held, more = (occupancy.blocks_for(requests) for requests in (max(1, most), max(1, most) + 1))
    each = more - held
    shared = held - each * max(1, most)
    # The first requests may share less than the later ones.
    if pool.schedulers > 1 or max(0, blocks - shared) // each != most:
        return ()
    return (
        step(
            "max_requests",
            "floor((usable_blocks - shared_blocks) / blocks_of_each)",
            most,
            unit="requests",
            usable_blocks=blocks,
            shared_blocks=shared,
            blocks_of_each=each,
        ),
    )

"""Blocks of requests under a cache policy.

Windows, chunks and states keep what they keep: a policy acts on caches that hold every token. A group of layers shares one block table,
so that it holds as many blocks as the member that needs most. A step that reads prompts has all their tokens in blocks before a policy of
the prefill can score them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.evicting import Evicted
from hwcalc.engines.policies import PagedGroup
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.layout import PoolLayout
from hwcalc.engines.vllm.placed import LayerCache
from hwcalc.engines.vllm.plugin import chunked_tokens, is_plugin
from hwcalc.engines.vllm.specs import FullSpec
from hwcalc.formulas import Stack
from hwcalc.formulas.record import Record
from hwcalc.policies.asked import NO_COMPACTION
from hwcalc.policies.blocks import blocks_of, free_of_ranges

__all__ = ["PromptPeak", "cut_members", "held_layout", "most_requests", "paged_groups", "prompt_peak", "renumbered"]


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


def held_layout(layout: PoolLayout, opened: Opened, evicted: Evicted) -> PoolLayout:
    """The layout with the blocks that a request holds at the most behind its prompt."""
    cut = {member: counted for group in layout.groups for member, counted in _held(layout, group, opened, evicted)}
    return replace(layout, cut=cut)


def _held(layout: PoolLayout, group: BlockGroup, opened: Opened, evicted: Evicted) -> Iterator[tuple[int, Step]]:
    asked, dcp = opened.request.policy, layout.limits.dcp
    members = list(cut_members(layout, group, evicted, opened.plain_stack))
    assert asked is not None
    if asked.compaction != NO_COMPACTION:
        if members:
            # The member that needs most counts for all. A prefix that others have too stays whole.
            each = ((opened.ahead + evicted.most[layer], spec.block_size) for _, spec, layer in members)
            most, block = max(each, key=lambda one: blocks_of(blocks_of(one[0], dcp), one[1]))
            counted = _blocks("kept", most, block, dcp)
            for member, _, _ in members:
                yield member, counted
        return
    if members:
        spec = members[0][1]
        counted = _uncompacted(opened, evicted, spec.block_size * dcp, members, whole=len(members) == len(group.members))
        for member, _, _ in members:
            yield member, counted


def _blocks(name: str, tokens: int, block: int, dcp: int) -> Step:
    """Blocks of so many tokens in a row."""
    found = blocks_of(blocks_of(tokens, dcp), block)
    if dcp == 1:
        return step("blocks_per_request", f"ceil({name} / block_size)", found, unit="blocks", **{name: tokens}, block_size=block)
    formula = f"ceil(ceil({name} / dcp) / block_size)"
    return step("blocks_per_request", formula, found, unit="blocks", **{name: tokens}, dcp=dcp, block_size=block)


def _uncompacted(opened: Opened, evicted: Evicted, block: int, members: list[tuple[int, FullSpec, int]], *, whole: bool) -> Step:
    """Blocks of all tokens, but for those that come back for certain: of ranges, else as many as survivors cannot lie in."""
    seq, prompt, asked = opened.tokens, opened.request.prompt_tokens, opened.request.policy
    assert asked is not None
    ranges, sinks = evicted.state.ranges, asked.chosen.get("n_sink")
    if opened.ahead:
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


def prompt_peak(held: PoolLayout, opened: Opened) -> PromptPeak | None:
    """The blocks of a request whose prompt is in the cache before it is cut; ``None`` if they are no more than it holds later.

    A batch holds the rest of one prompt, and others whole.
    """
    prompt, chunked = opened.request.prompt_tokens, _chunked(held, opened)
    tokens, at_once = prompt, prompts_at_once(held.limits.batched_tokens, max(1, prompt - opened.ahead))
    if chunked is not None:
        # The cut of one step is made in the next one.
        tokens, at_once = min(opened.tokens, chunked), 2 * at_once
    specs = {
        member: spec
        for group in held.groups
        for member, spec in zip(group.members, group.specs, strict=True)
        if member in held.cut
    }
    sizes = {spec.block_size: _blocks("prompt", tokens, spec.block_size, held.limits.dcp) for spec in specs.values()}
    cut = {member: sizes[spec.block_size] for member, spec in specs.items()}
    blocks = replace(held, cut=cut).total_blocks(opened.tokens)
    return PromptPeak(blocks=blocks, at_once=at_once) if blocks > held.total_blocks(opened.tokens) else None


def _chunked(layout: PoolLayout, opened: Opened) -> int | None:
    """The most tokens of a prompt in its blocks, where the policy cuts while it is read."""
    asked, prompt = opened.request.policy, opened.request.prompt_tokens
    if asked is None or not is_plugin(asked.chosen):
        return None
    return chunked_tokens(asked.chosen, prompt, layout.limits.batched_tokens)


def paged_groups(layout: PoolLayout, held: PoolLayout, opened: Opened, evicted: Evicted) -> tuple[PagedGroup, ...]:
    """The groups of layers that the policy of the request cuts."""
    found = []
    for group in layout.groups:
        members = list(cut_members(layout, group, evicted, opened.plain_stack))
        if members:
            found.append(
                PagedGroup(
                    block_size=members[0][1].block_size * layout.limits.dcp,
                    layers=tuple(layer for _, _, layer in members),
                    whole=len(members) == len(group.members),
                    page_bytes=group.block_bytes,
                    counted=held.counted(group, opened.tokens),
                    prompt_tokens=_chunked(layout, opened),
                )
            )
    return tuple(found)


def renumbered(layout: PoolLayout, opened: Opened, evicted: Evicted) -> tuple[LayerCache, ...]:
    """The caches with the numbers of their kinds among the layers of the request, which a policy makes unlike."""
    plain, cut = opened.plain_stack, evicted.stack
    numbers = {group.kind: number for number, group in enumerate(cut.groups)}
    kinds = [group.kind for group in plain.groups]

    def number(layer: int, kind: int) -> int:
        return numbers[cut.layers[layer][plain.layers[layer].index(kinds[kind])]]

    known: dict[tuple[int, int], int] = {}
    for cache in layout.caches:
        if cache.kind >= 0 and (cache.layer, cache.kind) not in known:
            known[cache.layer, cache.kind] = number(cache.layer, cache.kind)
    return tuple(cache if cache.kind < 0 else cache._replace(kind=known[cache.layer, cache.kind]) for cache in layout.caches)


def most_requests(usable: int, blocks: int, peak: PromptPeak | None) -> int:
    """Requests that ``usable`` blocks hold, of which as many as can be are at their peak."""
    if peak is None:
        return usable // blocks
    if usable // peak.blocks < peak.at_once:
        return usable // peak.blocks
    return peak.at_once + (usable - peak.at_once * peak.blocks) // blocks

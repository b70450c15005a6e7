"""The section of a plan on its cache policy: :func:`policy_info`, and the blocks that it frees of one sequence: :func:`policy_blocks`."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.policies import Evicted, peaks_of
from hwcalc.engines.steps import Step, figure, step
from hwcalc.engines.stored import PagedGroup
from hwcalc.engines.subjects import without_policy
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.planner.result import PolicyBlocks, PolicyInfo, PolicyLayers
from hwcalc.policies.base import EAGER, PAPER, Choice, Chosen, Count, Effect, quality_of
from hwcalc.policies.blocks import (
    Ranges,
    blocks_of,
    expected_free,
    free_of_ranges,
    free_range,
    moves_of_ranges,
    rewritten_of_ranges,
)
from hwcalc.text import brief
from hwcalc.units import human_bytes

_DIGITS: Final = 3


class _Cut(Record):
    """The largest cut that a policy makes in one group of layers: tokens before the cut, and tokens kept in each layer."""

    group: PagedGroup
    before: int
    kept: tuple[int, ...]
    choosers: dict[int, int]
    ranges: Ranges | None
    growing: bool
    chunk: int


def policy_blocks(opened: Occupancy, evicted: Evicted) -> PolicyBlocks | None:
    """Numbers of held and freed blocks of a sequence at the largest cut.

    It is ``None`` if the cache has no blocks, or nothing is dropped.
    """
    asked, groups, ahead = opened.setup.policy, opened.policies.paged_groups(), evicted.ahead
    if asked is None or not groups:
        return None
    cuts = [_largest_cut(opened, evicted, asked.chosen, group) for group in groups]
    if all(max(cut.kept) >= cut.before for cut in cuts):
        return None
    steps: list[Step] = []
    counted = [_of_cut(cut, ahead, steps) for cut in cuts]
    totals = {name: sum(each[name] for each in counted) for name in counted[0]}
    # What others need too lies ahead of all that the policy sees.
    totals["held"] += sum(blocks_of(ahead, group.block_size) for group in groups)
    exact = all(cut.ranges is not None or not cut.group.whole for cut in cuts)
    totals["free"] = int(totals["free"]) if exact else round(totals["free"], _DIGITS)
    steady = sum(group.steady for group in groups)
    return PolicyBlocks(
        block_size=groups[0].block_size,
        before=ahead + max(cut.before for cut in cuts),
        choosers=max(sum(cut.choosers.values()) for cut in cuts),
        **totals,
        steady=steady,
        most=max(totals["held"], steady),
        definition=Definition.EXACT if exact else Definition.ESTIMATE,
        steps=tuple(steps),
    )


def _largest_cut(opened: Occupancy, evicted: Evicted, chosen: Chosen, group: PagedGroup) -> _Cut:
    """The cut of the prompt, or the largest one while text is generated."""
    prompt, behind = evicted.prompt, evicted.behind_prompt
    before, kept, ranges = prompt, tuple(behind[layer] for layer in group.layers), evicted.state.ranges
    if group.prompt_tokens is not None:
        before = min(before, group.prompt_tokens)
    steps = [evicted.ends[layer].largest for layer in group.layers]
    largest = [step for step in steps if step is not None]
    if before <= max(kept) and len(largest) == len(steps):
        before, kept, ranges = max(one[0] for one in largest), tuple(one[1] for one in largest), None
    heads = evicted.kv_heads
    counts: Counter[int] = Counter()
    for layer, count in zip(group.layers, kept, strict=True):
        if chosen.chooses is Choice.HEADS_TOGETHER:
            counts[count] = heads[layer]
        else:
            counts[count] += 1 if chosen.chooses is Choice.EACH_LAYER else heads[layer]
    return _Cut(
        group=group,
        before=before,
        kept=kept,
        choosers=dict(counts),
        ranges=ranges,
        growing=opened.tokens > prompt,
        chunk=1 if chosen.policy.chunk_option is None else chosen[chosen.policy.chunk_option],
    )


def _of_cut(cut: _Cut, ahead: int, steps: list[Step]) -> dict[str, Any]:
    """The blocks of one group by their names in :class:`PolicyBlocks`. The steps that derive them are added to ``steps``."""
    group, block, tokens, most_kept = cut.group, cut.group.block_size, cut.before, max(cut.kept)
    held = figure(steps, "held", "ceil(tokens / block_size)", unit="blocks", tokens=tokens, block_size=block)
    terms = {"dropped": sum(tokens - kept for kept in cut.kept), "layers": len(cut.kept), "block_size": block}
    nominal = figure(steps, "nominal", "floor(dropped / (layers x block_size))", unit="blocks", **terms)
    # The expected number of blocks that are free without compaction, the least and the most.
    free, low, high = 0.0, 0, 0
    if group.whole and cut.ranges is not None:
        free = low = high = free_of_ranges(tokens, cut.ranges, block, growing=cut.growing)
    elif group.whole:
        ends = free_range(tokens, cut.choosers, block, growing=cut.growing)
        free, low, high = expected_free(tokens, cut.choosers, block, chunk=cut.chunk, growing=cut.growing), ends.low, ends.high
        steps.append(_random(cut, free, low, high))
    if cut.ranges is not None and len(cut.ranges) == 2 and cut.ranges[0][0] == 0 and cut.ranges[1][1] == tokens:
        (_, sinks), (window, _) = cut.ranges
        formula = "max(0, floor(window_start / block_size) - ceil(sinks / block_size))"
        by_places = step("free", formula, unit="blocks", window_start=window, sinks=sinks, block_size=block)
        steps += [by_places] if by_places.expected == free else []
    kept = most_kept if group.whole else tokens
    compacted = figure(
        steps, "free_compacted", "held - ceil(kept / block_size)", unit="blocks", held=held, kept=kept, block_size=block
    )
    found = {"held": held, "nominal": nominal, "free": free, "free_low": low, "free_high": high, "free_compacted": compacted}
    # Slots that compaction copies in the layer that keeps most, on average where the kept tokens lie at random.
    sizes = {"tokens": tokens, "kept": most_kept}
    for name, size, on_average in _COPIED:
        if cut.ranges is None:
            formula = f"round({on_average})" if most_kept < tokens else "max(0, tokens - kept)"
            found[name] = figure(steps, name, formula, unit="slots", **sizes)
        else:
            rewritten = name == "rewritten_slots"
            moved = moves_of_ranges(cut.ranges, fill=name == "fill_copies")
            moved = rewritten_of_ranges(tokens, cut.ranges) if rewritten else moved
            whole = "tokens" if rewritten else "kept"
            terms = {whole: sizes[whole], "in_place": sizes[whole] - moved}
            found[name] = figure(steps, name, f"{whole} - in_place", unit="slots", **terms)
        if size:
            slot = group.page_bytes // block
            found[size] = figure(steps, size, "slots_copied x bytes_of_slot", slots_copied=found[name], bytes_of_slot=slot)
    # Blocks behind the prompt, and the most at any time: both count the blocks of a shared prefix.
    steps.append(replace(group.counted, name="steady"))
    formula, terms = "max(held, steady)", {"held": held, "steady": group.steady}
    if ahead:
        formula, terms = "max(held + shared_blocks, steady)", terms | {"shared_blocks": blocks_of(ahead, block)}
    figure(steps, "most", formula, unit="blocks", **terms)
    return found


_COPIED: Final = (
    ("repack_copies", "repack_bytes", "kept - kept / (tokens - kept + 1)"),
    ("rewritten_slots", "", "tokens - kept / (tokens - kept + 1) - (tokens - kept) / (kept + 1)"),
    ("fill_copies", "fill_bytes", "kept x (tokens - kept) / tokens"),
)
"""Slots that are copied, the bytes of that, and how many they are if the kept tokens lie at random."""


def _random(cut: _Cut, free: float, low: int, high: int) -> Step:
    """The step that derives the average number of free blocks: all full blocks are alike, and a last partial block is free more often."""
    block, full = cut.group.block_size, cut.before // cut.group.block_size
    name = "chance" if len(cut.choosers) == 1 and cut.chunk == 1 else "average_chance"
    formula = f"floor(tokens / block_size) x {name}"
    ends = [min(low, full), free, min(high, full)]
    last: dict[str, tuple[float, float, float]] = {}
    if cut.before % block and not cut.growing:
        ends[1] = expected_free(cut.before, cut.choosers, block, chunk=cut.chunk, growing=True)
        formula += " + last_chance"
        last["last_chance"] = (low - ends[0], max(0.0, free - ends[1]), high - ends[2])
    small, each, large = (end / max(1, full) for end in ends)
    terms = {name: (small, each, large), **last}
    return step("free", formula, (low, free, high), unit="blocks", tokens=cut.before, block_size=block, **terms)


NOT_OFFERED: Final = "policy-not-offered"
LOSES: Final = "policy-loses"
DROPS_NOTHING: Final = "policy-drops-nothing"
_NAME: Final = 40
"""Characters of a policy's name in a message."""


def cache_definition(opened: Occupancy, evicted: Evicted) -> Definition:
    """The definition of the bytes of a cache under a policy: that of the engine, estimate, published or assumed."""
    asked, chosen = opened.setup.policy, evicted.chosen
    assert asked is not None
    if not evicted.ends:
        return opened.engine.definition
    if not opened.policies.support(chosen).offered:
        return Definition.ASSUMED
    if not evicted.is_exact:
        return Definition.ESTIMATE
    if asked.rules == PAPER or any(part.policy.definition is Definition.PUBLISHED for part in chosen.whole):
        return Definition.PUBLISHED
    return Definition.ENGINE


def policy_info(opened: Occupancy, evicted: Evicted) -> PolicyInfo:
    """The section of a plan on its policy: the tokens that each layer keeps, the bytes, and what the policy costs."""
    asked, lows = opened.setup.policy, evicted.lows
    assert asked is not None
    support = opened.policies.support(asked.chosen)
    plain = without_policy(opened)
    peaks = peaks_of(opened)
    prompt = opened.sized(seq=opened.load.prompt_tokens)
    most = opened.stored_bytes
    # Masked pairs of a token and a head, in all layers of a sequence.
    counts = [left.masked.total for left in evicted.state.layers if left.masked is not None]
    ends = sum(count.low for count in counts), sum(count.high for count in counts)
    masked = (evicted.state.masked_total or Count(low=ends[0], high=ends[1])) if counts else None
    needs = peaks.cache + peaks.part[1]
    return PolicyInfo(
        name=asked.chosen.text,
        effect=asked.chosen.policy.effect,
        rules=asked.rules,
        attention=evicted.setting.attention,
        offered=support.offered,
        support=support.how,
        definition=opened.model.definition(cache_definition(opened, evicted)),
        prompt=evicted.prompt,
        output=evicted.steps,
        layers=_layers(evicted),
        full_bytes=plain.stored_bytes,
        prefill_bytes=prompt.policies.holding(evicted.behind_prompt).stored_bytes,
        prefill_low_bytes=prompt.policies.holding(lows.behind_prompt).stored_bytes,
        most_bytes=most,
        most_low_bytes=most if evicted.is_exact else opened.policies.holding(lows.most).stored_bytes,
        last_bytes=opened.policies.holding(evicted.last).stored_bytes if evicted.steps else most,
        # Branches of a request that cut their own caches no longer share a prompt, and may take more than without the policy.
        saved_bytes=max(0, plain.stored_bytes - most),
        masked_pairs=None if masked is None else masked.high,
        masked_low_pairs=None if masked is None else masked.low,
        prefill_peak_bytes=peaks.prefill,
        full_prefill_peak_bytes=max(map(plain.policies.prefill_bytes, range(opened.setup.parallel.pp))),
        loses=needs > plain.needed_bytes,
        blocks=policy_blocks(opened, evicted),
        beside=peaks.extras,
        quality=quality_of(asked.chosen.policy.name),
        steps=peaks.steps,
        options=dict(support.options),
        flags=support.flags,
        environment=support.environment,
    )


def _layers(evicted: Evicted) -> tuple[PolicyLayers, ...]:
    """The layers on which the policy acts, grouped by equal numbers of kept tokens."""
    alike: dict[tuple[int, int, int, int, int | None], list[int]] = {}
    for (number, ends), left in zip(evicted.ends.items(), evicted.state.layers, strict=True):
        read = None if left.read is None or left.read.high == left.stored.high else left.read.high
        alike.setdefault((left.stored.high, left.stored.low, evicted.most[number], ends.last, read), []).append(number)
    return tuple(
        PolicyLayers(layers=LayerNumbers(dict.fromkeys(numbers)), kept=kept, kept_low=low, most=most, last=last, read=read)
        for (kept, low, most, last, read), numbers in alike.items()
    )


def policy_notes(chosen: Chosen, attention: str, *, acted: int, layers: int) -> list[Note]:
    """The notes on a policy that acts on ``acted`` of the layers."""
    if not acted:
        message = "The policy has no effect: no layer of this model keeps every token. Windows, states and shared caches keep what they keep."
        return [Note(code="policy-no-effect", message=message)]
    notes = []
    if acted < layers:
        message = f"The policy acts on {acted:,} of {layers:,} layers: windows, states and shared caches keep what they keep."
        notes.append(Note(code="policy-layers", message=message))
    if any(part.policy.effect is Effect.MASKS for part in chosen.whole):
        notes.append(Note(code="policy-masks", message="Masked tokens are stored: no memory comes back. kvpress fakes the mask."))
    if attention == EAGER:
        message = "Eager attention makes n x n scores in the prefill, which may take more than the policy saves."
        notes.append(Note(code="policy-eager", message=message))
    return notes


def policy_warnings(opened: Occupancy, info: PolicyInfo) -> list[Note]:
    """The warnings on a policy: it keeps all tokens, the engine lacks it, or it takes more memory than it saves."""
    if not info.layers:
        return []
    found, name, asked = [], brief(info.name, _NAME), opened.setup.policy
    assert asked is not None
    whole, chosen = info.prompt + info.output, asked.chosen
    dropped = any(group.kept_low < info.prompt or group.last < whole for group in info.layers)
    if not dropped and not info.masked_pairs and chosen.policy.effect not in (Effect.READS_LESS, Effect.ZEROES):
        why = f"its options keep all {whole:,} tokens. See: kvplan policies {chosen.policy.name}"
        unset = next((one for one in chosen.whole if one.get("compression_ratio") == 0 and not one.get("budget")), None)
        if unset is not None:
            why = f"its compression_ratio, the share that is dropped, is 0. Write: {unset.policy.name}:compression_ratio=0.5"
        found.append(Note(code=DROPS_NOTHING, message=f"{name} drops nothing here: {why}"))
    if not info.offered:
        message = f"{opened.engine.label} has no cache policy {name}: planned as if it had. {info.support}".rstrip()
        found.append(Note(code=NOT_OFFERED, message=message))
    if info.loses:
        message = (
            f"{name} takes more memory than it saves: {human_bytes(info.prefill_peak_bytes)} of cache and scratch in the "
            f"prefill on a GPU, {human_bytes(info.full_prefill_peak_bytes)} of cache without it."
        )
        found.append(Note(code=LOSES, message=message))
    return found

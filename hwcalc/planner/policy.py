"""The section of a plan on its cache policy: :func:`policy_info`, and the blocks that it frees of one sequence: :func:`policy_blocks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.policies import Evicted, peaks_of
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import PagedGroup
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.planner.result import PolicyBlocks, PolicyInfo, PolicyLayers
from hwcalc.policies.base import EAGER, PAPER, Choice, Chosen, Count, Effect, quality_of
from hwcalc.policies.blocks import (
    Ranges,
    blocks_of,
    expected_copies,
    expected_free_of,
    expected_rewritten,
    free_of_ranges,
    free_range_of,
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

    @property
    def most_kept(self) -> int:
        return max(self.kept)

    @property
    def held(self) -> int:
        return blocks_of(self.before, self.group.block_size)

    @property
    def nominal(self) -> int:
        return sum(self.before - kept for kept in self.kept) // (len(self.kept) * self.group.block_size)

    @property
    def compacted(self) -> int:
        return self.held - blocks_of(self.most_kept, self.group.block_size) if self.group.whole else 0

    def free(self) -> tuple[float, int, int]:
        """Blocks that are free without compaction: the expected number, the least and the most."""
        if not self.group.whole:
            return 0, 0, 0
        block = self.group.block_size
        if self.ranges is not None:
            exact = free_of_ranges(self.before, self.ranges, block, growing=self.growing)
            return exact, exact, exact
        ends = free_range_of(self.before, self.choosers, block, growing=self.growing)
        return expected_free_of(self.before, self.choosers, block, chunk=self.chunk, growing=self.growing), ends.low, ends.high

    def copies(self, *, fill: bool) -> int:
        """The number of slots that a compaction copies in the layer that keeps most tokens."""
        if self.ranges is not None:
            return moves_of_ranges(self.ranges, fill=fill)
        return round(expected_copies(self.before, self.most_kept, fill=fill))

    @property
    def rewritten(self) -> int:
        if self.ranges is not None:
            return rewritten_of_ranges(self.before, self.ranges)
        return round(expected_rewritten(self.before, self.most_kept))

    @property
    def slot_bytes(self) -> int:
        return self.group.page_bytes // self.group.block_size


def policy_blocks(opened: Occupancy, evicted: Evicted) -> PolicyBlocks | None:
    """Numbers of held and freed blocks of a sequence at the largest cut.

    It is ``None`` if the cache has no blocks, or nothing is dropped.
    """
    asked, groups = opened.setup.policy, opened.paged_groups()
    if asked is None or not groups:
        return None
    cuts = [_largest_cut(opened, evicted, asked.chosen, group) for group in groups]
    if all(cut.most_kept >= cut.before for cut in cuts):
        return None
    frees = [cut.free() for cut in cuts]
    exact = all(cut.ranges is not None or not cut.group.whole for cut in cuts)
    free = sum(figure for figure, _, _ in frees)
    steady = sum(group.steady for group in groups)
    # What others need too lies ahead of all that the policy sees.
    held = sum(cut.held + blocks_of(evicted.ahead, cut.group.block_size) for cut in cuts)
    return PolicyBlocks(
        block_size=groups[0].block_size,
        before=evicted.ahead + max(cut.before for cut in cuts),
        held=held,
        nominal=sum(cut.nominal for cut in cuts),
        choosers=max(sum(cut.choosers.values()) for cut in cuts),
        free=int(free) if exact else round(free, _DIGITS),
        free_low=sum(low for _, low, _ in frees),
        free_high=sum(high for _, _, high in frees),
        free_compacted=sum(cut.compacted for cut in cuts),
        repack_copies=sum(cut.copies(fill=False) for cut in cuts),
        fill_copies=sum(cut.copies(fill=True) for cut in cuts),
        rewritten_slots=sum(cut.rewritten for cut in cuts),
        repack_bytes=sum(cut.copies(fill=False) * cut.slot_bytes for cut in cuts),
        fill_bytes=sum(cut.copies(fill=True) * cut.slot_bytes for cut in cuts),
        steady=steady,
        most=max(held, steady),
        definition=Definition.EXACT if exact else Definition.ESTIMATE,
        steps=tuple(
            figure
            for cut, (free, low, high) in zip(cuts, frees, strict=True)
            for figure in _steps(cut, evicted.ahead, free, low, high)
        ),
    )


def _largest_cut(opened: Occupancy, evicted: Evicted, chosen: Chosen, group: PagedGroup) -> _Cut:
    """The cut of the prompt, or the largest one while text is generated."""
    prompt, behind = evicted.prompt, evicted.behind_prompt
    before, kept, ranges = prompt, tuple(behind[layer] for layer in group.layers), evicted.state.ranges
    if group.prompt_tokens is not None:
        before = min(before, group.prompt_tokens)
    steps = [evicted.ends[layer].largest for layer in group.layers]
    largest = [one for one in steps if one is not None]
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


def _steps(cut: _Cut, ahead: int, free: float, low: int, high: int) -> tuple[Step, ...]:
    """The steps that derive each number of blocks of a group."""
    block, terms = cut.group.block_size, {"tokens": cut.before, "block_size": cut.group.block_size}
    held = step("held", "ceil(tokens / block_size)", cut.held, unit="blocks", **terms)
    dropped = sum(cut.before - kept for kept in cut.kept)
    nominal = step(
        "nominal",
        "floor(dropped / (layers x block_size))",
        cut.nominal,
        unit="blocks",
        dropped=dropped,
        layers=len(cut.kept),
        block_size=block,
    )
    compacted = step(
        "free_compacted",
        "held - ceil(kept / block_size)",
        cut.compacted,
        unit="blocks",
        held=cut.held,
        kept=cut.most_kept if cut.group.whole else cut.before,
        block_size=block,
    )
    later = (compacted, *_copied(cut), *_later(cut, ahead))
    if cut.ranges is not None and len(cut.ranges) == 2 and cut.ranges[0][0] == 0 and cut.ranges[1][1] == cut.before:
        (_, sinks), (window, _) = cut.ranges
        if free == max(0, window // block - blocks_of(sinks, block)):
            formula = "max(0, floor(window_start / block_size) - ceil(sinks / block_size))"
            exact = step("free", formula, int(free), unit="blocks", window_start=window, sinks=sinks, block_size=block)
            return held, nominal, exact, *later
    if cut.ranges is not None or not cut.group.whole:
        return held, nominal, *later
    random = _random(cut, free, low, high)
    return held, nominal, random, *later


def _random(cut: _Cut, free: float, low: int, high: int) -> Step:
    """The step that derives the average number of free blocks: all full blocks are alike, and a last partial block is free more often."""
    block, full = cut.group.block_size, cut.before // cut.group.block_size
    name = "chance" if len(cut.choosers) == 1 and cut.chunk == 1 else "average_chance"
    formula, of_last = f"floor(tokens / block_size) x {name}", bool(cut.before % block) and not cut.growing
    ends = [min(low, full), free, min(high, full)]
    last: dict[str, tuple[float, float, float]] = {}
    if of_last:
        ends[1] = expected_free_of(cut.before, cut.choosers, block, chunk=cut.chunk, growing=True)
        formula += " + last_chance"
        last["last_chance"] = (low - ends[0], max(0.0, free - ends[1]), high - ends[2])
    small, each, large = (end / max(1, full) for end in ends)
    return step(
        "free",
        formula,
        (low, free, high),
        unit="blocks",
        tokens=cut.before,
        block_size=block,
        **{name: (small, each, large)},
        **last,
    )


def _copied(cut: _Cut) -> Iterator[Step]:
    """The steps that derive the slots that compaction copies in the layer that keeps most.

    It is an average where the kept tokens lie at random, else the number of slots that must move.
    """
    sizes = {"tokens": cut.before, "kept": cut.most_kept}
    counts = (
        ("repack_copies", "repack_bytes", "kept - kept / (tokens - kept + 1)", cut.copies(fill=False)),
        ("rewritten_slots", "", "tokens - kept / (tokens - kept + 1) - (tokens - kept) / (kept + 1)", cut.rewritten),
        ("fill_copies", "fill_bytes", "kept x (tokens - kept) / tokens", cut.copies(fill=True)),
    )
    for name, size, formula, count in counts:
        if cut.ranges is None:
            dropped = cut.most_kept < cut.before
            yield step(name, f"round({formula})" if dropped else "max(0, tokens - kept)", count, unit="slots", **sizes)
        else:
            whole = "tokens" if name == "rewritten_slots" else "kept"
            yield step(
                name, f"{whole} - in_place", count, unit="slots", **{whole: sizes[whole], "in_place": sizes[whole] - count}
            )
        if size:
            yield step(
                size,
                "slots_copied x bytes_of_slot",
                count * cut.slot_bytes,
                unit="bytes",
                slots_copied=count,
                bytes_of_slot=cut.slot_bytes,
            )


def _later(cut: _Cut, ahead: int) -> Iterator[Step]:
    """The steps for the blocks behind the prompt and for the most blocks at any time.

    Both count the blocks of a shared prefix.
    """
    yield replace(cut.group.counted, name="steady")
    shared = blocks_of(ahead, cut.group.block_size)
    most, sizes = max(cut.held + shared, cut.group.steady), {"held": cut.held, "steady": cut.group.steady}
    if shared:
        yield step("most", "max(held + shared_blocks, steady)", most, unit="blocks", **sizes, shared_blocks=shared)
    else:
        yield step("most", "max(held, steady)", most, unit="blocks", **sizes)


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
    if not opened.policy_support(chosen).offered:
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
    support = opened.policy_support(asked.chosen)
    plain = opened.without_policy()
    peaks = peaks_of(opened)
    prompt = opened.sized(seq=opened.load.prompt_tokens)
    most = opened.stored_bytes
    masked = _masked(evicted)
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
        prefill_bytes=prompt.holding(evicted.behind_prompt).stored_bytes,
        prefill_low_bytes=prompt.holding(lows.behind_prompt).stored_bytes,
        most_bytes=most,
        most_low_bytes=most if evicted.is_exact else opened.holding(lows.most).stored_bytes,
        last_bytes=opened.holding(evicted.last).stored_bytes if evicted.steps else most,
        # Branches of a request that cut their own caches no longer share a prompt, and may take more than without the policy.
        saved_bytes=max(0, plain.stored_bytes - most),
        masked_pairs=None if masked is None else masked.high,
        masked_low_pairs=None if masked is None else masked.low,
        prefill_peak_bytes=peaks.prefill,
        full_prefill_peak_bytes=max(map(plain.prefill_bytes, range(opened.setup.parallel.pp))),
        loses=needs > plain.needed_bytes,
        blocks=policy_blocks(opened, evicted),
        beside=peaks.extras,
        quality=quality_of(asked.chosen.policy.name),
        steps=peaks.steps,
        options=dict(support.options),
        flags=support.flags,
        environment=support.environment,
    )


def _masked(evicted: Evicted) -> Count | None:
    """The number of masked pairs of a token and a head, in all layers of a sequence; ``None`` where nothing is masked."""
    counts = [left.masked.total for left in evicted.state.layers if left.masked is not None]
    if not counts:
        return None
    return evicted.state.masked_total or Count(low=sum(count.low for count in counts), high=sum(count.high for count in counts))


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
    """The warnings on a policy: the engine lacks it, or it takes more memory than it saves."""
    if not info.layers:
        return []
    found, name = [], brief(info.name, _NAME)
    if nothing := _drops_nothing(opened, info):
        found.append(Note(code=DROPS_NOTHING, message=f"{name} drops nothing here: {nothing}"))
    if not info.offered:
        label = opened.engine.label
        message = f"{label} has no cache policy {name}: planned as if it had. {info.support}".rstrip()
        found.append(Note(code=NOT_OFFERED, message=message))
    if info.loses:
        message = (
            f"{name} takes more memory than it saves: {human_bytes(info.prefill_peak_bytes)} of cache and scratch in the "
            f"prefill on a GPU, {human_bytes(info.full_prefill_peak_bytes)} of cache without it."
        )
        found.append(Note(code=LOSES, message=message))
    return found


def _drops_nothing(opened: Occupancy, info: PolicyInfo) -> str:
    """A sentence on why the policy keeps all tokens, and the option to set; empty if it drops some."""
    asked = opened.setup.policy
    assert asked is not None
    whole = info.prompt + info.output
    dropped = any(group.kept_low < info.prompt or group.last < whole for group in info.layers)
    if dropped or info.masked_pairs or asked.chosen.policy.effect in (Effect.READS_LESS, Effect.ZEROES):
        return ""
    unset = next((one for one in asked.chosen.whole if one.get("compression_ratio") == 0 and not one.get("budget")), None)
    if unset is not None:
        return f"its compression_ratio, the share that is dropped, is 0. Write: {unset.policy.name}:compression_ratio=0.5"
    return f"its options keep all {whole:,} tokens. See: kvplan policies {asked.chosen.policy.name}"

"""Lines of reports on a plan's cache policy, and on what sequences have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines import find_engine
from hwcalc.planner.result import Plan
from hwcalc.report.text import both, layer_words, percent, plural
from hwcalc.text import TIMES, brief, clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.result import PolicyBlocks, PolicyInfo, PolicyLayers
    from hwcalc.policies.base import Policy

MEMORY: Final = {
    "frees": "comes back: the tensors shrink",
    "masks": "does not come back: what is masked is stored",
    "zeroes": "does not come back: zeroes are stored",
    "reads less": "does not come back: a step reads less of it",
    "as its parts": "as the policies inside",
}
"""The fate of the memory that a policy does not want, by its effect."""
NO_EFFECT: Final = "none: it acts on no layer of this model; windows, states and shared caches keep what they keep"
_NAME: Final = 40
"""Characters of a policy's name in a line among others; the title of its own part has it whole."""
_FEW: Final = 3
"""Groups of layers, or published figures, that are listed one by one."""


def policy_line(plan: Plan) -> str:
    """The policy in a line: what it is, what it leaves, and what comes back of the cache at its most; empty without one."""
    info = plan.policy
    if info is None:
        return ""
    name = brief(info.name, _NAME)
    if not info.layers:
        return f"{name}: no effect on this model"
    if info.loses:
        more = info.prefill_peak_bytes - info.full_prefill_peak_bytes
        what = f"takes more than it saves at {plural(plan.request.batch, 'sequence')}"
        if more > 0:
            # What a prefill needs is there once, however many sequences there are.
            what += f": {human_bytes(more)} in the prefill, for {human_bytes(info.saved_bytes)} of cache"
    elif info.most_bytes > info.full_bytes:
        what = f"{human_bytes(info.most_bytes - info.full_bytes)} more than without it"
    elif info.saved_bytes:
        what = f"{human_bytes(info.saved_bytes)} of {human_bytes(info.full_bytes)} come back"
    elif min(info.prefill_bytes, info.last_bytes) < info.full_bytes:
        what = f"{human_bytes(info.full_bytes)} at the most, as without it"
    else:
        what = "nothing comes back"
    what += "; all tokens are prompt, and it cuts generated text: --prompt N" if _waits_for_text(info) else ""
    if info.offered:
        return f"{name}: {what}"
    return f"{name}: {find_engine(plan.request.engine)[0].label} lacks it; if it had it: {what}"


def policy_lines(plan: Plan, *, full: bool = False) -> list[tuple[str, str]]:
    """Labelled lines: what is kept, what comes back, the prefill, blocks, the engine, and published quality. ``full`` lists everything."""
    info = plan.policy
    if info is None:
        return []
    if not info.layers:
        return [("policy", clean(info.name)), ("effect", NO_EFFECT)]
    engine = find_engine(plan.request.engine)[0]
    lines = [("policy", info.name)]
    if info.rules != "kvpress":
        lines.append(("rules", f"those of the {info.rules}, where the code of kvpress differs"))
    drops = _DROPS[info.effect.value]
    if info.effect.value == "frees" and engine.facts.splits_layers:
        drops = "the others; a context has fewer cells from its start, and gives none back"
    elif info.effect.value == "frees" and info.blocks is not None:
        drops = "the others; their memory comes back in whole blocks alone"
    lines += [("keeps", _row_of(info).keeps), ("drops", drops)]
    lines += [*(("tokens", text) for text in _kept(info, plan, full=full)), ("memory", _memory(info))]
    lines += [] if info.blocks is None else [("blocks", text) for text in _blocks(info.blocks, plan)]
    lines += [("prefill", text) for text in _prefill(info)]
    for extra in info.beside:
        known = "the engine's rule" if extra.definition == "engine" else str(extra.definition)
        known += f": {extra.formula} ({extra.source})" if full else ""
        lines.append(("extra", f"{extra.name}: {both(extra.bytes)} {extra.when}, {known}"))
    if info.offered:
        support = info.support or f"{engine.label} has it"
    else:
        told = any(note.code == "policy-not-offered" for note in plan.warnings)
        what = "" if told or not info.support else f". {info.support}"
        support = f"{engine.label} lacks it: these numbers are assumed, as they would be if it had it{what}"
    lines += [("engine", support), *(("quality", text) for text in _quality(info, plan, full=full))]
    return [(label, clean(text)) for label, text in lines]


_DROPS: Final = {
    "frees": "the others; their memory comes back: the tensors shrink",
    "masks": "nothing: the others are masked, and stored",
    "zeroes": "nothing: numbers of every token are set to zero, and stored",
    "reads less": "nothing: all is stored, and a decode step reads a part of it",
    "as its parts": "what the policies inside drop",
}
"""The fate of the tokens that a policy does not want, by its effect."""


def _row_of(info: PolicyInfo) -> Policy:
    """The row of the policy in their table."""
    from hwcalc.policies.parse import find_policy

    return find_policy(info.name.partition(":")[0])


def _waits_for_text(info: PolicyInfo) -> bool:
    """True if the policy cuts while text is generated, and none is: every token is one of the prompt."""
    from hwcalc.policies.base import Role

    row = _row_of(info)
    return not info.output and row.decode is not None and row.role in (Role.DECODING, Role.METHOD)


def _kept(info: PolicyInfo, plan: Plan, *, full: bool) -> Iterator[str]:
    """Tokens by layer: each group of layers that are alike, or the range over all of them; then what is stored and not read."""
    acted = sum(len(group.layers) for group in info.layers)
    if full or len(info.layers) <= _FEW:
        for group in info.layers:
            later = ""
            if info.output:
                # What the layer has while text is generated, where that is more.
                later = f", {group.last:,} behind the {plural(info.output, 'generated token')}"
                if group.most != max(group.kept, group.last):
                    later = f", at the most {group.most:,} within a step{later}"
            yield f"{_tokens(group, info)} in {_layers(group)}{later}"
    else:
        ranked = sorted(info.layers, key=lambda group: group.kept)
        low, high = ranked[0], ranked[-1]
        mean = sum(group.kept * len(group.layers) for group in info.layers) / acted
        span = f"{_tokens(low, info)} in {_layers(low)}, up to {high.kept:,} in {_layers(high)}"
        yield f"{span}; {mean:,.0f} in the mean of {acted:,} layers; each layer: -v"
    for group in info.layers:
        if group.read is not None:
            yield f"a decode step reads {group.read:,} of them at the most, for each head, in {_layers(group)}"
    if info.masked_pairs is not None and info.masked_low_pairs is not None:
        least = "" if info.masked_low_pairs == info.masked_pairs else f"{info.masked_low_pairs:,} to "
        yield f"{least}{plural(info.masked_pairs, 'pair')} of a token and a head are masked in a sequence, over all layers"
    numbers = {number for layer in plan.model.layers for number in layer.layers}
    if len(numbers) > acted:
        yield f"the other {plural(len(numbers) - acted, 'layer')} keep what they keep: windows, states and shared caches"
    if _waits_for_text(info):
        yield f"no text is generated in this plan, and the policy cuts then: --prompt says how many of the {info.prompt:,} are the prompt"


def _layers(group: PolicyLayers) -> str:
    count = len(group.layers)
    return f"layer {group.layers.text}" if count == 1 else f"each of {layer_words(count, group.layers)}"


def _tokens(group: PolicyLayers, info: PolicyInfo) -> str:
    """The tokens behind the prompt; both ends where the text decides."""
    if group.kept_low == info.prompt:
        return f"all {info.prompt:,} tokens of the prompt"
    span = f"{group.kept:,}" if group.kept == group.kept_low else f"{group.kept_low:,} to {group.kept:,}"
    return f"{span} of the {info.prompt:,} tokens of the prompt"


def _memory(info: PolicyInfo) -> str:
    """The bytes of the cache without the policy and with it, at each moment that differs."""
    least = "" if info.most_low_bytes == info.most_bytes else f"{human_bytes(info.most_low_bytes)} to "
    moments = f"{least}{both(info.most_bytes)} at the most"
    if info.prefill_bytes != info.most_bytes:
        moments += f", {human_bytes(info.prefill_bytes)} behind the prompt"
    if info.output and info.last_bytes not in (info.most_bytes, info.prefill_bytes):
        moments += f", {human_bytes(info.last_bytes)} at the end"
    if info.full_bytes == info.most_bytes:
        back = "nothing comes back" if moments.endswith("at the most") else "as much at the most"
        return f"{moments}; without the policy the same: {back}"
    if info.full_bytes < info.most_bytes:
        return f"{moments}; without the policy {both(info.full_bytes)}, of which sequences share more: nothing comes back"
    share = percent(info.saved_bytes, info.full_bytes)
    return f"{moments}; without the policy {both(info.full_bytes)}: {human_bytes(info.saved_bytes)} ({share}) come back"


def _blocks(blocks: PolicyBlocks, plan: Plan) -> Iterator[str]:
    """Lines on what a paged cache frees: whole blocks."""
    yield (
        f"a sequence has {blocks.held:,} blocks of {blocks.block_size:,} tokens before its largest cut, of {blocks.before:,} tokens; "
        f"the dropped ones would fill {blocks.nominal:,}"
    )
    span = "" if blocks.free_low == blocks.free_high else f"; {blocks.free_low:,} to {blocks.free_high:,} are possible"
    known = f"expected for {plural(blocks.choosers, 'choice')} at random" if span else "exact: the rule says which stay"
    # A whole number, or one of which the first digits matter.
    free = f"{blocks.free:,.0f}" if blocks.free == int(blocks.free) or blocks.free >= 100 else f"{blocks.free:,.3g}"
    yield f"without compaction {free} come back ({known}{span}): a block goes when no head and no layer needs a token of it"
    yield (
        f"with compaction {blocks.free_compacted:,}: {blocks.repack_copies:,} slots are copied in order ({human_bytes(blocks.repack_bytes)}), "
        f"or {blocks.fill_copies:,} into holes ({human_bytes(blocks.fill_bytes)})"
    )
    ways = {"repack": "with compaction in order", "fill": "with compaction into holes"}
    how = ways.get(plan.request.compaction or "repack", "without compaction")
    behind = "" if blocks.steady == blocks.most else f", {blocks.steady:,} behind the prompt"
    yield f"planned {how}: {blocks.most:,} at the most{behind}"


def _prefill(info: PolicyInfo) -> Iterator[str]:
    """The prefill at its fullest, with and without the policy."""
    if not info.prefill_peak_bytes:
        return
    yield (
        f"{both(info.prefill_peak_bytes)} of cache and of what the policy needs beside it, on the fullest GPU, before the prompt is cut "
        f"in its last layer; without the policy {both(info.full_prefill_peak_bytes)} of cache"
    )
    more = info.prefill_peak_bytes - info.full_prefill_peak_bytes
    if info.loses and more > 0:
        yield f"the policy loses: its prefill takes {human_bytes(more)} more than keeping everything"
    elif info.loses:
        yield "the policy loses: all in all it needs more memory"


def _quality(info: PolicyInfo, plan: Plan, *, full: bool) -> Iterator[str]:
    """Figures that others published, those of the planned model first."""
    if not info.quality:
        yield "no published accuracy is known here: measure it before you rely on it"
        return
    planned = plan.model.id.rpartition("/")[2].lower()
    own = [one for one in info.quality if one.model.lower() == planned]
    shown = list(info.quality) if full else own
    published: dict[tuple[str, str], list[str]] = {}
    for one in shown:
        figure = f"{one.benchmark} {one.accuracy:g} % with {one.budget:,} tokens, {one.full_accuracy:g} % with all"
        published.setdefault((one.model, one.source), []).append(figure)
    for (model, source), figures in published.items():
        yield f"right answers of {model}, published by {source}, no promise: {'; '.join(figures)}"
    if len(shown) < len(info.quality):
        others = "other models" if own else "other models, none of this one"
        left = plural(len(info.quality) - len(shown), "published figure")
        yield f"{left} of {others}: kvplan policies {info.name.partition(':')[0]}"


def sharing_line(plan: Plan) -> str:
    """A line on what sharing saves; empty without it."""
    info = plan.sharing
    if info is None:
        return ""
    if info.padded_tokens:
        return f"nothing: {plural(info.padded_tokens, 'position')} of padding hold no token"
    if info.sequences == 1:
        return "nothing: there is one sequence, and nobody to share with; several: --users N"
    parts = [f"{info.shared_tokens:,} tokens once for all"] if info.shared_tokens else []
    parts += [f"{info.request_tokens:,} once a request"] if info.request_tokens else []
    if not info.saved_bytes and not parts:
        return "nothing: every sequence is kept by itself"
    kept = ", ".join([*parts, f"{info.own_tokens:,} of each sequence"])
    if not info.saved_bytes:
        return f"{kept}: nothing is saved"
    if info.saved_bytes < 0:
        return f"{human_bytes(-info.saved_bytes)} more than every sequence by itself: the policy cuts nothing that is shared"
    return f"{human_bytes(info.saved_bytes)} of {human_bytes(info.unshared_bytes)} saved: {kept}"


def sharing_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines: what is kept once, what each sequence has alone, copies, bytes, and what the engine does."""
    info, request = plan.sharing, plan.request
    if info is None:
        return []
    several = (("samples", request.samples), ("beams", request.beams))
    sizes = [f"batch {request.batch:,}", *(f"{number:,} {name}" for name, number in several if number > 1)]
    lines = [("sharing", f"of {plural(info.sequences, 'sequence')}: {f' {TIMES} '.join(sizes)}")]
    if info.lengths:
        lines.append(("lengths", ", ".join(f"{count:,} of {tokens:,} tokens" for tokens, count in info.lengths)))
    for label, tokens, blocks, words in (
        ("once", info.shared_tokens, info.shared_blocks, "kept once for all sequences"),
        ("request", info.request_tokens, info.request_blocks, "kept once for the sequences of one request"),
        ("own", info.own_tokens, info.own_blocks, f"of {'the longest' if info.lengths else 'each'} sequence alone"),
    ):
        if tokens or label == "own":
            in_blocks = "" if blocks is None else f" in {plural(blocks, 'block')}"
            lines.append((label, f"{plural(tokens, 'token')}{in_blocks} {words}"))
    if info.copied_blocks:
        of = "last ones of prompts, alike, of which each sequence has its own"
        lines.append(("copied", f"{plural(info.copied_blocks, 'block')}: {of}"))
    if info.padded_tokens:
        without = "without a token: every sequence is as long as the longest"
        lines.append(("padding", f"{plural(info.padded_tokens, 'position')} {without}"))
    if info.saved_bytes:
        saved, share = human_bytes(abs(info.saved_bytes)), percent(abs(info.saved_bytes), info.unshared_bytes)
        what = "saved" if info.saved_bytes > 0 else "more: the policy cuts nothing that is shared"
        memory = f"with every sequence by itself {both(info.unshared_bytes)}: {saved} ({share}) {what}"
    else:
        memory = "nothing is saved" + (": there is one sequence, and nobody to share with" if info.sequences == 1 else "")
    lines.append(("memory", f"{both(plan.cache.total_bytes)}; {memory}"))
    if info.low_bytes is not None:
        parted = "as long as they part at the last block alone; planned as if they part at once"
        lines.append(("beams", f"{human_bytes(info.low_bytes)} {parted}"))
    label = find_engine(request.engine)[0].label
    lines.append(("engine", info.support or (f"{label} shares them" if info.offered else f"{label} shares nothing")))
    return [(label, clean(text)) for label, text in lines]

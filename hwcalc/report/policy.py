"""What reports of a plan say of its cache policy, and of what sequences have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines import find_engine
from hwcalc.planner.result import Plan
from hwcalc.report.text import both, layer_words, percent, plural
from hwcalc.text import TIMES, brief, clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.result import PolicyBlocks, PolicyInfo, PolicyLayers, SharingInfo
    from hwcalc.policies.base import Extra, Policy, Quality

MEMORY: Final = {
    "frees": "comes back: the tensors shrink",
    "masks": "does not come back: what is masked is stored",
    "zeroes": "does not come back: zeroes are stored",
    "reads less": "does not come back: a step reads less of it",
    "as its parts": "as the policies inside",
}
"""What becomes of the memory of what a policy does not want, by its effect."""
NO_EFFECT: Final = "none: it acts on no layer of this model; windows, states and shared caches keep what they keep"
_NAME: Final = 40
"""Characters of a policy's name in a line among others; the title of its own part has it whole."""
_FEW: Final = 3
"""Groups of layers, or published figures, that are listed one by one."""


def policy_line(plan: Plan) -> str:
    """The policy in a line: what it is, what it leaves, and what comes back; empty without one."""
    info = plan.policy
    if info is None:
        return ""
    if not info.layers:
        return f"{brief(info.name, _NAME)}: no effect on this model"
    name = brief(info.name, _NAME)
    what = "takes more than it saves" if info.loses else _back(info)
    what += "; all tokens are prompt, and it cuts generated text: --prompt N" if _waits_for_text(info) else ""
    if info.offered:
        return f"{name}: {what}"
    return f"{name}: {find_engine(plan.request.engine)[0].label} lacks it; if it had it: {what}"


def policy_lines(plan: Plan, *, full: bool = False) -> list[tuple[str, str]]:
    """Labelled lines: what is kept, what comes back, the prefill, blocks, the engine, and published quality. ``full`` lists everything."""
    info = plan.policy
    if info is None:
        return []
    lines = [("policy", info.name), *(("rules", text) for text in _rules(info)), ("keeps", _row_of(info).keeps)]
    if not info.layers:
        return [("policy", clean(info.name)), ("effect", NO_EFFECT)]
    lines += [("drops", _dropped(info, plan)), *(("tokens", text) for text in _kept(info, plan, full=full))]
    lines += [("memory", _memory(info))]
    lines += [] if info.blocks is None else [("blocks", text) for text in _blocks(info.blocks, plan)]
    lines += [("prefill", text) for text in _prefill(info)]
    lines += [("extra", f"{one.name}: {both(one.bytes)} {one.when}, {_known(one, full=full)}") for one in info.beside]
    lines += [("engine", _engine(info, plan))]
    lines += [("quality", text) for text in _quality(info, plan, full=full)]
    return [(label, clean(text)) for label, text in lines]


def _rules(info: PolicyInfo) -> Iterator[str]:
    if info.rules != "kvpress":
        yield f"those of the {info.rules}, where the code of kvpress differs"


def _dropped(info: PolicyInfo, plan: Plan) -> str:
    """What becomes of the memory of the others."""
    if find_engine(plan.request.engine)[0].splits_layers and info.effect.value == "frees":
        return "the others; a context has fewer cells from its start, and gives none back"
    if info.blocks is not None and info.effect.value == "frees":
        return "the others; their memory comes back in whole blocks alone"
    return _DROPS[info.effect.value]


_DROPS: Final = {
    "frees": "the others; their memory comes back: the tensors shrink",
    "masks": "nothing: the others are masked, and stored",
    "zeroes": "nothing: numbers of every token are set to zero, and stored",
    "reads less": "nothing: all is stored, and a decode step reads a part of it",
    "as its parts": "what the policies inside drop",
}
"""What becomes of the tokens that a policy does not want, by its effect."""


def _row_of(info: PolicyInfo) -> Policy:
    """The row of the policy in their table."""
    from hwcalc.policies.parse import find_policy

    return find_policy(info.name.partition(":")[0])


def _kept(info: PolicyInfo, plan: Plan, *, full: bool) -> Iterator[str]:
    """Tokens by layer: each group of layers that are alike, or the range over all of them."""
    if full or len(info.layers) <= _FEW:
        for group in info.layers:
            yield f"{_tokens(group, info)} in {_layers(group)}{_later(group, info)}"
    else:
        ranked = sorted(info.layers, key=lambda group: group.kept)
        low, high = ranked[0], ranked[-1]
        count = sum(len(group.layers) for group in info.layers)
        mean = sum(group.kept * len(group.layers) for group in info.layers) / count
        span = f"{_tokens(low, info)} in {_layers(low)}, up to {high.kept:,} in {_layers(high)}"
        yield f"{span}; {mean:,.0f} in the mean of {count:,} layers; each layer: -v"
    yield from _unused(info)
    acted = sum(len(group.layers) for group in info.layers)
    numbers = {number for layer in plan.model.layers for number in layer.layers}
    if len(numbers) > acted:
        yield f"the other {plural(len(numbers) - acted, 'layer')} keep what they keep: windows, states and shared caches"
    if _waits_for_text(info):
        yield f"no text is generated in this plan, and the policy cuts then: --prompt says how many of the {info.prompt:,} are the prompt"


def _waits_for_text(info: PolicyInfo) -> bool:
    """Whether the policy cuts while text is generated, and none is: every token is one of the prompt."""
    from hwcalc.policies.base import Role

    row = _row_of(info)
    return not info.output and row.decode is not None and row.role in (Role.DECODING, Role.METHOD)


def _known(extra: Extra, *, full: bool) -> str:
    words = "the engine's rule" if extra.definition == "engine" else str(extra.definition)
    return f"{words}: {extra.formula} ({extra.source})" if full else words


def _unused(info: PolicyInfo) -> Iterator[str]:
    """What is stored and not read, or has no weight."""
    for group in info.layers:
        if group.read is not None:
            yield f"a decode step reads {group.read:,} of them at the most, for each head, in {_layers(group)}"
    if info.masked_pairs is not None and info.masked_low_pairs is not None:
        least = "" if info.masked_low_pairs == info.masked_pairs else f"{info.masked_low_pairs:,} to "
        yield f"{least}{plural(info.masked_pairs, 'pair')} of a token and a head are masked in a sequence, over all layers"


def _layers(group: PolicyLayers) -> str:
    count = len(group.layers)
    return f"layer {group.layers.text}" if count == 1 else f"each of {layer_words(count, group.layers)}"


def _tokens(group: PolicyLayers, info: PolicyInfo) -> str:
    """The tokens behind the prompt; both ends where the text decides."""
    if group.kept_low == info.prompt:
        return f"all {info.prompt:,} tokens of the prompt"
    span = f"{group.kept:,}" if group.kept == group.kept_low else f"{group.kept_low:,} to {group.kept:,}"
    return f"{span} of the {info.prompt:,} tokens of the prompt"


def _later(group: PolicyLayers, info: PolicyInfo) -> str:
    """What the layer has while text is generated, where that is more."""
    if not info.output:
        return ""
    end = f"{group.last:,} behind the {plural(info.output, 'generated token')}"
    return f", {end}" if group.most == max(group.kept, group.last) else f", at the most {group.most:,} within a step, {end}"


def _back(info: PolicyInfo) -> str:
    """What comes back of the cache, counted at its most."""
    if info.most_bytes > info.full_bytes:
        return f"{human_bytes(info.most_bytes - info.full_bytes)} more than without it"
    if info.saved_bytes:
        return f"{human_bytes(info.saved_bytes)} of {human_bytes(info.full_bytes)} come back"
    if min(info.prefill_bytes, info.last_bytes) < info.full_bytes:
        return f"{human_bytes(info.full_bytes)} at the most, as without it"
    return "nothing comes back"


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
    """What a paged cache gives back: only whole blocks go."""
    yield (
        f"a sequence has {blocks.held:,} blocks of {blocks.block_size:,} tokens before its largest cut, of {blocks.before:,} tokens; "
        f"the dropped ones would fill {blocks.nominal:,}"
    )
    span = "" if blocks.free_low == blocks.free_high else f"; {blocks.free_low:,} to {blocks.free_high:,} are possible"
    known = f"expected for {plural(blocks.choosers, 'choice')} at random" if span else "exact: the rule says which stay"
    yield f"without compaction {_few(blocks.free)} come back ({known}{span}): a block goes when no head and no layer needs a token of it"
    yield (
        f"with compaction {blocks.free_compacted:,}: {blocks.repack_copies:,} slots are copied in order ({human_bytes(blocks.repack_bytes)}), "
        f"or {blocks.fill_copies:,} into holes ({human_bytes(blocks.fill_bytes)})"
    )
    asked = plan.request.compaction or "repack"
    how = {"repack": "with compaction in order", "fill": "with compaction into holes"}.get(asked, "without compaction")
    behind = "" if blocks.steady == blocks.most else f", {blocks.steady:,} behind the prompt"
    yield f"planned {how}: {blocks.most:,} at the most{behind}"


def _few(number: float) -> str:
    """A whole number, or one of which the first digits matter."""
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:,.3g}"


def _prefill(info: PolicyInfo) -> Iterator[str]:
    """The prefill at its fullest, with and without the policy."""
    if not info.prefill_peak_bytes:
        return
    yield (
        f"{both(info.prefill_peak_bytes)} of cache and of what the policy needs beside it, on the fullest GPU, before the prompt is cut "
        f"in its last layer; without the policy {both(info.full_prefill_peak_bytes)} of cache"
    )
    more = info.prefill_peak_bytes - info.full_prefill_peak_bytes
    if info.loses:
        yield "the policy loses: " + (
            f"its prefill takes {human_bytes(more)} more than keeping everything"
            if more > 0
            else "all in all it needs more memory"
        )


def _engine(info: PolicyInfo, plan: Plan) -> str:
    label = find_engine(plan.request.engine)[0].label
    if info.offered:
        return info.support or f"{label} has it"
    told = any(note.code == "policy-not-offered" for note in plan.warnings)
    what = "" if told or not info.support else f". {info.support}"
    return f"{label} lacks it: these numbers are assumed, as they would be if it had it{what}"


def _quality(info: PolicyInfo, plan: Plan, *, full: bool) -> Iterator[str]:
    """Figures that others published, those of the planned model first."""
    name = info.name.partition(":")[0]
    if not info.quality:
        yield "no published accuracy is known here: measure it before you rely on it"
        return
    own = [one for one in info.quality if _names_same(one, plan)]
    shown = list(info.quality) if full else own
    for model, source in dict.fromkeys((one.model, one.source) for one in shown):
        figures = [_figure(one) for one in shown if (one.model, one.source) == (model, source)]
        yield f"right answers of {model}, published by {source}, no promise: {'; '.join(figures)}"
    if len(shown) < len(info.quality):
        others = "other models" if own else "other models, none of this one"
        yield f"{plural(len(info.quality) - len(shown), 'published figure')} of {others}: kvplan policies {name}"


def _names_same(one: Quality, plan: Plan) -> bool:
    return plan.model.id.rpartition("/")[2].lower() == one.model.lower()


def _figure(one: Quality) -> str:
    return f"{one.benchmark} {one.accuracy:g} % with {one.budget:,} tokens, {one.full_accuracy:g} % with all"


def sharing_line(plan: Plan) -> str:
    """What sharing saves, in a line; empty without it."""
    info = plan.sharing
    if info is None:
        return ""
    if info.padded_tokens:
        return f"nothing: {plural(info.padded_tokens, 'position')} of padding hold no token"
    if info.sequences == 1:
        return "nothing: there is one sequence, and nobody to share with; several: --batch N"
    if not info.saved_bytes:
        kept = info.shared_tokens or info.request_tokens
        return f"{_parts(info)}: nothing is saved" if kept else "nothing: every sequence is kept by itself"
    if info.saved_bytes < 0:
        return f"{human_bytes(-info.saved_bytes)} more than every sequence by itself: the policy cuts nothing that is shared"
    return f"{human_bytes(info.saved_bytes)} of {human_bytes(info.unshared_bytes)} saved: {_parts(info)}"


def sharing_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines: what is kept once, what each sequence has alone, copies, bytes, and what the engine does."""
    info = plan.sharing
    if info is None:
        return []
    lines = [("sharing", f"of {plural(info.sequences, 'sequence')}: {_sequences(plan)}")]
    if info.lengths:
        lines.append(("lengths", ", ".join(f"{count:,} of {tokens:,} tokens" for tokens, count in info.lengths)))
    rows = (
        ("once", info.shared_tokens, info.shared_blocks, "kept once for all sequences"),
        ("request", info.request_tokens, info.request_blocks, "kept once for the sequences of one request"),
        ("own", info.own_tokens, info.own_blocks, f"of {'the longest' if info.lengths else 'each'} sequence alone"),
    )
    lines += [
        (label, f"{plural(tokens, 'token')}{_in_blocks(blocks)} {words}")
        for label, tokens, blocks, words in rows
        if tokens or label == "own"
    ]
    if info.copied_blocks:
        lines.append(
            ("copied", f"{plural(info.copied_blocks, 'block')}: last ones of prompts, alike, of which each sequence has its own")
        )
    if info.padded_tokens:
        lines.append(
            ("padding", f"{plural(info.padded_tokens, 'position')} without a token: every sequence is as long as the longest")
        )
    lines.append(("memory", _unshared(info, plan)))
    if info.low_bytes is not None:
        lines.append(
            (
                "beams",
                f"{human_bytes(info.low_bytes)} as long as they part at the last block alone; planned as if they part at once",
            )
        )
    label = find_engine(plan.request.engine)[0].label
    lines.append(("engine", info.support or (f"{label} shares them" if info.offered else f"{label} shares nothing")))
    return [(label, clean(text)) for label, text in lines]


def _unshared(info: SharingInfo, plan: Plan) -> str:
    if not info.saved_bytes:
        alone = ": there is one sequence, and nobody to share with" if info.sequences == 1 else ""
        return f"{both(plan.cache.total_bytes)}; nothing is saved{alone}"
    share = percent(abs(info.saved_bytes), info.unshared_bytes)
    what = "saved" if info.saved_bytes > 0 else "more: the policy cuts nothing that is shared"
    return (
        f"{both(plan.cache.total_bytes)}; with every sequence by itself {both(info.unshared_bytes)}: {human_bytes(abs(info.saved_bytes))} "
        f"({share}) {what}"
    )


def _in_blocks(blocks: int | None) -> str:
    return "" if blocks is None else f" in {plural(blocks, 'block')}"


def _sequences(plan: Plan) -> str:
    request = plan.request
    parts = [f"batch {request.batch:,}"]
    parts += [f"{request.samples:,} samples"] if request.samples > 1 else []
    parts += [f"{request.beams:,} beams"] if request.beams > 1 else []
    return f" {TIMES} ".join(parts)


def _parts(info: SharingInfo) -> str:
    parts = [f"{info.shared_tokens:,} tokens once for all"] if info.shared_tokens else []
    parts += [f"{info.request_tokens:,} once a request"] if info.request_tokens else []
    return ", ".join([*parts, f"{info.own_tokens:,} of each sequence"])

"""A cache policy, explained: tokens by layer, bytes, the prefill, and blocks of tokens or cells; and what sequences have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import of_one, without_sharing
from hwcalc.engines.steps import Number, value_of
from hwcalc.engines.stored import bytes_of
from hwcalc.engines.subjects import without_policy
from hwcalc.errors import UsageError
from hwcalc.formulas.kind import BY_TOKEN
from hwcalc.library.explained import ExplainedFigure, ExplainedSection, figure_of, names_in, numbers_in, plain_figure, shown
from hwcalc.model import Definition
from hwcalc.planner.result import Plan
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.policies import Evicted
    from hwcalc.planner.result import PolicyBlocks, PolicyInfo, PolicyLayers
    from hwcalc.policies.base import Chosen
    from hwcalc.policies.outcome import Course

Worked = tuple[str, dict[str, Number]]

_CELLS: Final = "256 x ceil({tokens} / 256)"
"""llama.cpp's cells: ``GGML_PAD(n_ctx, 256)``."""


def stored_formula(field: str, size: int, info: PolicyInfo, opened: Occupancy) -> Worked:
    """The bytes of a moment (a field of the policy) as blocks or cells, with their numbers; empty where neither gives them."""
    evicted = opened.evicted
    if evicted is None or not info.layers:
        return "", {}
    moments: dict[str, Callable[[], Occupancy]] = {
        "full_bytes": lambda: without_policy(opened),
        "prefill_bytes": lambda: opened.sized(seq=info.prompt).policies.holding(evicted.behind_prompt),
        "most_bytes": lambda: opened,
        "last_bytes": lambda: opened.policies.holding(evicted.last),
    }
    at = moments[field]()
    tried = _in_blocks(at, info, peak=field == "most_bytes") if opened.groups else _in_cells(at, info, field)
    return next(((formula, values) for formula, values in tried if value_of(formula, values) == size), ("", {}))


def _in_blocks(at: Occupancy, info: PolicyInfo, *, peak: bool) -> Iterator[Worked]:
    """Blocks of every sequence; at the most with the whole prompts of those that are being read."""
    acted = {layer for group in info.layers for layer in group.layers}
    ranks, batch = at.setup.parallel.tp, at.batch
    cut = [group for group in at.groups if not acted.isdisjoint(group.layers)]
    counts = {one.formula: one for group in cut for one in group.steps}
    if len(counts) != 1 or len({group.blocks_per_request for group in cut}) != 1:
        return
    ((counted, one),) = counts.items()
    values: dict[str, Number] = {term.name: term.expected for term in one.terms}
    others = batch * ranks * sum(group.blocks_per_request * group.block_bytes for group in at.groups if group not in cut)
    others += sum(extra.bytes for extra in at.extras if extra.name != "prompt_blocks")
    values |= {"batch": batch, "bytes_of_block": ranks * sum(group.block_bytes for group in cut), "other_layers": others}
    more = " + other_layers" if others else ""
    yield f"batch x {_factor(counted)} x bytes_of_block{more}", values
    together = [group for group in at.in_common().blocks if at.policies.ahead and group.shared]
    if len(together) == len(cut) == 1 and not peak:
        once = f"copies x shared_blocks + batch x ({counted} - shared_blocks)"
        yield f"({once}) x bytes_of_block{more}", {**values, "copies": together[0].copies, "shared_blocks": together[0].shared}
    if not peak:
        return
    chunked = {group.prompt_tokens for group in at.policies.paged_groups()} - {None}
    name, tokens = "prompt", info.prompt
    if chunked and min(at.tokens, max(one for one in chunked if one is not None)) != tokens:
        name, tokens = "prompt_in_blocks", min(at.tokens, max(one for one in chunked if one is not None))
    whole = f"ceil(ceil({name} / dcp) / block_size)" if "dcp" in values else f"ceil({name} / block_size)"
    values = {**values, name: tokens}
    yield f"batch x {whole} x bytes_of_block{more}", values
    # A policy that cuts in the step behind has those of two steps.
    scored, _ = at.policies.scored_at_once()
    for prompts in dict.fromkeys((scored, 2 * scored)):
        formula = f"(prompts x {whole} + (batch - prompts) x {_factor(counted)}) x bytes_of_block{more}"
        yield formula, {**values, "prompts": prompts}


def _factor(formula: str) -> str:
    """A formula that can stand in a product."""
    depth, outside = 0, ""
    for sign in formula:
        depth += (sign == "(") - (sign == ")")
        outside += sign if not depth else ""
    return f"({formula})" if "+" in outside or "-" in outside else formula


def _in_cells(at: Occupancy, info: PolicyInfo, field: str) -> Iterator[Worked]:
    """Cells of a context that has room for the most that lie in a layer, and for prompts before they are cut."""
    count = {"full_bytes": None, "prefill_bytes": "kept", "most_bytes": "most", "last_bytes": "last"}[field]
    kinds = [group for group in at.stack.groups if (group.kind.acts_by_token if count is None else group.kind.kept is not None)]
    cells = {tensor.positions for group in kinds for tensor in at.kind_tensors[group.kind]}
    if len(cells) != 1:
        return
    stored = sum(group.count * bytes_of(at.kind_tensors[group.kind]) for group in kinds)
    whole = sum(group.count * bytes_of(at.kind_tensors[group.kind]) for group in at.stack.groups) + bytes_of(at.extras)
    # Cells are there from the start: those of the most remain.
    names = () if count is None else dict.fromkeys((count, "most"))
    lengths = [max(getattr(group, name) for group in info.layers) for name in names] or [at.tokens]
    (each,) = cells
    values: dict[str, Number] = {"batch": at.batch, "other_layers": whole - stored, "prompt": info.prompt}
    more = " + other_layers" if whole != stored else ""
    padded = "tokens_kept" if count is None else "max(prompt, tokens_kept)"
    together = "batch x tokens_kept" if count is None else "(batch x tokens_kept + prompts x max(0, prompt - tokens_kept))"
    scored, _ = at.policies.scored_at_once()
    for tokens in lengths:
        apart: Mapping[str, Number] = {**values, "tokens_kept": tokens, "bytes_of_cell": stored // (each * at.batch)}
        yield f"batch x {_CELLS.format(tokens=padded)} x bytes_of_cell{more}", dict(apart)
        for prompts in dict.fromkeys((scored, at.batch)):
            formula = f"{_CELLS.format(tokens=together)} x bytes_of_cell{more}"
            yield formula, {**apart, "bytes_of_cell": stored // each, "prompts": prompts}


def of_blocks(blocks: PolicyBlocks, info: PolicyInfo) -> list[ExplainedFigure]:
    """Figures of what a paged cache frees of one sequence: by group of layers, all together, and moved by compaction.

    Those of a single group are in the order of the plan's fields, formula or not.
    """
    figures, told = list[ExplainedFigure](), [one.name for one in blocks.steps]
    for number, one in enumerate(blocks.steps):
        known = str(blocks.definition if one.name == "free" else info.definition)
        name = _BLOCK_WORDS.get(one.name, one.name.replace("_", " "))
        figures.append(figure_of(one, f"policy.blocks.steps.{number}.expected", definition=known, name=name))
    several = told.count("held") > 1
    for field, words in _BLOCK_WORDS.items():
        if several or field not in told:
            free, size = field == "free", int(getattr(blocks, field))
            unit = "slots" if field.endswith(("copies", "slots")) else "bytes" if field.endswith("bytes") else "blocks"
            figures.append(
                plain_figure(
                    f"{words}, all groups" if several and field in told else words,
                    f"policy.blocks.{field}",
                    size,
                    unit=unit,
                    ends=(blocks.free_low, blocks.free_high) if free and blocks.free_low != blocks.free_high else None,
                    definition=blocks.definition if free else info.definition,
                )
            )
    order = list(_BLOCK_WORDS.values())
    return figures if several else sorted(figures, key=lambda one: order.index(one.name))


_BLOCK_WORDS: Final = {
    "held": "blocks before the largest cut",
    "nominal": "blocks that the dropped tokens would fill",
    "free": "blocks that come back without compaction",
    "free_compacted": "blocks that come back with compaction",
    "repack_copies": "slots copied to move survivors together in order",
    "repack_bytes": "bytes copied for that",
    "rewritten_slots": "slots that TriAttention's code changes for it, dropped tokens too",
    "fill_copies": "slots copied to fill holes instead",
    "fill_bytes": "bytes copied for that instead",
    "steady": "blocks of a sequence behind its prompt, at the most",
    "most": "blocks of a sequence at any time, at the most",
}
"""Fields of the blocks, in their order, each with what it is."""


_SCORED: Final = "prompts_scored"
_SEPARATOR: Final = re.compile(r"(?<=\d),(?=\d{3})")


def policy(plan: Plan, opened: Occupancy) -> ExplainedSection | None:
    """Tokens that the policy keeps of each layer, and their sum; ``None`` without one."""
    info, evicted, asked = plan.policy, opened.evicted, opened.setup.policy
    if info is None or evicted is None or asked is None:
        return None
    chosen = asked.chosen
    figures: list[ExplainedFigure] = []
    for number, group in enumerate(info.layers):
        which, low = f"layer{'s' if len(group.layers) > 1 else ''} {group.layers.text}", group.kept_low
        rows = [("kept", "behind the prompt", *_worked(group, info, chosen, evicted))]
        for name, words in (("most", "at the most"), ("last", "at the end")) if info.output else ():
            rows.append((name, words, *_grown(name, group, info, evicted)))
        for name, words, formula, values in rows:
            count, ranged = int(getattr(group, name)), name == "kept" and low != group.kept
            # Doubles have all their digits, since the rounding hangs on the last one.
            digits = {term: repr(value) if isinstance(value, float) else value for term, value in values.items()}
            figures.append(
                ExplainedFigure(
                    name=f"{which}, {words}",
                    figure=f"policy.layers.{number}.{name}",
                    formula=shown(formula),
                    numbers=numbers_in(formula, digits),
                    result=count,
                    low=low if ranged else None,
                    high=count if ranged else None,
                    unit="tokens",
                    definition=str(Definition.ESTIMATE if ranged else info.definition),
                    source="",
                )
            )
    figures += [*_of_bytes(plan, info, opened), *_beside(info, opened, evicted), *_of_prefill(info, opened)]
    figures += [] if info.blocks is None else of_blocks(info.blocks, info)
    return ExplainedSection(
        name="policy",
        title=f"policy {info.name}",
        about=f"{chosen.policy.title}. It keeps {chosen.policy.keeps}.",
        figures=tuple(figures),
        remarks=tuple(_on_policy(info, chosen, evicted)),
    )


def _grown(name: str, group: PolicyLayers, info: PolicyInfo, evicted: Evicted) -> tuple[str, Mapping[str, Number]]:
    """The formula of a layer's tokens while text is generated: those of the prompt, or of the cut before, and one each step since."""
    cuts: tuple[tuple[int, int, int], ...] = ()
    count = int(getattr(group, name))
    with suppress(UsageError):
        cuts = evicted.courses[next(iter(group.layers))].cuts
    starts = ((0, group.kept), *((step, after) for step, _, after in cuts))
    ends = (*((step, before) for step, before, _ in cuts), (info.output, group.last))
    pieces = tuple(zip(starts, ends, strict=True))
    for (start, length), (end, reached) in pieces if name == "most" else pieces[-1:]:
        if reached == count == length + end - start:
            first = "kept_of_prompt" if not start else "kept_by_cut"
            steps = "output" if end - start == info.output else "steps_since"
            return f"{first} + {steps}", {first: length, steps: end - start}
    return ("kept_of_prompt", {"kept_of_prompt": count}) if name == "most" and count == group.kept else ("", {})


def _worked(group: PolicyLayers, info: PolicyInfo, chosen: Chosen, evicted: Evicted) -> tuple[str, Mapping[str, Number]]:
    """The formula of the tokens behind the prompt with its numbers, if it gives them; the prompt is one of its symbols."""
    rule = chosen.policy.worked
    if rule is None:
        return "", {}
    first = next(iter(group.layers))
    place = next(number for number, layer in enumerate(evicted.setting.layers) if layer.index == first)
    formula, values = rule(chosen, info.prompt, place, evicted.setting)
    formula = re.sub(r"\bn\b", "prompt", formula)
    values = {"prompt" if name == "n" else name: value for name, value in values.items()}
    return (formula, values) if value_of(formula, values) == group.kept else ("", {})


def _of_bytes(plan: Plan, info: PolicyInfo, opened: Occupancy) -> Iterator[ExplainedFigure]:
    """The cache without the policy and with it at each moment, where it is tokens times bytes."""
    moments = (
        ("without the policy", "full_bytes", None),
        ("behind the prompt", "prefill_bytes", "kept"),
        ("at the most", "most_bytes", "most"),
        ("at the end", "last_bytes", "last"),
    )
    rows, batch = _bytes_of_token(info, opened), plan.request.batch
    whole = batch * sum(len(group.layers) * plan.request.seq * row for group, row in zip(info.layers, rows, strict=True))
    other = info.full_bytes - whole
    # What remains is other layers alone where nothing is copied, padded to a common block, or shared.
    acted = sum(len(group.layers) for group in info.layers)
    plain = plan.sharing is None and (not other or (acted < len(opened.deployment.plain_stack) and not plan.cache.groups))
    for words, field, count in moments:
        if count in ("kept", "last") and not info.output:
            continue
        tokens = [plan.request.seq if count is None else getattr(group, count) for group in info.layers]
        formula, values = _product([len(group.layers) for group in info.layers], tokens, rows)
        formula, values = (f"{formula} + other_layers" if other else formula), {**values, "batch": batch, "other_layers": other}
        size = int(getattr(info, field))
        if not (plain and other >= 0 and value_of(formula, values) == size):
            formula, values = stored_formula(field, size, info, opened)
        definition = info.definition if count else opened.model.definition(opened.engine.definition)
        place = f"policy.{field}"
        yield plain_figure(f"cache {words}", place, size, formula, values, definition=definition)
    saved = {"without_policy": info.full_bytes, "at_the_most": info.most_bytes}
    formula, size = "without_policy - at_the_most", info.saved_bytes
    yield plain_figure("comes back", "policy.saved_bytes", size, formula, saved, definition=info.definition, checked=True)


def _product(layers: list[int], tokens: list[int], rows: list[int]) -> tuple[str, dict[str, Number]]:
    """Bytes of a sequence: layers x tokens x bytes of each group, or all tokens of all layers if layers are of one size."""
    if len(layers) > 1 and len(set(rows)) == 1:
        together = sum(count * each for count, each in zip(layers, tokens, strict=True))
        return "batch x tokens_of_all_layers x bytes_of_token", {"tokens_of_all_layers": together, "bytes_of_token": rows[0]}
    products: list[str] = []
    values: dict[str, Number] = {}
    for number, (count, each, row) in enumerate(zip(layers, tokens, rows, strict=True)):
        names = [f"{name}_{number}" if number else name for name in ("layers_alike", "tokens_kept", "bytes_of_token")]
        products.append(" x ".join(names))
        values |= dict(zip(names, (count, each, row), strict=True))
    return (f"batch x ({' + '.join(products)})", values) if products else ("", {})


def _bytes_of_token(info: PolicyInfo, opened: Occupancy) -> list[int]:
    """Bytes of a token in one layer of each group, by the formulas."""
    found = []
    for group in info.layers:
        kinds = [kind for kind in opened.stack.layers[next(iter(group.layers))] if kind.acts_by_token]
        tensors = [tensor for kind in kinds for tensor in kind.tensors() if tensor.role in BY_TOKEN]
        found.append(sum(tensor.bytes_per_position(opened.dtypes.roles[tensor.role]) for tensor in tensors))
    return found


def _beside(info: PolicyInfo, opened: Occupancy, evicted: Evicted) -> Iterator[ExplainedFigure]:
    """Memory beside the cache while the policy works, on one GPU."""
    for number, extra in enumerate(info.beside):
        written = re.sub(r"\bn\b", "scored_tokens", _SEPARATOR.sub("", extra.formula))
        of_pass = re.sub(r"\bbatch\b", _SCORED, written)
        tried = ((written if "batch" in given else of_pass, given) for given in _sizes(info, opened, evicted))
        empty: tuple[str, Mapping[str, Number]] = ("", {})
        formula, values = next(((words, given) for words, given in tried if value_of(words, given) == extra.bytes), empty)
        name, place, values = (
            f"{extra.name}, {extra.when}",
            f"policy.beside.{number}.bytes",
            {name: values[name] for name in names_in(formula)},
        )
        yield plain_figure(name, place, extra.bytes, formula, values, definition=extra.definition, source=extra.source)


def _sizes(info: PolicyInfo, opened: Occupancy, evicted: Evicted) -> Iterator[dict[str, Number]]:
    """The numbers of one GPU for the formulas of scratch, with the tokens of the prompt or of the longest cache."""
    layers, tp = evicted.setting.layers, opened.setup.parallel.tp
    longest = max((group.most for group in info.layers), default=0)
    # A pass of a prefill need not have all prompts.
    (scored, rows), every = opened.replica.policies.scored_at_once(), opened.replica.batch
    first = _SCORED if scored < every else "batch"
    for tokens, name, sequences in ((info.prompt, first, scored), (info.prompt, "batch", every), (longest, "batch", every)):
        yield {
            name: sequences,
            "heads": -(-max((layer.heads for layer in layers), default=0) // tp),
            "kv_heads": -(-max((layer.kv_heads for layer in layers), default=0) // tp),
            "head_dim": max((layer.head_dim for layer in layers), default=0),
            "hidden_size": opened.model.hidden_size or 0,
            "layers": len(layers),
            "scored_tokens": tokens,
            "score_rows": rows,
        }


def _of_prefill(info: PolicyInfo, opened: Occupancy) -> Iterator[ExplainedFigure]:
    """Cache and scratch while the last layer of the prompt is scored."""
    if not info.prefill_peak_bytes or not info.layers:
        return
    from hwcalc.engines.policies import peaks_of

    peaks = peaks_of(opened)
    formula = "cache_while_scored + beside_in_prefill"
    values: dict[str, Number] = {"cache_while_scored": peaks.scored, "beside_in_prefill": peaks.beside}
    # Layers are cut while the last one is whole, where all layers of the model are on one GPU and the policy acts on all.
    rows, batch = zip(info.layers, _bytes_of_token(info, opened), strict=True), opened.load.batch
    each = {number: (group.kept, row) for group, row in rows for number in group.layers}
    *before, last = sorted(each)
    layers_cut = batch * sum(each[number][0] * each[number][1] for number in before)
    cut = {"layers_cut": layers_cut, "whole_layer": batch * info.prompt * each[last][1]}
    if sum(cut.values()) == peaks.scored:
        formula, values = formula.replace("cache_while_scored", " + ".join(cut)), {**values, **cut}
    known, place, size = (
        Definition.ESTIMATE if info.beside else info.definition,
        "policy.prefill_peak_bytes",
        info.prefill_peak_bytes,
    )
    yield plain_figure("the prefill at its fullest", place, size, formula, values, definition=known, checked=True)
    for number, one in enumerate(info.steps):
        if one.name == "policy_prefill":
            name, known = "beyond the cache that is counted", Definition.ESTIMATE
            yield figure_of(one, f"policy.steps.{number}.expected", definition=str(known), name=name)
    known, place, size = (
        opened.model.definition(opened.engine.definition),
        "policy.full_prefill_peak_bytes",
        info.full_prefill_peak_bytes,
    )
    yield plain_figure("that cache without the policy", place, size, *_without(info, opened), definition=known)


def _without(info: PolicyInfo, opened: Occupancy) -> tuple[str, Mapping[str, Number]]:
    """The cache of the prompt in all layers, or the whole cache that the plan counts without the policy."""
    if info.full_prefill_peak_bytes == info.full_bytes:
        return "without_policy", {"without_policy": info.full_bytes}
    tp = opened.setup.parallel.tp
    if tp > 1 and info.full_prefill_peak_bytes * tp == info.full_bytes:
        return "without_policy / tp", {"without_policy": info.full_bytes, "tp": tp}
    layers, rows = [len(group.layers) for group in info.layers], _bytes_of_token(info, opened)
    formula, values = _product(layers, [info.prompt] * len(layers), rows)
    values |= {"batch": opened.load.batch, "tp": tp}
    for each in (formula, f"{formula} / tp"):
        if value_of(each, values) == info.full_prefill_peak_bytes:
            return each, values
    return "", {}


def _on_policy(info: PolicyInfo, chosen: Chosen, evicted: Evicted) -> Iterator[str]:
    if not info.layers:
        yield "It acts on no layer of this model: windows, states and shared caches keep what they keep."
    yield f"Its rule: {chosen.policy.formula} (source: {chosen.policy.source})."
    ratio = chosen.ratio
    product = info.prompt * (1 - ratio)
    written = round(product)
    if ratio and int(product) != written and abs(product - written) < 1e-6:
        # A double is not the number that its digits say, and the cut hangs on it.
        yield (
            f"1 - {ratio!r} is {1 - ratio!r} in doubles, and {info.prompt:,} times that is {product!r}: the fraction is cut off, "
            f"so that {int(product):,} stay and not {written:,}."
        )
    course: Course | None = None
    with suppress(UsageError):
        course = next((one for one in evicted.courses.values() if one.cuts), None) if info.output else None
    if course is not None:
        # The sawtooth of the first layer that is cut: how often, and between which lengths.
        step, before, after = course.cuts[0]
        words = f"{len(course.cuts):,} cuts while text is generated, the first in step {step:,}: {before:,} to {after:,} tokens"
        if len(course.cuts) > 1:
            (one, *_), (two, high, low) = course.cuts[-2:]
            words += (
                f"; then each step takes one token in and drops {high - low:,}"
                if two - one == 1
                else f"; at last every {two - one:,} steps from {high:,} to {low:,}, between which a step adds one token "
                f"({low:,} ... {high - 1:,})"
            )
        yield f"{words}."
    if info.blocks is not None:
        free = (one for one in info.blocks.steps if one.name == "free")
        chance = next((term.expected for one in free for term in one.terms if term.name == "chance"), None)
        size, heads = info.blocks.block_size, info.blocks.choosers
        if chance is not None:
            yield (
                f"chance: no choice keeps a token of a block, (C(n - b, k) / C(n, k))^h = {chance:.3g} with n = {info.blocks.before:,} "
                f"tokens, of which k stay, blocks of b = {size:,}, and h = {heads:,} heads and layers that choose on their own."
            )
    if info.layers and info.saved_bytes == 0 and chosen.policy.effect.value != "frees":
        yield "Nothing comes back: what the policy does not want is stored all the same."
    if info.loses:
        more = human_bytes(max(0, info.prefill_peak_bytes - info.full_prefill_peak_bytes))
        yield f"The policy loses: its prefill needs {more} more than a prefill that keeps everything."
    if not info.offered:
        yield "The engine lacks the policy: all these numbers are assumed, as they would be if it had it." + (
            f" {info.support}" if info.support else ""
        )


def sharing(plan: Plan, opened: Occupancy) -> ExplainedSection | None:
    """The part that sequences share, and what keeping it once saves; ``None`` where there is none."""
    info = plan.sharing
    if info is None:
        return None
    known, figures = str(info.definition), list[ExplainedFigure]()
    for number, one in enumerate(info.steps):
        name = _SHARING_WORDS.get(one.name, one.name.replace("_", " "))
        figures.append(figure_of(one, f"sharing.steps.{number}.expected", definition=known, name=name))
    for place, group in enumerate(info.groups):
        for number, one in enumerate(group.steps):
            name = f"blocks, group {place + 1}: {one.name.replace('_', ' ')}"
            figures.append(figure_of(one, f"sharing.groups.{place}.steps.{number}.expected", definition=known, name=name))

    def add(name: str, field: str, formula: str, values: Mapping[str, int], unit: str = "bytes") -> None:
        result = getattr(info, field)
        figures.append(plain_figure(name, f"sharing.{field}", result, formula, values, unit=unit, definition=known, checked=True))

    # All sequences by themselves: as many times one of them, or one of each length.
    lengths, branches = without_sharing(opened).together.lengths, opened.together.branches
    parts: list[str] = []
    values: dict[str, int] = {}
    count = "sequences" if len(lengths) == 1 else "sequences_alike"
    for number, (tokens, requests) in enumerate(lengths if len(lengths) <= _LENGTHS else ()):
        names = [f"{name}_{number}" if number else name for name in (count, "bytes_of_sequence")]
        parts.append(" x ".join(names))
        values |= dict(zip(names, (requests * branches, of_one(opened).sized(seq=tokens).stored_bytes), strict=True))
    add("cache without sharing", "unshared_bytes", " + ".join(parts), values)
    add("saved", "saved_bytes", "unshared - shared", {"unshared": info.unshared_bytes, "shared": plan.cache.total_bytes})
    if info.padded_tokens:
        # As many tokens as the longest has for every sequence, less those that there are.
        (longest, requests), *_ = opened.together.lengths
        asked = sum(tokens * count for tokens, count in opened.load.lengths_of)
        values = {"branches": opened.load.sharing.branches, "requests": requests, "own_tokens": longest, "tokens_asked": asked}
        add("positions of padding", "padded_tokens", "branches x (requests x own_tokens - tokens_asked)", values, "tokens")
    return ExplainedSection(
        name="sharing",
        title="sharing",
        about="What several sequences have in common is kept once where the engine can.",
        figures=tuple(figures),
        remarks=(info.support,) if info.support else (),
    )


_LENGTHS: Final = 4
"""Lengths of sequences that are written one by one."""
_SHARING_WORDS: Final = {"sequences": "sequences alive", "kept_tokens": "tokens that are kept of all sequences"}

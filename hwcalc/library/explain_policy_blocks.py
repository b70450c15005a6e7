"""The cache of a policy, explained where an engine has blocks of tokens, or cells that are there from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import Number
from hwcalc.engines.stored import bytes_of
from hwcalc.library.arithmetic import value_of
from hwcalc.library.explained import ExplainedFigure, figure_of, numbers_in, shown

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.result import PolicyBlocks, PolicyInfo

__all__ = ["of_blocks", "on_chance", "plain_figure", "stored_formula"]

Worked = tuple[str, dict[str, Number]]

_CELLS: Final = "256 x ceil({tokens} / 256)"
"""llama.cpp's cells: ``GGML_PAD(n_ctx, 256)``."""


def stored_formula(field: str, size: int, info: PolicyInfo, opened: Occupancy) -> Worked:
    """The bytes of a moment (a field of the policy) as blocks or cells, with their numbers; empty where neither gives them."""
    evicted = opened.evicted
    if evicted is None or not info.layers:
        return "", {}
    moments: dict[str, Callable[[], Occupancy]] = {
        "full_bytes": opened.without_policy,
        "prefill_bytes": lambda: opened.sized(seq=info.prompt).holding(evicted.behind_prompt),
        "most_bytes": lambda: opened,
        "last_bytes": lambda: opened.holding(evicted.last),
    }
    at = moments[field]()
    tried = _in_blocks(at, info, peak=field == "most_bytes") if opened.groups else _in_cells(at, info, field)
    return next(((formula, values) for formula, values in tried if value_of(formula, values) == size), ("", {}))


def _in_blocks(at: Occupancy, info: PolicyInfo, *, peak: bool) -> Iterator[Worked]:
    """Blocks of every sequence; at the most with the whole prompts of those that are being read."""
    acted = {layer for group in info.layers for layer in group.layers}
    ranks, batch = at.request.parallel.tp, at.batch
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
    together = [group for group in at.shared_blocks() if at.ahead and group.shared]
    if len(together) == len(cut) == 1 and not peak:
        once = f"copies x shared_blocks + batch x ({counted} - shared_blocks)"
        yield f"({once}) x bytes_of_block{more}", {**values, "copies": together[0].copies, "shared_blocks": together[0].shared}
    if not peak:
        return
    chunked = {group.prompt_tokens for group in at.paged_groups()} - {None}
    name, tokens = "prompt", info.prompt
    if chunked and min(at.tokens, max(one for one in chunked if one is not None)) != tokens:
        name, tokens = "prompt_in_blocks", min(at.tokens, max(one for one in chunked if one is not None))
    whole = f"ceil(ceil({name} / dcp) / block_size)" if "dcp" in values else f"ceil({name} / block_size)"
    values = {**values, name: tokens}
    yield f"batch x {whole} x bytes_of_block{more}", values
    # A policy that cuts in the step behind has those of two steps.
    scored, _ = at.scored_at_once()
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
    scored, _ = at.scored_at_once()
    for tokens in lengths:
        apart: Mapping[str, Number] = {**values, "tokens_kept": tokens, "bytes_of_cell": stored // (each * at.batch)}
        yield f"batch x {_CELLS.format(tokens=padded)} x bytes_of_cell{more}", dict(apart)
        for prompts in dict.fromkeys((scored, at.batch)):
            formula = f"{_CELLS.format(tokens=together)} x bytes_of_cell{more}"
            yield formula, {**apart, "bytes_of_cell": stored // each, "prompts": prompts}


def of_blocks(blocks: PolicyBlocks, info: PolicyInfo) -> Iterator[ExplainedFigure]:
    """The blocks of one sequence; those of a single group in the order of the plan's fields, formula or not."""
    figures = _block_figures(blocks, info)
    if sum(one.name == "held" for one in blocks.steps) > 1:
        return figures
    order = list(_BLOCK_WORDS.values())
    return iter(sorted(figures, key=lambda one: order.index(one.name)))


def _block_figures(blocks: PolicyBlocks, info: PolicyInfo) -> Iterator[ExplainedFigure]:
    """What a paged cache gives back of one sequence: each group of layers, then all together, and what compaction moves."""
    for number, one in enumerate(blocks.steps):
        known = blocks.definition if one.name == "free" else info.definition
        name = _BLOCK_WORDS.get(one.name, one.name.replace("_", " "))
        yield figure_of(one, f"policy.blocks.steps.{number}.expected", definition=str(known), name=name)
    several = sum(one.name == "held" for one in blocks.steps) > 1
    told = {one.name for one in blocks.steps}
    for field, words in _BLOCK_WORDS.items():
        if several or field not in told:
            ranged = field == "free" and blocks.free_low != blocks.free_high
            ends = (blocks.free_low, blocks.free_high) if ranged else None
            place, result = f"policy.blocks.{field}", getattr(blocks, field)
            unit = "slots" if field.endswith(("copies", "slots")) else "bytes" if field.endswith("bytes") else "blocks"
            known = blocks.definition if field == "free" else info.definition
            name = f"{words}, all groups" if several and field in told else words
            yield plain_figure(name, place, result, "", {}, unit, str(known), ends=ends)


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


def on_chance(blocks: PolicyBlocks) -> Iterator[str]:
    """Where the chance of a free block comes from."""
    for one in blocks.steps:
        terms = {term.name: term.expected for term in one.terms}
        if one.name == "free" and "chance" in terms:
            yield (
                f"chance: no choice keeps a token of a block, (C(n - b, k) / C(n, k))^h = {terms['chance']:.3g} with n = {blocks.before:,} "
                f"tokens, of which k stay, blocks of b = {blocks.block_size:,}, and h = {blocks.choosers:,} heads and layers that choose "
                "on their own."
            )
            return


def plain_figure(
    name: str,
    place: str,
    result: Number,
    formula: str,
    values: Mapping[str, Number],
    unit: str,
    known: str,
    *,
    ends: tuple[int, int] | None = None,
) -> ExplainedFigure:
    """A figure that is no step of the plan; its formula is shown where it gives the result."""
    fits = value_of(formula, values) == result
    return ExplainedFigure(
        name=name,
        figure=place,
        formula=shown(formula) if fits else "",
        numbers=numbers_in(formula, values) if fits else "",
        result=result,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit=unit,
        definition=known,
        source="",
    )

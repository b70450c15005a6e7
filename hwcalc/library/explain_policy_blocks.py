"""The cache of a policy at a moment, explained where an engine has blocks of tokens, or cells that are there from the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.stored import bytes_of
from hwcalc.library.arithmetic import value_of

if TYPE_CHECKING:
    from hwcalc.engines.base import Opened
    from hwcalc.engines.steps import Number
    from hwcalc.planner.policy_result import PolicyInfo

__all__ = ["stored_formula"]

Worked = tuple[str, dict[str, "Number"]]

_CELLS: Final = "256 x ceil({tokens} / 256)"
"""llama.cpp's cells: ``GGML_PAD(n_ctx, 256)``."""


def stored_formula(field: str, size: int, info: PolicyInfo, opened: Opened) -> Worked:
    """The bytes of a moment (a field of the policy) as blocks or cells, with their numbers; empty where neither gives them."""
    evicted = opened.evicted
    if evicted is None or not info.layers:
        return "", {}
    moments = {
        "full_bytes": opened.without_policy,
        "prefill_bytes": lambda: opened.sized(seq=info.prompt).holding(evicted.behind_prompt),
        "most_bytes": lambda: opened,
        "last_bytes": lambda: opened.holding(evicted.last),
    }
    at = moments[field]()
    tried = _in_blocks(at, info, peak=field == "most_bytes") if opened.groups else _in_cells(at, info, field)
    return next(((formula, values) for formula, values in tried if value_of(formula, values) == size), ("", {}))


def _in_blocks(at: Opened, info: PolicyInfo, *, peak: bool) -> Iterator[Worked]:
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
    if not peak:
        return
    chunked = {group.prompt_tokens for group in at.engine.paged_groups(at)} - {None}
    name, tokens = "prompt", info.prompt
    if chunked and min(at.tokens, max(one for one in chunked if one is not None)) != tokens:
        name, tokens = "prompt_in_blocks", min(at.tokens, max(one for one in chunked if one is not None))
    whole = f"ceil(ceil({name} / dcp) / block_size)" if "dcp" in values else f"ceil({name} / block_size)"
    values = {**values, name: tokens}
    yield f"batch x {whole} x bytes_of_block{more}", values
    # A policy that cuts in the step behind has those of two steps.
    scored, _ = at.engine.scored_at_once(at)
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


def _in_cells(at: Opened, info: PolicyInfo, field: str) -> Iterator[Worked]:
    """Cells of a context that has room for the most that lie in a layer, and for prompts before they are cut."""
    count = {"full_bytes": None, "prefill_bytes": "kept", "most_bytes": "most", "last_bytes": "last"}[field]
    kinds = [group for group in at.stack.groups if (group.kind.acts_by_token if count is None else group.kind.kept is not None)]
    cells = {tensor.positions for group in kinds for tensor in at.kind_tensors[group.kind]}
    if len(cells) != 1:
        return
    stored = sum(group.count * bytes_of(at.kind_tensors[group.kind]) for group in kinds)
    whole = sum(group.count * bytes_of(at.kind_tensors[group.kind]) for group in at.stack.groups) + bytes_of(at.extras)
    tokens = at.tokens if count is None else max(getattr(group, count) for group in info.layers)
    (each,) = cells
    values: dict[str, Number] = {"batch": at.batch, "tokens_kept": tokens, "other_layers": whole - stored, "prompt": info.prompt}
    more = " + other_layers" if whole != stored else ""
    for buffers, words in (
        ("batch x ", "tokens_kept" if count is None else "max(prompt, tokens_kept)"),
        ("", "batch x tokens_kept" if count is None else "(batch x tokens_kept + prompts x max(0, prompt - tokens_kept))"),
    ):
        for prompts in dict.fromkeys((at.batch, at.engine.scored_at_once(at)[0])) if "prompts" in words else (at.batch,):
            formula = f"{buffers}{_CELLS.format(tokens=words)} x bytes_of_cell{more}"
            row: Mapping[str, Number] = {**values, "prompts": prompts}
            streams = at.batch if buffers else 1
            yield formula, {**row, "bytes_of_cell": stored // (each * streams)}

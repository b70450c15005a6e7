"""``kvplan explain`` as text: the parts of :mod:`hwcalc.library.explain` as indented lines."""

from __future__ import annotations

from typing import Final

from hwcalc.engines import find_engine
from hwcalc.library.explain import Explanation, KindExplanation, TensorExplanation
from hwcalc.library.explained import SECTIONS, ExplainedSection
from hwcalc.planner.result import Plan
from hwcalc.report.drawing import BETWEEN, PIPED_WIDTH, Column, Grid, Piece, Text, hanging, indented, rendered
from hwcalc.report.explain_lines import (
    LIMITS,
    QUOTED_TITLE,
    Told,
    figure_lines,
    limit_line,
    missing_line,
    only_line,
    quoted_lines,
)
from hwcalc.report.summary import definition, model_lines, request_line, source_line
from hwcalc.report.text import both, exact, layer_words, percent
from hwcalc.text import TIMES, clean

__all__ = ["dimensions", "explain_text", "group_lines", "group_title", "heading", "result", "steps", "total"]

_UNCUT: Final = Column(whole=True, folds=False)


def explain_text(explanation: Explanation, *, color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False) -> str:
    """Each kind of layer with its formula, its numbers and the result, and their sum; then every other part in the same way."""
    plan, told = explanation.plan, Told()
    name, about, shape = model_lines(plan)
    out: list[Piece] = [
        Text((name, "bold"), ("  " + about, "dim")),
        Text(shape),
        Text(request_line(plan)),
        Text(),
    ]
    if explanation.kinds:
        out += _cache(explanation, told)
    by_name = {section.name: _section(section, told) for section in explanation.sections}
    by_name |= {"limits": _limits(explanation), "quoted": _quoted(explanation, told)}
    out += [line for section in SECTIONS for line in by_name.get(section, [])]
    if not quiet:
        messages = (missing_line(explanation), source_line(plan), *(clean(note.message) for note in plan.notes))
        out += hanging([("note", message, "dim") for message in (*messages, only_line(explanation)) if message])
    if plan.warnings:
        out += [*([] if quiet else [Text()]), *hanging([("warning", clean(note.message), "yellow") for note in plan.warnings])]
    return rendered(out, color=color, width=width).rstrip("\n") + "\n"


def _cache(explanation: Explanation, told: Told) -> list[Piece]:
    """The kinds of layers, the groups that share a pool, and the sum."""
    plan = explanation.plan
    out: list[Piece] = []
    for part in explanation.kinds:
        out.append(Text(heading(part), style="bold cyan"))
        out.append(indented(Text(part.why)))
        if part.dims:
            out.append(indented(Text(dimensions(part), style="dim")))
        out += hanging(
            [("" if number else tensor.name, line, "") for tensor in part.tensors for number, line in enumerate(steps(tensor))]
        )
        out += [
            indented(Text(result(part, plan.cache.total_bytes), style="bold")),
            *_where(told.of_kind(part)),
            indented(Text(f"source: {part.source}", style="dim")),
            Text(),
        ]
    if plan.cache.groups:
        out.append(Text(group_title(plan), style="bold cyan"))
        out += [indented(Text(line)) for line in group_lines(plan)]
        out.append(Text())
    out.append(Text("sum", style="bold cyan"))
    out += [indented(Text(line)) for line in total(plan, explanation.kinds)]
    return [*out, Text()]


def _section(section: ExplainedSection, told: Told) -> list[Piece]:
    rows: list[tuple[str, str, str]] = []
    for name, lines, source in figure_lines(section.figures):
        rows.append((name, "\n".join(lines), ""))
        if source:
            rows.append(("", f"source: {source}", "dim"))
    return [
        Text(section.title, style="bold cyan"),
        indented(Text(section.about)),
        *hanging(rows),
        *(indented(Text(clean(remark))) for remark in section.remarks),
        *_where(told.of_section(section)),
        Text(),
    ]


def _limits(explanation: Explanation) -> list[Piece]:
    if not explanation.limits:
        return []
    rows = [(limit.name, limit_line(limit, explanation.plan), "") for limit in explanation.limits]
    return [Text("limits", style="bold cyan"), indented(Text(LIMITS)), *hanging(rows), Text()]


def _quoted(explanation: Explanation, told: Told) -> list[Piece]:
    if not explanation.quoted:
        return []
    rows: list[tuple[str, str, str]] = []
    for subject, (first, *others) in quoted_lines(explanation.quoted, explanation.plan):
        rows += [(subject, first, ""), *(("", line, "") for line in others)]
    formulas = [one.formula for one in explanation.quoted]
    return [Text(QUOTED_TITLE, style="bold cyan"), *hanging(rows), *_where(told.first(formulas)), Text()]


def _where(symbols: list[tuple[str, str]]) -> list[Piece]:
    """What symbols mean, one a line."""
    if not symbols:
        return []
    rows = [
        tuple(Text(cell, style="dim") for cell in ("       " if number else "  where", name, meaning))
        for number, (name, meaning) in enumerate(symbols)
    ]
    return [Grid(columns=(_UNCUT, _UNCUT, Column()), rows=tuple(rows), gap=BETWEEN)]


def group_title(plan: Plan) -> str:
    """What the groups have to do with each other."""
    return "groups that share the pool" if find_engine(plan.request.engine)[0].groups_share else "groups, each with a pool"


def group_lines(plan: Plan) -> list[str]:
    """Each group with the size of its pages and the blocks that a request takes; then the bytes of all blocks of a request."""
    groups, lines = plan.cache.groups, []
    for number, group in enumerate(groups, start=1):
        page = "" if group.page_bytes is None else f" {TIMES} {exact(group.page_bytes)} a page"
        lines.append(
            f"{number}  {group.kind}: {layer_words(group.count, group.layers)}{page} = {exact(group.block_bytes)} a block "
            f"of {group.block_size:,} tokens, {group.blocks_per_request:,} blocks a request"
        )
    if plan.request.pp > 1:
        return lines
    if not find_engine(plan.request.engine)[0].groups_share:
        size = sum(group.blocks_per_request * group.block_bytes for group in groups)
        return [*lines, f"each group has a pool of its own: {exact(size)} a request, on each rank"]
    blocks = sum(group.blocks_per_request for group in groups)
    widest = max(group.block_bytes for group in groups)
    lines.append(
        f"every block is as wide as the widest group: {blocks:,} blocks {TIMES} {exact(widest)} = {exact(blocks * widest)} "
        "a request, on each rank"
    )
    return lines


def heading(part: KindExplanation) -> str:
    """The kind and its layers."""
    return f"{part.title}: {layer_words(part.count, part.layers)}" if part.layers else part.title


def dimensions(part: KindExplanation) -> str:
    """The dimensions of the kind by name."""
    return ", ".join(f"{name} {value:,}" for name, value in part.dims.items() if not isinstance(value, bool))


def steps(tensor: TensorExplanation) -> list[str]:
    """The formula with names, then with numbers, up to the bytes of all layers."""
    block = f": {tensor.dtype_meaning}" if tensor.dtype_meaning.endswith("elements") and tensor.numbers else ""
    if tensor.count > 1:
        sizes = f"{exact(tensor.bytes_per_layer)} per layer, {TIMES} {tensor.count:,} = {exact(tensor.bytes)}"
    else:
        sizes = exact(tensor.bytes)
    dtype = f"  ({tensor.dtype}{block})" if tensor.dtype else ""
    lines = [f"{tensor.formula}{dtype}", f"{tensor.numbers} = {sizes}" if tensor.numbers else f"= {sizes}"]
    if tensor.count_formula:
        lines.append(f"blocks of a sequence: {tensor.count_formula} = {tensor.count_numbers} = {tensor.blocks:,}")
    if tensor.block_formula:
        lines.append(f"a block of a layer on a GPU: {tensor.block_formula} = {tensor.block_numbers}")
    return lines


def result(part: KindExplanation, whole: int) -> str:
    """The bytes of all layers of a kind, and their share of the cache."""
    return f"together {both(part.bytes)}, {percent(part.bytes, whole)} of the cache"


def total(plan: Plan, parts: tuple[KindExplanation, ...]) -> list[str]:
    """The sum of all parts, and what the numbers are."""
    terms = [f"{part.bytes:,}" for part in parts if part.bytes] or ["0"]
    lines = [f"{' + '.join(terms)} = {both(plan.cache.total_bytes)}"] if len(terms) > 1 else [both(plan.cache.total_bytes)]
    return [*lines, definition(plan)]

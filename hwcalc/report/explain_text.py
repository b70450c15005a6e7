"""``kvplan explain`` as text: the parts of :mod:`hwcalc.library.explain` as indented lines.

The lines of an explanation, which text and Markdown share: figures, limits and formulas that are often quoted, in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hwcalc.engines import find_engine
from hwcalc.library.explain import Explanation, KindExplanation, TensorExplanation
from hwcalc.library.explained import (
    SECTIONS,
    ExplainedFigure,
    ExplainedLimit,
    ExplainedSection,
    QuotedFormula,
    number_text,
    symbols_in,
)
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.report.drawing import BETWEEN, PIPED_WIDTH, Column, Grid, Piece, Text, hanging, indented, rendered
from hwcalc.report.summary import definition, model_lines, request_line, source_line
from hwcalc.report.text import both, exact, layer_words, percent, plural
from hwcalc.text import TIMES, clean
from hwcalc.units import human_bytes

LIMITS: Final = "The largest numbers that fit. What they need is counted on the fullest GPU."
QUOTED_TITLE: Final = "often quoted, and wrong for this model"
_DEFINITIONS: Final = {"engine": "the engine's rule"}
_UNITS: Final = {"x": "times the planned request"}
_ENDS: Final = {
    "low": "with every estimate at its high end",
    "expected": "by the expected values",
    "high": "with every estimate at its low end",
}


class Told:
    """The symbols whose meaning was said already: each is explained once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def first(self, formulas: Iterable[str]) -> list[tuple[str, str]]:
        """The symbols of these formulas that are met for the first time, each with its meaning."""
        new = [symbol for symbol in symbols_in(formulas) if symbol.name not in self._names]
        self._names |= {symbol.name for symbol in new}
        return [(symbol.name, symbol.meaning) for symbol in new]

    def of_kind(self, part: KindExplanation) -> list[tuple[str, str]]:
        """The symbols of a kind of layers."""
        formulas = [tensor.formula for tensor in part.tensors if tensor.numbers]
        more = [formula for tensor in part.tensors for formula in (tensor.block_formula, tensor.count_formula)]
        return self.first([*part.dims, *formulas, *more])

    def of_section(self, section: ExplainedSection) -> list[tuple[str, str]]:
        """The symbols of a section, but those that are figures of it."""
        own = {figure.name for figure in section.figures}
        return [(name, meaning) for name, meaning in self.first(figure.formula for figure in section.figures) if name not in own]


def figure_lines(figures: Iterable[ExplainedFigure]) -> Iterator[tuple[str, list[str], str]]:
    """Each figure as its name, its lines and its source. Of figures with the same formula only the first has it."""
    told = {""}
    for figure in figures:
        lines = [figure.formula] if figure.formula not in told else []
        equals = f"{figure.numbers} = " if figure.numbers else ""
        lines.append(f"{equals}{_amount(figure.result, figure.unit)}, {_known(figure)}")
        yield figure.name, lines, clean(figure.source)
        told.add(figure.formula)


def _known(figure: ExplainedFigure) -> str:
    """How the figure is known: its definition, and the ends of an estimate."""
    words = _DEFINITIONS.get(figure.definition, figure.definition)
    if figure.low is None or figure.high is None:
        return words
    return f"{words}: {_short(figure.low, figure.unit)} to {_short(figure.high, figure.unit)}"


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return both(round(value))
    return f"{number_text(value)} {_UNITS.get(unit, unit)}"


def _short(value: float, unit: str) -> str:
    return human_bytes(round(value)) if unit == "bytes" else f"{number_text(value)} {unit}"


def limit_line(limit: ExplainedLimit, plan: Plan) -> str:
    """A solver's answer: what it needs of what there is, and what the next one would need."""
    fit = plan.fit
    assert fit is not None
    if limit.name == "fewest":
        needs = "" if limit.needs is None else f"; each then needs {_of(limit.needs, limit.of, limit.unit)}"
        return f"{limit.value:,} x {fit.gpu or 'GPU'}: no smaller number holds the plan in any layout that was tried{needs}"
    if limit.value >= UNLIMITED:
        return f"any number of {limit.what}: nothing grows with them"
    whom = f" for each of {plan.request.batch:,} sequences" if limit.what == "tokens" and plan.request.batch > 1 else ""
    whom = whom or (f" of {plan.request.seq:,} tokens" if limit.what == "sequences" else "")
    parts = [f"{plural(limit.value, limit.what.removesuffix('s'))}{whom}, {_ENDS.get(limit.end, limit.end)}"]
    if limit.needs is not None:
        parts.append(f"at {limit.value:,} it needs {_of(limit.needs, limit.of, limit.unit)}")
    if limit.next_value is not None and limit.next_needs is not None:
        parts.append(f"at {limit.next_value:,} it would need {_of(limit.next_needs, limit.next_of, limit.unit)}")
    elif limit.limiting:
        parts.append(f"the limit is {limit.limiting}")
    return "; ".join(parts)


def _of(needs: int, of: int | None, unit: str) -> str:
    if unit == "bytes":
        return both(needs) + ("" if of is None else f" of {both(of)}")
    return f"{needs:,} of {of:,} {unit}"


def quoted_lines(quoted: Iterable[QuotedFormula], plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """The subject of each formula and its lines: the formula, its numbers with both results, and what it passes over.

    What the formula before passes over as well is not repeated.
    """
    before: tuple[str, ...] = ()
    for one in quoted:
        stored = ""
        if one.subject == "KV cache" and one.actual != plan.cache.total_bytes:
            stored = f", of which {plan.request.engine} makes {human_bytes(plan.cache.total_bytes)}"
        same = "the same" if one.ignores == before else f"that {', and that '.join(one.ignores)}"
        numbers = f"{one.numbers} = {both(one.result)}, but it is {both(one.actual)}{stored}"
        yield one.subject, [one.formula, numbers, f"it passes over {same}"]
        before = one.ignores


def only_line(explanation: Explanation) -> str:
    """How to see one part alone; empty if there is only one."""
    shown = [section.name for section in explanation.sections] + ["cache"] * bool(explanation.kinds)
    return "one part: --only weights" if len(shown) > 1 else ""


def missing_line(explanation: Explanation) -> str:
    """What naming an accelerator would add; empty if one was named."""
    plan = explanation.plan
    if plan.fit is not None and plan.fit.gpu is not None:
        return ""
    if any(note.code == "no-verdict" for note in plan.warnings):
        return ""
    missing = "activations, overhead, the pool, the verdict, limits and speed"
    if plan.fit is not None:
        missing = "activations, overhead and speed"
    return f"--gpu GPU adds {missing}. See: kvplan gpus"


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

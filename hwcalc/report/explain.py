"""``kvplan explain`` as text, Markdown and CSV: every part of :mod:`hwcalc.library.explain` with its formula, its numbers and the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from hwcalc.engines import find_engine
from hwcalc.formulas.record import Record
from hwcalc.library.explain import Explanation, TensorExplanation
from hwcalc.library.explained import SECTIONS, ExplainedFigure, ExplainedLimit, QuotedFormula, number_text, symbols_in
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.report.columns import GAP
from hwcalc.report.drawing import Column, Grid, Piece, Text, hanging, indented, rendered
from hwcalc.report.exports import foot_markdown, head_markdown
from hwcalc.report.styles import ACCENT, UNSURE
from hwcalc.report.summary import definition, model_lines, request_lines, source_line
from hwcalc.report.text import both, csv_text, escaped, exact, filled_items, layer_words, percent, plural
from hwcalc.report.view import View
from hwcalc.text import TIMES, clean
from hwcalc.units import human_bytes

_DEFINITIONS: Final = {"engine": "the engine's rule"}
_UNITS: Final = {"x": "times the planned request", "longest": "times the longest request that the server allows"}
_ENDS: Final = {
    "low": "with every estimate at its high end",
    "expected": "by the expected values",
    "high": "with every estimate at its low end",
}
_UNCUT: Final = Column(whole=True, folds=False)


class _Line(Record, kw_only=False):
    """A paragraph."""

    text: str
    style: Literal["", "dim", "bold"] = ""


class _Rows(Record, kw_only=False):
    """Names, each with its lines and its source. ``mark`` is what stands around a name in Markdown."""

    rows: tuple[tuple[str, list[str], str], ...]
    mark: Literal["", "`", "**"]


class _Where(Record, kw_only=False):
    """Symbols and what they mean."""

    symbols: tuple[tuple[str, str], ...]


class _Source(Record, kw_only=False):
    """Whose code or paper all of it follows."""

    text: str


_Part = _Line | _Rows | _Where | _Source
_Block = tuple[str, list[_Part]]
"""A title and what stands below it."""


def explain_text(explanation: Explanation, view: View) -> str:
    """Each kind of layer with its formula, its numbers and the result, and their sum; then every other part in the same way."""
    plan = explanation.plan
    name, about, shape = model_lines(plan)
    head, *others = (filled_items(line, view.width) for line in (f"{name}  {about}", shape, *request_lines(plan)))
    out: list[Piece] = [Text((head[: len(name)], "bold"), (head[len(name) :], "dim")), *map(Text, others), Text()]
    for title, parts in _blocks(explanation):
        out.append(Text(title, style=ACCENT))
        for part in parts:
            if isinstance(part, _Line):
                out.append(indented(Text(part.text, style=part.style)))
            elif isinstance(part, _Source):
                out.append(indented(Text(f"source: {part.text}", style="dim")))
            elif isinstance(part, _Rows):
                rows = []
                for label, lines, source in part.rows:
                    rows.append((label, "\n".join(lines), ""))
                    rows += [("", f"source: {source}", "dim")] if source else []
                out += hanging(rows)
            elif part.symbols:
                words = ["  where", *["       "] * (len(part.symbols) - 1)]
                cells = [(word, *symbol) for word, symbol in zip(words, part.symbols, strict=True)]
                lines_of = tuple(tuple(Text(cell, style="dim") for cell in line) for line in cells)
                out.append(Grid(columns=(_UNCUT, _UNCUT, Column()), rows=lines_of, gap=GAP))
        out.append(Text())
    if not view.quiet:
        messages = (missing_line(explanation), source_line(plan), *(clean(note.message) for note in plan.notes))
        out += hanging([("note", message, "dim") for message in (*messages, only_line(explanation)) if message])
    if plan.warnings:
        out += [
            *([] if view.quiet else [Text()]),
            *hanging([("warning", clean(note.message), UNSURE) for note in plan.warnings]),
        ]
    return rendered(out, color=view.color, width=view.width).rstrip("\n") + "\n"


def explain_markdown(explanation: Explanation, view: View) -> str:
    """The explanation in Markdown, with a heading for each part, and a list of its figures."""
    plan = explanation.plan
    out = head_markdown(plan)
    for title, parts in _blocks(explanation):
        out.append(f"#### {escaped(title)}\n")
        for part in parts:
            if isinstance(part, _Line):
                out.append(f"{escaped(part.text)}\n")
            elif isinstance(part, _Source):
                out.append(f"Source: {escaped(part.text)}\n")
            elif isinstance(part, _Rows):
                items = []
                for label, (first, *others), source in part.rows:
                    name = f"{part.mark}{escaped(label) if part.mark == '**' else label}{part.mark}"
                    more = [*others, *([f"source: {source}"] if source else [])]
                    items.append(f"- {name}: {escaped(first)}\n" + "".join(f"  - {escaped(line)}\n" for line in more))
                # Tensors, whose names are code, stand apart from each other.
                out.append(("\n" if part.mark == "`" else "").join(items))
            elif part.symbols:
                out += ["where\n", "".join(f"- `{name}`: {escaped(meaning)}\n" for name, meaning in part.symbols)]
    missing, only = ("", "") if view.quiet else (missing_line(explanation), only_line(explanation))
    before, after = ([f"- {escaped(line)}\n"] if line else [] for line in (missing, only))
    return "\n".join([*out, *before, *foot_markdown(plan, quiet=view.quiet), *after])


def _blocks(explanation: Explanation) -> Iterator[_Block]:
    """The kinds of layers, the groups that share a pool, and the sum; then every other part. A symbol is explained once."""
    plan = explanation.plan
    told: set[str] = set()

    def where(formulas: Iterable[str], *, but: Iterable[str] = ()) -> _Where:
        """The symbols of these formulas that are met for the first time, each with its meaning."""
        new = [symbol for symbol in symbols_in(formulas) if symbol.name not in told]
        told.update(symbol.name for symbol in new)
        return _Where(tuple((symbol.name, symbol.meaning) for symbol in new if symbol.name not in but))

    for kind in explanation.kinds:
        title = f"{kind.title}: {layer_words(kind.count, kind.layers)}" if kind.layers else kind.title
        dims = [f"{name} {value:,}" for name, value in kind.dims.items() if not isinstance(value, bool)]
        formulas = [*kind.dims, *(tensor.formula for tensor in kind.tensors if tensor.numbers)]
        formulas += [formula for tensor in kind.tensors for formula in (tensor.block_formula, tensor.count_formula)]
        rows = tuple((tensor.name, _steps(tensor), "") for tensor in kind.tensors)
        share = f"together {both(kind.bytes)}, {percent(kind.bytes, plan.cache.total_bytes)} of the cache"
        parts: list[_Part] = [_Line(kind.why)]
        parts += [_Line(", ".join(dims), "dim")] if kind.dims else []
        parts += [_Rows(rows, "`")] if rows else []
        yield title, [*parts, _Line(share, "bold"), where(formulas), _Source(kind.source)]
    if explanation.kinds:
        if plan.cache.groups:
            shared = find_engine(plan.request.engine)[0].facts.groups_share
            title = "groups that share the pool" if shared else "groups, each with a pool"
            yield title, [_Line(line) for line in (*_group_lines(plan, shared=shared), *explanation.group_reasons)]
        terms = [f"{kind.bytes:,}" for kind in explanation.kinds if kind.bytes]
        whole = both(plan.cache.total_bytes)
        yield "sum", [_Line(f"{' + '.join(terms)} = {whole}" if len(terms) > 1 else whole), _Line(definition(plan))]
    blocks: dict[str, _Block] = {}
    for section in explanation.sections:
        figures = tuple(figure_lines(section.figures))
        names = [figure.name for figure in section.figures]
        symbols = where((figure.formula for figure in section.figures), but=names)
        remarks = [_Line(clean(remark)) for remark in section.remarks]
        blocks[section.name] = section.title, [_Line(section.about), _Rows(figures, "**"), *remarks, symbols]
    if explanation.limits:
        limits = tuple((limit.name, [_limit(limit, plan)], "") for limit in explanation.limits)
        about = "The largest numbers that fit. What they need is counted on the fullest GPU."
        blocks["limits"] = "limits", [_Line(about), _Rows(limits, "")]
    if explanation.quoted:
        quoted = _Rows(tuple(_quoted(explanation.quoted, plan)), "**")
        title = "often quoted, and wrong for this model"
        blocks["quoted"] = title, [quoted, where(one.formula for one in explanation.quoted)]
    yield from (blocks[name] for name in SECTIONS if name in blocks)


def _steps(tensor: TensorExplanation) -> list[str]:
    """The formula with names, then with numbers, up to the bytes of all layers."""
    block = f": {tensor.dtype_meaning}" if tensor.dtype_meaning.endswith("elements") and tensor.numbers else ""
    sizes = exact(tensor.bytes)
    if tensor.count > 1:
        sizes = f"{exact(tensor.bytes_per_layer)} per layer, {TIMES} {tensor.count:,} = {sizes}"
    dtype = f"  ({tensor.dtype}{block})" if tensor.dtype else ""
    lines = [f"{tensor.formula}{dtype}", f"{tensor.numbers} = {sizes}" if tensor.numbers else f"= {sizes}"]
    if tensor.count_formula:
        lines.append(f"blocks of a sequence: {tensor.count_formula} = {tensor.count_numbers} = {tensor.blocks:,}")
    if tensor.block_formula:
        lines.append(f"a block of a layer on a GPU: {tensor.block_formula} = {tensor.block_numbers}")
    return lines


def _group_lines(plan: Plan, *, shared: bool) -> list[str]:
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
    if not shared:
        size = sum(group.blocks_per_request * group.block_bytes for group in groups)
        return [*lines, f"each group has a pool of its own: {exact(size)} a request, on each rank"]
    blocks = sum(group.blocks_per_request for group in groups)
    widest = max(group.block_bytes for group in groups)
    whole = f"{blocks:,} blocks {TIMES} {exact(widest)} = {exact(blocks * widest)} a request, on each rank"
    return [*lines, f"every block is as wide as the widest group: {whole}"]


def figure_lines(figures: Iterable[ExplainedFigure]) -> Iterator[tuple[str, list[str], str]]:
    """Each figure as its name, its lines and its source. Of figures with the same formula only the first has it."""
    told = {""}
    for figure in figures:
        unit, known = figure.unit, _DEFINITIONS.get(figure.definition, figure.definition)
        amount = both(round(figure.result)) if unit == "bytes" else f"{number_text(figure.result)} {_UNITS.get(unit, unit)}"
        if figure.low is not None and figure.high is not None:
            ends = (figure.low, figure.high)
            low, high = (human_bytes(round(end)) if unit == "bytes" else f"{number_text(end)} {unit}" for end in ends)
            known = f"{known}: {low} to {high}"
        equals = f"{figure.numbers} = " if figure.numbers else ""
        lines = [figure.formula] if figure.formula not in told else []
        yield figure.name, [*lines, f"{equals}{amount}, {known}"], clean(figure.source)
        told.add(figure.formula)


def _limit(limit: ExplainedLimit, plan: Plan) -> str:
    """A solver's answer: what it needs of what there is, and what the next one would need."""

    def of(needs: int, whole: int | None) -> str:
        if limit.unit == "bytes":
            return both(needs) + ("" if whole is None else f" of {both(whole)}")
        return f"{needs:,} of {whole:,} {limit.unit}"

    fit = plan.fit
    assert fit is not None
    if limit.name == "fewest":
        needs = "" if limit.needs is None else f"; with these, each GPU needs {of(limit.needs, limit.of)}"
        return f"{limit.value:,} x {fit.gpu or 'GPU'}: no smaller number holds the plan in any layout that was tried{needs}"
    if limit.value >= UNLIMITED:
        return f"any number of {limit.what}: nothing grows with them"
    whom = f" for each of {plan.request.batch:,} sequences" if limit.what == "tokens" and plan.request.batch > 1 else ""
    whom = f" of {plan.request.seq:,} tokens" if limit.what == "sequences" else whom
    parts = [f"{plural(limit.value, limit.what.removesuffix('s'))}{whom}, {_ENDS.get(limit.end, limit.end)}"]
    if limit.needs is not None:
        parts.append(f"at {limit.value:,} it needs {of(limit.needs, limit.of)}")
    if limit.next_value is not None and limit.next_needs is not None:
        parts.append(f"at {limit.next_value:,} it would need {of(limit.next_needs, limit.next_of)}")
    elif limit.limiting:
        parts.append(f"the limit is {limit.limiting}")
    return "; ".join(parts)


def _quoted(quoted: Iterable[QuotedFormula], plan: Plan) -> Iterator[tuple[str, list[str], str]]:
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
        yield one.subject, [one.formula, numbers, f"it ignores {same}"], ""
        before = one.ignores


def only_line(explanation: Explanation) -> str:
    """The way to one part alone; empty if there is only one."""
    several = len(explanation.sections) + bool(explanation.kinds) > 1
    return "one part: --only weights" if several else ""


def missing_line(explanation: Explanation) -> str:
    """A line on what an accelerator would add; empty with one."""
    plan = explanation.plan
    if (plan.fit is not None and plan.fit.gpu is not None) or any(note.code == "no-verdict" for note in plan.warnings):
        return ""
    missing = (
        "activations, overhead, the pool, the verdict, limits and speed"
        if plan.fit is None
        else "activations, overhead and speed"
    )
    return f"--gpu GPU adds {missing}. See: kvplan gpus"


_COLUMNS: Final = (
    "section", "name", "formula", "numbers", "per_layer", "layers", "result", "low", "high", "unit", "definition", "source",
)  # fmt: skip


def explain_csv(explanation: Explanation) -> str:
    """One row for each figure and each limit, as :meth:`Explanation.records`; each names its plan, so that files can be joined."""
    request = explanation.plan.request
    common = {
        "model": explanation.plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version or "",
        "seq": request.seq,
        "batch": request.batch,
    }
    rows = []
    for record in explanation.records():
        cells = [record[name] for name in _COLUMNS]
        # Whole numbers have no decimal point.
        cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
        rows.append([*common.values(), *cells])
    return csv_text((*common, *_COLUMNS), rows)

"""Plans and explanations as Markdown, for pull requests and wikis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hwcalc.library.explain import Explanation
from hwcalc.library.explained import SECTIONS, ExplainedSection
from hwcalc.planner.result import Plan
from hwcalc.report.explain_text import (
    LIMITS,
    QUOTED_TITLE,
    Told,
    dimensions,
    figure_lines,
    group_lines,
    group_title,
    heading,
    limit_line,
    missing_line,
    only_line,
    quoted_lines,
    result,
    steps,
    total,
)
from hwcalc.report.glance import first_lines, more_notes, notes_of
from hwcalc.report.policy import policy_lines, sharing_lines
from hwcalc.report.summary import (
    DEVICE_HEADER,
    advice_items,
    code,
    definition,
    device_rows,
    figures,
    is_room,
    model_lines,
    request_line,
    shares,
    start_line,
    verdict,
)
from hwcalc.report.text import escaped, exact, percent
from hwcalc.units import human_bytes


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A pipe table; the columns in ``right`` are aligned right."""
    numbers = set(right)
    rule = ["---:" if column in numbers else "---" for column in range(len(header))]
    lines = [list(header), rule, *([escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plan_markdown(plan: Plan, *, quiet: bool = False, detail: str = "usual", **_style: object) -> str:
    """A heading, the answer, the figures, the layer groups and the notes. ``detail`` is that of a table."""
    full = detail == "full"
    parts = [*_head(plan), *_verdict(plan, full=full)]
    if detail == "brief":
        return "\n".join([*parts, *_warnings(plan)])
    figure_rows = [(f.name, exact(f.bytes), human_bytes(f.bytes), f.meaning) for f in figures(plan)]
    devices = device_rows(plan, full=full)
    whole = plan.cache.total_bytes
    share_rows = [
        (s.title, f"{s.count:,}" if s.count else "", s.layers.text, s.rule, s.dtypes, percent(s.bytes, whole), exact(s.bytes))
        for s in shares(plan)
    ]
    return "\n".join(
        [
            *parts,
            markdown_table(("KV cache", "bytes", "", ""), figure_rows, right=(1, 2)),
            *_dropped_and_shared(plan, full=full),
            *([markdown_table(DEVICE_HEADER, devices, right=range(2, len(DEVICE_HEADER)))] if devices else []),
            markdown_table(("layers", "count", "which", "kept", "dtype", "share", "bytes"), share_rows, right=(1, 5, 6)),
            *([markdown_table(*_tensors(plan))] if full else []),
            *_foot(plan, quiet=quiet, full=full),
        ]
    )


def _dropped_and_shared(plan: Plan, *, full: bool) -> list[str]:
    """What the policy of the cache does, and what sequences have in common, as lists."""
    found = (policy_lines(plan, full=full), sharing_lines(plan))
    return ["".join(f"- {label}: {escaped(text)}\n" for label, text in lines) for lines in found if lines]


def _verdict(plan: Plan, *, full: bool) -> list[str]:
    """Whether the plan fits, why, and what would help; empty without hardware or a budget."""
    if plan.fit is None:
        return []
    said = first_lines(plan, full=full)
    lines = [f"- {label}: {escaped(text)}\n" for label, text in (*said.answer, *said.details)]
    start = start_line(plan)
    lines += [] if start is None else [f"- start: {code(start[0])}{' ' if start[1] else ''}{escaped(start[1])}\n"]
    lines += advice_items(plan.fit.suggestions, plan.request.engine, escaped)
    return [f"**{escaped(verdict(plan))}**\n", "".join(lines)]


def _tensors(plan: Plan) -> tuple[Sequence[str], Iterable[Sequence[str]], Iterable[int]]:
    """Every tensor of the cache: header, rows, and the columns of numbers."""
    rows = [
        (
            one.name,
            one.kind,
            one.layers.text,
            "x".join(map(str, one.shape)),
            "" if is_room(one) else one.dtype,
            f"{one.positions:,}",
            exact(one.bytes),
        )
        for one in plan.cache.tensors
    ]
    return ("tensor", "of", "layers", "shape", "dtype", "positions", "bytes"), rows, (5, 6)


def explain_markdown(explanation: Explanation, *, quiet: bool = False) -> str:
    """One section for each kind of layer, then their sum, and then one for every other part."""
    plan, told = explanation.plan, Told()
    out = [*_head(plan), *(_cache(explanation, told) if explanation.kinds else [])]
    by_name = {section.name: _section(section, told) for section in explanation.sections}
    by_name |= {"limits": _limits(explanation), "quoted": _quoted(explanation, told)}
    out += [line for section in SECTIONS for line in by_name.get(section, [])]
    missing, part = ("", "") if quiet else (missing_line(explanation), only_line(explanation))
    before, after = ([f"- {escaped(line)}\n"] if line else [] for line in (missing, part))
    return "\n".join([*out, *before, *_foot(plan, quiet=quiet), *after])


def _cache(explanation: Explanation, told: Told) -> list[str]:
    plan, parts, out = explanation.plan, explanation.kinds, []
    for part in parts:
        out += [f"#### {escaped(heading(part))}\n", f"{escaped(part.why)}\n"]
        if part.dims:
            out.append(f"{escaped(dimensions(part))}\n")
        for tensor in part.tensors:
            name, *rest = steps(tensor)
            out.append(f"- `{tensor.name}`: {escaped(name)}\n" + "".join(f"  - {escaped(line)}\n" for line in rest))
        out += [
            f"{escaped(result(part, plan.cache.total_bytes))}\n",
            *_where(told.of_kind(part)),
            f"Source: {escaped(part.source)}\n",
        ]
    if plan.cache.groups:
        out += [f"#### {group_title(plan)}\n", *(f"{escaped(line)}\n" for line in group_lines(plan))]
    return [*out, "#### sum\n", *(f"{escaped(line)}\n" for line in total(plan, parts))]


def _section(section: ExplainedSection, told: Told) -> list[str]:
    items = []
    for name, lines, source in figure_lines(section.figures):
        more = [*lines, *([f"source: {source}"] if source else [])]
        items.append(_item(name, more))
    return [
        f"#### {escaped(section.title)}\n",
        f"{escaped(section.about)}\n",
        "".join(items),
        *(f"{escaped(remark)}\n" for remark in section.remarks),
        *_where(told.of_section(section)),
    ]


def _limits(explanation: Explanation) -> list[str]:
    if not explanation.limits:
        return []
    items = [f"- {limit.name}: {escaped(limit_line(limit, explanation.plan))}\n" for limit in explanation.limits]
    return ["#### limits\n", f"{LIMITS}\n", "".join(items)]


def _quoted(explanation: Explanation, told: Told) -> list[str]:
    if not explanation.quoted:
        return []
    items = [_item(subject, lines) for subject, lines in quoted_lines(explanation.quoted, explanation.plan)]
    formulas = [one.formula for one in explanation.quoted]
    return [f"#### {QUOTED_TITLE}\n", "".join(items), *_where(told.first(formulas))]


def _item(name: str, lines: list[str]) -> str:
    first, *others = lines
    return f"- **{escaped(name)}**: {escaped(first)}\n" + "".join(f"  - {escaped(line)}\n" for line in others)


def _where(symbols: list[tuple[str, str]]) -> list[str]:
    """What symbols mean, as a list."""
    return ["where\n", "".join(f"- `{name}`: {escaped(meaning)}\n" for name, meaning in symbols)] if symbols else []


def _head(plan: Plan) -> list[str]:
    name, about, shape = model_lines(plan)
    answer = f"**{human_bytes(plan.cache.total_bytes)}** = {exact(plan.cache.total_bytes)}, {definition(plan)}"
    return [
        f"### {escaped(name)}\n",
        f"{escaped(about)}\\\n{escaped(shape)}\\\n{escaped(request_line(plan))}\n",
        f"KV cache {answer}\n",
    ]


def _foot(plan: Plan, *, quiet: bool, full: bool = True) -> list[str]:
    texts, more = ([], 0) if quiet else notes_of(plan, full=full)
    lines = [f"- {escaped(text)}\n" for text in (*texts, *(text for _, text in more_notes(more)))]
    return [*(["".join(lines)] if lines else []), *_warnings(plan)]


def _warnings(plan: Plan) -> list[str]:
    lines = [f"- **warning:** {escaped(note.message)}\n" for note in plan.warnings]
    return ["".join(lines)] if lines else []

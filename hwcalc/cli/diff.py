"""``kvplan diff``: what changed between two models, revisions or files."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, say_unreachable, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.documents import document_of
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.planner.diff import Difference

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    Option("models", (), "A B", "Two models: ids, org/name@revision, folders or config.json files.", "list", complete="models"),
    *plan_options("diff"),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("Two models, key by key and in bytes", "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-14B --seq 32k"),
    Example("The same on an accelerator", "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-4B --engine vllm --gpu l4"),
    Example("For a pull request", "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-14B --format markdown"),
)

_LONGEST = 60
_MOST_KEYS = 200
"""Keys that a table lists. Two published configs of one type differ in up to a hundred."""


def run(*, models: list[str] | None, **options: Any) -> Answer:
    """Show what differs in memory between two models or revisions.

    Keys of the configs that bear on memory, and bytes.

    The status is 1 if an accelerator is named and one of the two is not known to fit it.
    """
    from hwcalc.cli.verdict import why_not
    from hwcalc.library.load import load
    from hwcalc.library.plan import plan
    from hwcalc.model import PARTIAL_WEIGHTS
    from hwcalc.planner.diff import compare
    from hwcalc.planner.options import read_options
    from hwcalc.planner.plan import common_notes

    names = models or []
    if len(names) != 2:
        raise UsageError(f"diff compares two models (got {len(names)}).", hint="Write: kvplan diff A B --seq 32k")
    if names == ["-", "-"]:
        raise UsageError("standard input can be only one of the two models.", hint="Write: kvplan diff - other.json < one.json")
    view, given = view_of(**options), given_options("diff", options)
    asked = read_options(given)
    a, b = (load(name, asked.access, revision=asked.revision, assume=asked.assume) for name in names)
    if "seq" not in given:
        given["seq"] = _common_length(a, b)
    plan_a, plan_b = (plan(model, **given) for model in (a, b))
    for planned in (plan_a, plan_b):
        say_unreachable(planned.notes)
    difference = compare(a, b, plan_a, plan_b)
    remarks = () if view.quiet else tuple(note.message for note in common_notes([plan_a.notes, plan_b.notes]))
    refuted = [
        f"{name}: {note.message}"
        for name, planned in (("A", plan_a), ("B", plan_b))
        for note in planned.warnings
        if note.code == PARTIAL_WEIGHTS
    ]
    refuted += [f"{name}: {line}" for name, planned in (("A", plan_a), ("B", plan_b)) for line in why_not(planned)]
    status = 1 if plan_a.refutes or plan_b.refutes else 0
    return replace(_answer(difference, plan_a.request.seq, view), remarks=(*remarks, *refuted), status=status)


def _answer(difference: Difference, seq: int, view: View) -> Answer:
    if view.format == "json":
        return answer(document_of(difference))
    if view.format == "csv":
        return Answer(text=_csv(difference, seq))
    from hwcalc.report.listing import listing
    from hwcalc.report.summary import footnotes
    from hwcalc.text import clean

    rows = [(f.name, _number(f.a), _number(f.b), _signed(f.difference)) for f in difference.figures]
    figures = listing(
        (f"at {seq:,} tokens", "A", "B", "B - A"),
        rows,
        format_=view.format,
        right=(1, 2, 3),
        color=view.color,
        width=view.width,
    )
    changed = [(change.key, _value(change.in_a, change.a), _value(change.in_b, change.b)) for change in difference.keys]
    few, more = changed[:_MOST_KEYS], len(changed) - _MOST_KEYS
    keys = listing(("key", "A", "B"), few, format_=view.format, color=view.color, width=view.width) if changed else ""
    if more > 0:
        keys += f"\n{more:,} more keys differ. All of them: --format csv, or --json\n"
    head = f"A  {clean(difference.a)}\nB  {clean(difference.b)}\n\n"
    same = "" if changed else "No key that bears on memory differs.\n"
    pairs = ((difference.a, difference.definition_a), (difference.b, difference.definition_b))
    told = footnotes(pairs, format_=view.format, width=view.width)
    return Answer(text=f"{head}{figures}\n{keys}{same}" + (f"\n{told}" if told else ""))


def _common_length(*models: ModelSpec) -> int:
    """The smaller maximum length. Both models are planned with it, so that their bytes can be compared."""
    known = [model.max_position_embeddings for model in models if model.max_position_embeddings is not None]
    if not known:
        raise UsageError("neither model states its longest sequence.", hint="Give one: --seq 32k")
    return min(known)


def _csv(difference: Difference, seq: int) -> str:
    """One table with the request, the figures as numbers (empty is unknown) and the keys (empty is absent)."""
    from hwcalc.report.listing import csv_text

    rows: list[tuple[object, ...]] = [("model", "id", difference.a, difference.b, "")]
    rows += [("model", "definition", difference.definition_a, difference.definition_b, ""), ("request", "seq", seq, seq, 0)]
    rows += (("figure", figure.name, figure.a, figure.b, figure.difference) for figure in difference.figures)
    rows += (("key", key.key, _cell(key.in_a, key.a), _cell(key.in_b, key.b), "") for key in difference.keys)
    return csv_text(("what", "name", "a", "b", "difference"), rows)


def _cell(present: bool, value: Any) -> str:
    if not present:
        return ""
    return value if isinstance(value, str) else json_module.dumps(value, default=str)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _signed(value: int | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:+,}"


def _value(present: bool, value: Any) -> str:
    if not present:
        return "(absent)"
    text = json_module.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

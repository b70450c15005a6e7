"""The lines of an explanation, which text and Markdown share: figures, limits and formulas that are often quoted, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hwcalc.library.explain import Explanation, KindExplanation
from hwcalc.library.explained import ExplainedFigure, ExplainedLimit, ExplainedSection, QuotedFormula, number_text
from hwcalc.library.symbols import symbols_in
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.report.text import both, plural
from hwcalc.text import clean
from hwcalc.units import human_bytes

__all__ = [
    "LIMITS",
    "QUOTED_TITLE",
    "Told",
    "figure_lines",
    "limit_line",
    "missing_line",
    "only_line",
    "quoted_lines",
]

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

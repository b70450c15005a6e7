"""The parts of an explanation: figures with their formulas, sections of them, limits, and formulas that are often quoted.

A figure never computes: its result is read from the plan, at the place that :attr:`ExplainedFigure.figure` names, and its numbers are
those of the steps that the plan kept. An explanation gives the meaning of each symbol that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import value_of
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.profiles.glossary import meaning_of
from hwcalc.text import TIMES

if TYPE_CHECKING:
    from hwcalc.engines.steps import Step

SECTIONS: Final = (
    *("cache", "policy", "sharing", "weights", "activations", "overhead"),
    *("devices", "pool", "verdict", "limits", "speed", "quoted"),
)
"""The sections of an explanation, in order. The kinds of layers are ``cache``."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_PLUS: Final = re.compile(r" \+ (?![^()]*\))")
"""A plus outside of brackets, where these are not nested."""
_PRODUCT: Final = re.compile(r"\w+(?: x \w+)*")
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_FUNCTIONS: Final = frozenset({"floor", "ceil", "max", "min", "round", "x"})


class Symbol(Record):
    """A symbol of the formulas and its meaning."""

    name: str
    meaning: str


class ExplainedFigure(Record):
    """``formula`` = ``numbers`` = ``result``. Without a formula the result is the source's own figure.

    ``figure`` is the place of the result in the document of the plan, such as ``memory.weights.bytes``. ``low`` and ``high`` are the ends
    of an estimate, null where there is none. ``unit`` is bytes, blocks, requests, tokens, tokens/s, s or x.
    """

    name: str
    figure: str
    formula: str
    numbers: str
    result: int | float
    low: int | float | None
    high: int | float | None
    unit: str
    definition: str
    source: str


class ExplainedLimit(Record):
    """A solver's answer: the largest ``value`` that fits, what it needs of what there is, and what the next one would need.

    ``figure`` is the place of the answer in the document of the plan; ``end`` is the end of the budget that it goes by. ``needs`` and
    ``of`` are in ``unit`` on the fullest GPU: bytes of cache, or blocks of the pool. Null is not known, or not bounded by memory.
    """

    name: str
    figure: str
    value: int
    what: str
    end: str
    needs: int | None
    of: int | None
    next_value: int | None
    next_needs: int | None
    next_of: int | None
    unit: str
    limiting: str | None


class QuotedFormula(Record):
    """A formula that is often quoted, what it gives for this model, and what it passes over. ``actual`` is what the plan says instead."""

    subject: str
    formula: str
    numbers: str
    result: int
    actual: int
    ignores: tuple[str, ...]


class ExplainedSection(Record):
    """One part of the memory equation, in order: what it is, its figures, and sentences about them."""

    name: str
    title: str
    about: str
    figures: tuple[ExplainedFigure, ...]
    remarks: tuple[str, ...]


def figure_of(step: Step, figure: str, *, definition: str, source: str = "", name: str | None = None) -> ExplainedFigure:
    """The figure of a step of the plan; ``figure`` is its place in the document of the plan."""
    # Products that are zero at both ends of an estimate say nothing.
    zeros = {term.name for term in step.terms if not any((term.low, term.expected, term.high))}
    kept = [one for one in _PLUS.split(step.formula) if zeros.isdisjoint(one.split(" x ")) or not _PRODUCT.fullmatch(one)]
    values, formula = {term.name: term.expected for term in step.terms}, " + ".join(kept) or step.formula
    ranged = not step.low == step.expected == step.high
    return ExplainedFigure(
        name=step.name if name is None else name,
        figure=figure,
        formula=shown(formula),
        numbers=numbers_in(formula, values),
        result=step.expected,
        low=step.low if ranged else None,
        high=step.high if ranged else None,
        unit=step.unit,
        definition=definition,
        source=source,
    )


def plain_figure(
    name: str,
    figure: str,
    result: float,
    formula: str = "",
    values: Mapping[str, float] = _NOTHING,
    *,
    unit: str = "bytes",
    ends: tuple[int, int] | None = None,
    definition: str = Definition.EXACT,
    source: str = "",
    checked: bool = False,
) -> ExplainedFigure:
    """A figure whose formula is not a step of the plan. ``checked``: it is shown where it gives the result. ``ends`` are those of an estimate."""
    if checked and value_of(formula, values) != result:
        formula = ""
    low, high = (None, None) if ends is None or ends == (result, result) else ends
    return ExplainedFigure(
        name=name,
        figure=figure,
        formula=shown(formula),
        numbers=numbers_in(formula, values, whole=True),
        result=result,
        low=low,
        high=high,
        unit=unit,
        definition=str(definition),
        source=source,
    )


def shown(formula: str) -> str:
    """A formula with the sign of multiplication."""
    return formula.replace(" x ", f" {TIMES} ")


def names_in(formula: str) -> tuple[str, ...]:
    """The symbols of a formula, each once, in their order.

    >>> names_in("ceil(visible x utilization) - margin")
    ('visible', 'utilization', 'margin')
    """
    return tuple(dict.fromkeys(name for name in _NAME.findall(formula) if name not in _FUNCTIONS))


def numbers_in(formula: str, values: Mapping[str, int | float | str], *, whole: bool = False) -> str:
    """A formula with numbers in place of its symbols; ``whole``: shares with all their digits, as what they multiply is large."""

    def number(name: str) -> str:
        value = values[name]
        if isinstance(value, str):
            return value
        return repr(value) if whole and 0 < value < 1 else number_text(value)

    return shown(_NAME.sub(lambda match: number(match[0]) if match[0] in values else match[0], formula))


def number_text(value: float) -> str:
    """A number with separators: whole if it is, with six digits if it is small.

    >>> number_text(131072), number_text(3.75), number_text(2.0), number_text(1234567.8)
    ('131,072', '3.75', '2', '1,234,568')
    """
    if value == int(value) or abs(value) >= 100_000:
        return f"{round(value):,}"
    return f"{value:,.6g}"


_NUMBERED: Final = re.compile(r"_\d+$")


def symbols_in(formulas: Iterable[str]) -> tuple[Symbol, ...]:
    """The symbols of formulas, each once, in the order in which they are met.

    The name of another figure has no meaning here: its own line says it. What is counted several times has a number behind its name.
    """
    names = dict.fromkeys(
        name if meaning_of(name) else _NUMBERED.sub("", name) for formula in formulas for name in names_in(formula)
    )
    return tuple(Symbol(name=name, meaning=meaning) for name in names if (meaning := meaning_of(name)))

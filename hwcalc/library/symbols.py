"""Which symbols an explanation uses, each with its meaning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hwcalc.library.explained import ExplainedSection, QuotedFormula, Symbol, names_in
from hwcalc.library.glossary import MEANINGS

if TYPE_CHECKING:
    from hwcalc.library.explain import KindExplanation

__all__ = ["symbols_in", "symbols_of"]


def symbols_of(
    kinds: Iterable[KindExplanation], sections: Iterable[ExplainedSection], quoted: Iterable[QuotedFormula]
) -> tuple[Symbol, ...]:
    """Every symbol once, in the order in which it is met."""
    formulas = [text for kind in kinds for tensor in kind.tensors for text in (tensor.formula, tensor.block_formula)]
    dims = [name for kind in kinds for name in kind.dims]
    formulas += [figure.formula for section in sections for figure in section.figures]
    formulas += [one.formula for one in quoted]
    return symbols_in([*dims, *formulas])


def symbols_in(formulas: Iterable[str]) -> tuple[Symbol, ...]:
    """The symbols of formulas. The name of another figure has no meaning here: its own line says it."""
    names = dict.fromkeys(name for formula in formulas for name in names_in(formula))
    return tuple(Symbol(name=name, meaning=MEANINGS[name]) for name in names if name in MEANINGS)

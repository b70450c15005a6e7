"""An engine's cache as a sum of terms that are linear in positions and batch. A grid is evaluated from these terms, without plans.

Engines whose cache is no such sum (pages, pools, buffers that exist once) have no entry here, and their points are planned one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from hwcalc.engines.base import Opened
from hwcalc.formulas import CacheTensor, LayerKind, Span
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.named import NamedTuple
from hwcalc.sweep.spans import Integers, positions

__all__ = ["CURVES", "ON_CURVES", "Curves", "Term", "amounts", "growth", "largest"]


class Term(NamedTuple):
    """The tensors of one sequence with the same span: their bytes for each position, all layers together."""

    span: Span
    bytes_per_position: int


@frozen
class Curves:
    """The terms of one sequence: on all ranks together, on the fullest rank, and by the formulas, for the growth of each token."""

    held: tuple[Term, ...]
    rank: tuple[Term, ...]
    grown: tuple[Term, ...]


def _reference(opened: Opened) -> Curves:
    """The curves of the reference: each tensor has a row for each position, and a rank has its share of the heads.

    Raises the engine's error if a dtype does not fit a kind.
    """
    stack = opened.model.stack_for(opened.engine.name)
    for group in stack.groups:
        opened.engine.tensors(group.kind, opened)
    ranks = opened.request.parallel.tp
    return Curves(
        held=_terms(opened, ((group.kind, group.count) for group in stack.groups)),
        rank=_terms(opened, ((group.kind.shard(ranks), group.count) for group in stack.groups)),
        grown=_terms(opened, ((group.kind, group.count) for group in opened.model.stack.groups)),
    )


def _terms(opened: Opened, kinds: Iterable[tuple[LayerKind, int]]) -> tuple[Term, ...]:
    """A term for each span."""
    sizes: dict[Span, int] = {}
    for kind, count in kinds:
        for tensor in kind.tensors():
            sizes[tensor.span] = sizes.get(tensor.span, 0) + count * _row_bytes(tensor, opened)
    return tuple(Term(span, size) for span, size in sizes.items() if size)


def _row_bytes(tensor: CacheTensor, opened: Opened) -> int:
    return tensor.bytes_per_position(opened.dtypes.roles[tensor.role])


CURVES: Final[Mapping[str, Callable[[Opened], Curves]]] = {"reference": _reference}
"""Engine -> function that makes its curves for one model, dtype and number of ranks."""


ON_CURVES: Final = frozenset({"engine", "dtype", "tp", "weights", "encoder_seq", "gpu", "memory_utilization", "margin"})
"""Keywords of a plan that the curves support. If any other is given, each point is planned."""


def largest(terms: Iterable[Term], tokens: int, encoder_tokens: int) -> int:
    """An upper bound on the bytes of one sequence of up to ``tokens`` tokens. It decides whether 64 bits are enough."""
    return sum(term.bytes_per_position * max(tokens, encoder_tokens, sum(term.span.numbers), 1) for term in terms)


def amounts(terms: Iterable[Term], tokens: Integers, encoder_tokens: Integers) -> Integers:
    """The bytes of one sequence for each number of tokens."""
    total = np.zeros_like(tokens)
    for span, size in terms:
        total = total + positions(span, tokens, encoder_tokens) * size
    return total


def growth(terms: Iterable[Term], tokens: Integers, encoder_tokens: Integers) -> Integers:
    """The bytes that one more token adds to a sequence, while the encoder's input stays the same."""
    terms = tuple(terms)
    return amounts(terms, tokens + 1, encoder_tokens) - amounts(terms, tokens, encoder_tokens)

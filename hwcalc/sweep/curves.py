"""An engine's cache as a sum of terms, each linear in positions and in batch: what a grid is evaluated on instead of plan by plan.

An engine whose cache is not such a sum (pages, pools, buffers that exist once) has no entry here, and its points are planned one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from hwcalc.engines.base import Engine, Opened
from hwcalc.formulas import CacheTensor, LayerKind, Span
from hwcalc.formulas.frozen import frozen
from hwcalc.sweep.spans import Integers, positions

__all__ = ["CURVES", "Curves", "Term", "amounts", "growth", "largest"]


class Term(NamedTuple):
    """What one sequence keeps under one span: bytes for each position, all layers together."""

    span: Span
    bytes_per_position: int


@frozen
class Curves:
    """What one sequence holds: on all ranks together, on the fullest rank, and what grows with each further token."""

    held: tuple[Term, ...]
    rank: tuple[Term, ...]
    grown: tuple[Term, ...]


def _reference(engine: Engine, context: Opened) -> Curves:
    """The formulas: every tensor is rows in its dtype, and a rank has its share of the heads.

    Raises what the engine raises for a kind that the dtypes do not fit.
    """
    stack = context.model.stack_for(engine.name)
    for group in stack.groups:
        engine.tensors(group.kind, context)
    ranks = context.request.parallel.tp
    return Curves(
        held=_terms(context, ((group.kind, group.count) for group in stack.groups)),
        rank=_terms(context, ((group.kind.shard(ranks), group.count) for group in stack.groups)),
        grown=_terms(context, ((group.kind, group.count) for group in context.model.stack.groups)),
    )


def _terms(context: Opened, kinds: Iterable[tuple[LayerKind, int]]) -> tuple[Term, ...]:
    """Equal spans are one term."""
    found: dict[Span, int] = {}
    for kind, count in kinds:
        for tensor in kind.tensors():
            found[tensor.span] = found.get(tensor.span, 0) + count * _row_bytes(tensor, context)
    return tuple(Term(span, size) for span, size in found.items() if size)


def _row_bytes(tensor: CacheTensor, context: Opened) -> int:
    return tensor.bytes_per_position(context.dtypes.roles[tensor.role])


CURVES: Final[Mapping[str, Callable[[Engine, Opened], Curves]]] = {"reference": _reference}
"""Engine -> its curves for one model, dtype and number of ranks."""


def largest(terms: Iterable[Term], tokens: int, encoder_tokens: int) -> int:
    """No length up to ``tokens`` takes more: what tells whether 64 bits are enough."""
    return sum(term.bytes_per_position * max(tokens, encoder_tokens, sum(term.span.numbers), 1) for term in terms)


def amounts(terms: Iterable[Term], tokens: Integers, encoder_tokens: Integers) -> Integers:
    """Bytes of one sequence after each number of tokens."""
    total = np.zeros_like(tokens)
    for span, size in terms:
        total = total + positions(span, tokens, encoder_tokens) * size
    return total


def growth(terms: Iterable[Term], tokens: Integers, encoder_tokens: Integers) -> Integers:
    """Bytes that one sequence gains with one more token; the encoder's input stays as it is."""
    terms = tuple(terms)
    return amounts(terms, tokens + 1, encoder_tokens) - amounts(terms, tokens, encoder_tokens)

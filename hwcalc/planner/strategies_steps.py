"""How the bytes of a strategy come about: a figure for each kind of layer, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from hwcalc.engines.steps import Number, Step, step
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.paging import paged_positions
from hwcalc.formulas.tensor import Chunk, Full, Window
from hwcalc.planner.strategies_cost import MOST_KINDS
from hwcalc.planner.strategies_load import Cell, Lengths, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Places", "copied_places", "full_places", "full_slots", "now_places", "now_slots", "summed"]


@frozen
class Places:
    """How many places of a cell all sequences have: ``formula`` on ``terms`` is ``total``."""

    formula: str
    terms: Mapping[str, Number]
    total: Fraction


def summed(name: str, cells: Iterable[Cell], places: Callable[[Cell], Places]) -> tuple[Fraction, tuple[Step, ...]]:
    """The bytes of all cells, with a figure for each kind and one for the sum, which has the name ``name``.

    A model of very many kinds has the sum alone, since nobody would read the others.
    """
    parts: dict[str, int] = {}
    steps, total = [], Fraction(0)
    for cell in cells:
        there = places(cell)
        size = cell.count * cell.row_bytes * there.total
        total += size
        if not size:
            continue
        label = f"{cell.kind.name}_{name}"
        label = label if label not in parts else f"{label}_{len(parts) + 1}"
        parts[label] = rounded(size)
        terms = {"kind_layers": cell.count, **there.terms, "row_bytes": cell.row_bytes}
        steps.append(step(label, f"kind_layers x {there.formula} x row_bytes", rounded(size), **terms))
    if len(steps) > MOST_KINDS:
        return total, (step(name, "", rounded(total)),)
    return total, (*steps, step(name, " + ".join(parts) or "0", rounded(total), **parts))


def full_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places when every sequence has all its tokens."""

    def of(cell: Cell) -> Places:
        positions = cell.span.positions(lengths.seq, lengths.encoder_tokens)
        terms = {"sequences": lengths.batch, "positions": positions}
        return Places(formula="sequences x positions", terms=terms, total=Fraction(lengths.batch * positions))

    return of


def now_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places for the lengths now."""

    def of(cell: Cell) -> Places:
        if len(lengths.now) != 1:
            return _all(lengths.stored(cell.span))
        positions = cell.span.positions(lengths.length_now, lengths.encoder_tokens)
        terms = {"sequences": lengths.batch, "positions": positions}
        return Places(formula="sequences x positions", terms=terms, total=Fraction(lengths.batch * positions))

    return of


def full_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places in blocks when every sequence has all its tokens."""
    return lambda cell: _slots(cell, lengths, "seq", lengths.seq)


def now_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places in blocks for the lengths now."""
    if len(lengths.now) == 1:
        return lambda cell: _slots(cell, lengths, "tokens_now", lengths.length_now)
    return lambda cell: _all(lengths.paged(cell))


def _slots(cell: Cell, lengths: Lengths, name: str, tokens: int) -> Places:
    """Places in the blocks of sequences that have ``tokens`` each; the formula names them ``name``."""
    slots = paged_positions(cell.span, tokens, cell.block_size, lengths.encoder_tokens)
    total = Fraction(lengths.batch * slots)
    terms: dict[str, Number] = {"sequences": lengths.batch, name: tokens, "block_size": cell.block_size}
    if isinstance(cell.span, (Window, Chunk)) and tokens > cell.span.numbers[0]:
        blocks = f"(ceil({name} / block_size) - floor(({name} - window) / block_size))"
        return Places(formula=f"sequences x {blocks} x block_size", terms=terms | {"window": cell.span.numbers[0]}, total=total)
    if isinstance(cell.span, (Full, Window, Chunk)):
        return Places(formula=f"sequences x ceil({name} / block_size) x block_size", terms=terms, total=total)
    return Places(formula="sequences x positions", terms={"sequences": lengths.batch, "positions": slots}, total=total)


def _all(total: Fraction) -> Places:
    """Places of sequences whose lengths differ."""
    exact: Number = int(total) if total.denominator == 1 else float(total)
    return Places(formula="all_positions", terms={"all_positions": exact}, total=total)


def copied_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places that concatenation writes in all steps: the whole tensor at the prompt, and again each time it takes more."""

    def of(cell: Cell) -> Places:
        written = cell.written(lengths.prompt, lengths.seq)
        terms = {"sequences": lengths.batch, "written_positions": written}
        return Places(formula="sequences x written_positions", terms=terms, total=Fraction(lengths.batch * written))

    return of

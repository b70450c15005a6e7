"""How the bytes of a strategy come about: a figure for each kind of layer, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.steps import Number, Step, step
from hwcalc.formulas.paging import paged_positions
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Chunk, Full, Span, Window
from hwcalc.planner.strategies_load import Cell, Lengths, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_KINDS: Final = 6
"""The most kinds of layers whose figures are shown one by one."""
MOST_LENGTHS: Final = 6
"""The most lengths that a formula names one by one."""


class Places(Record):
    """How many places of a cell all sequences have: ``formula`` on ``terms`` is ``total``."""

    formula: str
    terms: Mapping[str, Number]
    total: Fraction


def summed(name: str, cells: Iterable[Cell], places: Callable[[Cell], Places]) -> tuple[Fraction, tuple[Step, ...]]:
    """The bytes of all cells, with a figure for each kind and one for the sum, which has the name ``name``.

    A model of very many kinds has the sum alone, since nobody would read the others.
    """
    steps: list[Step] = []
    total = Fraction(0)
    for cell in cells:
        there = places(cell)
        size = cell.count * cell.row_bytes * there.total
        total += size
        if not size:
            continue
        label = named(f"{cell.kind.name}_{name}", steps)
        terms = {"kind_layers": cell.count, **there.terms, "row_bytes": cell.row_bytes}
        steps.append(step(label, f"kind_layers x {there.formula} x row_bytes", rounded(size), unit="bytes", **terms))
    return total, with_sum(name, steps, rounded(total))


def with_sum(name: str, steps: Sequence[Step], total: int, unit: str = "bytes") -> tuple[Step, ...]:
    """The figures of all kinds with their sum; the only one is the sum, and of very many the sum alone is shown."""
    if len(steps) == 1:
        return (replace(steps[0], name=name),)
    if len(steps) > MOST_KINDS:
        return (step(name, "", total, unit=unit),)
    parts = {one.name: one.expected for one in steps}
    return (*steps, step(name, " + ".join(parts) or "0", total, unit=unit, **parts))


def named(label: str, steps: Sequence[Step]) -> str:
    """The name of the next figure: with its number where another one has the name."""
    return f"{label}_{len(steps) + 1}" if any(one.name == label for one in steps) else label


def full_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places when every sequence has all its tokens."""

    def of(cell: Cell) -> Places:
        positions = cell.span.positions(lengths.seq, lengths.encoder_tokens)
        terms = {"sequences": lengths.batch, "positions": positions}
        return Places(formula="sequences x positions", terms=terms, total=Fraction(lengths.batch * positions))

    return of


def now_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places for the lengths now."""
    return _once(lambda cell: _now(cell, lengths, lengths.stored(cell.span), _kept))


def full_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places in blocks when every sequence has all its tokens."""

    def of(cell: Cell) -> Places:
        slots = paged_positions(cell.span, lengths.seq, cell.block_size, lengths.encoder_tokens)
        formula, terms = _paged(cell, "seq", lengths.seq)
        if not formula:
            formula, terms = "positions", {"positions": slots}
        return Places(
            formula=f"sequences x {formula}",
            terms={"sequences": lengths.batch, **terms},
            total=Fraction(lengths.batch * slots),
        )

    return of


def now_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places in blocks for the lengths now."""
    return _once(lambda cell: _now(cell, lengths, lengths.paged(cell), _paged))


def _once(places: Callable[[Cell], Places]) -> Callable[[Cell], Places]:
    """The same, worked out once for all cells with the same span and blocks: there may be many lengths, and layers of many kinds."""
    found: dict[tuple[Span, int], Places] = {}

    def of(cell: Cell) -> Places:
        key = cell.span, cell.block_size
        if key not in found:
            found[key] = places(cell)
        return found[key]

    return of


Rule = Callable[[Cell, str, int], tuple[str, dict[str, "Number"]]]
"""The places of one sequence of so many tokens, which have this name, as a formula; empty where their number says it shorter."""


def _now(cell: Cell, lengths: Lengths, total: Fraction, rule: Rule) -> Places:
    """Places of all sequences now, length by length where these are few."""
    terms: dict[str, Number] = {}
    products: list[str] = []
    for number, (tokens, count) in enumerate(lengths.now, 1):
        again = f"_{number}" if len(lengths.now) > 1 else ""
        formula, own = rule(cell, f"tokens_now{again}", tokens)
        if not formula or number > MOST_LENGTHS:
            products = []
            break
        terms |= {f"sequences{again}": count, **own}
        products.append(f"sequences{again} x {formula}")
    if products:
        summed_up = products[0] if len(products) == 1 else f"({' + '.join(products)})"
        return Places(formula=summed_up, terms=terms, total=total)
    exact: Number = int(total) if total.denominator == 1 else float(total)
    return Places(formula="all_positions", terms={"all_positions": exact}, total=total)


def _kept(cell: Cell, name: str, tokens: int) -> tuple[str, dict[str, Number]]:
    """Places that are kept of one sequence."""
    if isinstance(cell.span, (Window, Chunk)) and tokens > cell.span.numbers[0]:
        return f"min({name}, window)", {name: tokens, "window": cell.span.numbers[0]}
    return (name, {name: tokens}) if isinstance(cell.span, (Full, Window, Chunk)) else ("", {})


def _paged(cell: Cell, name: str, tokens: int) -> tuple[str, dict[str, Number]]:
    """Places in the blocks of one sequence."""
    terms: dict[str, Number] = {name: tokens, "block_size": cell.block_size}
    if isinstance(cell.span, (Window, Chunk)) and tokens > cell.span.numbers[0]:
        blocks = f"(ceil({name} / block_size) - floor(({name} - window) / block_size))"
        return f"{blocks} x block_size", terms | {"window": cell.span.numbers[0]}
    return (f"ceil({name} / block_size) x block_size", terms) if isinstance(cell.span, (Full, Window, Chunk)) else ("", {})


def copied_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """Places that concatenation writes in all steps: the whole tensor at the prompt, and again each time it takes more."""

    def of(cell: Cell) -> Places:
        written = cell.written(lengths.prompt, lengths.seq)
        terms = {"sequences": lengths.batch, "written_positions": written}
        return Places(formula="sequences x written_positions", terms=terms, total=Fraction(lengths.batch * written))

    return of

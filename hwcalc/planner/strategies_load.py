"""What strategies are compared for: the tensors of a model with the places that each keeps, and the lengths of the sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LayerKind, Role
from hwcalc.formulas.paging import paged_positions, paged_sum, stored_sum
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Chunk, Full, Kept, Sink, Span, Strided, Window

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import DType, Stack

_GROWING: Final = (Full, Kept, Window, Chunk, Sink, Strided)
"""Spans of tensors that get longer by one place, which a cache that grows by concatenation copies."""


class Cell(Record):
    """The tensors of one kind of layer that keep the same places: in ``count`` layers, a row of ``rows`` bytes for each place and tensor."""

    kind: LayerKind
    count: int
    span: Span
    rows: tuple[int, ...]
    block_size: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one place in all tensors of a layer."""
        return sum(self.rows)

    @property
    def grows(self) -> bool:
        """Whether tokens are appended to it, in place of a state that is overwritten."""
        return isinstance(self.span, _GROWING)

    def written(self, prompt: int, tokens: int) -> int:
        """Places that concatenation writes for one sequence: all of them for the prompt, and again whenever a token adds one.

        Full attention with a prompt of 2 and 4 tokens in all: [AB], [ABC], [ABCD] are 9 places.
        """
        if isinstance(self.span, Strided):
            # An entry is added once in each group of tokens.
            first, last = (self.span.positions(length) for length in (prompt, tokens))
            return first + (last * (last + 1) - first * (first + 1)) // 2
        if not self.grows:
            return 0
        return self.span.positions(prompt) + stored_sum(self.span, tokens) - stored_sum(self.span, prompt)


class Lengths(Record):
    """How many sequences there are, how long they become, and how long they are now.

    ``now`` are lengths with how many sequences have each; or ``uniform`` the shortest and the longest length, all of them equally likely.
    """

    seq: int
    batch: int
    prompt: int
    encoder_tokens: int
    now: tuple[tuple[int, int], ...] = ()
    uniform: tuple[int, int] | None = None

    def total(self, at: Callable[[int], int], upto: Callable[[int], int]) -> Fraction:
        """The sum over all sequences of ``at(length)``. ``upto(n)`` is the sum of ``at`` over 1 to n."""
        if self.uniform is None:
            return Fraction(sum(count * at(length) for length, count in self.now))
        low, high = self.uniform
        return Fraction(self.batch * (upto(high) - upto(low - 1)), high - low + 1)

    def stored(self, span: Span) -> Fraction:
        """Places that all sequences keep now."""
        encoder = self.encoder_tokens
        return self.total(lambda length: span.positions(length, encoder), lambda length: stored_sum(span, length, encoder))

    def paged(self, cell: Cell) -> Fraction:
        """Places in the blocks of all sequences now."""
        span, size, encoder = cell.span, cell.block_size, self.encoder_tokens
        return self.total(
            lambda length: paged_positions(span, length, size, encoder), lambda length: paged_sum(span, length, size, encoder)
        )

    @property
    def length_now(self) -> int:
        """The length now of every sequence, if all have the same; else the full one."""
        return self.now[0][0] if len(self.now) == 1 else self.seq

    @property
    def tokens(self) -> Fraction:
        """Tokens of all sequences now."""
        return self.stored(Full())


def rounded(value: Fraction) -> int:
    """The nearest whole number."""
    return int(value + Fraction(1, 2))


def cells_of(opened: Occupancy, block_sizes: Mapping[str, int], stack: Stack | None = None) -> tuple[Cell, ...]:
    """The tensors of all layers by kind and span, in the formats of the request. ``block_sizes`` are by the name of a kind; ``""`` is for others.

    Raises :class:`~hwcalc.errors.UnsupportedError` for a format that packs what the model does not have.
    """
    roles = opened.dtypes.roles
    found: dict[tuple[LayerKind, Span], list[int]] = {}
    counts: dict[LayerKind, int] = {}
    for group in (opened.stack if stack is None else stack).groups:
        counts[group.kind] = group.count
        for tensor in group.kind.tensors():
            found.setdefault((group.kind, tensor.span), []).append(tensor.bytes_per_position(_format(roles, tensor.role, opened)))
    return tuple(
        Cell(
            kind=kind,
            count=counts[kind],
            span=span,
            rows=tuple(rows),
            block_size=block_sizes.get(kind.name, block_sizes[""]),
        )
        for (kind, span), rows in found.items()
    )


def _format(roles: Mapping[Role, DType], role: Role, opened: Occupancy) -> DType:
    if role not in roles:
        raise UnsupportedError(
            f"--dtype {opened.dtypes.kv} packs a latent and its rotary key; another tensor of the model has no format.",
            hint="Use a plain dtype such as fp8_e4m3. See: kvplan dtypes",
        )
    return roles[role]

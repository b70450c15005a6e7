"""The tensors that an engine stores for a request, and their formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hwcalc.formulas import DType, Role
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Once, Span


class Dtypes(Record):
    """The format of each role. ``kv`` spells the formats of keys and values as in ``--dtype``."""

    kv: str
    roles: Mapping[Role, DType]

    @property
    def state(self) -> str:
        """The format of recurrent states."""
        return self.roles[Role.STATE].name


class Run(NamedTuple):
    """The positions of a sequence from ``start`` to before ``end``, and the number of copies that are stored."""

    start: int
    end: int
    copies: int

    @property
    def positions(self) -> int:
        """The positions of all copies."""
        return (self.end - self.start) * self.copies

    def on_rank(self, ranks: int) -> int:
        """The positions of all copies on the first of ``ranks`` ranks, over which positions are dealt one by one; the first has most."""
        return (-(-self.end // ranks) - -(-self.start // ranks)) * self.copies


class StoredTensor(Record):
    """One tensor of one layer as the engine stores it for the whole batch.

    ``shape`` is the shape of one position, and ``positions`` how many one sequence keeps. ``bytes`` is exact for all sequences of the
    batch, with padding and scales; a tensor that exists only once is counted once. ``rule`` explains the bytes in words and numbers
    if they are not the product of shape and positions. ``position_bytes`` are those of a position of one sequence, with the whole tensor
    for a position if it exists only ``once``; ``None`` if the bytes are no such product.
    """

    name: str
    role: Role
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    positions: int
    span: Span
    bytes: int
    rule: str | None = None
    position_bytes: int | None = None
    once: bool = False
    runs: tuple[Run, ...] = ()
    """The positions of all sequences, where some are kept once for several of them."""
    why: str | None = None
    """Why the engine keeps other bytes than the formulas, in a few words; ``None`` where positions and formats say it."""


def beside_layers(name: str, size: int, rule: str, why: str) -> StoredTensor:
    """Bytes that belong to no layer: ``rule`` says how many they are, ``why`` what for."""
    return StoredTensor(
        name=name,
        role=Role.KEY,
        axes=("bytes",),
        shape=(size,),
        dtype="int8",
        positions=1,
        span=Once(),
        bytes=size,
        rule=rule,
        why=why,
    )


def bytes_of(tensors: Iterable[StoredTensor]) -> int:
    """The bytes of all tensors."""
    return sum(tensor.bytes for tensor in tensors)

"""What an engine keeps for a request: its tensors and their formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hwcalc.formulas import DType, Role
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.tensor import Span

__all__ = ["Dtypes", "StoredTensor", "bytes_of"]


@frozen
class Dtypes:
    """The format of each role, and how the pair of key and value formats is spelled."""

    kv: str
    roles: Mapping[Role, DType]

    @property
    def state(self) -> str:
        """The format of recurrent states."""
        return self.roles[Role.STATE].name


@frozen
class StoredTensor:
    """One tensor of one layer as the engine stores it for the whole batch.

    ``shape`` counts elements per position and ``positions`` how many are kept for one sequence; ``bytes`` is exact and
    holds for ``batch`` sequences, padding and scales included. A tensor that exists once, not once per sequence, is not
    multiplied. ``rule`` says in words and numbers how the bytes come about where they are not shape times positions.
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


def bytes_of(tensors: Iterable[StoredTensor]) -> int:
    """Sum of bytes."""
    return sum(tensor.bytes for tensor in tensors)

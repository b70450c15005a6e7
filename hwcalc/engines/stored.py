"""What an engine stores: tensors, their formats, and the context in which a rule is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hwcalc.engines.request import Request
from hwcalc.formulas import CacheTensor, DType, Role
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.tensor import Fixed, Span
from hwcalc.model import ModelSpec, Note

__all__ = ["Allocation", "Context", "Dtypes", "StoredTensor", "bytes_of", "store"]


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


@frozen
class Context:
    """Everything a rule needs beside the layer itself."""

    model: ModelSpec
    request: Request
    version: str
    dtypes: Dtypes
    encoder_tokens: int
    notes: list[Note]

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.request.seq

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.request.batch

    def on_a_replica(self) -> Context:
        """The same for the sequences of one data-parallel replica, with notes of its own."""
        return replace(self, request=replace(self.request, batch=self.request.replica_batch), notes=[])


def store(tensor: CacheTensor, context: Context, *, dtype: DType | None = None, positions: int | None = None) -> StoredTensor:
    """A tensor stored plainly: once per sequence, rows padded to whole blocks of its dtype, positions by its span."""
    chosen = dtype or context.dtypes.roles[tensor.role]
    kept = tensor.span.positions(context.tokens, context.encoder_tokens) if positions is None else positions
    return StoredTensor(
        name=tensor.name,
        role=tensor.role,
        axes=tensor.axes,
        shape=tensor.shape,
        dtype=chosen.name,
        positions=kept,
        span=tensor.span if positions is None else Fixed(kept),
        bytes=context.batch * kept * tensor.bytes_per_position(chosen),
    )


def bytes_of(tensors: tuple[StoredTensor, ...]) -> int:
    """Sum of bytes."""
    return sum(tensor.bytes for tensor in tensors)


@frozen
class Allocation:
    """One tensor of one rank. ``layer`` is -1 for what the model keeps beside its layers, or what its layers share.

    ``bytes`` is the product of ``shape`` and the bytes of a ``dtype`` of :data:`ITEM_BYTES`. ``blocks`` is set for a part of a pool,
    whose first axis it is: fewer blocks are a smaller pool of the same layout.
    """

    name: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    blocks: int | None = None

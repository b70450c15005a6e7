"""The tensors that a rank allocates, by the general rule: layer after layer."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Final

from hwcalc.engines.allocation import ITEM_BYTES, Allocation
from hwcalc.engines.ranks import rank_share
from hwcalc.errors import UsageError
from hwcalc.formulas import Role
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.stored import StoredTensor

_TORCH_NAMES: Final = {"fp8": "fp8_e4m3"}
_PER_TOKEN: Final = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE, Role.INDEX})


def layer_allocations(opened: Occupancy, stage: int) -> tuple[Allocation, ...]:
    """The stored tensors of one tensor-parallel rank of pipeline stage ``stage`` (from 0).

    ``tp`` divides heads, ``dp`` sequences, and ``dcp`` the tokens of attention. What does not divide evenly is rounded up, as on the
    fullest rank. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers.
    """
    parallel, layers = opened.request.parallel, opened.stack.layers
    if parallel.pp > len(layers):
        raise UsageError(f"pp {parallel.pp:,} is more than the model's {len(layers):,} layers.", hint="Use a smaller pp.")
    return allocations_of(opened, opened.weight_rules().spans(len(layers), parallel.pp)[stage])


def allocations_of(opened: Occupancy, numbers: Iterable[int], *, extras: bool = True) -> tuple[Allocation, ...]:
    """The stored tensors of the layers with these numbers, and those that belong to no layer."""
    layers, local, kind_tensors = opened.stack.layers, opened.replica, opened.rank_tensors
    out: list[Allocation] = []
    for number in numbers:
        names: dict[str, int] = {}
        for kind in layers[number]:
            for tensor in kind_tensors[kind]:
                names[tensor.name] = names.get(tensor.name, 0) + 1
                suffix = "" if names[tensor.name] == 1 else f".{names[tensor.name]}"
                out += _allocations(f"layers.{number}.{tensor.name}{suffix}", number, tensor, local)
    for tensor in local.extras if extras else ():
        out += _allocations(tensor.name, -1, tensor, local)
    return tuple(out)


def _allocations(name: str, layer: int, tensor: StoredTensor, opened: Occupancy) -> Iterable[Allocation]:
    size, positions, dcp = tensor.bytes, tensor.positions, opened.request.parallel.dcp
    if dcp > 1 and tensor.role in _PER_TOKEN - {Role.INDEX} and positions:
        # With seven tokens on two ranks, the fullest rank has four.
        kept = -(-positions // dcp)
        size, positions = rank_share(tensor, dcp), kept
    if size:
        dtype, shape = _shape(tensor, size, positions, opened.batch)
        yield Allocation(name=name, layer=layer, dtype=dtype, shape=shape, bytes=size)


def _shape(tensor: StoredTensor, size: int, positions: int, batch: int) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape: ``[batch, heads, tokens, head_dim]`` if that gives ``size`` bytes, or the same in rows of bytes, or flat."""
    dtype = _TORCH_NAMES.get(tensor.dtype, tensor.dtype)
    item = ITEM_BYTES.get(dtype)
    if item is not None:
        shape = _axes(tensor, positions, batch, tensor.shape[-1])
        if prod(shape) * item == size:
            return dtype, shape
        if size % item == 0:
            return dtype, (size // item,)
    packed = find_dtype(tensor.dtype)
    if packed is not None:
        shape = _axes(tensor, positions, batch, packed.row_bytes(tensor.shape[-1]))
        if prod(shape) == size:
            return "uint8", shape
    return "uint8", (size,)


def _axes(tensor: StoredTensor, positions: int, batch: int, last: int) -> tuple[int, ...]:
    if tensor.role in _PER_TOKEN:
        return (batch, *tensor.shape[:-1], positions, last)
    if tensor.role is Role.CONV:
        return (batch, *tensor.shape[:-1], last, positions)
    return (batch, *((positions,) if positions > 1 else ()), *tensor.shape[:-1], last)

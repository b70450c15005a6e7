"""The cache of layers on ranks and pipeline stages, by the general rule: each layer has its own tensors."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Final

from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.stored import StoredTensor, bytes_of
from hwcalc.errors import UsageError
from hwcalc.formulas import LatentAttention, LayerKind, Role
from hwcalc.formulas.attention import AttentionKind
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas.hybrid import Group

DEALT = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE})
"""Roles whose tokens decode context parallelism divides over ranks. States and indexer keys are whole on every rank."""


def fullest_rank_bytes(opened: Occupancy, gpus: Iterable[tuple[Group, ...]]) -> int:
    """Bytes of cache on the fullest of ``gpus``: its shard of each of its layers, for the sequences of its replica.

    Llama-3.1-8B, four tokens in bf16, tp 2 and pp 2: 16 layers x 4 tokens x 4 heads x 256 x 2 bytes = 131,072, a quarter of all.
    """
    size = {kind: rank_bytes_of(opened, tensors) for kind, tensors in opened.rank_tensors.items()}
    fullest = max(sum(group.count * size[group.kind] for group in groups) for groups in gpus)
    return fullest + bytes_of(opened.replica.extras)


def cut_rank_bytes(opened: Occupancy) -> int:
    """Bytes of cache on the fullest rank, where a policy has cut each layer by itself."""
    assert opened.cut_layers is not None
    fullest = max(sum(opened.cut_layers.sizes[span.start : span.stop]) for span in stage_spans(opened))
    return fullest + bytes_of(opened.replica.extras)


def stage_groups(opened: Occupancy) -> tuple[tuple[Group, ...], ...]:
    """The layers of each pipeline stage, by kind. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers."""
    stack, spans = opened.stack, stage_spans(opened)
    if len(spans) == 1:
        return (stack.groups,)
    key = (opened.engine.name, "groups of stages", len(spans))
    return opened.of_stack(key, lambda: tuple(map(stack.groups_of, spans)))


def stage_spans(opened: Occupancy) -> tuple[range, ...]:
    """The layers of each pipeline stage. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers."""
    stages, layers = opened.request.parallel.pp, len(opened.plain_stack)
    if stages > layers:
        raise UsageError(f"pp {stages:,} is more than the model's {layers:,} layers.", hint="Use a smaller pp.")
    return (range(layers),) if stages == 1 else tuple(opened.weight_rules().spans(layers, stages))


def rank_bytes_of(opened: Occupancy, tensors: Iterable[StoredTensor]) -> int:
    """The bytes of these tensors of a tensor-parallel rank, with its share of the tokens."""
    return sum(rank_share(tensor, opened.request.parallel.dcp) for tensor in tensors)


def rank_share(tensor: StoredTensor, dcp: int) -> int:
    """Bytes of a tensor on the rank with most of its tokens: with seven tokens on two ranks, that is four tokens."""
    if dcp == 1 or tensor.role not in DEALT or not tensor.positions:
        return tensor.bytes
    if tensor.runs:
        return tensor.bytes // sum(run.positions for run in tensor.runs) * sum(run.on_rank(dcp) for run in tensor.runs)
    return tensor.bytes // tensor.positions * -(-tensor.positions // dcp)


_TORCH_NAMES: Final = {"fp8": "fp8_e4m3"}


def allocations_of(opened: Occupancy, numbers: Iterable[int], *, extras: bool = True) -> tuple[Allocation, ...]:
    """The stored tensors of the layers with these numbers on one tensor-parallel rank, and those that belong to no layer.

    ``tp`` divides heads, ``dp`` sequences, and ``dcp`` the tokens of attention. What does not divide evenly is rounded up, as on the
    fullest rank.
    """
    layers, local, kind_tensors = opened.stack.layers, opened.replica, opened.rank_tensors
    batch, dcp = local.batch, local.request.parallel.dcp
    listed: list[tuple[str, int, StoredTensor]] = []
    for number in numbers:
        names: dict[str, int] = {}
        for tensor in (tensor for kind in layers[number] for tensor in kind_tensors[kind]):
            names[tensor.name] = names.get(tensor.name, 0) + 1
            suffix = "" if names[tensor.name] == 1 else f".{names[tensor.name]}"
            listed.append((f"layers.{number}.{tensor.name}{suffix}", number, tensor))
    out: list[Allocation] = []
    for name, layer, tensor in (*listed, *((tensor.name, -1, tensor) for tensor in (local.extras if extras else ()))):
        size, positions = tensor.bytes, tensor.positions
        if dcp > 1 and tensor.role in DEALT and positions:
            # With seven tokens on two ranks, the fullest rank has four.
            size, positions = rank_share(tensor, dcp), -(-positions // dcp)
        if size:
            dtype, shape = _shape(tensor, size, positions, batch)
            out.append(Allocation(name=name, layer=layer, dtype=dtype, shape=shape, bytes=size))
    return tuple(out)


def _shape(tensor: StoredTensor, size: int, positions: int, batch: int) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape: ``[batch, heads, tokens, head_dim]`` if that gives ``size`` bytes, or the same in rows of bytes, or flat."""

    def axes(last: int) -> tuple[int, ...]:
        if tensor.role in DEALT or tensor.role is Role.INDEX:
            return (batch, *tensor.shape[:-1], positions, last)
        if tensor.role is Role.CONV:
            return (batch, *tensor.shape[:-1], last, positions)
        return (batch, *((positions,) if positions > 1 else ()), *tensor.shape[:-1], last)

    dtype, width = _TORCH_NAMES.get(tensor.dtype, tensor.dtype), tensor.shape[-1]
    item, packed = ITEM_BYTES.get(dtype), find_dtype(tensor.dtype)
    if item is not None and prod(axes(width)) * item == size:
        return dtype, axes(width)
    if item is not None and size % item == 0:
        return dtype, (size // item,)
    if packed is not None and prod(axes(packed.row_bytes(width))) == size:
        return "uint8", axes(packed.row_bytes(width))
    return "uint8", (size,)


def check_heads(engine: str, kind: LayerKind, tp: int) -> None:
    """Check that ``tp`` ranks share the heads of a layer evenly. Raises :class:`~hwcalc.errors.UsageError`.

    Key/value heads are divided, or each is repeated on as many ranks: 10 of them are on 1, 2, 5, 10 or 20 ranks, and not on 8.
    """
    if not isinstance(kind, (AttentionKind, LatentAttention)):
        return
    if kind.num_attention_heads % tp:
        raise UsageError(
            f"{engine} cannot split {kind.num_attention_heads} attention heads over tp {tp}.",
            hint="Use a tp that divides the number of heads.",
        )
    if not isinstance(kind, AttentionKind):
        return
    heads = kind.num_key_value_heads
    if heads % tp and tp % heads:
        raise UsageError(
            f"{engine} cannot split {heads} key/value heads over tp {tp}.",
            hint="Use a tp that divides the number of key/value heads, or a multiple of it.",
        )

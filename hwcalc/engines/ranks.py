"""The bytes of cache on the fullest GPU, by the general rule: each layer has its own tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hwcalc.engines.stored import StoredTensor, bytes_of
from hwcalc.errors import UsageError
from hwcalc.formulas import Role

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

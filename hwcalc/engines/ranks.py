"""The bytes of cache on the fullest GPU, by the general rule: each layer has its own tensors."""

from __future__ import annotations

from collections.abc import Sequence

from hwcalc.engines.base import Opened
from hwcalc.engines.stored import StoredTensor, bytes_of
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import Layer, LayerKind, Role

__all__ = ["fullest_rank_bytes"]

_BY_TOKEN = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE})
"""Roles whose tokens decode context parallelism divides over ranks. States and indexer keys are whole on every rank."""


def fullest_rank_bytes(opened: Opened) -> int:
    """Bytes of cache on the fullest GPU: its shard of each layer of its stage, for the sequences of its replica.

    Llama-3.1-8B, four tokens in bf16, tp 2 and pp 2: 16 layers x 4 tokens x 4 heads x 256 x 2 bytes = 131,072, a quarter of all.

    Raises :class:`~hwcalc.errors.UnsupportedError` for more stages than layers.
    """
    parallel, layers = opened.request.parallel, opened.stack.layers
    if parallel.pp > len(layers):
        raise UnsupportedError(f"pp {parallel.pp:,} is more than the model's {len(layers):,} layers.", hint="Use a smaller pp.")
    size = {kind: sum(_share(tensor, parallel.dcp) for tensor in tensors) for kind, tensors in opened.rank_tensors.items()}
    if parallel.pp == 1:
        fullest = sum(group.count * size[group.kind] for group in opened.stack.groups)
    else:
        stages = opened.engine.weight_rules().spans(len(layers), parallel.pp)
        fullest = max(_stage(layers[stage.start : stage.stop], size) for stage in stages)
    return fullest + bytes_of(opened.replica.extras)


def _stage(layers: Sequence[Layer], size: dict[LayerKind, int]) -> int:
    return sum(size[kind] for layer in layers for kind in layer)


def _share(tensor: StoredTensor, dcp: int) -> int:
    """Bytes of a tensor on the rank with most of its tokens: with seven tokens on two ranks, that is four tokens."""
    if dcp == 1 or tensor.role not in _BY_TOKEN or not tensor.positions:
        return tensor.bytes
    return tensor.bytes // tensor.positions * -(-tensor.positions // dcp)

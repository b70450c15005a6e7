"""The bytes of cache on the fullest GPU, by the general rule: each layer has its own tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hwcalc.engines.base import Opened
from hwcalc.engines.stored import StoredTensor, bytes_of
from hwcalc.errors import UsageError
from hwcalc.formulas import LayerKind, Role

__all__ = ["fullest_rank_bytes", "rank_bytes_of", "rank_share", "stage_spans"]

_BY_TOKEN = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE})
"""Roles whose tokens decode context parallelism divides over ranks. States and indexer keys are whole on every rank."""


def fullest_rank_bytes(opened: Opened) -> int:
    """Bytes of cache on the fullest GPU: its shard of each layer of its stage, for the sequences of its replica.

    Llama-3.1-8B, four tokens in bf16, tp 2 and pp 2: 16 layers x 4 tokens x 4 heads x 256 x 2 bytes = 131,072, a quarter of all.

    Raises :class:`~hwcalc.errors.UsageError` for more stages than layers.
    """
    parallel = opened.request.parallel
    spans = stage_spans(opened)
    if opened.cut_layers is not None:
        fullest = max(sum(opened.cut_layers.sizes[span.start : span.stop]) for span in spans)
        return fullest + bytes_of(opened.replica.extras)
    size = {kind: rank_bytes_of(opened, tensors) for kind, tensors in opened.rank_tensors.items()}
    stages = opened.of_stack((opened.engine.name, "kinds of stages", parallel.pp), lambda: _kinds_of_stages(opened, spans))
    fullest = max(sum(count * size[kind] for kind, count in stage.items()) for stage in stages)
    return fullest + bytes_of(opened.replica.extras)


def stage_spans(opened: Opened) -> tuple[range, ...]:
    """The layers of each pipeline stage. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers."""
    stages, layers = opened.request.parallel.pp, len(opened.plain_stack)
    if stages > layers:
        raise UsageError(f"pp {stages:,} is more than the model's {layers:,} layers.", hint="Use a smaller pp.")
    return tuple(opened.engine.weight_rules().spans(layers, stages))


def rank_bytes_of(opened: Opened, tensors: Iterable[StoredTensor]) -> int:
    """The bytes of these tensors of a tensor-parallel rank, with its share of the tokens."""
    return sum(rank_share(tensor, opened.request.parallel.dcp) for tensor in tensors)


def _kinds_of_stages(opened: Opened, spans: tuple[range, ...]) -> tuple[Counter[LayerKind], ...]:
    """How many layers of each pipeline stage have each kind."""
    layers = opened.stack.layers
    return tuple(Counter(kind for layer in layers[span.start : span.stop] for kind in layer) for span in spans)


def rank_share(tensor: StoredTensor, dcp: int) -> int:
    """Bytes of a tensor on the rank with most of its tokens: with seven tokens on two ranks, that is four tokens."""
    if dcp == 1 or tensor.role not in _BY_TOKEN or not tensor.positions:
        return tensor.bytes
    if tensor.runs:
        return tensor.bytes // sum(run.positions for run in tensor.runs) * sum(run.on_rank(dcp) for run in tensor.runs)
    return tensor.bytes // tensor.positions * -(-tensor.positions // dcp)

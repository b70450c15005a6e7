"""Weights that vLLM keeps in host memory, and the encoder outputs that it caches.

``cpu_offload_gb`` moves parameters to host memory one by one, in order, until the limit is reached, so that the last one may exceed it
(vLLM 0.33, ``model_executor/offloader/uva.py``). It moves parameters of the decoder's layers (``models/utils.py`` make_layers) and of
the towers (``models/interfaces.py`` _mark_tower_model), but not embedding or head. The limit is in GiB per GPU. ``kv_offloading_size``
is only host memory: it is a second level of the cache (``config/cache.py``) and changes nothing on the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.rank_weights import RankBytes, block_bytes, stages_of
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.vllm.weights import VLLM
from hwcalc.formulas.weights import Block, Part
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme

_TABLES: Final = frozenset({"embedding", "head"})
_NO_VECTORS: Final = RankBytes(
    low=0,
    expected=0,
    high=0,
    source="vLLM 0.33 v1/core/encoder_cache_manager.py: as many vectors as a batch has tokens, inside the profiled peak",
)
"""The encoder outputs of a model without a tower."""


class StageWeights(NamedTuple):
    """Bytes of weights on a rank of a pipeline stage: all of them, those that may be moved, and the largest layer of these.

    No parameter is larger than its layer.
    """

    total: int
    movable: int
    largest: int


def resident_bytes_rank(
    model: ModelSpec,
    offload_gib: float,
    parallel: Parallel = ALONE,
    *,
    weight_dtype: str | None = None,
    scheme: Scheme | None = None,
) -> RankBytes | None:
    """Bytes of weights that stay on the fullest GPU with ``cpu_offload_gb``; ``None`` if the weights are not counted.

    High assumes that the last moved parameter reaches the limit exactly, low that it exceeds the limit by a whole layer.
    """
    stages = stage_weights(model, parallel, weight_dtype=weight_dtype, scheme=scheme)
    return None if stages is None else resident(stages, offload_gib)


def resident(stages: tuple[StageWeights, ...], offload_gib: float) -> RankBytes:
    """The same of stages that are known."""
    limit = int(offload_gib * GIB)
    high = max((stage.total - min(stage.movable, limit) for stage in stages), default=0)
    low = max((stage.total - min(stage.movable, limit + stage.largest if limit else 0) for stage in stages), default=0)
    source = f"vLLM 0.33 offloader/uva.py: {offload_gib:g} GiB of parameters in host memory"
    return RankBytes(low=low, expected=high, high=high, source=source)


def stage_weights(
    model: ModelSpec, parallel: Parallel = ALONE, *, weight_dtype: str | None = None, scheme: Scheme | None = None
) -> tuple[StageWeights, ...] | None:
    """The weights on a rank of each pipeline stage; ``None`` if the model's weights are not counted."""
    if model.counted is None:
        return None
    unquantized = VLLM.weight_format(model, weight_dtype)
    found = []
    for stage in stages_of(model, parallel, VLLM):
        sizes = [(block, block_bytes(model, block, VLLM, scheme, unquantized)) for block in stage]
        movable = [(block, size) for block, size in sizes if _is_layer(block)]
        found.append(
            StageWeights(
                total=sum(size for _, size in sizes),
                movable=sum(size for _, size in movable),
                largest=max((-(-size // block.count) for block, size in movable), default=0),
            )
        )
    return tuple(found)


def _is_layer(block: Block) -> bool:
    return block.part.is_tower or (block.part is Part.LANGUAGE and block.kind not in _TABLES)


def encoder_cache_bytes(
    model: ModelSpec, batched_tokens: int, *, item_tokens: int = 0, element_bytes: int = 2
) -> RankBytes | None:
    """Bytes of encoder outputs that are cached for the decoder on the first pipeline stage; ``None`` if the weights are not counted.

    The cache holds as many tokens as ``max_num_batched_tokens`` or as the largest item, whichever is more
    (``v1/core/encoder_cache_manager.py`` compute_mm_encoder_budget). A token takes one vector of the hidden width, and one more for each
    layer with its own visual features (``deepstack_visual_indexes``). The cache is not allocated in advance. The profile run fills it and
    keeps it while the decoder is profiled (``v1/worker/gpu_model_runner.py`` profile_run), so it is part of the measured activation peak,
    not of the pool. Low is 0, for a run without such input. A model without a tower has 0.
    """
    if model.counted is None:
        return None
    if not model.counted.has_towers:
        return _NO_VECTORS
    size = max(batched_tokens, item_tokens) * (model.hidden_size or 0) * (1 + model.facts.deepstack_layers) * element_bytes
    return RankBytes(low=0, expected=size, high=size, source=_NO_VECTORS.source)

"""What TensorRT-LLM can be told so that it takes less memory of a GPU. Weights are as published: it makes none while loading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.saving import Cost, Saving, computes_fp4, computes_fp8

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy

_SMALL_BATCH: Final = 2048


def savings(opened: TensorrtOccupancy) -> Iterator[Saving]:
    """The savings for the planned GPU."""
    request, one = opened.request, opened.settings
    gpu = request.hardware.gpu
    if one.sequences > request.replica_batch:
        count = str(request.replica_batch)
        yield Saving(Cost.NOTHING, f"a server for {count} at once", {"engine_options": {"max_batch_size": count}})
    if computes_fp8(gpu):
        yield Saving(Cost.CACHE, "fp8 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "a checkpoint in fp8", {"weights": "fp8"})
    if one.batched_tokens > _SMALL_BATCH:
        size = str(_SMALL_BATCH)
        yield Saving(Cost.SPEED, f"batches of {size}, which read prompts slower", {"engine_options": {"max_num_tokens": size}})
    few = "nvfp4" if computes_fp4(gpu) else "awq"
    yield Saving(Cost.FEW_BITS, f"a checkpoint in {few}", {"weights": few})
    if computes_fp4(gpu):
        yield Saving(Cost.FEW_CACHE_BITS, "nvfp4 cache", {"dtype": "nvfp4"})

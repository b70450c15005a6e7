"""What LMDeploy can be told so that it takes less memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwcalc.engines.saving import Cost, Saving, computes_fp8

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy


def savings(opened: LmdeployOccupancy) -> Iterator[Saving]:
    """Fewer slots and a smaller forward pass, a cache of fewer bits, weights of fewer bits."""
    request, settings, gpu = opened.request, opened.settings, opened.request.hardware.gpu
    if settings.max_batch_size > request.replica_batch:
        count = str(request.replica_batch)
        yield Saving(Cost.NOTHING, f"a server for {count} at once", {"engine_options": {"max_batch_size": count}})
    if settings.pytorch and settings.prefill_tokens > 2048:
        yield Saving(Cost.SPEED, "prompts in pieces of 2,048 tokens", {"engine_options": {"max_prefill_token_num": "2048"}})
    if not settings.form.policy and not settings.sparse:
        eight = "fp8" if settings.pytorch and computes_fp8(gpu) else "int8"
        yield Saving(Cost.CACHE, f"{eight} cache", {"dtype": eight})
        yield Saving(Cost.FEW_CACHE_BITS, "int4 cache", {"dtype": "int4"})
    if computes_fp8(gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
    yield Saving(Cost.FEW_BITS, "a checkpoint in awq", {"weights": "awq"})

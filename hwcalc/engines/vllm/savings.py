"""What vLLM can be told so that it takes less memory of a GPU.

Weights: fp8 is made while loading where the GPU computes with it; the other formats must be published so. What a release runs on NVIDIA's
GPUs is in :mod:`~hwcalc.engines.vllm.weight_formats`. NVFP4 is offered from compute capability 10.0 on, which computes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.budget import Section
from hwcalc.engines.capability import compute_capability
from hwcalc.engines.options import is_on
from hwcalc.engines.saving import Cost, Saving, computes_fp8, host_holds
from hwcalc.engines.vllm.weight_formats import runs_weights
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmOccupancy

_BLACKWELL: Final = 100


def savings(occupancy: VllmOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings for the planned GPU. Those of the cache are refused by :func:`check_kv_dtype` where no backend has them."""
    request, options = occupancy.request, occupancy.request.options
    gpu = request.hardware.gpu
    capability = compute_capability(gpu) if gpu is not None else occupancy.settings.capability
    nvidia = gpu is None or gpu.vendor.lower() == "nvidia"

    def runs(name: str) -> bool:
        return runs_weights(name, occupancy.version, capability) and (name != "nvfp4" or capability >= _BLACKWELL)

    if occupancy.settings.sequences > request.replica_batch:
        count = str(request.replica_batch)
        what, settings = f"a server for {count} at once", {"engine_options": {"max_num_seqs": count}}
        yield Saving(Cost.NOTHING, what, settings, _activations(occupancy))
    for kv_dtype in ("fp8",) if computes_fp8(gpu) else ("int8_per_token_head",):
        yield Saving(Cost.CACHE, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if computes_fp8(gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
    elif nvidia and runs("int8"):
        yield Saving(Cost.WEIGHTS, "a checkpoint in int8", {"weights": "int8"})
    if not is_on(options.get("enforce_eager")):
        yield Saving(Cost.SPEED, "no CUDA graphs, slower", {"engine_options": {"enforce_eager": "true"}})
    few = next((name for name in ("nvfp4", "awq", "gptq") if runs(name)), "gptq") if nvidia else "awq"
    yield Saving(Cost.FEW_BITS, f"a checkpoint in {few}", {"weights": few})
    for kv_dtype in ("nvfp4", "int4_per_token_head"):
        yield Saving(Cost.FEW_CACHE_BITS, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if short_bytes > 0 and request.hardware.kv_memory is None:
        moved = round(float(options.get("cpu_offload_gb", "0")))
        size = -(-short_bytes // GIB) + moved
        # No more than the weights that are on the GPU.
        if (size - moved) * GIB <= _weights_bytes(occupancy) and host_holds(gpu, size * GIB):
            what = f"{size:,} GiB of weights in host memory, much slower"
            yield Saving(Cost.HOST, what, {"engine_options": {"cpu_offload_gb": str(size)}})


def _activations(occupancy: VllmOccupancy) -> tuple[int, int] | None:
    """The activations, high and expected: fewer sequences free a part of them, as long as a batch has as many tokens."""
    settings = occupancy.settings
    batches = settings.full_batch is None or occupancy.request.replica_batch * occupancy.request.seq >= settings.full_batch
    as_planned = batches and settings.rules.engine != "V0" and settings.override is None
    if not as_planned or occupancy.budget is None or occupancy.request.hardware.gpu is None:
        return None
    parts = [part for part in occupancy.budget.parts if part.section is Section.ACTIVATIONS]
    return sum(part.high for part in parts), sum(part.expected for part in parts)


def _weights_bytes(occupancy: VllmOccupancy) -> int:
    """The weights of one GPU."""
    parts = () if occupancy.budget is None else occupancy.budget.parts
    return sum(part.high for part in parts if part.name == "weights")

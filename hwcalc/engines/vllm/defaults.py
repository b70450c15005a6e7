"""Defaults of vLLM: batch sizes by GPU, and the share of memory by version."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hwcalc.profiles.engines import vllm_profile
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["batch_defaults", "default_utilization", "graphs_subtracted", "total_bytes"]


def batch_defaults(gpu: Gpu | None) -> tuple[int, int]:
    """The defaults of ``max_num_seqs`` and ``max_num_batched_tokens`` on this GPU; without a GPU, those on an H100.

    GPUs with at least 160 GiB have 1,024 and 16,384; those with at least 70 GiB have 1,024 and 8,192, except A100 and GB10; all others
    have 256 and 2,048.
    """
    return _without_a_gpu() if gpu is None else _batch_class(gpu)


@lru_cache(maxsize=1)
def _without_a_gpu() -> tuple[int, int]:
    from hwcalc.profiles.gpus import find_gpu

    return _batch_class(find_gpu("h100-sxm5-80gb"))


def _batch_class(gpu: Gpu) -> tuple[int, int]:
    classes = vllm_profile().batch_classes
    memory, name, capability = total_bytes(gpu) or 0, f"{gpu.id} {gpu.name}".lower(), gpu.compute_capability or ""
    for entry in classes:
        excepted = capability in entry.except_capabilities or any(word in name for word in entry.except_names)
        if memory >= entry.least_gib * GIB and not excepted:
            return entry.max_num_seqs, entry.max_num_batched_tokens
    return classes[-1].max_num_seqs, classes[-1].max_num_batched_tokens


def default_utilization(version: str) -> str:
    """The share of the GPU that this version uses by default, as an exact decimal: ``0.92`` since 0.21."""
    return next(entry.value for entry in vllm_profile().utilization if entry.since <= _numbers(version))


def graphs_subtracted(version: str) -> bool:
    """Whether this version subtracts its estimate of CUDA graphs from the pool."""
    return _numbers(version) >= vllm_profile().graphs_since


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor.partition(".")[0])


def total_bytes(gpu: Gpu) -> int | None:
    """Bytes of memory that torch sees, measured or estimated (:func:`hwcalc.profiles.gpus.visible_memory`)."""
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    return None if visible is None else visible.expected_bytes

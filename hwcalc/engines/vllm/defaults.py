"""Defaults of vLLM: batch sizes by GPU, and the share of memory by version."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hwcalc.engines.vllm.rules import rules_of
from hwcalc.profiles.engines import planned_version, vllm_profile
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

H100_BYTES: Final = 79 * GIB
"""What programs see of the memory of an H100, within a GiB: batches are larger from 70 and 160 GiB on."""
_LONGEST_WHOLE: Final = 32_768
"""V0 cuts longer prompts into chunks by default (engine/arg_utils.py create_engine_config)."""
_V0_LEAST: Final = 2048
V0_SEQUENCES: Final = 256
"""The default of ``max_num_seqs`` in V0, whatever the GPU."""


def batch_defaults(gpu: Gpu | None, version: str) -> tuple[int, int]:
    """The defaults of ``max_num_seqs`` and ``max_num_batched_tokens`` on this GPU; without a GPU, those on an H100. Those of V0 differ.

    GPUs with at least 160 GiB have 1,024 and 16,384; those with at least 70 GiB have 1,024 and 8,192, except A100 and GB10; all others
    have 256 and 2,048.
    """
    if gpu is None:
        return _batch_class(version, H100_BYTES, "h100", "9.0")
    return _batch_class(version, total_bytes(gpu) or 0, f"{gpu.id} {gpu.name}".lower(), gpu.compute_capability or "")


@lru_cache(maxsize=256)
def _batch_class(version: str, memory: int, name: str, capability: str) -> tuple[int, int]:
    planned = planned_version(version)
    classes = [entry for entry in vllm_profile().batch_classes if entry.holds(planned)]
    for entry in classes:
        excepted = capability in entry.except_capabilities or any(word in name for word in entry.except_names)
        if memory >= entry.least_gib * GIB and not excepted:
            return entry.max_num_seqs, entry.max_num_batched_tokens
    return classes[-1].max_num_seqs, classes[-1].max_num_batched_tokens


@lru_cache(maxsize=64)
def default_utilization(version: str) -> str:
    """The share of the GPU that this version uses by default, as an exact decimal: ``0.92`` since 0.20."""
    return next(entry.value for entry in vllm_profile().utilization if entry.since <= planned_version(version))


def graphs_subtracted(version: str) -> bool:
    """Whether this version subtracts its estimate of CUDA graphs from the pool."""
    return planned_version(version) >= vllm_profile().graphs_since


def runs_v0(version: str) -> bool:
    """Whether this version runs the V0 engine by default."""
    return rules_of(planned_version(version)).engine == "V0"


def v0_batch(seq: int, version: str, *, whole: bool = False) -> int:
    """The default of ``max_num_batched_tokens`` in V0: a whole prompt, or chunks for prompts beyond 32,768 tokens unless ``whole``.

    >>> v0_batch(20_000, "0.7"), v0_batch(512, "0.7"), v0_batch(131_072, "0.7"), v0_batch(131_072, "0.6.4")
    (20000, 2048, 2048, 512)
    """
    if seq > _LONGEST_WHOLE and not whole:
        return rules_of(planned_version(version)).v0_chunk
    return max(_V0_LEAST, seq)


def batch_is_chunked(seq: int, batched_tokens: int) -> bool:
    """Whether the longest prompt does not fit into a batch. V0 refuses that unless it may cut prompts into chunks."""
    return batched_tokens < seq


def total_bytes(gpu: Gpu) -> int | None:
    """Bytes of memory that torch sees, measured or estimated (:func:`hwcalc.profiles.gpus.visible_memory`)."""
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    return None if visible is None else visible.expected_bytes

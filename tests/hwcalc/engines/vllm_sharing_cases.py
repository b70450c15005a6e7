"""When the releases of vLLM changed what sequences share."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.setup import Sharing
from hwcalc.engines.vllm.deployment import VllmOccupancy
from tests.hwcalc.engines.vllm_cases import Case, case
from tests.hwcalc.engines.vllm_layer_cases import CACHED, QWEN
from tests.hwcalc.engines.vllm_pool_cases import GPT, LLAMA

__all__ = ["SHARING_CASES"]


def _all_blocks(context: VllmOccupancy, _: PoolInfo) -> int:
    """The blocks of all sequences."""
    return context.all_blocks


def _copies(context: VllmOccupancy, _: PoolInfo) -> dict[str, int]:
    """How often the shared blocks lie in the pool, by kind of layers."""
    return {group.kind: group.copies if group.shared else 0 for group in context.in_common().blocks}


_PARTED: Final[dict[str, Any]] = {"seq": 86, "prompt": 70}
_COMMON: Final[dict[str, Any]] = {"seq": 1024, "prompt": 1000, "batch": 3, "sharing": Sharing(prefix=512)}

SHARING_CASES: Final[tuple[Case, ...]] = (
    # engine/llm_engine.py add_request: since 0.6.4 a request for several samples becomes as many requests.
    # Four whole blocks of 70 tokens once, two more of each of four; then six of each.
    case("forks_samples", "0.6.4", LLAMA, _all_blocks, (4 + 4 * 2, 4 * 6), sharing=Sharing(samples=4), **_PARTED),
    # sampling_params.py: use_beam_search went with 0.6.3, beams are requests since.
    case("forks_beams", "0.6.3", LLAMA, _all_blocks, (4 + 4 * 2, 4 * 6), sharing=Sharing(beams=4), **_PARTED),
    # v1/core/sched/scheduler.py _mamba_block_aligned_split: since 0.26 a prompt stops where it parts from another, and keeps that state.
    case(
        "kept_states",
        "0.26",
        QWEN,
        _copies,
        ({"state": 0, "full": 0}, {"state": 0, "full": 2}),
        **CACHED,
        seq=8192,
        prompt=8000,
        batch=3,
        sharing=Sharing(prefix=4096),
    ),
    # config/cache.py prefix_cache_retention_interval: 0 since 0.29, so that the windows of the first request lack the place where it parts.
    # Full layers: 32 blocks once and 32 of each of three. Windows of 128 beside large batches keep all tokens, and a block more.
    case(
        "kept_states",
        "0.29",
        GPT,
        _all_blocks,
        ((32 + 3 * 32) + (32 + 3 * 33), (2 * 32 + 3 * 32) + (2 * 32 + 3 * 33)),
        **_COMMON,
    ),
)

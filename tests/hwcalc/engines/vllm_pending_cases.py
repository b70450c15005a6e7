"""Where the rules do not say yet what the releases' own code says. Each case names the place; one that passes moves to the other cases."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_cases import Case, Refused, batched_tokens, block_size, case, needed, tokens
from tests.hwcalc.engines.vllm_layer_cases import K3_STATE, KIMI, KIMI_STATE, LATENT, V3, stretched
from tests.hwcalc.engines.vllm_pool_cases import LLAMA, LLAMA_PAGE, LONG, V4, V4_FAR, V4_INDEX, V4_LATENT

__all__ = ["PENDING", "WRONG_ENTRIES"]

_UTILS: Final = "v1/core/kv_cache_utils.py"
_K3_NARROW: Final = 3 * (3 * 96 * 128) * 2 + 96 * 128 * 128 * 2
"""A state of Kimi-K3 with a recurrence in 16 bits."""
_IN_BF16: Final = {"mamba_ssm_cache_dtype": "bfloat16"}
_V4_BLOCKS: Final = 8192 // 256 + 2 * (8192 // 64 + 1) + 8192 // 4 + 1 + 8192 // 8 + 1
"""Blocks of a request: entries of 256 tokens, two groups of windows, and compressor states of 4 and of 8 tokens."""


class Pending(NamedTuple):
    """A case that fails, and the place in vLLM that says so."""

    case: Case
    evidence: str


PENDING: Final[tuple[Pending, ...]] = (
    Pending(
        case("v0_chunk", "0.6.5", LLAMA, batched_tokens, (512, 2048), **LONG),
        "config.py SchedulerConfig.__post_init__: 512 up to 0.6.4, 2,048 from 0.6.5 on",
    ),
    Pending(
        # A row of 1,152 bytes; then padded to 1,280.
        case(
            "latent_row_alignment",
            "0.7.2",
            V3,
            lambda _, pool: pool.bytes_per_token,
            (61 * LATENT * 2, 61 * -(-LATENT * 2 // 256) * 256),
            tp=8,
        ),
        "worker/cache_engine.py get_cache_block_size: align_to_256bytes came with 0.7.2",
    ),
    Pending(
        # Stages of 10, 10 and 12 layers, then of 11, 11 and 10. V0 takes the least number of blocks before it logs.
        case(
            "logs_own_blocks", "0.8", LLAMA, tokens, (8 * GIB // (12 * LLAMA_PAGE) * 16, 8 * GIB // (11 * LLAMA_PAGE) * 16), pp=3
        ),
        "executor/executor_base.py: determine_num_available_blocks takes the minimum, initialize_cache logs it",
    ),
    Pending(
        # The tuple is one page of each size of the group of full layers, which comes first in 0.27 and 0.28.
        case(
            "checks_packed_width",
            "0.29",
            V4,
            needed,
            (
                22 * (V4_LATENT + V4_INDEX + V4_FAR) * _V4_BLOCKS,
                (21 * V4_LATENT + 21 * V4_INDEX + 20 * V4_FAR) * _V4_BLOCKS,
            ),
            dtype="fp8",
        ),
        f"{_UTILS} _max_memory_usage_bytes_from_groups: the planners of 0.27.1 and 0.28.0 name 3.3 GiB for 8,192 tokens, that of 0.29.0 3.14",
    ),
    Pending(
        case(
            "kimi_delta_dtype",
            "0.30",
            "moonshotai/Kimi-K3",
            block_size,
            (stretched(K3_STATE // 8, LATENT * 2, 128), stretched(_K3_NARROW // 8, LATENT * 2, 128)),
            tp=8,
            options=_IN_BF16,
        ),
        "models/kimi_k3/nvidia/kda.py get_state_dtype: the planner of 0.29.0 keeps fp32, and blocks of 768; those of 0.30.0 and 0.32.0 bf16, 384",
    ),
    Pending(
        case(
            "kimi_delta_dtype",
            "0.30",
            KIMI,
            block_size,
            (stretched(KIMI_STATE, LATENT * 2, 128), Refused("mamba_ssm_cache_dtype")),
            options=_IN_BF16,
        ),
        "model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py: Kimi-Linear's layers keep fp32 in 0.30 to 0.33, its class says bf16, and "
        "the planners fail with an AssertionError in MambaSpec.page_size_bytes",
    ),
)

WRONG_ENTRIES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {("v0_chunk", "0.7"): "0.6.5", ("kimi_delta_dtype", "0.33"): "0.30"}
)
"""Entries of the table that no case can show, and the release that has the rule in truth."""

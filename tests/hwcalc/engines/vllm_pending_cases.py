"""Where the rules do not say yet what the releases' own code says. Each case names the place; one that passes moves to the other cases."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hwcalc.units import MIB
from tests.hwcalc.engines.vllm_cases import Case, Refused, block_bytes, block_size, case, counts, needed, state_blocks, told
from tests.hwcalc.engines.vllm_layer_cases import (
    JAMBA,
    JAMBA_ROW,
    JAMBA_STATE,
    LITE,
    QWEN35,
    QWEN35_STATE,
    QWEN_ROW,
    V32,
    stretched,
)
from tests.hwcalc.engines.vllm_pool_cases import LLAMA, LONG, SCOUT
from tests.hwcalc.engines.vllm_rows import card

__all__ = ["PENDING", "WRONG_ENTRIES"]

_UTILS: Final = "v1/core/kv_cache_utils.py"

HEADS_BY_LAYER: Final[dict[str, Any]] = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "deci",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads_per_layer": [4, 2, 2, 1],
    "vocab_size": 1000,
    "intermediate_size": 64,
    "max_position_embeddings": 32_768,
    "torch_dtype": "bfloat16",
}
DRAFTED: Final[dict[str, Any]] = {"options": {"enable_prefix_caching": "true", "speculative": "ngram:5"}}
ALIGNED: Final = stretched(JAMBA_STATE, JAMBA_ROW), {2 + 5}


class Pending(NamedTuple):
    """A case that fails, and the place in vLLM that says so."""

    case: Case
    evidence: str


PENDING: Final[tuple[Pending, ...]] = (
    Pending(
        case(
            "estimate_told",
            "0.9.1",
            LLAMA,
            told(r"Based on the available memory,(.*)"),
            (" ", " the estimated maximum model length is 65536."),
            **LONG,
        ),
        f"{_UTILS} check_enough_kv_cache_memory: 0.9.0 and 0.9.0.1 still break the sentence off, as 0.8.5 does",
    ),
    Pending(
        case(
            "estimate_told",
            "0.8.4",
            LLAMA,
            told(r"(Based on the available memory,)"),
            (None, "Based on the available memory,"),
            **LONG,
        ),
        f"{_UTILS} check_enough_kv_cache_memory: 0.8.0 to 0.8.3 have no such sentence at all",
    ),
    Pending(
        case("gib_digits", "0.8.3", LLAMA, told(r"\(([\d.]+ Gi?B) KV cache is needed"), ("16.00 GB", "16.00 GiB"), **LONG),
        f"{_UTILS} check_enough_kv_cache_memory: 0.8.0 to 0.8.2 write GB",
    ),
    Pending(
        case("estimate_empty", "0.14", LLAMA, told(r"memory \(0.0+ GiB\)\.(.*)$"), (" ", ""), budget=MIB),
        f"{_UTILS} check_enough_kv_cache_memory: where nothing fits, 0.8.4 to 0.13 leave two spaces before Try",
    ),
    Pending(
        case("check", "0.8", LLAMA, told("^(No available memory|To serve)"), ("No available memory", "To serve"), budget=MIB),
        "worker/worker.py raise_if_cache_size_invalid: V0 says so if there is no block, not only if there are no bytes",
    ),
    Pending(
        # 32 layers, whole; then a window of 4,096 and one batch.
        case(
            "windows",
            "0.8.3",
            "mistralai/Mistral-7B-v0.1",
            needed,
            (32 * 65_536 * 2048, 32 * 65_536 * (-(-(4095 + 8192) // 16) + 1)),
            seq=32_768,
        ),
        "v1/worker/gpu_model_runner.py get_kv_cache_spec: 0.8.0 to 0.8.2 make a FullAttentionSpec for every layer",
    ),
    Pending(
        case("chunks", "0.10", SCOUT, counts, ([48], [12, 12, 12, 12]), seq=32_768),
        "config.py VllmConfig.__post_init__: 0.10.0 leaves the hybrid manager on for chunked layers, unless it speculates with EAGLE",
    ),
    Pending(
        case("chunks", "0.10.1", SCOUT, counts, ([12, 12, 12, 12], [48]), seq=32_768),
        "config/__init__.py: VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE, off by default, came with 0.10.1",
    ),
    Pending(
        case(
            "sums_page_sizes", "0.11", HEADS_BY_LAYER, block_bytes, (Refused("to one size"), 16 * (4 + 2 + 2 + 1) * 2 * 128 * 2)
        ),
        f"{_UTILS} get_kv_cache_config: up to 0.10.2 NotImplementedError, as type_id holds the page size",
    ),
    Pending(
        case("latent_block_forced", "0.11.1", LITE, block_size, (64, 128), options={"block_size": "128"}),
        "platforms/cuda.py check_and_update_config: 0.11.0 still has block_size != 64, 0.11.1 block_size % 64 != 0",
    ),
    Pending(
        case("sparse_block_forced", "0.18", V32, block_size, (64, 128), tp=8, options={"block_size": "128"}),
        "platforms/cuda.py check_and_update_config: 0.11.0 to 0.17.1 put 64 in the place of any other block of sparse latent attention",
    ),
    *(
        Pending(
            case("latent_block_of_b200", since, LITE, block_size, answers, gpu=card("B200")),
            "platforms/cuda.py check_and_update_config: on SM100 CUTLASS_MLA (128) from 0.10.1, FLASHINFER_MLA (64) in 0.15 to 0.17, then its 32",
        )
        for since, answers in (("0.10.1", (16, 128)), ("0.15", (128, 64)), ("0.18", (64, 32)))
    ),
    Pending(
        case(
            "hybrid_step_of_b200",
            "0.18",
            QWEN35,
            block_size,
            (stretched(QWEN35_STATE, QWEN_ROW, 32), stretched(QWEN35_STATE, QWEN_ROW, 16)),
            gpu=card("B200"),
        ),
        "model_executor/models/config.py HybridAttentionMambaModelConfig: 0.11.1 to 0.17 step by 32 on SM100 with heads of 256",
    ),
    Pending(
        case("speculated_hybrids", "0.17", JAMBA, state_blocks, (Refused("specul"), (2048, {8192 // 2048})), **DRAFTED),
        "model_executor/layers/mamba/abstract.py get_kv_cache_spec: up to 0.16 only qwen3_next speculates; up to 0.21 MambaSpec of mode all "
        "adds no block for drafted tokens",
    ),
    Pending(
        case("speculated_hybrids", "0.20", JAMBA, state_blocks, ((2048, {8192 // 2048}), ALIGNED), **DRAFTED),
        "model_executor/models/config.py MambaModelConfig: 0.20 and 0.21 take align in the place of all when they speculate",
    ),
    Pending(
        case("speculated_hybrids", "0.22", JAMBA, state_blocks, (ALIGNED, (2048, {8192 // 2048 + 5})), **DRAFTED),
        "model_executor/models/config.py MambaModelConfig and v1/kv_cache_interface.py MambaSpec: all again, with a block a drafted token",
    ),
)

WRONG_ENTRIES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("estimate_told", "0.9"): "0.9.1",
        ("latent_block_forced", "0.11"): "0.11.1",
    }
)
"""Entries of the table that no case can show, and the release that has the rule in truth."""

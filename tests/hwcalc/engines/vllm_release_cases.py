"""What single releases do, each with the place in vLLM that says so: most of it was found by running their planners."""

from __future__ import annotations

from typing import Final

from hwcalc.profiles.gpus import find_gpu
from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_cases import (
    Case,
    Refused,
    batched_tokens,
    block_bytes,
    block_size,
    blocks,
    case,
    counts,
    needed,
    noted,
    small,
    state_blocks,
    tokens,
)
from tests.hwcalc.engines.vllm_layer_cases import (
    CACHED,
    DRAFTED,
    K3_STATE,
    KIMI,
    KIMI_STATE,
    LATENT,
    MIMO,
    NEMOTRON,
    NEMOTRON_CONV,
    NEMOTRON_ROW,
    NEMOTRON_SSM,
    QWEN,
    QWEN_DRAFTED,
    V3,
    stretched,
)
from tests.hwcalc.engines.vllm_pool_cases import (
    GPT,
    GPT_PAGE,
    LLAMA,
    LLAMA_PAGE,
    LONG,
    SCOUT,
    TUPLES,
    V4,
    V4_FAR,
    V4_INDEX,
    V4_LATENT,
)
from tests.hwcalc.engines.vllm_rows import older_rows

__all__ = ["LASTING_CASES", "RELEASE_CASES"]

_K3_NARROW: Final = 3 * (3 * 96 * 128) * 2 + 96 * 128 * 128 * 2
"""A state of Kimi-K3 with a recurrence in 16 bits."""
_ZAMBA_PAGE: Final = 48 * 32 * (160 + 160) * 2
_IN_BF16: Final = {"mamba_ssm_cache_dtype": "bfloat16"}
_V4_BLOCKS: Final = 8192 // 256 + 2 * (8192 // 64 + 1) + 8192 // 4 + 1 + 8192 // 8 + 1
"""Blocks of a request: entries of 256 tokens, two groups of windows, and compressor states of 4 and of 8 tokens."""

_NANO: Final = older_rows()["0.9.2", "x_nvidia-nemotron-nano-9b-v2_enforce_eagerTrue_enable_prefix_cachingFalse_block_size800"][
    "config"
]
_GEMMA: Final = older_rows()["0.9.2", "gemma3n_2g_mnbt2048"]["config"]

RELEASE_CASES: Final[tuple[Case, ...]] = (
    # 16 windowed layers and 4 full ones that keep a cache. The planner of 0.10.0 has 20 windowed ones.
    case("windows_by_default", "0.10.1", _GEMMA, counts, ([20], [4] * 5)),
    # 40 heads of 128 in vectors of 4,480.
    case(
        "nemotron_head_dim",
        "0.10.1",
        _NANO,
        block_size,
        (Refused("hidden_size / num_attention_heads"), stretched((11_008 * 3 + 128 * 80 * 128) * 2, 8 * (128 + 128) * 2)),
    ),
    # Releases of V1 up to 0.10.1 leave some GPUs, dtypes and drafts to V0, or run V1 for them if it is asked for.
    case("v0_where", "0.8", LLAMA, blocks, ([8192 // 16], Refused("capability below 8.0")), gpu=find_gpu("t4")),
    case("v0_where", "0.8", LLAMA, blocks, ([8192 // 16], Refused("float32")), options={"dtype": "float32"}),
    case("v0_where", "0.9", LLAMA, blocks, (Refused("float32"), [8192 // 16]), options={"dtype": "float32"}),
    case("v0_where", "0.10", LLAMA, blocks, (Refused("fp8 cache"), [8192 // 16]), gpu=find_gpu("b200"), dtype="fp8"),
    case("v0_where", "0.10.2", LLAMA, blocks, (Refused("capability below 8.0"), [8192 // 16]), gpu=find_gpu("t4")),
    # engine/arg_utils.py _is_v1_supported_oracle leaves to V0 what platforms/cuda.py is_kv_cache_dtype_supported denies; 0.11 has no V0.
    case(
        "v0_where",
        "0.11",
        LLAMA,
        blocks,
        (Refused("(V0) for an fp8 cache"), Refused("default back end")),
        gpu=find_gpu("l40s"),
        dtype="fp8",
    ),
    case("fp8_by_hand", "0.12", LLAMA, blocks, (Refused("default back end"), [8192 // 16]), gpu=find_gpu("l40s"), dtype="fp8"),
    case("v1_asked", "0.8", LLAMA, noted, (set(), {"engine-asked"}), pp=2),
    case("v1_asked", "0.9", LLAMA, noted, ({"engine-asked"}, set()), pp=2),
    case("v1_asked", "0.10.2", "ai21labs/Jamba-v0.1", noted, ({"engine-asked"}, set())),
    # Not cut into chunks, and at least so many tokens.
    case("v0_multimodal", "0.6.3", "microsoft/Phi-3.5-vision-instruct", batched_tokens, (4096, 5120), seq=2048),
    # The planner of 0.26.0 fails with an AssertionError at 128 tokens; those of 0.27.0 to 0.33.0 take them, and have the same pages.
    case(
        "compressed_blocks", "0.27", V4, block_size, (Refused("block_size=128"), 128), dtype="fp8", options={"block_size": "128"}
    ),
    # config.py SchedulerConfig.__post_init__: 512 up to 0.6.4, 2,048 from 0.6.5 on.
    case("v0_chunk", "0.6.5", LLAMA, batched_tokens, (512, 2048), **LONG),
    # worker/cache_engine.py get_cache_block_size: align_to_256bytes came with 0.7.2.
    # A row of 1,152 bytes; then padded to 1,280.
    case(
        "latent_row_alignment",
        "0.7.2",
        V3,
        lambda _, pool: pool.bytes_per_token,
        (61 * LATENT * 2, 61 * -(-LATENT * 2 // 256) * 256),
        tp=8,
    ),
    # executor/executor_base.py: determine_num_available_blocks takes the minimum, initialize_cache logs it.
    # Stages of 10, 10 and 12 layers, then of 11, 11 and 10. V0 takes the least number of blocks before it logs.
    case("logs_own_blocks", "0.8", LLAMA, tokens, (8 * GIB // (12 * LLAMA_PAGE) * 16, 8 * GIB // (11 * LLAMA_PAGE) * 16), pp=3),
    # v1/core/kv_cache_utils.py _max_memory_usage_bytes_from_groups: the planners of 0.27.1 and 0.28.0 name 3.3 GiB
    # for 8,192 tokens, that of 0.29.0 3.14.
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
    # models/kimi_k3/nvidia/kda.py get_state_dtype: the planner of 0.29.0 keeps fp32, and blocks of 768; those of
    # 0.30.0 and 0.32.0 bf16, 384.
    case(
        "kimi_delta_dtype",
        "0.30",
        "moonshotai/Kimi-K3",
        block_size,
        (stretched(K3_STATE // 8, LATENT * 2, 128), stretched(_K3_NARROW // 8, LATENT * 2, 128)),
        tp=8,
        options=_IN_BF16,
    ),
    # model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py: Kimi-Linear's layers keep fp32 in 0.30 to 0.33, its
    # class says bf16, and the planners fail with an AssertionError in MambaSpec.page_size_bytes.
    case(
        "kimi_delta_dtype",
        "0.30",
        KIMI,
        block_size,
        (stretched(KIMI_STATE, LATENT * 2, 128), Refused("mamba_ssm_cache_dtype")),
        options=_IN_BF16,
    ),
    # config/cache.py: block_size is None up to 0.17 while MambaModelConfig reads it, unless the user names one. The
    # planner of 0.12.0 has one block of the whole length; those of 0.15.1 and 0.17.1 fail with a TypeError; that of
    # 0.18.0 has blocks of 16.
    *(
        case("attention_free_block", since, "state-spaces/mamba-130m-hf", blocks, answers, **CACHED)
        for since, answers in (("0.15", ([1], Refused("block_size"))), ("0.18", (Refused("block_size"), [8192 // 16])))
    ),
    # v1/worker/gpu_model_runner.py: the planner of 0.9.2 raises Attention block size should be increased to at least
    # 528 in order to match the mamba page size.
    case(
        "hybrid_by_hand",
        "0.10",
        NEMOTRON,
        block_size,
        (Refused("528"), stretched((NEMOTRON_CONV + NEMOTRON_SSM) * 2, NEMOTRON_ROW * 2)),
        options={"enforce_eager": "true", "enable_prefix_caching": "false"},
    ),
    # models/lfm2_moe.py: Lfm2Moe currently does not support prefix caching, up to 0.15.1. Before 0.15, prefix caching
    # is turned off instead.
    case(
        "lfm2_moe_caching",
        "0.16",
        "LiquidAI/LFM2-8B-A1B",
        state_blocks,
        (Refused("prefix caching"), (16, {2})),
        **CACHED,
    ),
    # models/zamba2.py: a hybrid layer builds its attention before its states. The planner of 0.14.1 names 0.71 GiB
    # for 4,096 tokens.
    # 9 attention layers with 32 heads of 160 in blocks of 48 come before the 54 states in vLLM's order of layers.
    case(
        "check",
        "0.14",
        "Zyphra/Zamba2-2.7B",
        needed,
        ((9 * -(-4096 // 48) + 54) * _ZAMBA_PAGE, 9 * -(-4096 // 48) * _ZAMBA_PAGE),
        seq=4096,
    ),
    # v1/core/kv_cache_utils.py unify_hybrid_kv_cache_specs: head_size_v came with 0.21; the planner of 0.20.2 has
    # pages of 1,050,624 bytes on four ranks.
    # 39 windowed layers with 8 heads and 9 full ones with 4, keys of 192 and values of 128.
    case(
        "value_width",
        "0.21",
        MIMO,
        block_bytes,
        (
            16 * (39 * 8 * (192 + 192) + 9 * 4 * (192 + 128)) * 2,
            16 * (39 * 8 * (192 + 128) + 9 * 4 * (192 + 128)) * 2,
        ),
        options={"disable_hybrid_kv_cache_manager": "true"},
    ),
    # v1/core/kv_cache_utils.py unify_kv_cache_configs: the planner of 0.10.2 fails with an AssertionError where the
    # groups of two stages differ.
    # Three layers a stage: windowed, full, windowed; then the other way around.
    case("groups_by_stage", "0.11", GPT, block_bytes, (Refused("stage"), 2 * GPT_PAGE), pp=8),
    # model_executor/models/config.py Gemma4Config: per-layer FA3 and FA4 for fp8 on SM90; the planners of 0.31.0,
    # 0.32.0 and 0.33.0 have blocks of 64, that of 0.30.0 of 16.
    # 25 windowed layers with 8 heads of 256, in groups of five.
    case(
        "wide_fp8_block",
        "0.31",
        "google/gemma-4-26B-A4B",
        block_bytes,
        (5 * 16 * 8 * (256 + 256), 5 * 64 * 8 * (256 + 256)),
        dtype="fp8",
    ),
    # model_executor/models/config.py MambaModelConfig: 0.15 and 0.16 assert that nothing is drafted while the last
    # states are kept.
    case("hybrid_speculation", "0.17", QWEN, state_blocks, (Refused("draft"), (QWEN_DRAFTED, {2 + 5})), **DRAFTED),
)

LASTING_CASES: Final[tuple[Case, ...]] = (
    # config/vllm.py __post_init__: from 0.10 to 0.33, EAGLE beside chunked layers turns the hybrid manager off.
    # All 48 layers and the two of the draft.
    case("chunks", "0.14", SCOUT, counts, ([50], [50]), seq=32_768, option_draft=small(8), **TUPLES),
    # v1/kv_cache_interface.py SlidingWindowSpec: DCP not support sliding window, also for latents; the planner of
    # 0.27.1 fails with it.
    case("dcp", "0.28", V4, block_size, (Refused("dcp"), Refused("dcp")), dtype="fp8", tp=8, dcp=2),
)
"""What is so in both releases: the rule changes something else."""

"""The rules of vLLM's layers, one case or more for each release in which a rule changed: rows, blocks and states.

A hybrid's block is a multiple of a step and holds a state: step x ceil(bytes of a state / (step x bytes of a token)).
"""

from __future__ import annotations

from typing import Any, Final

from hwcalc import load_model
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.sources import resolve
from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_cases import (
    Case,
    Refused,
    batched_tokens,
    block_bytes,
    block_size,
    blocks,
    case,
    fits,
    state_blocks,
)
from tests.hwcalc.engines.vllm_rows import card, rows

V3: Final = "deepseek-ai/DeepSeek-V3"
LITE: Final = "deepseek-ai/DeepSeek-V2-Lite"
V32: Final = "deepseek-ai/DeepSeek-V3.2"
LATENT: Final = 512 + 64
"""Elements of a latent with its rotary part."""
INDEX: Final = 128 + 4
"""Bytes of an indexer's key in fp8, with its scale."""
DS_MLA: Final = 512 + 4 * 4 + 64 * 2
"""Bytes of a latent in DeepSeek's own layout: 512 fp8, four fp32 scales, 64 bf16."""

NEMOTRON: Final = "nvidia/Nemotron-H-8B-Base-8K"
NEMOTRON_CONV: Final = 3 * (128 * 64 + 2 * 8 * 128)
NEMOTRON_SSM: Final = 128 * 64 * 128
NEMOTRON_ROW: Final = 8 * (128 + 128)
"""Numbers in a state's convolution and recurrence, and in a token of attention."""
NEMOTRON_NAMED: Final = {**resolve(NEMOTRON).config, "mamba_ssm_cache_dtype": "float32"}

JAMBA: Final = "ai21labs/AI21-Jamba2-Mini"
JAMBA_STATE: Final = 3 * 8192 * 2 + 8192 * 16 * 2
JAMBA_ROW: Final = 8 * (128 + 128) * 2
LFM2: Final = "LiquidAI/LFM2-1.2B"
GRANITE: Final = "ibm-granite/granite-4.0-h-micro"
GRANITE_BLOCK: Final = 16 * -(-(3 * (64 * 64 + 2 * 128) * 2 + 64 * 64 * 128 * 2) // (16 * 8 * (64 + 64) * 2))
QWEN: Final = "Qwen/Qwen3-Next-80B-A3B-Instruct"
QWEN_STATE: Final = 3 * 8192 * 2 + 32 * 128 * 128 * 2
QWEN_ROW: Final = 2 * (256 + 256) * 2
KIMI: Final = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
KIMI_STATE: Final = 3 * (3 * 32 * 128) * 2 + 32 * 128 * 128 * 4
K3_STATE: Final = 3 * (3 * 96 * 128) * 2 + 96 * 128 * 128 * 4
QWEN35: Final = "Qwen/Qwen3.5-122B-A10B"
QWEN35_STATE: Final = 3 * (2 * 16 * 128 + 64 * 128) * 2 + 64 * 128 * 128 * 4

QWEN_IN_FP32: Final = 3 * 8192 * 2 + 32 * 128 * 128 * 4
QWEN_SHARED: Final = (3 * 8192 * 2 + 32 * 128 * 128 * 2) // 4
"""A state on one of four ranks. Each has one of the two key/value heads."""
K2: Final = "moonshotai/Kimi-K2-Instruct-0905"
MIMO: Final = "XiaomiMiMo/MiMo-V2-Flash"

CACHED: Final[dict[str, Any]] = {"options": {"enable_prefix_caching": "true"}}
DRAFTED: Final[dict[str, Any]] = {"options": {"enable_prefix_caching": "true", "speculative": "ngram:5"}}
EIGHT: Final[dict[str, Any]] = {"tp": 8}


THREE_MODULES: Final[dict[str, Any]] = {"options": {"speculative": "mtp:3", "max_num_batched_tokens": "2048"}}


def blocks_of_groups(context: VllmOccupancy, _: PoolInfo) -> set[int]:
    """The blocks of a request, as many numbers as groups have."""
    return {group.blocks_per_request for group in context.groups}


def stretched(state: int, row: int, step: int = 16) -> int:
    """Tokens in a block that holds a state."""
    return step * -(-state // (step * row))


QWEN_DRAFTED: Final = stretched(QWEN_STATE + 5 * 8192 * 2, QWEN_ROW)
K3_BLOCK: Final = stretched(K3_STATE, LATENT * 2, 128)

JAMBA_ALIGNED: Final = stretched(JAMBA_STATE, JAMBA_ROW), {2 + 5}
"""The running state, the one at the last boundary, and five of drafted tokens."""

LAYER_CASES: Final[tuple[Case, ...]] = (
    # A row of 1,152 bytes is padded to 1,280.
    case(
        "latent_row_alignment",
        "0.8",
        V3,
        lambda _, pool: pool.bytes_per_token,
        (61 * -(-LATENT * 2 // 256) * 256, 61 * LATENT * 2),
        **EIGHT,
    ),
    case("latent_fp8", "0.10.2", V3, block_bytes, (Refused("no fp8 cache for latent"), 61 * 64 * LATENT), dtype="fp8", **EIGHT),
    # 64 heads on eight ranks, with keys and values of 128 + 64; then latents in blocks of 64.
    case("kimi_k2_latents", "0.10", K2, block_bytes, (61 * 16 * 8 * (192 + 192) * 2, 61 * 64 * LATENT * 2), **EIGHT),
    case("latent_block", "0.8", LITE, block_size, (16, 64)),
    case("latent_block", "0.18", LITE, block_size, (64, 16)),
    case("latent_block_forced", "0.8", LITE, block_size, (128, 64), options={"block_size": "128"}),
    case("latent_block_forced", "0.11.1", LITE, block_size, (64, 128), options={"block_size": "128"}),
    case("latent_block_forced", "0.18", LITE, block_size, (64, 32), options={"block_size": "32"}),
    # The kernels of SM100: Triton's, CUTLASS_MLA's, those of FLASHINFER_MLA, and its least one.
    *(
        case("latent_block_sm10x", since, LITE, block_size, answers, gpu=card("B200"))
        for since, answers in (("0.10.1", (16, 128)), ("0.15", (128, 64)), ("0.18", (64, 32)))
    ),
    case("sparse_block_forced", "0.18", V32, block_size, (64, 128), options={"block_size": "128"}, **EIGHT),
    case("sparse_auto", "0.11.1", V32, block_bytes, (61 * 64 * (DS_MLA + INDEX), 61 * 64 * (LATENT * 2 + INDEX)), **EIGHT),
    case(
        "sparse_fp8",
        "0.18",
        V32,
        block_bytes,
        (61 * 64 * (DS_MLA + INDEX), 61 * 64 * (LATENT + INDEX)),
        dtype="fp8",
        gpu=card("B200"),
        **EIGHT,
    ),
    # FlashInfer's heads of 512 are those of Gemma 4's full layers; in 0.21 its widest ones are 256, and it alone keeps nvfp4.
    case(
        "flashinfer_heads",
        "0.22",
        "google/gemma-4-E4B-it",
        fits,
        (Refused("has heads of 64, 128, 256"), True),
        dtype="nvfp4",
        gpu=card("B200"),
    ),
    case(
        "text_alone_one_way",
        "0.27",
        "google/gemma-3-12b-it",
        fits,
        (Refused("images in both directions"), True),
        dtype="nvfp4",
        gpu=card("B200"),
        options={"language_model_only": "true"},
    ),
    # Below 8.9 only FlashInfer has fp8, without sinks. Before 0.24 Triton is chosen, and checks nothing at the start.
    case("triton_fp8_checked", "0.24", "openai/gpt-oss-20b", fits, (True, Refused("sinks")), dtype="fp8", gpu=card("A100")),
    case(
        "glm_sparse_fp8",
        "0.32",
        "zai-org/GLM-5",
        block_bytes,
        (78 * 64 * (LATENT * 2 + INDEX), 78 * 64 * (LATENT + INDEX)),
        gpu=card("B200"),
        **EIGHT,
    ),
    # 39 windowed layers and 9 full ones in groups of 9. The windowed page is the larger one: 8 heads, with values of 192, then of 128.
    case(
        "value_width",
        "0.20",
        MIMO,
        block_bytes,
        (9 * 16 * 8 * (192 + 192) * 2, 9 * 16 * 8 * (192 + 128) * 2),
    ),
    case(
        "mimo_v2_dtype",
        "0.32",
        MIMO,
        block_bytes,
        (9 * 16 * 8 * (192 + 128) * 2, 9 * 16 * 8 * (192 + 128)),
        dtype="fp8",
    ),
    # 32 windowed layers with 4 heads of 128.
    *(
        case(
            "window_block_fixed",
            since,
            "bigcode/starcoder2-7b",
            block_bytes,
            (32 * before * 4 * (128 + 128) * 2, 32 * after * 4 * (128 + 128) * 2),
            options={"block_size": "64"},
        )
        for since, before, after in (("0.25", 64, 16), ("0.30", 16, 64))
    ),
    # Only V0 ran hybrids before.
    case("hybrid_by_hand", "0.9.2", NEMOTRON, block_size, (Refused("older engine"), Refused("without CUDA graphs"))),
    case(
        "hybrid_by_hand",
        "0.10",
        NEMOTRON,
        block_size,
        (Refused("without CUDA graphs"), stretched((NEMOTRON_CONV + NEMOTRON_SSM) * 2, NEMOTRON_ROW * 2)),
    ),
    # In an fp8 cache a state has one byte a number; then two.
    case(
        "states_follow_cache",
        "0.10.1",
        NEMOTRON,
        block_size,
        (stretched(NEMOTRON_CONV + NEMOTRON_SSM, NEMOTRON_ROW), stretched((NEMOTRON_CONV + NEMOTRON_SSM) * 2, NEMOTRON_ROW)),
        dtype="fp8",
    ),
    # The config names float32, which 0.12 does not read. Then a config that names nothing.
    case(
        "nemotron_states",
        "0.13",
        NEMOTRON_NAMED,
        block_size,
        (
            stretched((NEMOTRON_CONV + NEMOTRON_SSM) * 2, NEMOTRON_ROW * 2),
            stretched(NEMOTRON_CONV * 2 + NEMOTRON_SSM * 4, NEMOTRON_ROW * 2),
        ),
    ),
    case(
        "nemotron_states",
        "0.20",
        NEMOTRON,
        block_size,
        (
            stretched((NEMOTRON_CONV + NEMOTRON_SSM) * 2, NEMOTRON_ROW * 2),
            stretched(NEMOTRON_CONV * 2 + NEMOTRON_SSM * 4, NEMOTRON_ROW * 2),
        ),
    ),
    # Qwen3.5's config names float32.
    case("config_states", "0.17", QWEN35, block_size, (Refused(">= 0.17.0"), stretched(QWEN35_STATE, QWEN_ROW))),
    # What the user names holds.
    case(
        "gated_delta_dtype",
        "0.17",
        QWEN,
        block_size,
        (stretched(QWEN_STATE, QWEN_ROW), stretched(QWEN_IN_FP32, QWEN_ROW)),
        options={"mamba_ssm_cache_dtype": "float32"},
    ),
    # A head of 256 on SM100. One head on each of four ranks: 268 tokens hold a state.
    *(
        case(
            "wide_head_step",
            since,
            QWEN,
            block_size,
            (stretched(QWEN_SHARED, QWEN_ROW // 2, before), stretched(QWEN_SHARED, QWEN_ROW // 2, after)),
            gpu=card("B200"),
            tp=4,
        )
        for since, before, after in (("0.11.1", 16, 32), ("0.18", 32, 16))
    ),
    # 0.11.2 has one state for the whole length; then, where the user names a block, one for each.
    case(
        "attention_free_block",
        "0.12",
        "state-spaces/mamba-130m-hf",
        blocks,
        ([1], [8192 // 64]),
        options={"enable_prefix_caching": "true", "block_size": "64"},
    ),
    # Running state only; then the one at the last boundary too.
    case("hybrid_caching", "0.28", LFM2, state_blocks, ((16, {1}), (16, {2}))),
    # Nothing; then a state for each block, which has a multiple of 2,048 tokens; at last the running state and that of the last boundary.
    case(
        "state_caching",
        "0.11.1",
        JAMBA,
        state_blocks,
        ((stretched(JAMBA_STATE, JAMBA_ROW), {1}), (2048, {8192 // 2048})),
        **CACHED,
    ),
    case("state_caching", "0.15", LFM2, state_blocks, ((16, {1}), (16, {2})), **CACHED),
    case(
        "state_caching",
        "0.28",
        JAMBA,
        state_blocks,
        ((2048, {8192 // 2048}), (stretched(JAMBA_STATE, JAMBA_ROW), {2})),
        **CACHED,
    ),
    # Drafted tokens: refused; then, with a state for each block, no block of their own; then the last states only; then five blocks more.
    case(
        "hybrid_speculation", "0.10.2", QWEN, block_size, (Refused(">= 0.10.2"), QWEN_DRAFTED), options={"speculative": "ngram:5"}
    ),
    case(
        "hybrid_speculation",
        "0.17",
        JAMBA,
        state_blocks,
        (Refused("does not draft tokens"), (2048, {8192 // 2048})),
        **DRAFTED,
    ),
    case("speculated_all", "0.20", JAMBA, state_blocks, ((2048, {8192 // 2048}), JAMBA_ALIGNED), **DRAFTED),
    case("speculated_all", "0.22", JAMBA, state_blocks, (JAMBA_ALIGNED, (2048, {8192 // 2048 + 5})), **DRAFTED),
    # Five drafted tokens make the convolution five columns longer in any release, and take five blocks of a state more.
    case(
        "inkling_depths",
        "0.28",
        "thinkingmachines/Inkling",
        blocks_of_groups,
        # Blocks of 32 of full layers; windows of 512 in blocks of 16, convolutions of four tokens in blocks of 4, with two batches of 2,048.
        (
            Refused("drafts one token"),
            {8192 // 32, -(-(511 + 2 + 2 * 2048) // 16) + 1, -(-(3 + 2 + 2 * 2048) // 4) + 1},
        ),
        **THREE_MODULES,
    ),
    case(
        "retains_for_modules",
        "0.28",
        {**load_model("stepfun-ai/Step-3.7-Flash").config, "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5"},
        blocks_of_groups,
        ({8192 // 16, -(-(511 + 2 * 2048) // 16) + 1}, {8192 // 16, -(-(511 + 2 + 2 * 2048) // 16) + 1}),
        **THREE_MODULES,
    ),
    case(
        "keeps_latent_windows_whole",
        "0.31",
        "deepseek-ai/DeepSeek-V4-Flash",
        fits,
        (True, Refused("without its hybrid KV cache manager")),
        options={"disable_hybrid_kv_cache_manager": "true"},
    ),
    case(
        "speculated_states",
        "0.15",
        QWEN,
        state_blocks,
        ((QWEN_DRAFTED, {1}), (QWEN_DRAFTED, {1 + 5})),
        options={"speculative": "ngram:5"},
    ),
    case(
        "hybrid_step",
        "0.20",
        JAMBA,
        block_size,
        (stretched(JAMBA_STATE, JAMBA_ROW, 16), stretched(JAMBA_STATE, JAMBA_ROW, 32)),
        options={"block_size": "32"},
    ),
    *(
        case("latent_hybrid_step", since, KIMI, block_size, answers)
        for since, answers in (
            ("0.11.1", (Refused(">= 0.11.1"), stretched(KIMI_STATE, LATENT * 2, 64))),
            ("0.20", (stretched(KIMI_STATE, LATENT * 2, 64), stretched(KIMI_STATE, LATENT * 2, 16))),
            ("0.27", (stretched(KIMI_STATE, LATENT * 2, 16), stretched(KIMI_STATE, LATENT * 2, 128))),
        )
    ),
    # A checkpoint is a third state.
    case("mamba2_checkpoint", "0.32", GRANITE, state_blocks, ((GRANITE_BLOCK, {2}), (GRANITE_BLOCK, {3}))),
    case(
        "gated_delta_checkpoint",
        "0.33",
        QWEN,
        state_blocks,
        ((stretched(QWEN_STATE, QWEN_ROW, 16), {2}), (stretched(QWEN_STATE, QWEN_ROW, 64), {3})),
    ),
    case(
        "kimi_k3_checkpoint",
        "0.29",
        "moonshotai/Kimi-K3",
        state_blocks,
        ((K3_BLOCK, {2}), (K3_BLOCK, {3})),
    ),
    # 4 requests of 1,024 tokens are fewer than 8,192.
    case("batch_within_lengths", "0.11.1", GRANITE, batched_tokens, (8192, 4 * 1024), seq=1024, options={"max_num_seqs": "4"}),
    # The 1,500 states of Whisper's encoder; then a batch.
    case(
        "whole_encoder",
        "0.11",
        rows()["whisper-large-v3"]["config"],
        blocks,
        ([448 // 16, -(-1500 // 16)], [448 // 16, 8192 // 16]),
        seq=448,
    ),
    # 1 GiB is 819 blocks of 4 pages, fewer than the 1,024 requests of the default.
    case(
        "states_checked",
        "0.20",
        JAMBA,
        lambda _, pool: [each.flag for each in pool.requires],
        ([], [f"--max-num-seqs {GIB // (4 * 80 * JAMBA_ROW)}"]),
        budget=GIB,
    ),
    # Its config names 262,144 positions, and YaRN from 4,096 by 32.
    case(
        "multiplies_yarn",
        "0.30",
        "moonshotai/Kimi-K2-Thinking",
        lambda plan, _: list(plan.reported().environment),
        (["VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"], []),
        seq=4096 * 32 + 1,
    ),
)

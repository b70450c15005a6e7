"""The rules of vLLM's pool, one case or more for each release in which a rule changed: groups, check and log.

A page is tokens in a block x key/value heads x (width of a key + width of a value) x 2 bytes; a block has a page of each layer of a group.
"""

from __future__ import annotations

from typing import Any, Final

from hwcalc.units import GIB, MIB
from tests.hwcalc.engines.vllm_cases import (
    HEADS_BY_LAYER,
    Case,
    Refused,
    block_bytes,
    blocks,
    case,
    counts,
    fits,
    mixed,
    needed,
    pages,
    profiled,
    small,
    tokens,
    told,
)

LLAMA: Final = "meta-llama/Llama-3.1-8B"
LLAMA_PAGE: Final = 16 * 8 * (128 + 128) * 2
"""32 layers have such a page."""
LLAMA_BLOCK: Final = 32 * LLAMA_PAGE
LLAMA_BLOCKS: Final = 8 * GIB // LLAMA_BLOCK
LONG: Final[dict[str, Any]] = {"seq": 131_072}
"""Two times as many tokens as 8 GiB hold for Llama-3.1-8B."""

GPT: Final = "openai/gpt-oss-20b"
GPT_PAGE: Final = 16 * 8 * (64 + 64) * 2
"""12 layers with a window of 128 and 12 full ones have such a page."""
GPT_WINDOW: Final = -(-(127 + 8192) // 16) + 1
"""Blocks of a window with one batch in flight."""
GPT_FULL: Final = 131_072 // 16

GEMMA: Final = "google/gemma-3-1b-it"
GEMMA_PAGE: Final = 16 * 1 * (256 + 256) * 2
"""22 windowed layers and 4 full ones, in the pattern of five windowed and one full."""
MIXED_PAGE: Final = 16 * 4 * (128 + 128) * 2

SCOUT: Final = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
SCOUT_PAGE: Final = 16 * 8 * (128 + 128) * 2
"""36 layers with chunks of 8,192 and 12 full ones."""

V4: Final = "deepseek-ai/DeepSeek-V4-Flash"
V4_LATENT: Final = -(-64 * 584 // 576) * 576
"""64 entries of 584 bytes, as a multiple of 576: the window of 43 layers, and the entries of the 21 layers that compress four tokens."""
V4_INDEX: Final = -(-64 * (128 + 4) // 576) * 576
"""64 keys with a scale: those 21 layers."""
V4_FAR: Final = -(-2 * 584 // 576) * 576
"""2 entries: the 20 layers that compress 128 tokens."""

QWEN2: Final = "Qwen/Qwen2.5-7B"
QWEN2_PAGE: Final = 16 * 4 * (128 + 128) * 2
"""28 layers: 9, 10 and 9 on three stages."""
MAMBA: Final = "state-spaces/mamba-130m-hf"
MAMBA_BLOCK: Final = 24 * (3 * 1536 + 1536 * 16) * 2
"""24 layers with a convolution of three columns and a recurrence of 16 for each of 1,536 channels."""
LAYERED_PAGE: Final = 16 * (128 + 128) * 2
"""A page of one of the key/value heads of :data:`HEADS_BY_LAYER`."""
MISTRAL: Final = "mistralai/Mistral-7B-v0.1"
EXPERTS: Final = "Qwen/Qwen3-30B-A3B"
EXPERTS_SAMPLED: Final = 2 * 2048 * (8192 + 2 * 1024) + 1024 * 151_936 * 38
"""The hidden states of a batch and twice 1,024 rows of them, and 38 bytes for each logit of those rows."""

TUPLES: Final = {"options": {"speculative": "eagle:small:1"}}

POOL_CASES: Final[tuple[Case, ...]] = (
    # V1 keeps one block as the null block.
    case(
        "engine", "0.8", LLAMA, lambda _, pool: pool.max_requests, (LLAMA_BLOCKS // 256, (LLAMA_BLOCKS - 1) // 256), seq=256 * 16
    ),
    # 32 layers on 3 stages: 10, 10, 12; then 11, 11, 10.
    case("stage_remainder", "0.8", LLAMA, block_bytes, ((32 // 3 + 32 % 3) * LLAMA_PAGE, (32 // 3 + 1) * LLAMA_PAGE), pp=3),
    # 16 ranks hold one head each, and two of them share the tokens of a request.
    case(
        "dcp",
        "0.10.2",
        LLAMA,
        tokens,
        (Refused("no decode context parallelism"), 8 * GIB // (LLAMA_BLOCK // 8) * 16 * 2),
        tp=16,
        dcp=2,
    ),
    # Of 28 layers the second of three stages has ten, the first nine: 0.11.0 logs the blocks of the first.
    case("logs_own_blocks", "0.11.1", QWEN2, tokens, (8 * GIB // (9 * QWEN2_PAGE) * 16, 8 * GIB // (10 * QWEN2_PAGE) * 16), pp=3),
    # The log counts 16 tokens in a block; then those that a block of states has, which is the whole length.
    case("logged_block", "0.11", MAMBA, tokens, (8 * GIB // MAMBA_BLOCK * 16, 8 * GIB // MAMBA_BLOCK * 8192)),
    # The tokens of one of two groups; then as many as all requests of that length have.
    case(
        "logged_tokens",
        "0.20.1",
        GPT,
        tokens,
        (
            8 * GIB // (12 * GPT_PAGE) // 2 * 16,
            int(8 * GIB // (12 * GPT_PAGE) / (GPT_WINDOW + GPT_FULL) * 131_072),
        ),
        **LONG,
    ),
    # 10,001 tokens are 625.06 blocks; a request takes 626.
    case("concurrency", "0.9.1", LLAMA, lambda _, pool: pool.max_concurrency, (4096 * 16 / 10_001, 4096 / 626), seq=10_001),
    # V0 compares tokens. V1 compares bytes, and says so.
    case(
        "check",
        "0.8",
        LLAMA,
        told("^([^,.]*)"),
        (
            f"The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache ({4096 * 16})",
            "To serve at least one request with the models's max seq len (131072)",
        ),
        **LONG,
    ),
    # 1 MiB is less than a block.
    case("check", "0.8", LLAMA, told("^(No available memory|To serve)"), ("No available memory", "To serve"), budget=MIB),
    # Each layer's own need; then the blocks of the first group only, which is the windowed one.
    case("check", "0.14", GPT, needed, (12 * GPT_PAGE * (GPT_WINDOW + GPT_FULL), 12 * GPT_PAGE * GPT_WINDOW), **LONG),
    # The whole model on one rank; then each stage's half.
    case("check", "0.17", LLAMA, needed, (32 * LLAMA_PAGE * 512, 16 * LLAMA_PAGE * 512), pp=2),
    # The blocks of all groups.
    case("check", "0.19", GPT, needed, (12 * GPT_PAGE * GPT_WINDOW, 12 * GPT_PAGE * (GPT_WINDOW + GPT_FULL)), **LONG),
    case("null_block_reserved", "0.29", LLAMA, lambda _, pool: pool.max_seq, (4096 * 16, (4096 - 1) * 16), **LONG),
    # 1,000 blocks are 16,000 tokens. V0 compares them with 16,384; V1 compares the budget, which holds 65,536, and since 0.20.1 the blocks.
    case("override_checked", "0.8", LLAMA, fits, (False, True), seq=16_384, options={"num_gpu_blocks_override": "1000"}),
    case("override_checked", "0.20.1", LLAMA, fits, (True, False), seq=16_384, options={"num_gpu_blocks_override": "1000"}),
    # Without the sentence; then its beginning alone; then all of it. 8 GiB hold 65,536 tokens.
    case("estimate", "0.8.4", LLAMA, told("(Based on the .*)"), (None, "Based on the available memory, "), **LONG),
    case(
        "estimate",
        "0.9.1",
        LLAMA,
        told("(Based on the .*)"),
        ("Based on the available memory, ", "Based on the available memory, the estimated maximum model length is 65536."),
        **LONG,
    ),
    case("gib_unit", "0.8.3", LLAMA, told(r"\(([\d.]+ Gi?B) KV cache is needed"), ("16.00 GB", "16.00 GiB"), **LONG),
    case("gib_digits", "0.14", LLAMA, told(r"\(([\d.]+ GiB) KV cache is needed"), ("16.00 GiB", "16.0 GiB"), **LONG),
    # Where nothing fits, there is no sentence, but its space stays up to 0.13.
    case("gib_digits", "0.14", LLAMA, told(r"memory \(0.0+ GiB\)\.(.*)$"), (" ", ""), budget=MIB),
    case("possessive", "0.22", LLAMA, told(r"with the (\S+) max"), ("models's", "model's"), **LONG),
    # All 26 layers are full; then groups of 4, the number of full layers.
    case("groups_layers", "0.9.1", GEMMA, block_bytes, (26 * GEMMA_PAGE, 4 * GEMMA_PAGE)),
    # 26 layers that alternate: a stage has 7 of one kind and 6 of the other, in groups of 6; then its 7 of the model's group of 13.
    # 6 of one kind are less than 1.25 x 5, and 5 less than 1.5 x 4, but not less than 1.25 x 4.
    case("group_ratio", "0.12", mixed("sfsfsfsfsfs"), block_bytes, (5 * MIXED_PAGE, 6 * MIXED_PAGE)),
    case("group_ratio", "0.18", mixed("sfsfsfsfs"), block_bytes, (4 * MIXED_PAGE, 5 * MIXED_PAGE)),
    # 22 windowed layers by fours, which leaves 2; then every sixth layer.
    case("strided_groups", "0.11", GEMMA, counts, ([4, 4, 4, 4, 4, 2, 4], [4, 4, 4, 4, 3, 3, 4])),
    # Layers with 4, 2, 2 and 1 heads. On two stages each pays for all nine; then the first pays for its six, and the second for three.
    case("sums_page_sizes", "0.11", HEADS_BY_LAYER, block_bytes, (Refused("to one size"), (4 + 2 + 2 + 1) * LAYERED_PAGE)),
    case(
        "cuts_mixed_group",
        "0.17",
        HEADS_BY_LAYER,
        block_bytes,
        ((4 + 2 + 2 + 1) * LAYERED_PAGE, (4 + 2) * LAYERED_PAGE),
        pp=2,
    ),
    # The draft's page has 4 heads of Llama's 8: its blocks get 32 tokens. With 3 heads it is padded.
    case(
        "pages_grow",
        "0.12",
        LLAMA,
        lambda context, _: [group.block_size for group in context.groups],
        (Refused("to one size"), [16] * 16 + [32]),
        option_draft=small(4, window=1024),
        **TUPLES,
    ),
    case(
        "pads_attention",
        "0.24",
        LLAMA,
        pages,
        (Refused("to one size"), [LLAMA_PAGE] * 17),
        option_draft=small(3, window=1024),
        **TUPLES,
    ),
    # LFM2 has 5 groups of two states and 3 of two attention layers beside a draft with a larger page.
    case(
        "pads_states",
        "0.26",
        "LiquidAI/LFM2-1.2B",
        pages,
        (Refused("to one size"), [LLAMA_PAGE] * (5 + 3 + 1)),
        option_draft=small(8),
        **TUPLES,
    ),
    # A draft's page of 65,536 bytes, windowed, and a latent page of 18,432, which cannot be padded: all is kept whole, in one group.
    case(
        "promotes_latents",
        "0.27",
        "deepseek-ai/DeepSeek-V3",
        block_bytes,
        (Refused("to one size"), 61 * 16 * 576 * 2 + 2 * LLAMA_PAGE),
        option_draft=small(8, window=1024),
        **TUPLES,
    ),
    # Without the hybrid manager, blocks of 64: those of windowed layers stay at 16 tokens in 0.25 and 0.26, and the layers cannot be one kind.
    case(
        "promoted_block",
        "0.27",
        GEMMA,
        block_bytes,
        (Refused("do not become one kind"), 26 * 4 * GEMMA_PAGE),
        options={"block_size": "64", "disable_hybrid_kv_cache_manager": "true"},
    ),
    # 32 layers, whole; then a window of 4,096 and one batch.
    case(
        "windows",
        "0.8.3",
        MISTRAL,
        needed,
        (32 * LLAMA_PAGE * 2048, 32 * LLAMA_PAGE * (-(-(4095 + 8192) // 16) + 1)),
        seq=32_768,
    ),
    # Full in every respect; then groups of 12, checked as chunks of 8,192 + one batch; then whole; and groups again.
    case(
        "chunks",
        "0.10",
        SCOUT,
        needed,
        (48 * SCOUT_PAGE * 2048, (12 * 2048 + 36 * (8192 + 8192) // 16) * SCOUT_PAGE),
        seq=32_768,
    ),
    case("chunks", "0.10", SCOUT, counts, ([48], [12, 12, 12, 12]), seq=32_768),
    case("chunks", "0.10.1", SCOUT, counts, ([12, 12, 12, 12], [48]), seq=32_768),
    case("chunks", "0.14", SCOUT, counts, ([48], [12, 12, 12, 12]), seq=32_768),
    # Stages of 22 and 21 layers have at most 11 layers of a kind in a group.
    case(
        "compressed_pp",
        "0.21",
        V4,
        block_bytes,
        (Refused("no pipeline stages"), 11 * (V4_LATENT + V4_INDEX + V4_FAR)),
        dtype="fp8",
        pp=2,
    ),
    case(
        "compressed_auto",
        "0.30",
        V4,
        block_bytes,
        (Refused("only where fp8 is named"), 21 * V4_LATENT + 21 * V4_INDEX + 20 * V4_FAR),
    ),
    # 43 windows are groups of 22 and 21. Tuples of one page of each size; slots by size; at last the pages of the widest group.
    case(
        "packed",
        "0.23",
        V4,
        block_bytes,
        (22 * (V4_LATENT + V4_INDEX + V4_FAR), 22 * V4_LATENT + 21 * V4_INDEX + 20 * V4_FAR),
        dtype="fp8",
    ),
    case(
        "packed",
        "0.27",
        V4,
        block_bytes,
        (22 * V4_LATENT + 21 * V4_INDEX + 20 * V4_FAR, 21 * V4_LATENT + 21 * V4_INDEX + 20 * V4_FAR),
        dtype="fp8",
    ),
    # A window of 4,096 with one batch of 8,192 and with two.
    case(
        "batches",
        "0.26",
        MISTRAL,
        blocks,
        ([-(-(4095 + 8192) // 16) + 1], [-(-(4095 + 2 * 8192) // 16) + 1]),
        seq=32_768,
    ),
    # A mixture of experts on two stages: one batch a stage; then one more.
    case(
        "batches",
        "0.29",
        GPT,
        blocks,
        ([-(-(127 + 2 * 8192) // 16) + 1, GPT_FULL], [-(-(127 + 3 * 8192) // 16) + 1, GPT_FULL]),
        pp=2,
        **LONG,
    ),
    # Sampling takes more than a pass with its buffers, which then stay: 2,048 numbers in and 2,048 out, for eight experts of each token.
    case(
        "expert_buffers_kept",
        "0.13",
        EXPERTS,
        profiled,
        (EXPERTS_SAMPLED, EXPERTS_SAMPLED + 2 * 8192 * 8 * (max(768, 2048) + max(2 * 768, 2048))),
    ),
)

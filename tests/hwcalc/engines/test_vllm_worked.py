"""Worked cases of vLLM that often surprise people, with their arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.sources import resolve
from tests.hwcalc.engines.vllm_rows import card, groups, opened, pool, row_opened, rows

GIB = 1024**3
SIXTY = 60 * GIB


def golden(name: str) -> Occupancy:
    """A row's own config, where the catalog lacks the model."""
    return row_opened(rows()[name])


def test_the_null_block_costs_sixteen_tokens() -> None:
    """Llama-3.1-8B: a block is 32 layers x 16 tokens x 8 heads x (128 + 128) x 2 bytes; 8 GiB are 4,096, one of them the null."""
    made = pool("meta-llama/Llama-3.1-8B", 8 * GIB, seq=131_072)
    assert made.bytes_per_block == 32 * 16 * 8 * (128 + 128) * 2 == 2_097_152
    assert made.blocks == 8 * GIB // 2_097_152 == 4096
    assert made.max_seq == (4096 - 1) * 16 == 65_520
    assert not made.fits
    assert made.needed_bytes == 131_072 // 16 * 2_097_152 == 16 * GIB
    assert made.message == (
        "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (8.0 GiB). Based on the available memory, the estimated maximum model length is 65520."
    )


def test_a_request_of_the_estimated_length_starts_and_one_token_more_does_not() -> None:
    """The estimate is close: 65,520 tokens fill 4,095 blocks, 65,521 need the null block too."""
    assert pool("meta-llama/Llama-3.1-8B", 8 * GIB, seq=65_520).fits
    assert not pool("meta-llama/Llama-3.1-8B", 8 * GIB, seq=65_521).fits


def test_no_memory_at_all() -> None:
    """A budget of one block is the null block alone."""
    made = pool("meta-llama/Llama-3.1-8B", 2_097_152, seq=8192)
    assert (made.fits, made.message, made.max_seq) == (False, "No available memory for the cache blocks.", 0)


def test_weights_larger_than_the_gpu_are_no_matter_of_the_cache() -> None:
    """61 GiB of weights never get to the pool of a GPU with 24; 15.3 GiB on one with 16 are loaded, and leave nothing of its share of 92 %."""
    large, small = (
        plan(model, engine="vllm", gpu=gpu) for model, gpu in (("Qwen/Qwen3-32B", "rtx-4090"), ("Qwen/Qwen3-8B", "rtx-4080"))
    )

    assert large.reason == "loading the weights runs out of memory: 61.02 GiB for a GPU with 23.52 GiB"
    assert small.reason == "vLLM says: No available memory for the cache blocks."


@pytest.mark.parametrize(
    ("options", "blocks", "tokens"),
    [
        # ceil(min(4,095 + 2 x 8,192, 32,768) / 16) + 1 = ceil(20,479 / 16) + 1
        ({}, 1281, 785_818),
        # ceil((4,095 + 2 x 2,048) / 16) + 1
        ({"max_num_batched_tokens": "2048"}, 513, 1_962_247),
        # ceil((4,095 + 2,048) / 16) + 1: one batch in flight
        ({"max_num_batched_tokens": "2048", "async_scheduling": "false"}, 385, 2_614_631),
    ],
)
def test_a_window_holds_the_batches_in_flight(options: dict[str, str], blocks: int, tokens: int) -> None:
    """Mistral-7B-v0.1, window 4,096, 60 GiB = 30,720 blocks of 2 MiB; the log's tokens are 30,720 / blocks x 32,768."""
    made = pool("mistralai/Mistral-7B-v0.1", seq=32_768, options=options)
    assert made.blocks == SIXTY // 2_097_152 == 30_720
    assert made.blocks_per_request == blocks
    assert made.tokens == tokens == int(30_720 / blocks * 32_768)


def test_gemma_pays_for_groups_twice_the_plain_sum() -> None:
    """Gemma-3-27B: 52 windowed layers and 10 full ones make groups of 9, 9, 9, 9, 8, 8 and 10.

    A page is 16 tokens x 16 heads x 256 x 2 bytes = 131,072; every block is ten pages wide, whoever holds it.
    """
    made, parts = pool("google/gemma-3-27b-it", seq=131_072), groups("google/gemma-3-27b-it", seq=131_072)
    assert [group.count for group in parts] == [9, 9, 9, 9, 8, 8, 10]
    assert made.bytes_per_block == 10 * 131_072 == 1_310_720
    windowed = -(-(1023 + 2 * 8192) // 16) + 1
    assert [group.blocks_per_request for group in parts] == [windowed] * 6 + [131_072 // 16]
    assert made.blocks_per_request == 6 * 1089 + 8192 == 14_726
    plain = 10 * 131_072 * 8192 + 52 * 131_072 * (1024 // 16)
    assert made.needed_bytes == 14_726 * 1_310_720
    assert 1.6 < made.needed_bytes / plain < 2


def test_qwen3_next_on_hopper_and_on_ampere() -> None:
    """A state is 3 x 8,192 x 2 + 32 x 128 x 128 x 2 = 1,097,728 bytes; a token of attention 2 x 512 x 2 = 2,048.

    H100: FlashInfer's kernels want multiples of lcm(16, 64) = 64 tokens: 64 x ceil(1,097,728 / 131,072) = 64 x 9; a checkpoint makes
    three states. A100: 16 x ceil(1,097,728 / 32,768) = 16 x 34, two states.
    """
    model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    hopper, ampere = card("H100"), card("A100")
    off = {"enable_prefix_caching": "false"}
    assert pool(model, seq=262_144, gpu=hopper).block_size == 576
    assert pool(model, seq=262_144, gpu=ampere).block_size == 544
    assert [group.blocks_per_request for group in groups(model, seq=262_144, gpu=hopper)] == [3, 3, 3, -(-262_144 // 576)]
    assert [group.blocks_per_request for group in groups(model, seq=262_144, gpu=ampere)] == [2, 2, 2, -(-262_144 // 544)]
    assert pool(model, seq=262_144, gpu=hopper, options=off).block_size == 544
    assert [group.blocks_per_request for group in groups(model, seq=262_144, gpu=hopper, options=off)][:3] == [1, 1, 1]


def test_jamba_stretches_blocks_to_eighty_tokens() -> None:
    """3 x 8,192 x 2 + 8,192 x 16 x 2 = 311,296 bytes of state, 8 x 256 x 2 = 4,096 a token: 16 x ceil(311,296 / 65,536) = 80."""
    assert pool("ai21labs/Jamba-v0.1", seq=262_144).block_size == 80
    parts = groups("ai21labs/Jamba-v0.1", seq=262_144)
    assert {group.page_bytes for group in parts} == {80 * 4096}
    assert [group.blocks_per_request for group in parts if group.kind == "state"] == [2] * 7


def test_lfm2_stretches_states_four_times() -> None:
    """2 x 2,048 x 2 = 8,192 bytes of state in an attention page of 16 x 8 x 128 x 2 = 32,768."""
    assert pool("LiquidAI/LFM2-1.2B", seq=128_000).block_size == 16
    assert {group.page_bytes for group in groups("LiquidAI/LFM2-1.2B", seq=128_000)} == {32_768}
    assert 32_768 == 4 * (2 * 2048 * 2)


def test_a_latent_is_kept_whole_on_every_rank() -> None:
    """DeepSeek-V3: 61 x 16 x 576 x 2 bytes on one GPU and on each of eight; dcp 8 spreads the tokens."""
    one = pool("deepseek-ai/DeepSeek-V3", seq=163_840)
    eight = pool("deepseek-ai/DeepSeek-V3", seq=163_840, tp=8)
    spread = pool("deepseek-ai/DeepSeek-V3", seq=163_840, tp=8, dcp=8)
    assert one.bytes_per_block == eight.bytes_per_block == 61 * 16 * 576 * 2 == 1_124_352
    assert one.tokens == eight.tokens == 57_299 * 16 == 916_784
    assert spread.tokens == 8 * 916_784 == 7_334_272


def test_sparse_latents_in_fp8() -> None:
    """DeepSeek-V3.2 on Hopper: 512 + 4 x 4 + 64 x 2 = 656 bytes a token, indexer 128 + 4; on Blackwell plain fp8, 576."""
    hopper = pool("deepseek-ai/DeepSeek-V3.2", seq=163_840, dtype="fp8", tp=8)
    blackwell = pool("deepseek-ai/DeepSeek-V3.2", seq=163_840, dtype="fp8", tp=8, gpu=card("B200"))
    assert hopper.bytes_per_block == 61 * 64 * (656 + 132)
    assert blackwell.bytes_per_block == 61 * 64 * (576 + 132)


def test_glm_has_an_indexer_in_21_of_78_layers() -> None:
    """GLM-5.2: 64 tokens x (78 x 576 x 2 + 21 x 132) bytes."""
    made = pool("zai-org/GLM-5.2", seq=131_072, tp=8)
    assert made.bytes_per_block == 64 * (78 * 576 * 2 + 21 * 132) == 5_928_192
    assert [(group.kind, group.count) for group in groups("zai-org/GLM-5.2", seq=131_072, tp=8)] == [("mla", 99)]


def test_falcon_does_not_hear_of_fp8() -> None:
    """Falcon-7B: 32 layers x 16 x 1 head x 128 x 2 bytes, with --dtype fp8 as without."""
    made = opened("tiiuae/falcon-7b", seq=2048, dtype="fp8")
    assert "dtype-ignored" in {note.code for note in made.notes}
    assert pool("tiiuae/falcon-7b", seq=2048, dtype="fp8").bytes_per_block == 32 * 16 * 128 * 2
    assert pool("tiiuae/falcon-7b", seq=2048).bytes_per_block == 32 * 16 * 128 * 2


def test_minicpm3_spells_its_latent_out() -> None:
    """MiniCPM3-4B: 62 layers x 16 tokens x 40 heads x (96 + 96) x 2 bytes, and no latent."""
    made = golden("minicpm3-4b_mla").pool(SIXTY).value
    assert made is not None
    assert made.bytes_per_block == 62 * 16 * 40 * (96 + 96) * 2 == 62 * 245_760


def test_whisper_reserves_a_whole_batch_for_its_encoder() -> None:
    """8,192 encoder slots = 512 blocks, though its encoder makes 1,500 states; 448 tokens of text are 28."""
    parts = golden("whisper-large-v3").groups
    assert [(group.kind, group.blocks_per_request) for group in parts] == [("full", 448 // 16), ("cross", 8192 // 16)]


def test_heads_are_repeated_beyond_their_number() -> None:
    """Llama-3.1-8B has 8 key/value heads: tp 16 keeps one on each rank, as tp 8 does."""
    eight = pool("meta-llama/Llama-3.1-8B", seq=8192, tp=8)
    sixteen = pool("meta-llama/Llama-3.1-8B", seq=8192, tp=16)
    assert eight.bytes_per_block == sixteen.bytes_per_block == 2_097_152 // 8


def test_an_override_decides_the_check_too() -> None:
    """1,000 blocks of 16 tokens, one of them the null block: 999 x 16 = 15,984 tokens at most, whatever the memory."""
    made = pool("meta-llama/Llama-3.1-8B", seq=16_000, options={"num_gpu_blocks_override": "1000"})
    assert (made.blocks, made.max_seq, made.fits) == (1000, 15_984, False)


def test_a_draft_layer_shares_the_pool() -> None:
    """DeepSeek-V3 with its one predicting layer: 62 layers in a block instead of 61."""
    made = pool("deepseek-ai/DeepSeek-V3", seq=8192, options={"speculative": "mtp:1"})
    assert made.bytes_per_block == 62 * 16 * 576 * 2


def test_the_layers_of_a_dflash_drafter_share_the_pool() -> None:
    """Five windowed layers of Qwen3-8B's own shape join its 36: they form a group of their own, of five layers.

    36 layers are more than 1.5 x 5, so that groups have five layers, and a block five pages of 16 x 8 x (128 + 128) x 2 bytes. A window of
    2,048 needs ceil((2,047 + 2 x 8,192) / 16) + 1 blocks.
    """
    drafter = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "intermediate_size": 12_288,
        "layer_types": ["sliding_attention"] * 5,
        "use_sliding_window": True,
        "sliding_window": 2048,
        "torch_dtype": "bfloat16",
    }
    made = opened(
        "Qwen/Qwen3-8B", seq=32_768, options={"speculative": "dflash:drafter:15"}, option_draft=load_model(drafter)
    ).groups
    page = 16 * 8 * (128 + 128) * 2
    windowed = [group for group in made if group.kind == "sliding"]
    assert [(group.count, group.block_bytes, group.blocks_per_request) for group in windowed] == [(5, 5 * page, 1153)]
    assert [group.count for group in made if group.kind == "full"] == [5, 5, 5, 5, 4, 4, 4, 4]


def test_speculation_keeps_a_state_for_each_drafted_token() -> None:
    """Qwen3-Next with 5 drafted tokens: 2 + 1 + 5 states, each of a convolution 5 columns longer."""
    first = groups("Qwen/Qwen3-Next-80B-A3B-Instruct", seq=8192, options={"speculative": "ngram:5"})[0]
    assert first.blocks_per_request == 8
    assert (first.page_bytes or 0) >= (3 + 5) * 8192 * 2 + 32 * 128 * 128 * 2


@pytest.mark.parametrize(
    ("dtype", "row"),
    [("auto", 512), ("fp8", 256), ("int8_per_token_head", 264), ("int4_per_token_head", 136), ("fp8_per_token_head", 264)],
)
def test_scales_per_token_and_head_lie_in_the_cache(dtype: str, row: int) -> None:
    """Two fp32 beside each head's 128 + 128 elements; per-tensor fp8 has its scale with the weights."""
    made = pool("meta-llama/Llama-3.1-8B", seq=8192, dtype=dtype)
    assert made.bytes_per_block == 32 * 16 * 8 * row


def test_turboquant_leaves_the_outer_layers_alone() -> None:
    """k8v4: 128 + (64 + 4) = 196 bytes a head; two layers at each end stay at 512; blocks of 32 tokens."""
    made = pool("meta-llama/Llama-3.1-8B", seq=8192, dtype="turboquant_k8v4")
    assert made.block_size == 32
    assert made.bytes_per_block == 32 * 8 * (28 * 196 + 4 * 512)


def test_nvfp4_keeps_a_scale_for_sixteen_elements() -> None:
    """64 + 8 bytes for each of key and value; on datacenter Blackwell only until 0.32 (0.20 refuses it there too), then from Ampere on."""
    for gpu in ("B200", "H100"):
        made = pool("Qwen/Qwen3-32B", seq=8192, dtype="nvfp4", tp=2, gpu=card(gpu))
        assert made.bytes_per_block == 64 * 16 * 4 * 2 * (64 + 8)
    for gpu, version, dtype in (("H100", "0.31", "nvfp4"), ("B200", "0.20", "nvfp4"), ("H100", "0.33", "nvfp4_4over6")):
        with pytest.raises(UnsupportedError, match="nvfp4"):
            pool("Qwen/Qwen3-32B", seq=8192, dtype=dtype, gpu=card(gpu), version=version)


def test_the_checkpoints_own_scheme_decides_auto() -> None:
    """An NVFP4 checkpoint that quantizes its KV cache to fp8 turns auto into fp8; the user's word goes first."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 1000,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "kv_cache_scheme": None,
            "kv_cache_quant_algo": "FP8",
        },
    }
    assert pool(config, seq=4096).bytes_per_block == 2 * 16 * 8 * 256
    assert pool(config, seq=4096, dtype="bf16").bytes_per_block == 2 * 16 * 8 * 512


def test_models_that_left() -> None:
    """An error that says which version still has them."""
    with pytest.raises(UnsupportedError, match=r"needs vLLM <= 0\.23\.0") as caught:
        pool("MiniMaxAI/MiniMax-Text-01", seq=8192)
    assert caught.value.exit_code == 3
    assert "vllm@0.23" in caught.value.hint
    assert pool("MiniMaxAI/MiniMax-Text-01", seq=8192, version="0.23", tp=8).fits
    with pytest.raises(UnsupportedError, match="does not run GPTNeoForCausalLM"):
        pool("EleutherAI/gpt-neo-2.7B", seq=2048)
    with pytest.raises(UnsupportedError, match="does not run ZayaForCausalLM"):
        pool({"architectures": ["ZayaForCausalLM"], "model_type": "zaya"}, seq=2048)
    with pytest.raises(UnsupportedError, match="keeps the indexers of Qwen4ExpForCausalLM"):
        pool({"architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text"}, seq=2048)
    with pytest.raises(UnsupportedError, match="no rule for rwkv_matrix layers"):
        pool("RWKV/rwkv-5-world-3b", seq=8192)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"tp": 3}, UsageError, "attention heads"),
        ({"tp": 8, "dcp": 2}, UsageError, "key/value heads"),
        ({"pp": 33}, UsageError, "more than"),
        ({"dtype": "q8_0"}, UsageError, "kv-cache-dtype"),
        ({"dtype": "fp16"}, UsageError, "runs in, bf16: that is auto"),
        ({"dtype": "fp8_ds_mla"}, UnsupportedError, "indexer"),
        ({"version": "0.5"}, UsageError, "0.6 to 0.33"),
        ({"version": "latest"}, UsageError, "0.6 to 0.33"),
        ({"options": {"speculative": "magic"}}, UsageError, "speculative"),
        ({"options": {"speculative": "mtp:2"}}, UsageError, "multi-token"),
        ({"options": {"block_size": "24"}}, UsageError, "multiple of 16"),
        ({"options": {"max_num_seqs": "100", "max_num_batched_tokens": "50"}}, UsageError, "more than"),
    ],
)
def test_what_vllm_refuses(fields: dict[str, Any], error: type[Exception], says: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(error) as caught:
        pool("meta-llama/Llama-3.1-8B", seq=8192, **fields)
    assert says in f"{caught.value} {getattr(caught.value, 'hint', '')}"


def test_a_windowed_model_without_the_hybrid_manager() -> None:
    """GPT-OSS-20B: all 24 layers whole, one group of 24 x 16 x 8 x 128 x 2 bytes."""
    made = pool("openai/gpt-oss-20b", seq=131_072, options={"disable_hybrid_kv_cache_manager": "true"})
    assert made.bytes_per_block == 24 * 16 * 8 * 128 * 2
    assert made.blocks_per_request == 131_072 // 16
    with pytest.raises(UnsupportedError, match="hybrid"):
        pool("ai21labs/Jamba-v0.1", seq=8192, options={"disable_hybrid_kv_cache_manager": "true"})


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        ("deepseek-ai/DeepSeek-V3", {"dtype": "fp8", "gpu": "A100", "tp": 8}, "8.9 or more"),
        ("deepseek-ai/DeepSeek-V3.2", {"gpu": "A100", "tp": 8}, "compute capability 8.0"),
        ("openai/gpt-oss-20b", {"dtype": "turboquant_k8v4"}, "windowed"),
        ("deepseek-ai/DeepSeek-V3", {"dtype": "nvfp4", "gpu": "B200"}, "latent"),
        ("openai/gpt-oss-120b", {"dtype": "nvfp4", "gpu": "H100"}, "sinks"),
        ("meta-llama/Llama-3.2-1B", {"dtype": "nvfp4", "gpu": "H100"}, "heads of 64 on compute capability 9.0"),
        ("google/gemma-3-12b-it", {"dtype": "nvfp4", "gpu": "H100"}, "images in both directions"),
        ("google/gemma-3-12b-it", {"dtype": "nvfp4", "gpu": "B200"}, "images in both directions"),
        ("google/gemma-3-12b-it", {"dtype": "fp8", "gpu": "A100"}, "images in both directions"),
        ("openai/gpt-oss-20b", {"dtype": "fp8", "gpu": "A100"}, "sinks"),
        ("microsoft/Phi-3-mini-4k-instruct", {"dtype": "nvfp4", "gpu": "B200"}, "heads of 96"),
        ("microsoft/Phi-3-mini-4k-instruct", {"dtype": "fp8", "gpu": "A100"}, "heads of 96"),
        ("Qwen/Qwen3-8B", {"dtype": "nvfp4", "gpu": "H100", "options": {"block_size": "128"}}, "blocks of 128"),
        ("Qwen/Qwen3-8B", {"dtype": "nvfp4", "gpu": "H100", "tp": 16, "dcp": 2}, "decode context parallelism on compute"),
        ("Qwen/Qwen3-8B", {"dtype": "int8_per_token_head", "tp": 16, "dcp": 2}, "decode context"),
    ],
)
def test_no_backend_for_it(model: str, fields: dict[str, Any], says: str) -> None:
    """Refused as vLLM's choice of backends refuses it: ``validate_configuration`` and what the builders raise (0.33)."""
    if "gpu" in fields:
        fields = {**fields, "gpu": card(fields["gpu"])}
    with pytest.raises(UnsupportedError, match=says):
        pool(model, seq=4096, **fields)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("openai/gpt-oss-120b", {"dtype": "nvfp4", "gpu": "B200"}),
        ("openai/gpt-oss-20b", {"dtype": "fp8", "gpu": "H100"}),
        ("meta-llama/Llama-3.2-1B", {"dtype": "nvfp4", "gpu": "B200"}),
        ("google/gemma-3-12b-it", {"dtype": "nvfp4", "gpu": "H100", "options": {"language_model_only": "true"}}),
        ("google/gemma-3-12b-it", {"dtype": "int4_per_token_head", "gpu": "A100"}),
        ("google/gemma-3-12b-it", {"dtype": "fp8", "gpu": "H100"}),
        ("microsoft/Phi-3-mini-4k-instruct", {"dtype": "fp8", "gpu": "L4"}),
        ("Qwen/Qwen3-8B", {"dtype": "nvfp4", "gpu": "B200", "tp": 16, "dcp": 2}),
    ],
)
def test_a_backend_for_it(model: str, fields: dict[str, Any]) -> None:
    """The same models where the kernels of TensorRT-LLM (compute capability 10), Triton, or a server without images keep the format."""
    assert pool(model, seq=4096, **{**fields, "gpu": card(fields["gpu"])}).fits


@pytest.mark.parametrize(
    ("dtype", "before", "since"),
    [
        ("turboquant_k8v4", "0.19", "0.20"),
        ("int8_per_token_head", "0.19", "0.20"),
        ("int4_per_token_head", "0.24", "0.25"),
    ],
)
def test_a_kv_dtype_that_a_release_does_not_know(dtype: str, before: str, since: str) -> None:
    """CacheDType of config/cache.py lists the turboquant formats and the scales per token from 0.20 on, int4 from 0.25 on."""
    with pytest.raises(UnsupportedError, match=f"{before} does not know --kv-cache-dtype {dtype}"):
        pool("Qwen/Qwen3-8B", seq=8192, dtype=dtype, version=before)
    assert pool("Qwen/Qwen3-8B", seq=8192, dtype=dtype, version=since).fits


INKLING: Final = "thinkingmachines/Inkling"


def test_the_convolutions_of_a_layer_are_a_window_of_their_own() -> None:
    """Blocks of Inkling's kernel of 4 tokens: of 16 or 8 heads of 2 x 128 + 2 x 6,144 / heads numbers, up to a power of two.

    Of 1,024 x 16 and 2,048 x 8 numbers a page has 4 x 16,384 x 2 bytes, as one of attention with 16 heads and 16 tokens has. Full layers
    have 8 heads, and so 32 tokens. 55 windowed and 11 full layers of two caches each are in groups of 11.
    """
    page = 4 * 16 * 1024 * 2
    assert page == 4 * 8 * 2048 * 2 == 16 * 16 * (128 + 128) * 2 == 32 * 8 * (128 + 128) * 2
    windowed, convolved = -(-(511 + 2 * 8192) // 16) + 1, -(-(3 + 2 * 8192) // 4) + 1
    made = Counter((group.count, group.block_bytes, group.blocks_per_request) for group in groups(INKLING, seq=32_768))
    assert made == {(11, 11 * page, 1024): 1, (11, 11 * page, windowed): 5, (11, 11 * page, convolved): 6}


def test_layers_that_predict_have_the_attention_that_the_config_lists() -> None:
    """Of Inkling's eight as many are built as tokens are drafted; 0 and 2 of the first three have a window, and all have convolutions."""
    made = groups(INKLING, seq=32_768, options={"speculative": "mtp:3"})
    assert sum(group.count for group in made if group.kind == "full") == 11 + 1
    assert sum(group.count for group in made if group.kind == "sliding") == 66 + 55 + 2 * 2 + 1


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"options": {"disable_hybrid_kv_cache_manager": "true"}}, "without its hybrid KV cache manager"),
        ({"options": {"dtype": "float16"}}, "in bf16 alone"),
        ({"tp": 16}, "8 key/value heads over tp 16"),
        ({"options": {"speculative": "mtp:2"}, "version": "0.27"}, "drafts one token of InklingForConditionalGeneration, not 2"),
    ],
)
def test_what_convolutions_do_not_run_with(fields: dict[str, Any], match: str) -> None:
    """Two windows without the hybrid manager, fp16, and more ranks than key/value heads."""
    with pytest.raises(UnsupportedError, match=match):
        groups(INKLING, seq=32_768, **fields)


@pytest.mark.parametrize(
    ("architecture", "batches"),
    [
        ("Gemma2ForCausalLM", 2),
        ("Gemma2Model", 1),
        ("Gemma2ForSequenceClassification", 1),
        ("Gemma2ChatModel", 2),
    ],
)
def test_a_model_for_embeddings_schedules_no_batch_ahead(architecture: str, batches: int) -> None:
    """The end of the class's name says which models vLLM serves so (config/vllm.py); the user's flag counts more."""
    config = {**resolve("google/gemma-2-9b").config, "architectures": [architecture]}
    window = -(-(4095 + batches * 2048) // 16) + 1
    for options, blocks in (({}, window), ({"async_scheduling": "true"}, -(-(4095 + 2 * 2048) // 16) + 1)):
        made = groups(config, seq=8192, options={"max_num_batched_tokens": "2048", **options})
        assert {group.blocks_per_request for group in made if group.kind == "sliding"} == {blocks}


def test_a_draft_is_planned_with_its_model() -> None:
    """Its layers are in the pool beside the model's: 28 of 8 heads of 128, keys and values, on top of 36 alike, at 2 bytes."""
    pools = [plan("Qwen/Qwen3-8B", seq=8192, engine="vllm", gpu="h100", draft=draft).pool for draft in (None, "Qwen/Qwen3-0.6B")]

    assert [pool is not None and pool.bytes_per_token for pool in pools] == [(36 + more) * 2 * 8 * 128 * 2 for more in (0, 28)]

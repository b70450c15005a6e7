"""TensorRT-LLM: lines of public logs, cases worked by hand from its sources, and what it refuses."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.tensorrt_llm.engine import TensorrtOccupancy
from hwcalc.engines.tensorrt_llm.memory import KEPT_FREE
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.planner.context import open_request
from hwcalc.units import GIB

ENGINE: Final = "tensorrt-llm"
LLAMA: Final = "meta-llama/Llama-3.1-8B"
GEMMA: Final = "google/gemma-3-27b-it"
FLASH: Final = "deepseek-ai/DeepSeek-V4-Flash"
SPARSE: Final = "deepseek-ai/DeepSeek-V3.2"
NEXT: Final = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def opened(model: str, options: dict[str, str] | None = None, **wanted: Any) -> TensorrtOccupancy:
    """A request to the engine."""
    wanted = {"seq": 8192, **wanted}
    occupancy = open_request(load_model(model), engine=ENGINE, engine_options=options or {}, **wanted)
    assert isinstance(occupancy, TensorrtOccupancy)
    return occupancy


@pytest.mark.parametrize(
    ("model", "wanted", "block", "gib", "tokens", "row"),
    [
        # Dynamo's README; a 5090 with 17.83 GiB available; a share of 0.45 of 16.25 GiB; one of 0.25 of 8.73 GiB.
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", {}, 64, "26.91", 220_480, 131_072),
        (LLAMA, {"dtype": "fp8"}, 32, "16.05", 263_008, 65_536),
        ("Qwen/Qwen2.5-1.5B-Instruct", {}, 32, "7.31", 273_792, 28_672),
        ("Qwen/Qwen2.5-0.5B-Instruct", {}, 32, "2.18", 190_656, 12_288),
        ("Qwen/Qwen3-8B", {"dtype": "fp8"}, 32, "0.56", 8_224, 73_728),
    ],
)
def test_lines_of_public_logs(model: str, wanted: dict[str, str], block: int, gib: str, tokens: int, row: int) -> None:
    """``Allocated 26.91 GiB for max tokens in paged KV cache (220480)``: both figures of the line within their digits."""
    options = {"manager": "v1", "tokens_per_block": str(block)}
    made = opened(model, options, **wanted).pool(tokens * row).value
    assert made is not None
    assert (made.tokens, made.bytes_per_token, made.block_size) == (tokens, row, block)
    assert f"{tokens * row / GIB:.2f}" == gib
    digits = float(gib)
    low, high = (opened(model, options, **wanted).pool(int(size * GIB)).value for size in (digits - 0.005, digits + 0.005))
    assert low is not None
    assert high is not None
    assert (low.tokens or 0) <= tokens <= (high.tokens or 0)


def test_the_share_of_the_log() -> None:
    """17.83 GiB available x 0.9 = 16.05 GiB, which hold 8,219 blocks or a few less by the rounding of the log."""
    made = opened(LLAMA, {"manager": "v1"}, dtype="fp8").pool(int(17.83 * GIB * 0.9)).value
    assert made is not None
    assert made.blocks is not None
    assert abs(made.blocks - 8_219) <= 0.005 * GIB / (65_536 * 32) + 1


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_one_window_is_the_same_in_both_managers(manager: str) -> None:
    """Without windows the affine cost has no fixed part."""
    made = opened(LLAMA, {"manager": manager}).pool(20 * GIB).value
    assert made is not None
    assert made.tokens == 163_840


def test_sparse_latents() -> None:
    """61 x (1,152 + 132), 61 x (576 + 132) and 61 x (656 + 132) bytes for each token, whole on every rank, in blocks of 64."""
    for dtype, row in (("auto", 78_324), ("fp8", 43_188), ("fp8_ds_mla", 48_068)):
        made = opened(SPARSE, dtype=dtype, tp=8).pool(10 * GIB).value
        assert made is not None
        assert (made.bytes_per_token, made.block_size, made.blocks) == (row, 64, 10 * GIB // row // 64)
    four = opened(SPARSE, {"indexer_k_dtype": "fp4"}).pool(GIB).value
    assert four is not None
    assert four.bytes_per_token == 61 * (1152 + 68)


def test_compressed_latents() -> None:
    """DeepSeek-V4-Flash in fp8: 21 x 161 + 20 x 4 bytes a token, and 40,828,928 for each of ``max_batch_size`` requests."""
    made = opened(FLASH, {"max_batch_size": "8"}, dtype="fp8")
    (stage,), (storage,) = made.layout.stages, made.needs.storages
    assert stage.growing == 3_461
    assert made.layout.window_bytes(stage) == 43 * 128 * 512 + 21 * 128 * 10_240 + 20 * 128 * 4_096 == 40_828_928
    # One layer of each kind while prompts are read: 512, 2 x 4,096 + 2 x 1,024 and 2 x 2,048.
    assert stage.reading(scratch=True) == 512 + 10_240 + 4_096
    # 640 pages of 32 MiB by what a prompt of 8,192 tokens and seven such sequences take: 12 slots in 4 + 2 pages (the 63 old blocks of the
    # prompt lie in 4 shared ones), 512 in 6 + 2 + 1, and 11 in 8 + 2: 154, 230 and 256 pages, and one block straddled per sequence.
    assert storage.slots(20 * GIB) == [387, 17_359, 310]
    pool = made.pool(20 * GIB).value
    assert pool is not None
    assert (pool.tokens, pool.swa_tokens, pool.max_requests) == (17_359 * 128, 310 * 128, 8)


def test_equal_shares_of_windows() -> None:
    """V1 with two windows: half of 20 GiB holds 131,072 tokens of 10 full layers, and 25,184 of 52 windowed ones."""
    pattern = "1024,1024,1024,1024,1024,8192"
    made = opened(GEMMA, {"manager": "v1", "max_attention_window": pattern}, batch=2)
    pool = made.pool(20 * GIB).value
    assert pool is not None
    assert (pool.tokens, pool.swa_tokens, pool.blocks) == (131_072, 25_184, 787)
    # A request has 256 blocks of 2,621,440 bytes, and 33 of 13,631,488: 671 MB and 450 MB.
    assert made.needed_bytes == 2 * max(2 * 256 * 2_621_440, 2 * 33 * 13_631_488)
    assert made.stored_bytes == made.needed_bytes


def test_windows_that_nobody_asked_for() -> None:
    """V1 keeps windowed layers whole; V2 derives their windows, for Gemma 3 by itself and for Mistral not."""
    whole = opened(GEMMA, {"manager": "v1"})
    assert whole.needed_bytes == 8_192 * 62 * 8_192
    assert "window-not-honoured" in {note.code for note in whole.notes}
    assert "window-not-honoured" not in {note.code for note in opened(GEMMA).notes}
    mistral = opened("mistralai/Mistral-7B-v0.1")
    assert mistral.needed_bytes == 8_192 * 131_072
    assert "window-not-honoured" in {note.code for note in mistral.notes}


def test_fixed_shares_of_windows() -> None:
    """V2 divides 640 pages of 32 MiB as 2,049 tokens would: 65 blocks of 10 full layers in 6 pages, 33 of 52 windowed ones in 14."""
    made = opened(GEMMA, {"max_batch_size": "8"})
    (storage,), pool = made.needs.storages, made.pool(20 * GIB).value
    assert storage.slots(20 * GIB) == [448 * 2**25 // 13_631_488, 192 * 2**25 // 2_621_440] == [1_102, 2_457]
    assert pool is not None
    assert (pool.tokens, pool.blocks, pool.swa_tokens) == (78_624, 2_457, 35_264)
    # A prompt of 8,192 tokens has 256 blocks in both pools while it is read; another sequence 33 in that of windows.
    assert (made.needs.demand(storage), made.needs.demand(storage, reading=False)) == ((256, 256), (33, 256))
    two = opened(GEMMA, {"max_batch_size": "8"}, batch=2)
    assert two.needs.demand(two.needs.storages[0]) == (289, 512)
    # A usual length of 32,768 tokens in a batch of 2: 256 + 1,024 blocks in 100 pages, 256 + 32 in 117. What must start fits at least.
    long = opened(GEMMA, {"max_batch_size": "2", "avg_seq_len": "32768"}, seq=32_768)
    assert long.needs.storages[0].floor == [256, 1_025]
    assert long.needs.storages[0].slots(20 * GIB) == [345 * 2**25 // 13_631_488, 295 * 2**25 // 2_621_440]


def test_layers_that_share_a_pool() -> None:
    """gpt-oss: windowed and full layers have slots of the same size, so that no memory is kept apart."""
    made = opened("openai/gpt-oss-20b")
    (storage,), pool = made.needs.storages, made.pool(20 * GIB).value
    assert storage.slots(20 * GIB) == [20 * GIB // (12 * 2 * 8 * 64 * 2 * 32)] == [27_306]
    assert pool is not None
    # One sequence of n blocks has 4 more for its window of 128 tokens.
    assert (pool.tokens, pool.swa_tokens) == ((27_306 - 4) * 32, None)


def test_pages_of_the_driver() -> None:
    """A quota is rounded up: to 2 MiB below 2 GiB, to 32 MiB from 16 GiB on."""
    (storage,) = opened(LLAMA).needs.storages
    assert storage.slots(GIB - 2**21 + 1) == [256]
    assert storage.slots(GIB - 2**21) == [255]
    assert storage.slots(16 * GIB + 1) == [4_104]
    (four,) = opened("Qwen/Qwen3-8B", {"manager": "v2"}, dtype="nvfp4").needs.storages
    # Numbers and their scales lie in pools of their own, of 1,179,648 and 147,456 bytes a block: 455 and 57 pages of 2 MiB.
    assert four.slots(GIB) == [808]


def test_the_rank_with_least_decides() -> None:
    """Two stages of 31 and 30 layers get quotas for the same tokens; the second leaves memory free."""
    made = opened("deepseek-ai/DeepSeek-V3", {"manager": "v2"}, pp=2)
    first, second = made.layout.quotas(31 * GIB)
    assert abs(first - 31 * GIB) <= 1
    assert abs(second - 30 * GIB) <= 1
    pool = made.pool(31 * GIB).value
    assert pool is not None
    assert pool.tokens == 31 * GIB // (31 * 1_152 * 64) * 64
    assert made.needed_bytes == -(-8_192 * 31 * 1_152 // 2**21) * 2**21


def test_states_of_every_request() -> None:
    """Qwen3-Next: 36 x (8,192 x 3 x 2 + 32 x 128 x 128 x 2) bytes for each of 8 requests and one of padded graphs, at least."""
    made = opened(NEXT, {"max_batch_size": "8"})
    (storage,), (stage,), pool = made.needs.storages, made.layout.stages, made.pool(20 * GIB).value
    assert stage.state == 36 * (8_192 * 3 * 2 + 32 * 128 * 128 * 2)
    # 9 states in 11 + 1 pages and 8 x 4,096 tokens in 24: a third of 640 pages for states, 203 + 10; the others hold 18,218 blocks.
    assert storage.floor == [9, 1]
    assert storage.slots(20 * GIB) == [180, 427 * 2**25 // 786_432]
    assert pool is not None
    assert (pool.state_slots, pool.tokens) == (180, 18_218 * 32)
    # 2,048 requests and one more need 38.7 GiB before any token.
    every = opened(NEXT, tp=2).pool(20 * GIB).value
    assert every is not None
    assert (every.tokens, every.fits, every.message) == (0, False, "Impossible to fit in any sequence in kvCache")
    wide = opened(NEXT, {"mamba_ssm_cache_dtype": "float32"}).layout.stages[0]
    assert wide.state == stage.state + 36 * 32 * 128 * 128 * 2


def test_ranks() -> None:
    """With more ranks than heads each has one; a latent is whole on all; left-over layers go to the first stages."""
    (stage,) = opened(LLAMA, tp=16).layout.stages
    assert stage.growing == 32 * 2 * 128 * 2
    first, second = opened("deepseek-ai/DeepSeek-V3", pp=2).layout.stages
    assert (first.growing, second.growing) == (31 * 1_152, 30 * 1_152)
    both = opened("deepseek-ai/DeepSeek-V3", {"enable_attention_dp": "true"}, tp=8, batch=12)
    alone = opened("deepseek-ai/DeepSeek-V3", tp=8, batch=12)
    assert (both.needed_bytes, alone.needed_bytes) == (2 * 8_192 * 70_272, 12 * 8_192 * 70_272)


@pytest.mark.parametrize(("dtype", "row"), [("auto", 147_456), ("fp8", 73_728), ("nvfp4", 41_472)])
def test_formats(dtype: str, row: int) -> None:
    """Half a byte and a scale for 16 numbers: 0.5625 bytes; fp8 has no scales."""
    pool = opened("Qwen/Qwen3-8B", dtype=dtype).pool(GIB).value
    assert pool is not None
    assert pool.bytes_per_token == row


def test_beams_fork() -> None:
    """100 tokens of prompt and 28 of each of 4 beams: 3 blocks once, and one for each beam (calculateMaxBlockRequirements)."""
    made = opened(LLAMA, {"enable_block_reuse": "false"}, seq=128, prompt=100, beams=4)
    assert made.needs.blocks == {None: 7}
    assert made.settings.v2 is False


def test_a_host_cache_is_no_room() -> None:
    """It keeps blocks of finished requests; the pool on the GPU stays as it is."""
    with_host, without = opened(LLAMA, {"host_cache_size": "8GiB"}), opened(LLAMA)
    assert with_host.pool(GIB).value == without.pool(GIB).value
    assert "host-memory" in {note.code for note in with_host.notes}


def test_the_share_of_what_is_left() -> None:
    """The cache gets ``int(left x fraction)`` of what all other parts leave of the GPU."""
    for fraction in ("0.9", "0.45"):
        budget = opened(LLAMA, {"free_gpu_memory_fraction": fraction}, gpu="h100").budget
        assert budget is not None
        left = budget.total_bytes - sum(part.expected for part in budget.parts if part.name != KEPT_FREE)
        assert budget.expected == int(left * float(fraction))
        assert budget.low <= budget.expected <= budget.high
    assert opened(LLAMA, gpu="h100", memory_utilization=0.45).settings.fraction == 0.45


def test_max_tokens_and_max_batch_size() -> None:
    """Both limit what runs at once, whatever the memory. V2 makes the quota a twentieth larger, of which no sequence has more."""
    pool = opened(LLAMA, {"max_tokens": "100000", "manager": "v1"}).pool(60 * GIB).value
    assert pool is not None
    assert (pool.tokens, pool.max_requests) == (100_000, 12)
    larger = opened(LLAMA, {"max_tokens": "100000"}).pool(60 * GIB).value
    assert larger is not None
    # 100,000 x 131,072 / 0.95 bytes are 1,646 pages of 8 MiB, of two blocks each.
    assert (larger.tokens, larger.max_requests, larger.max_seq) == (2 * 1_646 * 32, 12, 100_000)
    few = opened(LLAMA, {"max_batch_size": "3"}).pool(60 * GIB).value
    assert few is not None
    assert few.max_requests == 3


def test_what_does_not_fit() -> None:
    """The managers cut the longest sequence; the words are theirs."""
    v1, v2 = (opened(LLAMA, {"manager": name}, seq=20_000).pool(GIB).value for name in ("v1", "v2"))
    assert v1 is not None
    assert v2 is not None
    assert v1.message == "Attention window size 20000 exceeds upper bound 8192 for available blocks. Reducing to 8192."
    assert "setting max_seq_len to 8192" in (v2.message or "")
    assert (v1.fits, v1.max_seq, v2.max_seq) == (False, 8_192, 8_192)


@pytest.mark.parametrize(
    ("model", "options", "wanted", "words"),
    [
        ("ai21labs/AI21-Jamba2-3B", {}, {}, "no model class"),
        ("ibm-granite/granite-4.0-h-micro", {}, {}, "AutoDeploy"),
        ("meta-llama/Llama-3.2-90B-Vision-Instruct", {}, {}, "no rule for"),
        ("google/gemma-4-E2B-it", {}, {}, "no rule for"),
        ("MiniMaxAI/MiniMax-M3", {}, {}, "rows are not known"),
        (LLAMA, {}, {"gpu": "mi300x"}, "NVIDIA"),
        (SPARSE, {}, {"tp": 8, "dcp": 2}, "context parallelism"),
        (LLAMA, {}, {"dtype": "int8"}, "kv_cache_config.dtype"),
        (LLAMA, {}, {"dtype": "fp8_ds_mla"}, "656"),
        (LLAMA, {"tokens_per_block": "48"}, {}, "power of two"),
        (LLAMA, {"max_attention_window": "512,8192"}, {}, "different windows"),
        (SPARSE, {}, {"dtype": "nvfp4"}, "nvfp4"),
        (SPARSE, {"tokens_per_block": "32"}, {"dtype": "fp8_ds_mla"}, "tokens_per_block=64"),
        (FLASH, {"tokens_per_block": "64"}, {}, "[128, 256]"),
        (FLASH, {}, {"gpu": "h200-sxm-141gb", "tp": 8}, "fp8_ds_mla"),
        (FLASH, {}, {"beams": 2, "prompt": 100}, "no beams"),
        (NEXT, {"manager": "v1"}, {}, "V2 manager"),
        (NEXT, {}, {"tp": 3}, "cannot split"),
    ],
)
def test_refusals(model: str, options: dict[str, str], wanted: dict[str, Any], words: str) -> None:
    """What the back end refuses, or what is not known of it, is told with a way out."""
    with pytest.raises(KvplanError, match=r".") as refused:
        opened(model, options, **wanted)
    assert words in str(refused.value)
    assert refused.value.hint


def test_the_command() -> None:
    """What has a flag is on the line; the rest stands in the file."""
    from hwcalc.report.emit import emitted

    plain = plan(LLAMA, seq=8192, dtype="fp8", tp=2, engine=ENGINE, engine_options={"max_batch_size": "64"})
    assert emitted(plain, ENGINE) == (
        "trtllm-serve meta-llama/Llama-3.1-8B --max_seq_len 8192 --tp_size 2 --kv_cache_dtype fp8 --max_batch_size 64"
    )
    options = {"tokens_per_block": "64", "enable_attention_dp": "true", "manager": "v1", "enable_block_reuse": "off"}
    text = emitted(
        plan("deepseek-ai/DeepSeek-V3", seq=8192, tp=8, engine=ENGINE, engine_options=options, kv_memory=2**30), ENGINE
    )
    assert text.splitlines() == [
        "# trtllm-serve deepseek-ai/DeepSeek-V3 --max_seq_len 8192 --tp_size 8 --config kvplan.yaml",
        "kv_cache_config:",
        "  max_gpu_total_bytes: 1073741824",
        "  tokens_per_block: 64",
        "  use_kv_cache_manager_v2: false",
        "  enable_block_reuse: false",
        "enable_attention_dp: true",
    ]
    with pytest.raises(UsageError, match="one replica"):
        emitted(plan(LLAMA, seq=8192, dp=2, engine=ENGINE), ENGINE)


def test_all_parts_are_the_whole() -> None:
    """On one GPU the tensors and what is beside them are the bytes that must be there, at every length and batch."""
    for model, options in (
        (LLAMA, {}),
        (GEMMA, {"max_batch_size": "8"}),
        (FLASH, {"max_batch_size": "8"}),
        (NEXT, {"max_batch_size": "8"}),
    ):
        for seq, batch in ((1, 1), (100, 3), (5_000, 8)):
            made = opened(model, options, seq=seq, batch=batch)
            assert made.stored_bytes == made.needed_bytes, (model, seq, batch)
            assert made.holds(made.needed_bytes)
            assert not made.holds(made.needed_bytes - 1)


def test_a_model_that_keeps_nothing() -> None:
    """An encoder has no pool, and needs none."""
    planned = plan(
        {"model_type": "bert", "architectures": ["Qwen3_5MoeForConditionalGeneration"]},
        seq=100,
        engine="tensorrt-llm",
        gpu="h100",
    )

    assert planned.cache.total_bytes == 0


def test_a_convolution_in_eight_bits_is_refused() -> None:
    """The columns of a convolution lie in the model's dtype, for which TensorRT-LLM has floats of 16 and 32 bits."""
    model = replace(load_model(NEXT), dtype="fp8")
    with pytest.raises(UnsupportedError, match="computes convolutions in fp32, fp16, bf16, and the config says fp8") as error:
        plan(model, engine=ENGINE, seq=1024)
    assert "torch_dtype" in error.value.hint

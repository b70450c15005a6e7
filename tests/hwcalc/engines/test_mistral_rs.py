"""mistral.rs: the worked cases of its pool, its caches without pages, its refusals, and its command line.

The expected numbers are worked out by hand from the source of 0.9.2 (commit 9e922623f24b), as each comment says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.mistral_rs.layers import MISTRAL_RS, Rotating, check_model
from hwcalc.engines.options import CommandInput
from hwcalc.engines.rank_weights import REFERENCE, rank_weight_bytes
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet
from hwcalc.planner.context import open_request
from hwcalc.reconcile.core import reconcile
from hwcalc.report.emit import emitted
from hwcalc.units import MIB
from tests.paths import TESTS

LLAMA = "meta-llama/Llama-3.1-8B"
QWEN = "Qwen/Qwen3.5-35B-A3B"
GEMMA = "google/gemma-3-27b-it"


def planned(model: str, seq: int = 4096, *, options: dict[str, str] | None = None, **asked: Any) -> Any:
    """A plan for mistral.rs."""
    return plan(model, seq=seq, engine="mistral-rs", engine_options=options or {}, **asked)


def pool_of(model: str, mb: int, **asked: Any) -> Any:
    """The pool of so many MB."""
    return planned(model, kv_memory=mb * MIB, **asked).pool


@pytest.mark.parametrize(
    ("gpu", "asked", "kept"),
    [
        (None, {}, "bf16"),
        ("l4", {}, "bf16"),
        ("a100-sxm4-80gb", {}, "bf16"),
        # Below compute capability 8.0 bf16 is skipped (mistralrs-core/src/utils/normal.rs, MIN_BF16_CC = 800).
        ("v100-sxm2-32gb", {}, "fp16"),
        ("t4", {}, "fp16"),
        ("v100-sxm2-32gb", {"dtype": "bf16"}, "bf16"),
    ],
)
def test_the_dtype_is_the_accelerators(gpu: str | None, asked: dict[str, Any], kept: str) -> None:
    """``auto`` is bf16 where the accelerator has it, else fp16, whatever the checkpoint has: this one is float32."""
    made = planned("TinyLlama/TinyLlama-1.1B-Chat-v0.4", gpu=gpu, **asked)
    assert made.request.kv_dtype == kept
    # 1,100,048,384 parameters of TinyLlama and 3 more tokens x 2,048, in and out, of 2 bytes.
    assert made.memory.weights.bytes == 2 * 1_100_060_672
    assert made.memory.per_gpu.weights in (None, 2 * 1_100_060_672)


@pytest.mark.parametrize(
    ("model", "mb", "asked", "blocks"),
    [
        # 32 layers x 2 x 8 x 128 = 65,536 elements: 40,000 x 2^20 / 2 / 32 / 65,536.
        (LLAMA, 40_000, {}, 10_000),
        (LLAMA, 40_000, {"dtype": "fp8"}, 20_000),
        (LLAMA, 40_000, {"options": {"pa_block_size": "16"}}, 20_000),
        # Half of the heads on each of two ranks, and one of eight on sixteen.
        (LLAMA, 40_000, {"tp": 2}, 20_000),
        (LLAMA, 40_000, {"tp": 16}, 80_000),
        # All layers count on each of two stages.
        (LLAMA, 40_000, {"pp": 2}, 10_000),
        # 61 x (512 + 64) = 35,136 elements on every rank: 40,000 x 2^20 // 2 // 32 // 35,136.
        ("deepseek-ai/DeepSeek-V3", 40_000, {}, 18_652),
        ("deepseek-ai/DeepSeek-V3", 40_000, {"tp": 8}, 18_652),
        # All 62 layers: 62 x 2 x 16 x 128 = 253,952 elements.
        (GEMMA, 40_000, {}, 2_580),
        # Ten of forty layers have attention: 10 x 2 x 2 x 256 = 10,240.
        (QWEN, 5_000, {}, 8_000),
    ],
)
def test_blocks_as_the_log_counts_them(model: str, mb: int, asked: dict[str, Any], blocks: int) -> None:
    """Whole MB, and whole divisions one after the other."""
    pool = pool_of(model, mb, **asked)

    size = int(asked.get("options", {}).get("pa_block_size", 32))
    assert (pool.blocks, pool.block_size, pool.tokens) == (blocks, size, blocks * size)
    assert pool.max_requests == (blocks - 1) // (4096 // size)


def test_a_part_of_a_mb_is_no_memory() -> None:
    """One byte below a MB is the MB below."""
    assert pool_of(LLAMA, 40_000).blocks - planned(LLAMA, kv_memory=40_000 * MIB - 1).pool.blocks == 1


def test_states_of_slots() -> None:
    """30 x (8,192 x 4 x 2 + 32 x 128 x 128 x 4) = 64,880,640 B for a slot; 9 at the start are 557 MiB, 33 are reserved for 32 sequences."""
    nine = planned(QWEN, options={"max_seqs": "8"})
    assert nine.cache.total_bytes - 4096 * 20_480 == 9 * 64_880_640
    assert round(9 * 64_880_640 / MIB) == 557

    assert planned(QWEN).cache.total_bytes - 4096 * 20_480 == 33 * 64_880_640
    assert pool_of(QWEN, 5_000).state_slots == 33
    # Without pages the slots double: 20 sequences have 36.
    grown = planned(QWEN, 512, batch=20, options={"paged_attn": "off"})
    assert grown.cache.total_bytes == 36 * 64_880_640 + 20 * 512 * 20_480


def test_hybrids_that_page_every_layer() -> None:
    """Qwen3-Next does not say which of its 48 layers have pages: 48 x 2 x 2 x 256 elements for each token."""
    pool = pool_of("Qwen/Qwen3-Next-80B-A3B-Instruct", 1_000)

    assert pool.bytes_per_token == 48 * 2 * 2 * 256 * 2
    opened = open_request(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), seq=512, engine="mistral-rs")
    (delta,) = [group.kind for group in opened.stack.groups if isinstance(group.kind, GatedDeltaNet)]
    assert [tensor.why for tensor in opened.kind_tensors[delta]] == ["state x 33 slots"] * 2 + ["unused pages"] * 2


def test_samples_have_pages_of_their_own() -> None:
    """Four sequences of 4,096 tokens, each alone: four times one."""
    assert planned(LLAMA, samples=4, prompt=1_000).memory.per_gpu.cache == 4 * planned(LLAMA).memory.per_gpu.cache


def test_context_and_memory_options() -> None:
    """A context of N tokens takes whole MB; what is more than the GPU has is refused in its own words."""
    asked = planned(LLAMA, kv_memory=40_000 * MIB, options={"pa_context_len": "8000"}).pool
    # 8,000 x 2 x 65,536 = 1,000 MB: 250 blocks.
    assert (asked.blocks, asked.tokens) == (250, 8_000)
    small = planned(LLAMA, kv_memory=100 * MIB, options={"pa_memory_mb": "200"}).pool
    assert not small.fits
    assert small.message == "PagedAttention KV cache requires 200 MB but only 100 MB is safely available after model loading."
    none = planned(LLAMA, kv_memory=MIB).pool
    assert none.message.startswith("Num GPU blocks is 0.")
    with pytest.raises(UsageError, match="cannot be used with"):
        planned(LLAMA, options={"pa_memory_mb": "10", "pa_context_len": "10"})
    assert planned(LLAMA, kv_memory=MIB * 900, options={"pa_gpu_mem": "800"}).pool.blocks == 200
    with pytest.raises(UsageError, match=r"Block size must be in \[8, 16, 32\], got 64"):
        planned(LLAMA, options={"pa_blk_size": "64"})


def test_the_share_of_the_gpu() -> None:
    """``total x 0.9 - used - reserved``; near the whole, 2 % or 512 MiB of what is available stay free."""
    budget = open_request(load_model("Qwen/Qwen3-8B"), seq=4096, engine="mistral-rs", gpu="h100-sxm5-80gb").budget
    assert budget is not None
    assert budget.requested_bytes == pytest.approx(0.9 * budget.total_bytes, abs=1)
    assert not any(part.name == "kept free" for part in budget.parts)
    whole = open_request(
        load_model("Qwen/Qwen3-8B"),
        seq=4096,
        engine="mistral-rs",
        gpu="h100-sxm5-80gb",
        engine_options={"pa_memory_fraction": "1"},
    ).budget
    assert whole is not None
    (kept,) = [part for part in whole.parts if part.name == "kept free"]
    assert kept.expected == pytest.approx(0.02 * (whole.expected + kept.expected), abs=2)


def test_without_pages() -> None:
    """Full layers grow by 512, windows up to 512 more than the window; latent attention is expanded."""
    off = {"paged_attn": "off"}
    assert planned(LLAMA, 513, options=off).cache.total_bytes == 1024 * 131_072
    # 10 full layers of 32,768 and 52 of 1,024 + 512 positions, 2 x 16 x 128 x 2 bytes each.
    assert planned(GEMMA, 32_768, options=off).cache.total_bytes == (10 * 32_768 + 52 * 1_536) * 8_192
    assert planned("deepseek-ai/DeepSeek-V3", 512, options=off).cache.total_bytes == 61 * 128 * (192 + 128) * 2 * 512
    assert planned(LLAMA, 513, options=off, kv_memory=MIB).pool is None


def appended(window: int, tokens: int) -> int:
    """Positions of a rotating cache after so many tokens one by one, as ``RotatingCache::append`` does it."""
    capacity, written, seen = min(512, window), 0, 0
    for _ in range(tokens):
        retained = min(seen, window)
        if written + 1 > capacity:
            kept = min(retained, window - 1)
            if capacity < window + 512:
                blocks = max(-(-(kept + 1) // 512), capacity // 512 + 1)
                capacity = min(blocks * 512, window + 512)
            written = kept
        written, seen = written + 1, seen + 1
    return capacity


@given(st.integers(2, 1500), st.integers(1, 3000))
def test_a_window_that_rotates(window: int, tokens: int) -> None:
    """The stairs are what the loop of the source comes to."""
    assert Rotating(window).positions(tokens) == appended(window, tokens)


def test_metal() -> None:
    """Off by default; forced on, the pool has the tokens of ``--max-seq-len``, which leave room for the null block."""
    gpu = "m3-ultra-512gb"
    assert planned(LLAMA, gpu=gpu).pool is None
    pool = planned(LLAMA, gpu=gpu, options={"paged_attn": "on"}, kv_memory=200_000 * MIB).pool
    # 4,096 + 2,048 tokens of 131,072 bytes are 768 MB.
    assert (pool.tokens, pool.max_requests) == (6_144, 1)


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        ("EleutherAI/gpt-neox-20b", {}, "-CausalLM model class `GPTNeoXForCausalLM`"),
        ("deepseek-ai/DeepSeek-V3", {"dtype": "fp8"}, "not supported for MLA"),
        (LLAMA, {"dtype": "fp8", "options": {"paged_attn": "off"}}, "in pages alone"),
        (LLAMA, {"dtype": "q8_0"}, "keeps its cache in the model's dtype or in f8e4m3"),
        (LLAMA, {"tp": 3}, "must be divisible by tensor parallel size"),
        (LLAMA, {"gpu": "mi300x"}, "does not run on AMD Instinct MI300X"),
        (LLAMA, {"beams": 2, "prompt": 100}, "no beam search"),
    ],
)
def test_refusals(model: str, asked: dict[str, Any], words: str) -> None:
    """In its own words where it has any, with a way on."""
    with pytest.raises(KvplanError, match=words) as refused:
        planned(model, **asked)
    assert refused.value.hint


def test_heads_that_are_not_divided() -> None:
    """gpt-oss has room for all eight heads on both ranks (models/gpt_oss.rs: num_kv_heads is not divided)."""
    one, two = (pool_of("openai/gpt-oss-20b", 1_000, tp=tp) for tp in (1, 2))
    assert one.blocks == two.blocks


def test_command_line() -> None:
    """The words of ``mistralrs serve``."""
    given = CommandInput(
        version=None, model=LLAMA, revision=None, seq=4096, batch=1, kv_dtype="fp8_e4m3", kv_dtype_named=True, parallel=ALONE,
        memory_utilization=None, kv_memory=2_000 * MIB, weights="q4_k_m", lora=None, draft=None,
        options={"max_seqs": "4", "pa_blk_size": "16"}, requires=(),
    )  # fmt: skip
    made = " ".join(find_engine("mistral.rs")[0].command.words(given))
    assert made == (
        f"mistralrs serve --model-id {LLAMA} --max-seq-len 4096 --max-batch-size 1 --pa-cache-type f8e4m3 --isq q4k --pa-memory-mb 2000 "
        "--max-seqs 4 --pa-block-size 16"
    )


def test_devices_in_the_command_line() -> None:
    """NCCL takes the GPUs that it sees; layers are mapped to GPUs one by one."""

    def words(**asked: Any) -> str:
        return emitted(planned(LLAMA, gpu="h100-sxm5-80gb", **asked), "mistral-rs")

    tail = f"mistralrs serve --model-id {LLAMA} --max-seq-len 4096 --max-batch-size 1"
    assert words() == tail
    assert words(tp=2) == f"env CUDA_VISIBLE_DEVICES=0,1 {tail}"
    assert words(pp=2, gpus=2) == f"env CUDA_VISIBLE_DEVICES=0,1 MISTRALRS_NO_NCCL=1 {tail} --device-layers '0:16;1:16'"
    # The flags for the size of the pool exclude each other.
    assert words(memory_utilization=0.8, kv_memory=8_000 * MIB) == f"{tail} --pa-memory-mb 8000"
    with pytest.raises(UnsupportedError, match="does not do both"):
        planned(LLAMA, tp=2, pp=2)


@pytest.mark.parametrize(
    ("asked", "predicted"),
    [
        # 32 heads x 1,024 x 1,024 scores of two bytes, and of 512 x 512 for four sequences.
        ({}, 64 * MIB),
        ({"batch": 4, "seq": 512}, 64 * MIB),
        # With several GPUs layers are not mapped automatically, and nothing is predicted.
        ({"tp": 2}, 0),
        ({"pp": 2, "gpus": 2}, 0),
    ],
)
def test_the_prediction_of_activations(asked: dict[str, Any], predicted: int) -> None:
    """As all loaders of text models make it (``mapped_max_act_size_elems``)."""
    request: dict[str, Any] = {"seq": 4096, "engine": "mistral-rs", "gpu": "h100-sxm5-80gb"} | asked
    budget = open_request(load_model(LLAMA), **request).budget
    assert budget is not None
    assert sum(part.expected for part in budget.parts if part.name == "activations") == predicted


def test_gemma_4_shares_caches() -> None:
    """42 layers, seven of them full: 2 x 2 x 512 elements each, and 2 x 2 x 256 in a windowed one; the last 18 read earlier caches."""
    model = "google/gemma-4-E4B-it"
    assert pool_of(model, 1_000).bytes_per_token == (7 * 2 * 2 * 512 + 35 * 2 * 2 * 256) * 2
    # Without pages the last windowed layer that others read keeps all tokens; 19 have the window and 512 more.
    off = planned(model, 8_192, options={"paged_attn": "off"})
    assert off.cache.total_bytes == (4 * 4_096 * 8_192 + 2_048 * 8_192 + 19 * 2_048 * 1_024)


def test_layers_with_states_are_whole_on_every_rank() -> None:
    """Qwen3-Next: a rank of two has all of 36 layers' in_proj and half of their out_proj (gdn/weights.rs)."""
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    whole = 36 * (12_288 + 64) * 2_048 * 2
    ideal, own = (rank_weight_bytes(model, Parallel(tp=2), rules=rules) for rules in (REFERENCE, MISTRAL_RS))
    assert ideal is not None
    assert own is not None
    # conv1d, dt_bias and A_log are whole, too.
    assert own[0] - ideal[0] == whole // 2 + 36 * (8_192 * 4 + 32 + 32) * 2 // 2


def test_other_layers_are_divided() -> None:
    """Llama 4's feed_forward is cut, LFM2's is not (models/lfm2.rs: linear_no_bias)."""
    llama, lfm = (load_model(name) for name in ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "LiquidAI/LFM2-1.2B"))
    two = Parallel(tp=2)
    assert rank_weight_bytes(llama, two, rules=MISTRAL_RS) == rank_weight_bytes(llama, two, rules=REFERENCE)
    (own,), (ideal,) = (rank_weight_bytes(lfm, two, rules=rules) or (0,) for rules in (MISTRAL_RS, REFERENCE))
    # Half of 16 layers' three matrices of 2,048 x 8,192, and of ten convolutions: 2,048 x (6,144 + 2,048 + 3).
    assert own - ideal == 16 * 3 * 2_048 * 8_192 + 10 * 2_048 * (6_144 + 2_048 + 3)


def test_a_head_width_that_it_does_not_read() -> None:
    """A Llama with head_dim 128 of hidden width 3,072 and 32 heads would be built with 96."""
    model = load_model(LLAMA)
    odd = replace(model, hidden_size=3_072)
    with pytest.raises(UnsupportedError, match="hidden_size / num_attention_heads"):
        check_model(odd)


@pytest.mark.parametrize(("log", "model"), [("llama-3.1-8b", LLAMA), ("qwen3.5-35b-a3b", QWEN)])
def test_logs(log: str, model: str) -> None:
    """The figures of the log are those of the plan, to the block."""
    found = reconcile(model, TESTS / "logs" / "mistral-rs" / f"{log}.log")

    assert {row.name for row in found.rows} >= {"blocks", "tokens", "predicted MB" if model == LLAMA else "state slots"}
    assert all(row.within and row.difference == 0 for row in found.rows)


def test_the_tokens_of_a_newer_log(tmp_path: Path) -> None:
    """Releases after 0.9.2 print the tokens of all blocks but the null block."""
    text = (TESTS / "logs" / "mistral-rs" / "llama-3.1-8b.log").read_text(encoding="utf-8")
    log = tmp_path / "newer.log"
    log.write_text(text.replace("320000 tokens", "319968 tokens"), encoding="utf-8")
    assert all(row.within and row.difference == 0 for row in reconcile(LLAMA, log).rows)


def test_the_weights_that_it_makes() -> None:
    """``--isq`` makes some formats of the published weights; others must be published."""
    with pytest.raises(UnsupportedError, match="does not make awq weights"):
        planned(LLAMA, weights="awq")

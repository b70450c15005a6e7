"""TGI: the worked cases of its pool, its blocks by back end, its refusals, and its command line.

The expected numbers are worked out by hand from the source of 3.3.6-dev0 (commit db931fcf42da), as each comment says.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.options import CommandInput
from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError
from hwcalc.planner.context import open_request
from hwcalc.reconcile.core import reconcile
from hwcalc.units import GIB
from tests.paths import TESTS

LLAMA = "meta-llama/Llama-3.1-8B"
FP8_CACHE: dict[str, Any] = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}


def planned(model: str, seq: int = 4096, *, options: dict[str, str] | None = None, **asked: Any) -> Any:
    """A plan for TGI."""
    return plan(model, seq=seq, engine="tgi", engine_options=options or {}, **asked)


def settings(model: str, **asked: Any) -> Any:
    """What the options and the GPU come to."""
    opened: Any = open_request(load_model(model), seq=512, engine="tgi", **asked)
    return opened.deployment.settings


@pytest.mark.parametrize(
    ("model", "token_bytes", "asked"),
    [
        # 2 x 32 layers x 8 heads x 128 x 2 bytes, and one byte in fp8.
        (LLAMA, 131_072, {}),
        (LLAMA, 65_536, {"dtype": "fp8"}),
        (LLAMA, 65_536, {"dtype": "fp8_e5m2", "options": {"attention": "paged"}}),
        (LLAMA, 16_384, {"tp": 8}),
        # 2 x 61 x 128 heads x max(128 + 64, 128) x 2: 85 times the latent.
        ("deepseek-ai/DeepSeek-V3", 5_996_544, {}),
        ("deepseek-ai/DeepSeek-V3", 5_996_544 // 8, {"tp": 8}),
        # All 62 layers, whatever the window.
        ("google/gemma-3-27b-it", 2 * 62 * 16 * 128 * 2, {}),
        # A single key/value head stays whole on every shard.
        ("bigcode/starcoder", 2 * 40 * 128 * 2, {"tp": 4}),
    ],
)
def test_bytes_of_a_token(model: str, token_bytes: int, asked: dict[str, Any]) -> None:
    """What a rank keeps for each token."""
    assert planned(model, kv_memory=40 * GIB, **asked).pool.bytes_per_token == token_bytes


@pytest.mark.parametrize(
    ("model", "quantization", "asked", "kept"),
    [
        # As get_model of models/__init__.py: compressed-tensors with flashinfer on CUDA, in a class of its own.
        (LLAMA, FP8_CACHE, {}, "fp8_e4m3"),
        (LLAMA, FP8_CACHE, {"engine_options": {"attention": "paged"}}, "fp16"),
        (LLAMA, FP8_CACHE, {"gpu": "mi300x"}, "fp16"),
        (LLAMA, FP8_CACHE, {"dtype": "bf16"}, "bf16"),
        (LLAMA, FP8_CACHE | {"quant_method": "fp8"}, {}, "fp16"),
        ("Qwen/Qwen3-8B", FP8_CACHE, {}, "fp16"),
        # Its kernels of AWQ and GPTQ are for fp16 alone.
        ("google/gemma-3-27b-it", None, {}, "bf16"),
        ("google/gemma-3-27b-it", {"quant_method": "awq", "bits": 4, "group_size": 128}, {}, "fp16"),
    ],
)
def test_the_format_of_a_checkpoint(model: str, quantization: dict[str, Any] | None, asked: dict[str, Any], kept: str) -> None:
    """What the cache is kept in."""
    spec = replace(load_model(model), quantization=quantization)
    assert open_request(spec, seq=512, engine="tgi", **asked).dtypes.kv == kept


def test_latents_are_85_times_as_large() -> None:
    """As the facts say: 5,996,544 / 70,272."""
    expanded = planned("deepseek-ai/DeepSeek-V3", 256).cache.total_bytes
    assert expanded == 5_996_544 * 256
    assert round(5_996_544 / 70_272) == 85


@pytest.mark.parametrize(
    ("attention", "block"), [("flashinfer", 1), ("flashdecoding", 256), ("paged", 16), ("flashdecoding-ipex", 64)]
)
def test_blocks_by_back_end(attention: str, block: int) -> None:
    """8 GiB are 65,536 tokens, in blocks of the back end; the first block is for health checks."""
    pool = planned(LLAMA, 1000, kv_memory=8 * GIB, options={"attention": attention}).pool

    assert (pool.blocks, pool.block_size, pool.tokens) == (65_536 // block, block, 65_536)
    assert pool.max_requests == (65_536 // block - 1) // -(-1000 // block)
    assert pool.max_seq == min(131_072, 65_536 - block)


@pytest.mark.parametrize(
    ("model", "asked", "attention"),
    [
        (LLAMA, {"gpu": "h100-sxm5-80gb"}, "flashinfer"),
        # 7,168 / 128 is 56, which flashinfer does not take.
        ("deepseek-ai/DeepSeek-V3", {"gpu": "h200-sxm-141gb"}, "flashdecoding"),
        ("tiiuae/falcon-7b", {"gpu": "a100-sxm4-80gb"}, "flashdecoding"),
        ("tiiuae/falcon-7b", {"gpu": "t4"}, "paged"),
        # Its config has n_head, which the launcher does not read.
        ("bigcode/starcoder", {"gpu": "h100-sxm5-80gb"}, "flashdecoding"),
        # The width stands in text_config, or is known for Gemma 3.
        ("google/gemma-3-4b-it", {"gpu": "h100-sxm5-80gb"}, "flashinfer"),
        (LLAMA, {"gpu": "mi300x"}, "paged"),
    ],
)
def test_the_launchers_choice(model: str, asked: dict[str, Any], attention: str) -> None:
    """By the width of a head, the model, and the GPU."""
    assert settings(model, **asked).attention == attention


def test_the_wiggle_room() -> None:
    """A tenth of the total stays free, and with a fraction that much of it."""
    budget = open_request(load_model(LLAMA), seq=512, engine="tgi", gpu="h100-sxm5-80gb").budget
    assert budget is not None
    assert budget.requested_bytes == pytest.approx(0.9 * budget.total_bytes, abs=1)
    half = open_request(
        load_model(LLAMA), seq=512, engine="tgi", gpu="h100-sxm5-80gb",
        engine_options={"cuda_memory_fraction": "0.5", "wiggle_room": "0.8"},
    ).budget  # fmt: skip
    assert half is not None
    assert half.requested_bytes == pytest.approx(0.4 * half.total_bytes, abs=1)


def test_the_tokens_of_the_warm_up() -> None:
    """Llama-3.1-8B takes 32 x (2 x (3 x 32 + 2 x 8) x 128 x 4,096 + 6 x 4,096 x 14,336) operations a token: 900e12 / that on an H100."""
    each = 32 * (2 * (3 * 32 + 2 * 8) * 128 * 4096 + 6 * 4096 * 14336)
    assert settings(LLAMA, gpu="h100-sxm5-80gb").prefill_tokens == 900 * 10**12 // each
    # A GPU that the launcher does not know, and none.
    assert settings(LLAMA, gpu="rtx-4090").prefill_tokens == 4096
    assert settings(LLAMA).prefill_tokens == 4096
    assert settings("google/gemma-3-27b-it", gpu="h100-sxm5-80gb").prefill_tokens == 8000
    assert settings(LLAMA, gpu="h100-sxm5-80gb", engine_options={"max_batch_prefill_tokens": "512"}).prefill_tokens == 512


def test_mamba() -> None:
    """No pool: 64 layers x 5,120 x (4 + 16) numbers of 16 bits for each sequence of a batch."""
    one = planned("state-spaces/mamba-2.8b-hf", 1, batch=3, kv_memory=GIB)

    assert one.pool is None
    assert one.cache.total_bytes == 3 * 64 * 5120 * (4 + 16) * 2


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (LLAMA, {"tp": 16}, "assert self.num_kv_heads > 0"),
        (LLAMA, {"tp": 3}, "`num_heads` must be divisible by `num_shards`"),
        (LLAMA, {"pp": 2}, "no pp"),
        (LLAMA, {"dtype": "q8_0"}, "fp8_e4m3fn or fp8_e5m2"),
        (LLAMA, {"dtype": "fp8", "options": {"attention": "flashdecoding"}}, "only supported for flashinfer"),
        (LLAMA, {"dtype": "fp8_e5m2", "gpu": "mi300x"}, "not supported on AMD ROCm"),
        (LLAMA, {"options": {"attention": "paged", "prefix_caching": "true"}}, "only supported with flashinfer"),
        (LLAMA, {"weights": "q4_k_m"}, "does not make q4_k_m weights"),
        (LLAMA, {"options": {"wiggle_room": "1"}}, "assert TGI_WIGGLE_ROOM < 1"),
        # transformers 4.51 knows none of these.
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}, "Unsupported model type qwen3_next"),
        ("openai/gpt-oss-20b", {}, "Unsupported model type gpt_oss"),
        ("moonshotai/Kimi-K2-Instruct", {}, "Unsupported model type kimi_k2"),
        ("bigscience/bloom-560m", {}, "in a padded cache"),
        # What its transformers back end is not told.
        ("Qwen/Qwen3-8B", {"dtype": "fp8"}, "takes no --kv-cache-dtype"),
        ("Qwen/Qwen3-8B", {"weights": "bnb4"}, "4bit quantization is not supported for AutoModel"),
        ("Qwen/Qwen3-8B", {"weights": "fp8"}, "takes no --quantize fp8"),
        ("mistralai/Mistral-7B-v0.1", {"gpu": "mi300x", "seq": 8192}, "does not support sliding window attention"),
    ],
)
def test_refusals(model: str, asked: dict[str, Any], words: str) -> None:
    """In its own words where it has any, with a way on."""
    with pytest.raises(KvplanError, match=words) as refused:
        planned(model, **asked)
    assert refused.value.hint


def test_command_line() -> None:
    """The words of ``text-generation-launcher``, with what only the environment takes in front."""
    given = CommandInput(
        version=None, model=LLAMA, revision=None, seq=4096, batch=1, kv_dtype="fp8_e4m3", kv_dtype_named=True,
        parallel=Parallel(tp=2), memory_utilization=0.8, kv_memory=None, weights="bnb4", lora=None, draft=None,
        options={"attention": "paged", "max_batch_prefill_tokens": "2048"}, requires=(),
    )  # fmt: skip
    assert " ".join(find_engine("tgi")[0].command.words(given)) == (
        f"env ATTENTION=paged text-generation-launcher --model-id {LLAMA} --sharded true --num-shard 2 --max-total-tokens 4096 "
        "--max-input-tokens 4095 --kv-cache-dtype fp8_e4m3fn --quantize bitsandbytes-nf4 --cuda-memory-fraction 0.8 "
        "--max-batch-prefill-tokens 2048"
    )


def test_log() -> None:
    """``KV-cache blocks: 65536, size: 1`` is the pool of 8 GiB."""
    found = reconcile(LLAMA, TESTS / "logs" / "tgi" / "llama-3.1-8b.log", kv_memory=8 * GIB)

    assert {row.name for row in found.rows} == {"blocks", "tokens"}
    assert all(row.within and row.difference == 0 for row in found.rows)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_block_is_a_block(samples: int) -> None:
    """Its bytes do not depend on how many samples a request has."""
    pool = planned(LLAMA, 4096, kv_memory=8 * GIB, samples=samples, prompt=1024).pool

    assert (pool.bytes_per_block, pool.blocks) == (131_072, 65_536)
    assert pool.blocks_per_request == samples * 4096

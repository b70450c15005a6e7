"""Rules that a small fault would break: an operator, a comparison or a number. scripts/mutants.py finds what no test notices."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.sglang.layout import StageCells
from hwcalc.engines.sglang.pools import cell_size
from hwcalc.engines.vllm.formats import quantizing_flag
from hwcalc.errors import UsageError
from hwcalc.formulas.formats import BNB4, BNB4_DOUBLE
from hwcalc.formulas.weights import Weight, WeightRole
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan


def part(made: Plan, name: str) -> tuple[int, int, int]:
    """A part of the memory of the fullest GPU: low, expected, high."""
    assert made.fit is not None
    assert made.fit.budget is not None
    (found,) = (one for one in made.fit.budget.parts if one.name == name)
    return found.low, found.expected, found.high


def test_only_a_single_stage_samples_for_certain() -> None:
    """vLLM: 256 rows of 151,936 logits are more than what a pass of 256 tokens takes, and only the last of two stages has them."""
    asked: dict[str, Any] = {
        "seq": 256, "engine": "vllm", "gpu": "l4", "offline": True,
        "engine_options": {"max_num_batched_tokens": 256, "max_num_seqs": 256},
    }  # fmt: skip
    whole, staged = plan("Qwen/Qwen3-0.6B", **asked), plan("Qwen/Qwen3-0.6B", gpus=2, pp=2, **asked)
    assert part(whole, "activations")[0] > 256 * 151_936 * 4
    assert part(staged, "activations")[0] < 256 * 151_936


def test_ranks_of_latent_attention_keep_copies() -> None:
    """DeepSeek-V3, tp 8: each rank caches the whole latent, so that seven of eight bytes are copies; GQA with 8 heads has none."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": 4096, "tp": 8, "gpu": "h200", "gpus": 8, "offline": True}
    latent = plan("deepseek-ai/DeepSeek-V3", **asked).cache
    assert latent.total_bytes == 8 * 61 * 4096 * 576 * 2
    assert latent.copied_bytes == 7 * 61 * 4096 * 576 * 2
    assert plan("Qwen/Qwen3-32B", **asked).cache.copied_bytes == 0


def test_experts_are_cut_over_tensor_and_data_parallel_ranks() -> None:
    """Qwen3-30B-A3B: experts of 768 rows divide over 8 ranks, and not over 5 x 2; dealt out whole they need not."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": 256, "gpu": "h200", "offline": True}
    assert plan("Qwen/Qwen3-30B-A3B", tp=2, dp=4, gpus=8, **asked).fit is not None
    with pytest.raises(UsageError, match="inner width of 768 over tp x dp = 10 ranks"):
        plan("Qwen/Qwen3-30B-A3B", tp=2, dp=5, gpus=10, **asked)
    assert plan("Qwen/Qwen3-30B-A3B", tp=2, dp=5, ep=10, gpus=10, **asked).fit is not None


def test_sixteen_bit_copies_of_what_is_not_sixteen_bits() -> None:
    """llama.cpp with flash attention: a cache of q8_0 is copied to 16 bits, keys and values each where they are not f16 already.

    Qwen3-8B: 32,768 cells x 1,024 numbers x 2 bytes = 64 MiB for the keys of a layer, and as much for its values.
    """

    def compute(**types: str) -> int:
        options = {"n_ubatch": 32, "n_batch": 32, **types}
        made = plan("Qwen/Qwen3-8B", seq=32_768, engine="llamacpp", gpu="rtx-4090", offline=True, engine_options=options)
        return part(made, "compute buffer")[1]

    both = compute(type_k="q8_0", type_v="q8_0")
    assert both - compute(type_k="q8_0") == both - compute(type_v="q8_0") == 32_768 * 1024 * 2
    assert both - compute() > 32_768 * 1024 * 2


def test_a_token_of_the_pool() -> None:
    """Qwen3-8B in vLLM: 36 layers x keys and values x 8 heads x 128 numbers x 2 bytes, and half of it on each of two ranks."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": 4096, "gpu": "h100", "offline": True}
    for ranks in (1, 2):
        pool = plan("Qwen/Qwen3-8B", gpus=ranks, tp=ranks, **asked).pool
        assert pool is not None
        assert pool.bytes_per_token == 36 * 2 * 8 * 128 * 2 // ranks


def test_rows_are_shared_by_gpus() -> None:
    """llama.cpp with ``split_mode=row``: two equal GPUs have half of every matrix each."""
    asked: dict[str, Any] = {"engine": "llamacpp", "seq": 4096, "gpu": "rtx-4090", "offline": True}
    one = part(plan("Qwen/Qwen3-8B", **asked), "weights")[1]
    half = part(plan("Qwen/Qwen3-8B", gpus=2, engine_options={"split_mode": "row"}, **asked), "weights")[1]
    assert one // 2 <= half <= one // 2 + 1


@pytest.mark.parametrize(
    ("name", "version", "made"),
    [("int8", "0.19", False), ("int8", "0.20", True), ("mxfp8", "0.18", False), ("bnb4", "0.27", True), ("bnb4", "0.28", False)],
)
def test_a_flag_that_makes_weights_comes_and_goes_with_a_release(name: str, version: str, made: bool) -> None:
    """VLLM quantizes int8 by the channel since 0.20, MXFP8 since 0.19, and with bitsandbytes until 0.27."""
    found = quantizing_flag(name, version)
    assert (found is not None and found[0] == "quantization") == made


def test_a_draft_has_windowed_layers_like_those_of_the_model() -> None:
    """SGLang, four windowed layers of 1,000 bytes a token and none that keeps all: one drafted layer takes 1,000 bytes more."""
    stage = StageCells(
        full_bytes=0, full_layers=0, swa_bytes=4000, swa_layers=4, index_bytes=0, index_layers=0, workspace_bytes=0, slot_bytes=0,
        state_layers=0,
    )  # fmt: skip
    planned: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="sglang", seq=64, gpu="l4").deployment
    assert cell_size(stage, replace(planned.settings, draft_layers=1)) == 5000


def test_scales_of_scales() -> None:
    """bitsandbytes, quantized twice: a byte for 64 numbers, and four for 256 of these bytes (QLoRA, section 3)."""
    weight = Weight(path="a.weight", shape=(4096, 4096), role=WeightRole.LINEAR)
    assert BNB4.bytes(weight) - BNB4_DOUBLE.bytes(weight) == 4096 * 4096 // 64 * (4 - 1) - 4096 * 4096 // 64 // 256 * 4


def test_the_share_that_lmdeploy_keeps_for_blocks() -> None:
    """Half the share of what is free is half the bytes, up to a byte of rounding."""
    asked: dict[str, Any] = {"engine": "lmdeploy", "seq": 4096, "gpu": "h100", "offline": True}
    made = [plan("Qwen/Qwen3-8B", engine_options={"cache_max_entry_count": share}, **asked).pool for share in ("0.8", "0.4")]
    whole, half = (pool.budget_bytes for pool in made if pool is not None)
    assert abs(whole - 2 * half) <= 2

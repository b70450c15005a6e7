"""Rules that a small fault would break: an operator, a comparison or a number. scripts/mutants.py finds what no test notices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.devices import Cost
from hwcalc.engines.forms import Term
from hwcalc.engines.llamacpp.form import _drawn_form
from hwcalc.engines.llamacpp.layers import Run, _laid, _Part
from hwcalc.engines.llamacpp.settings import cache_type
from hwcalc.engines.lmdeploy.deployment import shares_of
from hwcalc.engines.lmdeploy.layout import PYTORCH_WEIGHTS
from hwcalc.engines.memory import _device_context, device_context
from hwcalc.engines.mistral_rs.layers import shard
from hwcalc.engines.mlx.layers import Chunked, Rotating, rotating_slots
from hwcalc.engines.options import parse_lora
from hwcalc.engines.policies import shapes_of
from hwcalc.engines.sglang.curve import buffer_of
from hwcalc.engines.sglang.layout import StageCells, _lightning, _usual, rows_of
from hwcalc.engines.sglang.pools import cell_size
from hwcalc.engines.steps import value_of
from hwcalc.engines.stored import OwnRule
from hwcalc.engines.tgi.engine import head_width, prefill_tokens
from hwcalc.engines.vllm.formats import quantizing_flag
from hwcalc.engines.vllm.policies import hits_of
from hwcalc.engines.vllm.pool import _words
from hwcalc.engines.weights_beside import dflash_bytes_rank, eagle_bytes_rank, lora_bytes_by_layer, lora_bytes_rank
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import FullAttention, LatentAttention, LightningAttention, Role, SparseIndexer
from hwcalc.formulas.formats import (
    AWQ,
    BNB4,
    BNB4_DOUBLE,
    BNB8,
    FP8_BLOCK,
    FP8_CHANNEL,
    GPTQ,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    WeightFormat,
)
from hwcalc.formulas.hybrid import LayerNumbers
from hwcalc.formulas.stairs import Stair, stairs_at
from hwcalc.formulas.weights import Weight, WeightRole
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan
from hwcalc.profiles.engines import runtime_profile
from hwcalc.profiles.gpus import built_in_gpus
from hwcalc.report.emit import emitted


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
        layers=4,
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


@pytest.mark.parametrize(
    ("form", "size"),
    [
        # 256 x 1,024 numbers: rows of 1,024, groups of 16, 32 and 128 along a row, tiles of 128 x 128.
        (INT8, 256 * 1024 + 256 * 2),
        (FP8_CHANNEL, 256 * 1024 + 256 * 2),
        (BNB8, 256 * 1024 + 256 * 4),
        (FP8_BLOCK, 256 * 1024 + 2 * 8 * 4),
        (MXFP4, 256 * 1024 // 2 + 256 * 32),
        (NVFP4, 256 * 1024 // 2 + 256 * 64 + 8),
        (INT4, 256 * 1024 // 2 + 256 * 8 * 2),
        (AWQ, 256 * 1024 // 2 + 256 * 8 * 2 + 256 * 8 // 2),
        (GPTQ, 256 * 1024 // 2 + 256 * 8 * 2 + 256 * 8 // 2 + 1024 * 4),
    ],
    ids=lambda value: value.name if isinstance(value, WeightFormat) else "",
)
def test_numbers_and_their_scales(form: WeightFormat, size: int) -> None:
    """Each format by its own words, which state bits, the scale of a row, a group or a tile, and zero points."""
    weight = Weight(path="a.weight", shape=(256, 1024), role=WeightRole.LINEAR)
    assert form.bytes(weight) == size


def test_a_context_is_the_driver_and_its_kernels() -> None:
    """At every end of the two estimates."""
    _device_context.cache_clear()
    found, profile = device_context(built_in_gpus()["l4"]), runtime_profile()
    driver, kernels = profile.estimate("context.cuda"), profile.estimate("kernels")
    assert (found.low, found.expected, found.high) == tuple(
        int(getattr(driver, end) + getattr(kernels, end)) for end in ("low", "expected", "high")
    )


def test_a_group_that_divides_a_head_is_named() -> None:
    """Phi-3's heads of 96 numbers have no groups of 64, and have groups of 32."""
    with pytest.raises(UsageError, match="does not divide a head of 96") as raised:
        plan("microsoft/Phi-3-mini-4k-instruct", seq=512, engine="mlx", engine_options={"kv_bits": "4", "kv_group_size": "64"})
    assert raised.value.hint.startswith("Use: --engine-option kv_group_size=32.")


def test_rules_of_an_engine_differ_in_words_and_in_number() -> None:
    """They are equal in both or not at all."""
    assert OwnRule("blocks", 1) == OwnRule("blocks", 1)
    assert OwnRule("blocks", 1) != OwnRule("blocks", 2)
    assert OwnRule("blocks", 1) != OwnRule("pages", 1)


def test_one_token_is_a_sequence() -> None:
    """Llama-3.1-8B: 32 layers x 2 x 8 heads x 128 numbers of 2 bytes; none is wrong."""
    assert plan("meta-llama/Llama-3.1-8B", seq=1, offline=True).cache.total_bytes == 131_072
    with pytest.raises(UsageError, match="out of range: 0"):
        plan("meta-llama/Llama-3.1-8B", seq=0, offline=True)


def test_a_layout_that_nobody_named_is_told() -> None:
    """Four GPUs without sizes are planned as tp 4, which is said; named sizes and a single GPU say nothing."""
    asked: dict[str, Any] = {"seq": 4096, "gpu": "l4", "offline": True, "engine": "vllm"}

    def notes(**sizes: Any) -> list[str]:
        return [note.message for note in plan("meta-llama/Llama-3.1-8B", **asked, **sizes).notes if note.code == "layout"]

    assert notes(gpus=4) == ["4 GPUs are planned as tp 4. Another layout: --tp, --pp, --dp, --ep."]
    assert notes(gpus=4, tp=4) == notes() == []


def test_half_of_a_sequence_is_the_example_of_a_prompt() -> None:
    """Samples branch off behind a prompt: the error names a prompt of half the tokens."""
    with pytest.raises(UsageError) as raised:
        plan("meta-llama/Llama-3.1-8B", seq=4096, samples=4, engine="vllm", offline=True)
    assert "--prompt 2048" in raised.value.hint


def test_a_prefix_is_kept_once_by_the_older_engine_too() -> None:
    """VLLM 0.8, Llama-3.1-8B: 64 blocks of 16 tokens for all, and 64 for each of four; 16 x 131,072 bytes each."""
    asked: dict[str, Any] = {"seq": 2048, "batch": 4, "shared_prefix": 1024, "offline": True}
    made = plan("meta-llama/Llama-3.1-8B", engine="vllm@0.8.5", engine_options={"enable_prefix_caching": "true"}, **asked)
    assert made.cache.total_bytes == (64 + 4 * 64) * 16 * 131_072


def test_ollamas_default_of_one_slot_can_be_named() -> None:
    """``num_parallel=1`` is what a plan of one sequence has anyway."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "ollama", "offline": True}
    named = plan("meta-llama/Llama-3.1-8B", engine_options={"num_parallel": "1"}, **asked)
    assert named.cache.total_bytes == plan("meta-llama/Llama-3.1-8B", **asked).cache.total_bytes


def test_a_share_of_memory_is_a_flag_where_one_is_given() -> None:
    """SGLang: ``--memory-utilization`` is ``--mem-fraction-static``, once, and no flag without it."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "sglang", "offline": True, "gpu": "l4"}

    def flags(**more: Any) -> int:
        return emitted(plan("meta-llama/Llama-3.1-8B", **asked, **more), "sglang").count("--mem-fraction-static")

    assert flags() == 0
    assert flags(memory_utilization=0.8) == flags(engine_options={"mem_fraction_static": "0.8"}) == 1


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("weights", "q4_k_m", "--isq q4k"),
        ("seq", 4096, "--max-seq-len 4096"),
        ("memory_utilization", 0.8, "--pa-memory-fraction 0.8"),
        ("dtype", "fp8", "--pa-cache-type f8e4m3"),
        ("xyz", 1, ""),
    ],
)
def test_flags_of_mistral_rs(name: str, value: Any, flag: str) -> None:
    """Each option has its own flag, and an unknown one none."""
    assert find_engine("mistral-rs")[0].command.flag(name, value) == flag


def test_the_manager_of_tensorrt_llm_is_an_entry() -> None:
    """Of its file; options that are no entries of the cache's section are none."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "tensorrt-llm", "gpu": "h100", "offline": True}

    def content(**options: str) -> str:
        return emitted(plan("meta-llama/Llama-3.1-8B", engine_options=options, **asked), "tensorrt-llm")

    assert "use_kv_cache_manager_v2: true" in content(manager="v2")
    assert "use_kv_cache_manager_v2: false" in content(manager="v1")
    assert "use_kv_cache_manager_v2" not in content(max_batch_size="8", enable_block_reuse="false")


def test_offloaded_blocks_have_a_back_end_by_default_since_0_14() -> None:
    """VLLM (config/cache.py): before, ``--kv-offloading-size`` needs its back end named."""
    asked: dict[str, Any] = {"seq": 4096, "offline": True, "gpu": "l4", "engine_options": {"kv_offloading_size": "4"}}
    for version, named in (("0.13", True), ("0.14", False), ("0.33", False)):
        line = emitted(plan("Qwen/Qwen3-8B", engine=f"vllm@{version}", **asked), "vllm")
        assert "--kv-offloading-size 4" in line
        assert ("--kv-offloading-backend native" in line) is named


def test_a_batch_holds_a_video_of_gemma_4() -> None:
    """VLLM 0.33 logs a batch of 2,496 for Gemma 4 where 2,048 is the default: 32 frames of 70 tokens, two marks and a time of six."""
    opened: Any = open_request(load_model("google/gemma-4-26B-A4B-it"), engine="vllm", seq=4096, gpu="l4")
    assert opened.deployment.settings.batched_tokens == 2_496


def test_what_lmdeploy_has_too_little_of() -> None:
    """With less than a forward pass needs there is no cache, and the lack is told: 1 GiB - (tokens + 2 x 1,024) x 128,256 x 2 bytes."""
    opened: Any = open_request(load_model("meta-llama/Llama-3.1-8B"), engine="lmdeploy", seq=64)
    shares = shares_of(opened.block_pool, 128_256, 2**28)
    assert shares.runtime > 2**28
    assert (shares.cache, shares.unused) == (2**28 - shares.runtime, 0)


def test_lmdeploy_loads_what_a_checkpoint_has() -> None:
    """Sixteen bits as they are; those of 32 bits in fp16 (pytorch/config.py _update_torch_dtype)."""
    names = {"TinyLlama/TinyLlama-1.1B-Chat-v0.4": "fp16", "Qwen/Qwen3-8B": "bf16"}
    assert {model: PYTORCH_WEIGHTS.weight_format(load_model(model), None).name for model in names} == names


def test_tgi_is_told_a_share_once() -> None:
    """``--cuda-memory-fraction`` where a share is given, as an option of kvplan or of the engine."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "tgi", "offline": True, "gpu": "l4"}

    def flags(**more: Any) -> int:
        return emitted(plan("Qwen/Qwen3-8B", **asked, **more), "tgi").count("--cuda-memory-fraction")

    assert flags() == 0
    assert flags(memory_utilization=0.8) == flags(engine_options={"cuda_memory_fraction": "0.8"}) == 1


def test_layers_stay_where_they_are() -> None:
    """llama.cpp: other lengths of a plan on a GPU keep its layers on their devices; without hardware there is nothing to keep."""
    bare: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="llamacpp", seq=4096)
    assert bare.devices.pinned() is bare
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="llamacpp", seq=4096, gpu="l4")
    pinned = opened.devices.pinned()
    assert pinned is not opened
    assert pinned.devices.pinned() is pinned


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("rtx-4070", "until all layers fit on the GPU"), ("rtx-3050", "to 4,096 before it leaves layers to the host")],
)
def test_why_a_context_is_shorter(gpu: str, said: str) -> None:
    """llama.cpp shortens what nobody asked for until everything fits, and not below 4,096 tokens."""
    weights = {"rtx-4070": "q4_k_m", "rtx-3050": "q8_0"}[gpu]
    notes = plan("meta-llama/Llama-3.1-8B", engine="llamacpp", gpu=gpu, weights=weights, offline=True).notes
    assert [said in note.message for note in notes if note.code == "shorter-context"] == [True]


@pytest.mark.parametrize(
    ("model", "said"),
    [("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "the model was trained for no more"), ("Qwen/Qwen3-8B", "4,096 tokens by default")],
)
def test_why_ollama_has_its_context(model: str, said: str) -> None:
    """By the memory of the GPU, or by the model."""
    notes = plan(model, engine="ollama", gpu="rtx-4090", offline=True).notes
    assert [said in note.message for note in notes if note.code == "ollama-context"] == [True]


def test_a_cache_that_is_quantized_is_not_offered_again() -> None:
    """LMDeploy: eight and four bits are offered to a cache of sixteen."""

    def offers(dtype: str) -> list[str]:
        opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="lmdeploy", seq=4096, gpu="a100", dtype=dtype)
        return [saving.what for saving in opened.savings(1) if saving.what.endswith("cache")]

    assert offers("auto") == ["int8 cache", "int4 cache"]
    assert offers("int8") == offers("int4") == []


@pytest.mark.parametrize(("dtype", "told"), [("bf16", False), ("fp8", False), ("nvfp4", True), ("mxfp8", False)])
def test_four_bits_without_a_gpu_are_told(dtype: str, *, told: bool) -> None:
    """SGLang: whether prompts are unpacked depends on the card."""
    notes = plan("Qwen/Qwen3-8B", engine="sglang", seq=4096, dtype=dtype, offline=True).notes
    assert ("one-scale-layout" in {note.code for note in notes}) == told


def test_layers_of_two_sizes_have_no_single_size() -> None:
    """SGLang counts one for every layer of a class without a pool of windows."""
    alike, other = (
        FullAttention(num_attention_heads=8, num_key_value_heads=heads, head_dim=64, v_head_dim=64) for heads in (2, 4)
    )
    model = load_model("Qwen/Qwen3-8B")
    assert _usual((alike, alike), model) == alike
    with pytest.raises(UnsupportedError, match="the same keys and values for every layer"):
        _usual((alike, other), model)


def test_the_tokens_of_windows_and_of_all_are_derived() -> None:
    """SGLang: the bytes of a token of gpt-oss with its share of the windows, and the tokens of both kinds of models."""

    def steps(model: str, **options: str) -> set[str]:
        opened: Any = open_request(load_model(model), engine="sglang", seq=4096, gpu="h100", engine_options=options)
        return {step.name for step in opened.pool(10 * 2**30).value.steps}

    assert steps("openai/gpt-oss-20b") >= {"cell_size", "tokens", "window_tokens"}
    assert "tokens" in steps("Qwen/Qwen3-8B")
    capped = steps("openai/gpt-oss-20b", disable_radix_cache="true", max_running_requests="4")
    assert "cell_size" not in capped
    assert "tokens" not in capped


def test_an_option_of_states_that_a_release_does_not_hear() -> None:
    """Qwen3-Next's states have the dtype that is named since vLLM 0.13, whatever hears it for Kimi-Linear."""
    named = {"mamba_ssm_cache_dtype": "float32"}
    for version, dtype in (("0.11.0", "bf16"), ("0.33", "fp32")):
        opened: Any = open_request(
            load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), engine=f"vllm@{version}", seq=4096, engine_options=named
        )
        assert opened.dtypes.roles[Role.STATE].name == dtype


def test_plain_attention_may_be_drafted_for() -> None:
    """VLLM 0.10 drafts for no model with states; Llama has none: 32 layers x 2 x 8 heads x 128 x 2 bytes x 4,096 tokens."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "vllm@0.10.2", "offline": True, "engine_options": {"speculative": "ngram:4"}}
    assert plan("meta-llama/Llama-3.1-8B", **asked).cache.total_bytes == 131_072 * 4096
    with pytest.raises(UnsupportedError, match="does not draft tokens for"):
        plan("nvidia/Nemotron-H-8B-Base-8K", **asked)


def test_experts_of_one_layer_on_the_host_are_copied() -> None:
    """llama.cpp, ``n_cpu_moe=1``: a large batch copies the experts of that layer, so that the buffer is that of two such layers."""

    def buffer(layers: int) -> int:
        options = {"n_gpu_layers": "all", "n_cpu_moe": str(layers)}
        asked: dict[str, Any] = {"engine": "llamacpp", "gpu": "h100", "seq": 4096, "weights": "q4_k_m", "offline": True}
        return part(plan("Qwen/Qwen3-30B-A3B", engine_options=options, **asked), "compute buffer")[1]

    assert buffer(0) < buffer(1) == buffer(2)


def test_a_cut_rank_has_a_head() -> None:
    """mistral.rs: 4 heads on 8 ranks are one on each."""
    latent = LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64, num_attention_heads=4, qk_nope_head_dim=128, v_head_dim=128)
    cut = shard(load_model("deepseek-ai/DeepSeek-V2-Lite"), latent, 8)
    assert isinstance(cut, LatentAttention)
    assert cut.num_attention_heads == 1


def test_the_words_of_a_constant() -> None:
    """One stair of one unit is a number; a stair of 16 tokens a division."""
    assert _words(((Stair(times=3, per=1, add=1, most=1),),)) == "3"
    assert _words(((Stair(times=1, per=16),),)) == "ceil(n / 16)"
    assert _words(((Stair(),), (Stair(most=4),))) == "max(n, min(4, n))"


def test_the_older_engine_has_a_prefix_once() -> None:
    """VLLM 0.6: whole blocks of 16 tokens."""
    opened: Any = open_request(load_model("meta-llama/Llama-3.1-8B"), engine="vllm@0.6.0", seq=4096, gpu="l4")
    hits = hits_of(opened.layout, opened.settings, 100, 50)
    assert (hits.prefix, hits.prompt, hits.copies) == (96, 48, 1)


def test_a_prompt_in_pieces_has_a_window_and_a_piece() -> None:
    """mlx-lm, Mistral-7B: behind 16,000 tokens of prompt come 4,000 alone; while the prompt is read each layer holds up to 2,047 more.

    The window of 4,096 tokens and a piece of 2,048 less one: 32 layers x 2 x 8 heads x 128 numbers x 2 bytes x 2,047.
    """
    opened: Any = open_request(load_model("mistralai/Mistral-7B-v0.1"), engine="mlx", seq=20_000, prompt=16_000)
    (grown,) = opened.working()
    assert grown.expected >= 131_072 * 2047 // 32


def test_a_plugin_knows_one_group() -> None:
    """TriAttention's plug-in for vLLM: gpt-oss has layers with windows beside others, which it would cut to one length."""
    asked: dict[str, Any] = {"seq": 4096, "prompt": 4000, "engine": "vllm@0.18", "offline": True}
    said = [plan(model, policy="triattention", **asked).policy for model in ("Qwen/Qwen3-8B", "openai/gpt-oss-20b")]
    hows = [info.support for info in said if info is not None]
    assert "all groups of layers" not in hows[0]
    assert "all groups of layers" in hows[1]


@pytest.mark.parametrize(
    ("dtype", "key", "value"),
    [
        # 128 numbers of a head: their bits, and what each format keeps beside them for a head.
        ("int8_per_token_head", 128 + 4, 128 + 4),
        ("int4_per_token_head", 64 + 4, 64 + 4),
        ("turboquant_4bit_nc", 64 + 2, 64 + 4),
        ("turboquant_k3v4_nc", 48 + 2, 64 + 4),
        ("turboquant_3bit_nc", 48 + 2, 48 + 4),
    ],
)
def test_a_head_in_few_bits(dtype: str, key: int, value: int) -> None:
    """VLLM's rows of one head and token."""
    opened: Any = open_request(load_model("meta-llama/Llama-3.1-8B"), engine="vllm", seq=4096, dtype=dtype)
    roles = opened.dtypes.roles
    assert (roles[Role.KEY].block_bytes, roles[Role.VALUE].block_bytes) == (key, value)


def test_the_buffers_of_wide_experts() -> None:
    """Mixtral in vLLM: inner rows of 14,336 and a hidden width of 4,096 make max(14,336, 4,096) + max(28,672, 4,096) numbers."""
    opened: Any = open_request(load_model("mistralai/Mixtral-8x7B-v0.1"), engine="vllm", seq=4096, gpu="h200")
    (found,) = (step for part in opened.budget.parts for step in part.steps if step.name == "expert_buffers")
    assert {term.name: term.expected for term in found.terms}["expert_numbers"] == 14_336 + 28_672


def test_states_need_a_block_each() -> None:
    """VLLM from 0.19 on: fewer blocks than ``max_num_seqs`` need a flag; a model without states needs none."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": 4096, "kv_memory": "1GiB", "offline": True}
    pools = [plan(model, **asked).pool for model in ("state-spaces/mamba-2.8b-hf", "Qwen/Qwen3-8B")]
    assert [[each.flag.split()[0] for each in pool.requires] for pool in pools if pool is not None] == [["--max-num-seqs"], []]


def test_what_is_shared_is_derived() -> None:
    """VLLM, four sequences of 2,048 tokens with 1,024 in common: 64 blocks are kept once, and 64 for each."""
    asked: dict[str, Any] = {"engine": "vllm", "gpu": "l4", "seq": 2048, "batch": 4, "shared_prefix": 1024, "offline": True}
    pool = plan("meta-llama/Llama-3.1-8B", engine_options={"enable_prefix_caching": "true"}, **asked).pool
    assert pool is not None
    (found,) = (step for step in pool.steps if step.name == "max_requests")
    terms = {term.name: term.expected for term in found.terms}
    assert (terms["shared_blocks"], terms["blocks_of_each"]) == (64, 64)
    assert value_of(found.formula, terms) == found.expected == (terms["usable_blocks"] - 64) // 64


def test_classes_and_formats_that_vllm_never_had() -> None:
    """Refused by name; a format that no release reads is planned in another one."""
    config = dict(load_model("Qwen/Qwen3-8B").config)
    neo = {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "hidden_size": 64, "num_layers": 2, "num_heads": 4}
    neo |= {"attention_types": [[["global", "local"], 1]], "vocab_size": 100, "max_position_embeddings": 128, "window_size": 16}
    with pytest.raises(UnsupportedError, match="vLLM does not run GPTNeoForCausalLM"):
        plan(neo, engine="vllm", seq=64)
    stored = {**config, "quantization_config": {"quant_method": "bitnet"}}
    with pytest.raises(UnsupportedError, match="no quantisation method bitnet"):
        plan(stored, engine="vllm", seq=4096)
    sizes = [plan(one, engine="vllm", seq=4096, weights="bf16").cache.total_bytes for one in (stored, config)]
    assert sizes[0] == sizes[1] > 0


def test_states_are_asked_for_in_0_9() -> None:
    """VLLM 0.9 runs states on its newer engine only where it is told; Llama has none."""
    asked: dict[str, Any] = {"engine": "vllm@0.9.2", "seq": 4096, "offline": True}
    assert not [note for note in plan("meta-llama/Llama-3.1-8B", **asked).notes if "VLLM_USE_V1" in note.message]


def test_what_a_small_share_leaves_for_prompts() -> None:
    """TGI on an L4 of 23,034 MiB, of which it may have 0.65: Llama-3.1-8B weighs 14,449,770,496 bytes by its formula.

    (3 x 14,336 x 4,096 + 48 x 128 + 4,096 x 4,096) numbers in each of 32 layers, and two tables of 128,256 x 4,096, in two bytes. A token
    takes 4 x 8 x 128 x 32 + 6 x (14,336 + 7,168) bytes (launcher/src/main.rs).
    """
    layer = 3 * 14_336 * 4096 + 48 * 128 + 4096 * 4096
    weights = 2 * (32 * layer + 2 * 128_256 * 4096)
    token = 4 * 8 * 128 * 32 + 6 * (14_336 + 7168)
    found = prefill_tokens(load_model("meta-llama/Llama-3.1-8B"), built_in_gpus()["l4"], 1, 0.65)
    assert found == (int(23_034 * 2**20 * 0.65) - weights) // token


def test_widths_by_other_names() -> None:
    """TGI reads ``n_embd`` where there is no ``hidden_size``, and admits 128 requests."""
    assert head_width({"n_embd": 768, "num_attention_heads": 12}) == 64
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="tgi", seq=4096, gpu="l4")
    assert opened.most_sequences() == (128, "max_concurrent_requests")


def test_positions_of_blocks() -> None:
    """TensorRT-LLM: 100 tokens lie in four blocks of 32."""
    made = plan("meta-llama/Llama-3.1-8B", engine="tensorrt-llm", gpu="h100", seq=100, offline=True)
    assert {tensor.positions for tensor in made.cache.tensors} == {128}


def test_slots_of_pools_that_are_not_made_are_not_told() -> None:
    """SGLang: Qwen3-Next's weights leave nothing on an H200."""
    pool = plan("Qwen/Qwen3-Next-80B-A3B-Instruct", engine="sglang", gpu="h200", seq=1024, offline=True).pool
    assert pool is not None
    assert pool.message is not None
    assert (pool.tokens, pool.state_slots) == (None, None)


@pytest.mark.parametrize("backend", ["pytorch", "turbomind"])
def test_what_lmdeploy_leaves_alone_is_derived(backend: str) -> None:
    """Both back ends take a share of what is free, and the rest is told as a step."""
    asked: dict[str, Any] = {"engine": "lmdeploy", "gpu": "a100", "seq": 1000, "offline": True}
    made = plan("Qwen/Qwen3-8B", engine_options={"backend": backend}, **asked)
    assert made.pool is not None
    assert made.pool.steps[0].name == "margin"


@pytest.mark.parametrize(
    ("gpu", "offers"),
    [
        ("h100", ["fp8 weights", "int4 weights"]),
        ("b200", ["fp8 weights", "nvfp4 weights"]),
        ("a100", ["int8 weights", "int4 weights"]),
    ],
)
def test_formats_that_some_engine_has_there(gpu: str, offers: list[str]) -> None:
    """FP8 from compute capability 8.9 on, NVFP4 from 10, and GGUF's formats for cards of people's own machines."""
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="reference", gpu=gpu, seq=1000)
    assert [saving.what for saving in opened.savings(1) if saving.what.endswith("weights")] == offers


def test_pages_of_several_pools_are_shares() -> None:
    """TensorRT-LLM's second manager: attention and states of Nemotron-H have a share of the pages each, and one pool has all."""
    asked: dict[str, Any] = {"engine": "tensorrt-llm", "gpu": "h200", "gpus": 8, "tp": 8, "seq": 1000, "offline": True}
    formulas = []
    for model in ("nvidia/Nemotron-H-8B-Base-8K", "google/gemma-3-27b-it"):
        pool = plan(model, engine_options={"manager": "v2"}, **asked).pool
        assert pool is not None
        formulas.append(next(step.formula for step in pool.steps if step.name == "pages"))
    assert formulas == ["round(ceil(quota / page_bytes) x usual_pages / all_usual_pages)", "ceil(quota / page_bytes)"]


@pytest.mark.parametrize(
    ("gpu", "model", "backend"),
    [
        ("h200", "zai-org/GLM-5", "flashmla_sparse"),
        ("b200", "zai-org/GLM-5", "trtllm"),
        ("rtx-pro-6000", "zai-org/GLM-5", "flashinfer_sparse_mla"),
        ("rtx-pro-6000", "deepseek-ai/DeepSeek-V3.2", "trtllm"),
    ],
)
def test_the_kernel_of_sparse_latents(gpu: str, model: str, backend: str) -> None:
    """SGLang, fp8: by the generation of the card, and by the class on consumers' cards."""
    opened: Any = open_request(load_model(model), engine="sglang", gpu=gpu, seq=1000, dtype="fp8_e4m3")
    assert opened.settings.dsa_backend == backend


def test_a_state_of_lightning_attention() -> None:
    """SGLang: a matrix of 128 x 128 for each of 4 heads on one of two ranks, and no convolution."""
    kind = LightningAttention(num_heads=8, head_dim=128)
    assert _lightning(kind, 2) == (0, 4 * 128 * 128)


def test_keys_of_an_indexer_are_not_dealt_out() -> None:
    """DeepSeek-V3.2 with decode context parallelism over two ranks: half the latents of 1,000 tokens, and all keys of the indexer."""
    opened: Any = open_request(load_model("deepseek-ai/DeepSeek-V3.2"), engine="reference", seq=1000, tp=2, dcp=2)
    buffers = {buffer.name: (buffer.bytes, buffer.shape) for buffer in opened.allocation(0)}
    assert buffers["layers.0.latent"] == (500 * 512 * 2, (1, 500, 512))
    assert buffers["layers.0.indexer_keys"] == (1000 * 132, (1, 1000, 132))


def test_a_drafter_adds_its_projection() -> None:
    """DFlash: 4,096 x 5 x 4,096 numbers of two bytes at each end of the range, beside what an EAGLE head of these layers has."""
    config = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 5,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "intermediate_size": 12_288,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    draft, target = load_model(config), load_model("Qwen/Qwen3-8B")
    whole, head = dflash_bytes_rank(draft, target), eagle_bytes_rank(draft, target)
    assert whole is not None
    assert head is not None
    more = 2 * 4096 * 5 * 4096
    assert [whole.low - head.low, whole.expected - head.expected, whole.high - head.high] == [more] * 3


@pytest.mark.parametrize(("piece", "window"), [(512, 4096), (512, 1000), (2048, 4096), (256, 600)])
def test_stairs_of_a_rotating_cache(piece: int, window: int) -> None:
    """mlx-lm: the closed form is the count of slots at every length."""
    span = Rotating(piece, 0, window)
    assert span.has_stairs
    for tokens in (*range(1, 40), *range(40, 12_000, 61), piece, piece + 1, window, window + 1, 2 * piece + 1, window + piece):
        assert stairs_at(span.stairs(), tokens) == span.slots(tokens, 0)


@pytest.mark.parametrize(("piece", "chunk", "known"), [(256, 512, True), (512, 512, True), (300, 600, False), (257, 514, False)])
def test_stairs_of_a_chunked_cache(piece: int, chunk: int, *, known: bool) -> None:
    """mlx-lm: where pieces are whole steps of 256 slots."""
    span = Chunked(piece, 0, chunk)
    assert span.has_stairs == known
    if known:
        for tokens in (*range(1, 40), *range(40, 6000, 61), piece, piece + 1, chunk, chunk + 1):
            assert stairs_at(span.stairs(), tokens) == span.slots(tokens, 0)


def test_numbers_of_a_buffer() -> None:
    """Rows of eight bytes are two numbers of fp32 each; rows of three bytes are bytes."""
    assert buffer_of("state", 0, "fp32", 10, 8).shape == (10, 2)
    odd = buffer_of("state", 0, "fp32", 10, 3)
    assert (odd.dtype, odd.shape, odd.bytes) == ("uint8", (10, 3), 30)


def test_formats_that_llama_cpp_has_no_cache_in() -> None:
    """A format that others have is refused like one that nobody has."""
    for name in ("fp8_e5m2", "int4", "no-such-format"):
        with pytest.raises(UnsupportedError, match=r"llama\.cpp has no cache in this format"):
            cache_type("type_v", name)


def test_a_batch_of_llama_cpp_has_a_size() -> None:
    """``n_ubatch`` 0 is as many as ``n_batch``; both 0 is nothing."""
    asked: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4090", "seq": 4096, "offline": True, "weights": "q4_k_m"}
    sizes = [
        part(plan("Qwen/Qwen3-8B", engine_options={"n_batch": 512, "n_ubatch": small}, **asked), "compute buffer")
        for small in (0, 512)
    ]
    assert sizes[0] == sizes[1]
    with pytest.raises(UsageError, match="cannot both be 0"):
        plan("Qwen/Qwen3-8B", engine_options={"n_batch": 0, "n_ubatch": 0}, **asked)


def test_mlx_offers_fewer_bits_where_the_cache_has_all() -> None:
    """Eight bits and four to a cache of sixteen; nothing to one that is quantized."""

    def offers(**options: str) -> list[str]:
        opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="mlx", seq=4096, engine_options=options)
        return [saving.what for saving in opened.savings(1) if saving.what.startswith("a cache")]

    assert offers() == ["a cache of 8 bits", "a cache of 4 bits"]
    assert offers(kv_bits="8") == []


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lmdeploy"])
def test_a_server_allocates_what_its_gpu_has(engine: str) -> None:
    """On a GPU the pool is what the budget gives, and not what one sequence takes."""
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine=engine, seq=4096, gpu="h100")
    size = sum(buffer.bytes for buffer in opened.allocation(0))
    assert 0.98 * opened.budget.expected < size < 1.02 * opened.budget.expected
    assert size > 10 * opened.needed_bytes


@pytest.mark.parametrize(("gpu", "told"), [("mi300x", True), ("h100", False)])
def test_the_newer_engine_is_asked_for_on_amd(gpu: str, *, told: bool) -> None:
    """VLLM 0.8 runs V1 on AMD where a variable says so (``engine/arg_utils.py`` _is_v1_supported_oracle)."""
    notes = plan("Qwen/Qwen3-8B", engine="vllm@0.8.5", gpu=gpu, seq=4096, offline=True).notes
    assert any("VLLM_USE_V1" in note.message for note in notes) == told


def test_no_slots_are_one() -> None:
    """llama.cpp raises ``n_seq_max`` to 1 (src/llama-context.cpp)."""
    asked: dict[str, Any] = {"engine": "llamacpp", "seq": 4096, "offline": True}
    sizes = [plan("Qwen/Qwen3-8B", engine_options={"n_seq_max": slots}, **asked).cache.total_bytes for slots in (0, 1)]
    assert sizes == [36 * 2 * 1024 * 2 * 4096] * 2


def test_experts_that_are_on_the_host_already_free_nothing() -> None:
    """llama.cpp with the experts of ten layers on the host: advice starts with the eleventh."""
    options = {"n_gpu_layers": "all", "n_cpu_moe": "10"}
    opened: Any = open_request(
        load_model("Qwen/Qwen3-30B-A3B"), engine="llamacpp", gpu="rtx-4090", seq=4096, weights="q4_k_m", engine_options=options
    )
    offered = [saving.what for saving in opened.savings(300 * 2**20) if saving.what.startswith("experts of the first")]
    assert offered[0] == "experts of the first 11 layers in host memory, slower"


def test_a_small_pool_holds_a_short_sequence() -> None:
    """mistral.rs, 1 GiB and 147,456 bytes a token: no longer than the pool has tokens, whatever the model is made for."""
    pool = plan("Qwen/Qwen3-8B", engine="mistral-rs", seq=1024, kv_memory="1GiB", offline=True).pool
    assert pool is not None
    assert pool.tokens is not None
    assert pool.max_seq is not None
    assert 7000 < pool.max_seq <= pool.tokens <= 2**30 // 147_456


def test_adapters_of_all_layers_are_all_adapters() -> None:
    """DeepSeek-V3: what a rank has is the sum over the layers, of which the one for multi-token prediction has none."""
    model, lora = load_model("deepseek-ai/DeepSeek-V3"), parse_lora("rank=16")
    whole, layers = lora_bytes_rank(model, lora), lora_bytes_by_layer(model, lora, len(model.stack))
    assert whole is not None
    assert layers is not None
    assert [sum(each) for each in layers] == [whole.low, whole.expected, whole.high]


def test_a_cache_on_the_host_has_another_form() -> None:
    """llama.cpp: the page draws layers and cache on GPUs in closed form, and no cache on the host."""
    forms = []
    for options in ({"n_gpu_layers": "all"}, {"n_gpu_layers": "all", "no_kv_offload": "true"}):
        opened: Any = open_request(
            load_model("Qwen/Qwen3-8B"), engine="llamacpp", gpu="rtx-4090", seq=4096, engine_options=options
        )
        forms.append(_drawn_form(opened.deployment, opened.budget))
    assert forms[0] is not None
    assert forms[1] is None


def test_costs_of_changes_have_an_order() -> None:
    """From nothing to the memory of the host: each is worse than the one before, and none is another's name."""
    assert list(Cost) == sorted(Cost)
    assert [Cost[name] for name in Cost.__members__] == list(Cost)


def test_a_unit_is_a_position() -> None:
    """Unless a term says that it is a block; heads of a latent are one."""
    term = Term(kind="k", layers=LayerNumbers([0]), count=1, unit_bytes=4, stairs=((Stair(),),), rule="n")
    assert (term.unit_tokens, term.bytes(7)) == (1, 28)
    shapes = shapes_of(load_model("deepseek-ai/DeepSeek-V2-Lite").stack)
    assert {(shape.heads, shape.kv_heads) for shape in shapes} <= {(16, 1), (16, 16)}


def test_buffers_of_a_compressor_have_their_positions() -> None:
    """DeepSeek-V4-Flash: 8 positions of 2 x 512 numbers where entries of 4 overlap, and 128 of 512; a window of 128."""
    opened: Any = open_request(load_model("deepseek-ai/DeepSeek-V4-Flash"), engine="reference", seq=1001)
    shapes = {(buffer.name.rpartition(".")[2], buffer.shape) for buffer in opened.allocation(0)}
    assert {("compressor_gate", (1, 8, 1024)), ("compressor_gate", (1, 128, 512)), ("window_latent", (1, 128, 512))} <= shapes


@pytest.mark.parametrize("tokens", [1, 2, 100, 128, 129, 300, 4000])
def test_a_piece_of_one_token_came_alone(tokens: int) -> None:
    """mlx-lm: no prompt at all is as a prompt of one token."""
    assert rotating_slots(0, tokens, 2048, 128) == rotating_slots(1, tokens - 1, 2048, 128)


def test_a_plugin_knows_no_indexer() -> None:
    """TriAttention's plug-in for vLLM: DeepSeek-V3.2 has latents and keys of an indexer in one group."""
    info = plan(
        "deepseek-ai/DeepSeek-V3.2", seq=4096, prompt=4000, engine="vllm@0.18", policy="triattention", offline=True
    ).policy
    assert info is not None
    assert "all groups of layers" in info.support


def test_what_is_left_alone_is_a_step_of_the_margin() -> None:
    """LMDeploy: free - floor(free x 0.8) bytes, which is what the budget leaves."""
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="lmdeploy", gpu="a100", seq=1000)
    (found,) = (step for step in opened.pool(opened.budget.expected).value.steps if step.name == "margin")
    assert (
        value_of(found.formula, {term.name: term.expected for term in found.terms})
        == found.expected
        == opened.budget.margin_bytes
    )


def test_latents_that_lmdeploy_keeps_as_keys_and_values() -> None:
    """MiniCPM3: 62 layers x 40 heads x keys and values of 64 + 32 numbers x 2 bytes, 64 tokens in a block."""
    config = {
        "model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 62,
        "num_attention_heads": 40, "num_key_value_heads": 40, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "v_head_dim": 64, "intermediate_size": 6400, "vocab_size": 73_448, "max_position_embeddings": 32_768,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    opened: Any = open_request(load_model(config), engine="lmdeploy", seq=100, gpu="a100")
    assert opened.block_pool.block_bytes == 64 * 62 * 40 * (64 + 32) * 2 * 2


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({}, "fa3"),
        ({"speculative": "eagle:1:4"}, "fa3"),
        ({"speculative": "eagle:1:4", "page_size": "16"}, "flashinfer"),
        ({"page_size": "16"}, "fa3"),
    ],
)
def test_a_tree_of_drafts_in_pages_has_another_kernel(options: dict[str, str], backend: str) -> None:
    """SGLang on an H100 (``get_default_attn_backend``)."""
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="sglang", gpu="h100", seq=1000, engine_options=options)
    assert opened.settings.backend == backend


def test_an_indexer_without_scales() -> None:
    """SGLang: 128 numbers in the dtype of an fp8 cache where its kernel reads that, and else in bf16."""
    opened: Any = open_request(load_model("Qwen/Qwen3-8B"), engine="sglang", gpu="h100", seq=1000, dtype="fp8_e4m3")
    kind = SparseIndexer(index_n_heads=4, index_head_dim=128, index_topk=2048, index_quantized=False)
    rows = [rows_of(kind, opened.settings, sparse=False, split=False, fp8_index=eight)[0] for eight in (True, False)]
    assert [(row.dtype, row.bytes) for row in rows] == [("fp8_e4m3", 128), ("bf16", 256)]


def test_a_pool_that_is_too_short_says_so() -> None:
    """SGLang, Llama-3.1-8B: 1 GiB are 8,192 tokens of 131,072 bytes."""
    said = []
    for tokens in (4096, 16_384):
        pool = plan("meta-llama/Llama-3.1-8B", engine="sglang", seq=tokens, kv_memory="1GiB", offline=True).pool
        assert pool is not None
        said.append(pool.message)
    assert said == [None, "The input (16384 tokens) is longer than the pool (8192 tokens)."]


def test_how_many_fit_into_pages_of_the_second_manager() -> None:
    """TensorRT-LLM, 1,000 tokens in 32 blocks of 32: as many at once as the pool has blocks for."""
    asked: dict[str, Any] = {"engine": "tensorrt-llm", "gpu": "h100", "seq": 1000, "offline": True}
    pool = plan("meta-llama/Llama-3.1-8B", engine_options={"manager": "v2"}, **asked).pool
    assert pool is not None
    assert pool.blocks is not None
    assert pool.max_concurrency == pytest.approx(pool.blocks / 32)


def test_runs_of_two_gpus() -> None:
    """llama.cpp, four blocks and the output: one block whole and one without experts, then two without experts beside the whole output."""
    fitting: Any = SimpleNamespace(blocks=4, ends=(0.5, 1.0))
    runs = _laid(fitting, (_Part(1, 1), _Part(1, 2)), (0, 1))
    assert runs.host == 0
    assert runs.gpus == (Run(0, 2, 1, 2), Run(2, 5, 2, 4))


def test_turbominds_margin_is_of_all_that_is_free() -> None:
    """LMDeploy: what is free is what blocks get and what is left alone."""
    opened: Any = open_request(
        load_model("Qwen/Qwen3-8B"), engine="lmdeploy", gpu="a100", seq=1000, engine_options={"backend": "turbomind"}
    )
    (found,) = (step for step in opened.pool(opened.budget.expected).value.steps if step.name == "margin")
    terms = {term.name: term.expected for term in found.terms}
    assert terms["free_after_pass"] == opened.budget.expected + opened.budget.margin_bytes


def test_a_buffer_with_copied_experts_is_derived() -> None:
    """llama.cpp, ``n_cpu_moe=1``: the steps of the compute buffer give its bytes."""
    opened: Any = open_request(
        load_model("Qwen/Qwen3-30B-A3B"), engine="llamacpp", gpu="h100", seq=4096, weights="q4_k_m",
        engine_options={"n_gpu_layers": "all", "n_cpu_moe": "1"},
    )  # fmt: skip
    steps = [step for each in opened.budget.parts if each.name == "compute buffer" for step in each.steps]
    assert steps
    for step in steps:
        assert value_of(step.formula, {term.name: term.expected for term in step.terms}) == pytest.approx(step.expected, rel=1e-6)

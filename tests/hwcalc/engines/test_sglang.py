"""What SGLang does differently: shares of a budget, defaults by accelerator, refusals, and its command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.engines.sglang.engine import SglangDeployment, SglangOccupancy
from hwcalc.engines.sglang.memory import default_fraction
from hwcalc.engines.stored import bytes_of
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.model import ModelSpec
from hwcalc.profiles.gpus import find_gpu
from hwcalc.report.emit import emitted
from hwcalc.units import GIB

LLAMA = "meta-llama/Llama-3.1-8B"
QWEN = "Qwen/Qwen3.5-35B-A3B"
GPT = "openai/gpt-oss-120b"
V3 = "deepseek-ai/DeepSeek-V3"


def opened(
    model: str,
    *,
    gpu: str | None = None,
    tp: int = 1,
    dp: int = 1,
    pp: int = 1,
    seq: int = 1024,
    batch: int = 1,
    dtype: str | None = None,
    **options: str,
) -> SglangOccupancy:
    """An opened request."""
    hardware = Hardware(gpu=None if gpu is None else find_gpu(gpu))
    parallel = Parallel(tp=tp, dp=dp, pp=pp)
    request = Request.of(seq=seq, batch=batch, dtype=dtype, parallel=parallel, hardware=hardware, options=options)
    return sglang(load_model(model), request)


def sglang(model: ModelSpec, request: Request) -> SglangOccupancy:
    """A request to SGLang."""
    occupancy = find_engine("sglang")[0].open(model, request)
    assert isinstance(occupancy, SglangOccupancy)
    return occupancy


@pytest.mark.parametrize(
    ("model", "changed", "longest"),
    [
        ("CohereForAI/c4ai-command-r-v01", {}, 131_072),
        ("stepfun-ai/Step-3.7-Flash", {}, 128_000),
        ("state-spaces/mamba-1.4b-hf", {}, 2048),
        ("meta-llama/Llama-2-7b-hf", {}, 4096),
        ("meta-llama/Llama-2-7b-hf", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 16_384),
        ("meta-llama/Llama-2-7b-hf", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
        ("meta-llama/Llama-2-7b-hf", {"max_seq_len": 5000, "model_max_length": 7000}, 5000),
        ("google/gemma-3-27b-it", {}, 131_072),
    ],
)
def test_the_longest_sequence_is_that_of_the_server(model: str, changed: dict[str, object], longest: int) -> None:
    """What ``ModelConfig`` of 0.5.23 says of the same files."""
    config = dict(load_model(model).config) | changed
    assert sglang(load_model(config), Request.of(seq=999)).settings.context == longest


@pytest.mark.parametrize(
    ("gpu", "model", "tp", "share"),
    [
        (gpu, model, tp, share)
        for gpu, tp, dense, latent in (
            ("t4", 1, 0.735, 0.657),
            ("rtx-4090", 1, 0.704, 0.657),
            ("rtx-5090", 1, 0.777, 0.742),
            ("a100-sxm4-40gb", 1, 0.823, 0.795),
            ("l40s", 1, 0.843, 0.818),
            ("h100-sxm5-80gb", 1, 0.83, 0.816),
            ("h100-sxm5-80gb", 8, 0.812, 0.799),
            ("h200-sxm-141gb", 1, 0.903, 0.896),
            ("h200-sxm-141gb", 8, 0.893, 0.886),
            ("b200-180gb", 1, 0.854, 0.849),
            ("b200-180gb", 8, 0.849, 0.844),
        )
        for model, share in ((LLAMA, dense), (V3, latent))
    ]
    + [("l4", LLAMA, 1, 0.684)],
)
def test_the_share_follows_from_the_gpu(gpu: str, model: str, tp: int, share: float) -> None:
    """Worked by SGLang's heuristic for totals of nvidia-smi, of GPUs too on which its kernels do not run."""
    request = Request.of(seq=1024, tp=tp, gpu=find_gpu(gpu))
    deployment = find_engine("sglang")[0].unchecked(load_model(model), request).deployment
    assert isinstance(deployment, SglangDeployment)
    assert default_fraction(deployment) == share


def test_a_share_below_zero_is_said() -> None:
    """Graphs of 72 replicas reserve more than an H100 has: nothing is left, no part is less than nothing, and a named share helps."""
    notes = []
    for options in ({}, {"mem_fraction_static": "0.835"}):
        asked: dict[str, Any] = {"engine_options": {"enable_dp_attention": "true", **options}}
        made = plan(V3, engine="sglang", gpu="h100-sxm5-80gb", dp=72, ep=72, seq=2100, **asked)
        assert made.fit is not None
        assert made.fit.budget is not None
        assert all(part.low >= 0 for part in made.fit.budget.parts)
        notes.append("no-share" in {note.code for note in made.notes})

    assert notes == [True, False]


def test_the_share_is_of_what_is_free() -> None:
    """Of the context the pools lose their share alone, and a pass computes in what stays free."""
    made = plan(LLAMA, engine="sglang", gpu="h100-sxm5-80gb", engine_options={"mem_fraction_static": "0.5"})
    assert made.fit is not None
    budget = made.fit.budget
    assert budget is not None
    assert budget.utilization == 0.5
    assert {part.name for part in budget.parts} == {"weights", "context"}


def test_states_take_their_share_whatever_the_length() -> None:
    """On a GPU each request of a model with states has five slots; the prefix cache copies while the next batch runs."""
    assert opened(QWEN, gpu="h200-sxm-141gb").deployment.slots == 5
    assert opened(QWEN).deployment.slots == 3
    assert opened(QWEN, disable_radix_cache="true").deployment.slots == 1
    assert opened(QWEN, gpu="h200-sxm-141gb", mamba_scheduler_strategy="extra_buffer_lazy").deployment.slots == 4


def test_lines_of_public_logs() -> None:
    """Nemotron 3 Nano on four ranks in fp8, within the digits of its log; Gemma 4 E4B with a pool of windows of 0.8."""
    one = opened("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", tp=4, dtype="fp8_e4m3")
    conv = sum(
        one.deployment.layout.state_bytes[group.kind][0] * group.count
        for group in one.stack.groups
        if group.kind in one.deployment.layout.state_bytes
    )
    # max_mamba_cache_size: 2211, conv_state size: 0.44GB, ssm_state size: 24.84GB; K size: 14.05 GB
    assert (round(2_212 * conv / GIB, 2), round(2_212 * (one.deployment.layout.slot_bytes - conv) / GIB, 2)) == (0.44, 24.84)
    # The states are 0.9 of 28.10 GB, what attention has: 1.9 of it are all pools.
    sizes = one.sizes(int(28.10 * 1.9 * GIB))
    assert sizes.slots is not None
    assert abs(sizes.slots - 2_211) <= 2
    assert abs(sizes.tokens * one.deployment.layout.stages[0].full_bytes / 2 / GIB - 14.05) < 0.01
    # full_layer_tokens=805556, swa_layer_tokens=644444
    assert opened("google/gemma-4-E4B-it", max_total_tokens="805556").sizes(80 * GIB).swa_tokens == 644_444


def test_replicas_of_attention_divide_requests() -> None:
    """Attention of tp 1 on eight replicas: latents once on each, and an eighth of the requests."""
    one = opened(V3, dp=8, enable_dp_attention="true", max_running_requests="256")
    assert one.settings.own_requests == 32
    assert one.settings.chunk == 1024


def test_stages_have_as_many_tokens_as_the_longest_one() -> None:
    """61 layers on 4 stages: the last has 16."""
    one = opened(V3, pp=4)
    assert [stage.full_layers for stage in one.deployment.layout.stages] == [15, 15, 15, 16]
    assert one.sizes(64 * GIB).tokens == 64 * GIB // (16 * 576 * 2)


@given(st.integers(1, 2**37), st.integers(1, 2**30), st.sampled_from([LLAMA, QWEN, GPT, "deepseek-ai/DeepSeek-V4-Flash"]))
def test_more_memory_never_holds_less(budget: int, more: int, model: str) -> None:
    """With a number of requests named."""
    one = opened(model, max_running_requests="64")
    less, larger = map(one.deployment.pool_rules.figures, (budget, budget + more))
    assert one.at_once(less) <= one.at_once(larger)


@given(st.integers(1, 200_000), st.integers(1, 64), st.sampled_from([LLAMA, QWEN, GPT]))
def test_the_least_budget_holds_and_a_byte_less_does_not(seq: int, batch: int, model: str) -> None:
    """What a plan says that it needs."""
    one = opened(model, seq=seq, batch=batch)
    least = one.needed_bytes
    figures = one.deployment.pool_rules.figures
    assert one.at_once(figures(least)) >= batch > one.at_once(figures(least - 1))
    assert one.stored_bytes == least


def test_what_no_budget_holds_is_what_the_sequences_take() -> None:
    """36 layers x 2 x 8 x 128 x 2 B = 147,456 B a token, also of more requests than run at once and of more tokens than are allowed."""
    found = plan("Qwen/Qwen3-8B", engine="sglang", seq=100, batch=7_000)
    assert found.cache.total_bytes == 7_000 * 100 * 147_456
    found = plan("Qwen/Qwen3-8B", engine="sglang", seq=4_096, engine_options={"max_total_tokens": "1000"}, kv_memory=2**40)
    assert found.cache.total_bytes == 4_096 * 147_456
    assert found.fit is not None
    assert not found.fit.fits
    assert found.pool is not None
    assert found.pool.tokens == 1_000


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        # 100,000 tokens: 1,000 are kept once, and 1,000 more of each sequence.
        ({"seq": 2_000, "shared_prefix": 1_000}, 99),
        # 1,000 + 4 x 1,000 of each request.
        ({"seq": 2_000, "samples": 4, "prompt": 1_000}, 20),
        ({"seq": 2_000, "samples": 4, "prompt": 1_000, "engine_options": {"disable_radix_cache": "true"}}, 12),
        # 32 of 2,048 tokens and 32 of 1,024 are 98,304 tokens.
        ({"lengths": "1k,2k"}, 64),
    ],
)
def test_requests_that_are_unlike(asked: dict[str, Any], most: int) -> None:
    """How many fit does not depend on how many are planned."""
    found = plan("Qwen/Qwen3-8B", engine="sglang", kv_memory=100_000 * 147_456, **asked)
    assert found.fit is not None
    assert found.fit.max_batch == most


def test_the_compressors_of_all_requests() -> None:
    """DeepSeek-V4: without a GPU 2,048 requests, 2,049 x 128 + 129 rows, in blocks of 128, of 2 x 512 x 4 B in each of 20 layers."""
    one = opened("deepseek-ai/DeepSeek-V4-Flash", seq=40_000)
    states, _ = one.extras
    assert states.bytes == 2_051 * 128 * 2 * 512 * 4 * 20
    assert (
        sum(tensor.bytes for tensor in one.extras)
        + sum(group.count * bytes_of(one.kind_tensors[group.kind]) for group in one.stack.groups)
        == one.needed_bytes
    )


@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        (LLAMA, {"dtype": "int4"}, KvplanError),
        (LLAMA, {"engine_options": {"swa_full_tokens_ratio": "0"}}, UsageError),
        (LLAMA, {"engine_options": {"speculative": "draft:4"}}, UsageError),
        ("deepseek-ai/DeepSeek-V4-Flash", {"engine_options": {"page_size": "64"}}, UnsupportedError),
        # Layer 0 compresses nothing, and is a stage of its own.
        ("deepseek-ai/DeepSeek-V4-Flash", {"pp": 40, "engine_options": {"max_running_requests": "16"}}, UnsupportedError),
        (QWEN, {"tp": 3}, UsageError),
        (LLAMA, {"gpu": "h100", "dtype": "nvfp4"}, UnsupportedError),
        (LLAMA, {"gpu": "h100", "dtype": "mxfp8"}, UnsupportedError),
        (LLAMA, {"engine_options": {"mamba_scheduler_strategy": "extra_buffer"}}, UsageError),
        ("deepseek-ai/DeepSeek-V3.2", {"dtype": "fp8_e5m2"}, UnsupportedError),
    ],
)
def test_refusals(model: str, options: dict[str, object], error: type[KvplanError]) -> None:
    """An error that says what to do."""
    with pytest.raises(error) as caught:
        plan(model, engine="sglang", **options)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_class_that_it_has_not_is_refused() -> None:
    """The classes are those of the release."""
    config = dict(load_model(V3).config) | {"architectures": ["NoSuchForCausalLM"]}
    with pytest.raises(UnsupportedError, match="no class NoSuchForCausalLM"):
        plan(config, engine="sglang")


def test_plain_attention_of_another_class_runs_by_transformers() -> None:
    """A note says so, and the pool is the same."""
    config = dict(load_model(LLAMA).config) | {"architectures": ["NoSuchForCausalLM"]}
    made = plan(config, engine="sglang", kv_memory="16GiB")
    assert made.pool is not None
    assert made.pool.tokens == 131_072
    assert any(note.code == "not-its-own-class" for note in made.notes)


def test_a_class_newer_than_its_transformers_is_refused() -> None:
    """SGLang 0.5.23 needs transformers 5.19.0 exactly, and Kolibri, plain attention, came with 5.20."""
    with pytest.raises(UnsupportedError, match=r"no class Kolibri1ForCausalLM, nor has transformers 5\.19"):
        plan({"model_type": "kolibri1", "architectures": ["Kolibri1ForCausalLM"]}, engine="sglang", gpu="h100")


def test_the_command_line() -> None:
    """Flags by SGLang's names; replicas of attention are ranks of one group."""
    made = plan(
        V3,
        engine="sglang",
        gpu="h200",
        tp=2,
        dp=4,
        seq=4096,
        dtype="fp8_e4m3",
        engine_options={"enable_dp_attention": "true", "speculative": "eagle:1:4", "mem_fraction_static": "0.8"},
    )
    assert emitted(made, "sglang") == (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --kv-cache-dtype fp8_e4m3 "
        "--tp-size 8 --dp-size 4 --enable-dp-attention --speculative-algorithm EAGLE --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --mem-fraction-static 0.8"
    )


def test_the_length_that_a_server_allows() -> None:
    """The model's own, whatever users send: a shorter one has more requests. It bounds sequences, and is a flag where one is named.

    Llama-3.1-8B on an H100, mem_fraction_static=0.7: 131,072 tokens allowed give floor(tokens / 131,072 x 512), which is raised to 2,048;
    8,192 give more than 4,096, which is the most.
    """
    asked: dict[str, Any] = {"engine": "sglang", "gpu": "h100", "seq": 4096, "engine_options": {"mem_fraction_static": "0.7"}}
    usual = plan(LLAMA, **asked)
    assert usual.pool is not None
    assert usual.pool.max_requests == 2048
    assert "--context-length" not in emitted(usual, "sglang")
    asked["engine_options"]["context_length"] = 8192
    shorter = plan(LLAMA, **asked)
    assert shorter.pool is not None
    assert shorter.pool.tokens == usual.pool.tokens
    assert shorter.pool.max_requests == 4096
    assert shorter.fit is not None
    assert shorter.fit.max_seq == 8192
    assert "--context-length 8192" in emitted(shorter, "sglang")
    with pytest.raises(UsageError, match="seq is 8,193 tokens, and context_length allows 8,192") as refused:
        plan(LLAMA, **{**asked, "seq": 8193})
    assert str(refused.value.hint).startswith("Use: --engine-option context_length=8193")
    longer = emitted(plan(LLAMA, **{**asked, "seq": 131_073, "engine_options": {}}), "sglang")
    assert longer.startswith("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python -m sglang.launch_server")
    assert "--context-length 131073" in longer
    del asked["seq"]
    alone = plan(LLAMA, **asked)
    assert (alone.request.seq, alone.fit and alone.fit.max_seq) == (8192, 8192)


def test_adapters_that_come_later_are_told() -> None:
    """Without an adapter from the start, SGLang asserts that it knows the rank and the layers."""
    made = plan(LLAMA, engine="sglang", seq=4096, lora="rank=16,count=2,targets=attention")
    assert emitted(made, "sglang").endswith(
        "--enable-lora --max-loras-per-batch 2 --max-lora-rank 16 --lora-target-modules q_proj k_proj v_proj o_proj"
    )


def test_bytes_have_no_flag() -> None:
    """SGLang takes a share or a number of tokens."""
    made = plan(LLAMA, engine="sglang", kv_memory="20GiB")
    with pytest.raises(UnsupportedError, match="no flag for the bytes"):
        emitted(made, "sglang")


def test_weights_that_leave_nothing_have_their_own_message() -> None:
    """0.684 of an L4 is less than 8 billion numbers of two bytes; a pool of less than a page is another error."""

    def message(**given: Any) -> str:
        pool = plan(LLAMA, engine="sglang", seq=1024, **given).pool
        return str(pool and pool.message)

    assert message(gpu="l4").startswith("Loaded weights leave no GPU memory for the KV cache")
    assert message(kv_memory=1000).startswith("Not enough memory")

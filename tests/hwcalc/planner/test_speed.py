"""The bound on speed: arithmetic written out for known models, laws, and experts against a simulation."""

from __future__ import annotations

import random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.engines.setup import Parallel
from hwcalc.formulas import DType, Role
from hwcalc.model import ModelSpec, Noted
from hwcalc.planner.speed import speed_bound
from hwcalc.planner.speed_result import SpeedInfo
from hwcalc.planner.speed_work import Workload, cache_bytes_read, expected_share, weight_shares
from hwcalc.profiles.gpus import find_gpu
from hwcalc.profiles.hardware_file import Gpu

BF16 = DType(name="bf16", block_elements=1, block_bytes=2)
FP8 = DType(name="fp8", block_elements=1, block_bytes=1)
FP32 = DType(name="fp32", block_elements=1, block_bytes=4)
ROLES = dict.fromkeys(Role, BF16) | {Role.STATE: FP32}
RATES = {"fp32": 67.0, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "fp4": None, "int8": 1978.9}
H100 = Gpu(
    id="h100", name="H100", vendor="nvidia", memory_bandwidth_gbps=3350, tflops_dense=MappingProxyType(RATES), fp8_kv="native"
)

# Llama-3.1-8B: attention 4,096 x (4,096 + 1,024 + 1,024 + 4,096), MLP 3 x 4,096 x 14,336 and two norms in 32 layers, a norm, the
# head; its embedding of as many numbers as the head is looked up, a row of 8,192 bytes a token.
LLAMA_LAYERS = 32 * (4096 * 10_240 + 3 * 4096 * 14_336 + 2 * 4096) + 4096
LLAMA_HEAD = 128_256 * 4096
LLAMA_CACHE = 32 * 2 * 8 * 128 * 2
"""Bytes a token."""


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    """A dense model."""
    return load_model("meta-llama/Llama-3.1-8B", offline=True)


@pytest.fixture(scope="module")
def deepseek() -> ModelSpec:
    """Latent attention and 256 experts."""
    return load_model("deepseek-ai/DeepSeek-V3", offline=True)


def bound(model: ModelSpec, *, seq: int = 1024, batch: int = 1, gpu: Gpu = H100, **given: Any) -> SpeedInfo:
    """The bound on an H100, unless told otherwise."""
    return noted_bound(model, seq=seq, batch=batch, gpu=gpu, **given).value


def noted_bound(model: ModelSpec, *, seq: int = 1024, batch: int = 1, gpu: Gpu = H100, **given: Any) -> Noted[SpeedInfo]:
    """The bound with its notes. Parallel sizes may be given one by one."""
    ranks = {name: given.pop(name) for name in ("tp", "pp", "dp", "dcp", "ep") if name in given}
    shares = given.pop("shares", None)
    wanted: dict[str, Any] = {"seq": seq, "batch": batch, "roles": ROLES, "parallel": Parallel(**ranks)} | given
    return speed_bound(model, gpu, Workload(**wanted), shares)


def rate(model: ModelSpec, **given: Any) -> float:
    """Tokens a second."""
    found = bound(model, **given).decode_tokens_per_s_bound
    assert found is not None
    return found


def prompt(model: ModelSpec, **given: Any) -> float:
    """Seconds to the first token."""
    found = bound(model, **given).prefill_s_bound
    assert found is not None
    return found


def test_one_sequence_reads_the_weights(llama: ModelSpec) -> None:
    """15.01 GB of weights and 0.13 GB of cache at 3,350 GB/s are 4.5 ms, 221 tokens a second."""
    info = bound(llama)
    read = 2 * (LLAMA_LAYERS + LLAMA_HEAD) + 2 * 4096

    assert info.weight_bytes_per_step == read
    assert info.cache_bytes_per_step == 1024 * LLAMA_CACHE
    assert info.decode_step_s_bound == pytest.approx((read + 1024 * LLAMA_CACHE) / 3.35e12)
    assert info.decode_tokens_per_s_bound == pytest.approx(221.2, abs=0.1)
    assert info.bound_by == "memory bandwidth"
    assert info.definition == "bound"


def test_a_prompt_computes(llama: ModelSpec) -> None:
    """Two operations for each weight of a layer and token, the head once, 4 x 32 x 128 for each pair of tokens and layer."""
    info = bound(llama, seq=8192)
    operations = 2 * LLAMA_LAYERS * 8192 + 2 * LLAMA_HEAD + 32 * 4 * 32 * 128 * (8192 * 8193 // 2)

    assert info.prefill_flops == operations
    assert info.prefill_s_bound == pytest.approx(operations / 989.4e12)
    assert info.prefill_bound_by == "compute"


def test_a_large_batch_of_short_sequences_computes(llama: ModelSpec) -> None:
    """2 x 7.5e9 operations a token at 989 TFLOPS take longer than 15 GB at 3,350 GB/s from 299 tokens on."""
    assert bound(llama, seq=1, batch=290).bound_by == "memory bandwidth"
    assert bound(llama, seq=1, batch=310).bound_by == "compute"


def test_a_tied_head_is_read(llama: ModelSpec) -> None:
    """Llama-3.2-1B multiplies with its table: 1,235,814,400 parameters are read, and one row of 4,096 bytes once more."""
    tied = load_model("meta-llama/Llama-3.2-1B", offline=True)

    assert bound(tied).weight_bytes_per_step == 2 * 1_235_814_400 + 4096


def test_eight_bits_are_read_and_computed_faster(llama: ModelSpec) -> None:
    """fp8 takes the fp8 rate for matrices; head and attention stay in 16 bits."""
    plain, eight = bound(llama, seq=8192), bound(llama, seq=8192, weights="fp8")
    matrices = 32 * (4096 * 10_240 + 3 * 4096 * 14_336)
    rest = 2 * (LLAMA_LAYERS - matrices) * 8192 + 2 * LLAMA_HEAD + 32 * 4 * 32 * 128 * (8192 * 8193 // 2)

    assert plain.prefill_flops == eight.prefill_flops
    assert eight.prefill_s_bound == pytest.approx(2 * matrices * 8192 / 1978.9e12 + rest / 989.4e12)
    assert eight.weight_bytes_per_step is not None
    assert plain.weight_bytes_per_step is not None
    # A scale of four bytes for each of 7 matrices in 32 layers.
    assert plain.weight_bytes_per_step - eight.weight_bytes_per_step == matrices - 32 * 7 * 4


def test_weight_only_formats_compute_in_sixteen_bits(llama: ModelSpec) -> None:
    """AWQ is read faster, but not computed faster."""
    assert prompt(llama, seq=8192, weights="awq") == pytest.approx(prompt(llama, seq=8192))
    assert rate(llama, weights="awq") > 2.5 * rate(llama)


def test_latents_are_read_by_every_rank(deepseek: ModelSpec) -> None:
    """61 layers x 576 x 2 bytes a token, on one rank as on each of eight."""
    for tp in (1, 8):
        assert bound(deepseek, seq=4096, parallel=Parallel(tp=tp)).cache_bytes_per_step == 4096 * 61 * 576 * 2


def test_key_value_heads_are_divided_and_repeated(llama: ModelSpec) -> None:
    """Eight key/value heads: half of them on two ranks, one on each of eight and of sixteen."""
    found = [bound(llama, parallel=Parallel(tp=tp)).cache_bytes_per_step for tp in (1, 2, 8, 16)]

    assert found == [1024 * LLAMA_CACHE // part for part in (1, 2, 8, 8)]


def test_experts_of_one_token(deepseek: ModelSpec) -> None:
    """One token of DeepSeek-V3 uses 8 of 256 experts of 3 x 7,168 x 2,048 in each of 58 layers."""
    expert = 58 * 3 * 7168 * 2048
    shares = weight_shares(deepseek, "bf16")
    assert shares is not None
    chosen = [share for share in shares if share.use == "chosen"]

    assert sum(share.parameters for share in chosen) == 256 * expert
    assert sum(share.touched_bytes(1) for share in chosen) == pytest.approx(2 * 8 * expert)
    assert sum(share.flops_per_token for share in chosen) == 2 * 8 * expert
    assert sum(share.touched_bytes(1e6) for share in chosen) == pytest.approx(2 * 256 * expert)


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(8, 2, 1), (8, 2, 3), (64, 6, 10), (128, 4, 64), (16, 1, 5)])
def test_expected_experts_against_a_simulation(experts: int, chosen: int, tokens: int) -> None:
    """Tokens that draw their experts at random touch as many as the formula says, within four standard errors."""
    draw = random.Random(1)  # noqa: S311 - a simulation
    trials = 4000
    counts = [len({expert for _ in range(tokens) for expert in draw.sample(range(experts), chosen)}) for _ in range(trials)]
    mean = sum(counts) / trials
    error = (sum((count - mean) ** 2 for count in counts) / trials**2) ** 0.5

    assert experts * expected_share(experts, chosen, tokens) == pytest.approx(mean, abs=4 * error + 1e-9)


def test_pipeline_stages_take_turns(llama: ModelSpec) -> None:
    """One sequence gains nothing; two on two stages take the time of one; a prompt is shared out in pieces."""
    assert rate(llama, parallel=Parallel(pp=4)) == pytest.approx(rate(llama))
    assert rate(llama, parallel=Parallel(pp=2), batch=2) == pytest.approx(2 * rate(llama))
    assert prompt(llama, parallel=Parallel(pp=4), seq=8192) == pytest.approx(prompt(llama, seq=8192) / 4)


def test_replicas_multiply(llama: ModelSpec, deepseek: ModelSpec) -> None:
    """Two replicas make twice the tokens; where they share experts, more of them are awake, but each rank has half."""
    assert rate(llama, parallel=Parallel(dp=2), batch=8) == pytest.approx(2 * rate(llama, batch=4))
    assert rate(llama, parallel=Parallel(dp=4), batch=1) == pytest.approx(rate(llama))
    assert rate(deepseek, parallel=Parallel(tp=8, dp=2), batch=128) > 2 * rate(deepseek, parallel=Parallel(tp=8), batch=64)
    apart = rate(deepseek, parallel=Parallel(tp=8, dp=2, ep=8), batch=128)
    assert apart == pytest.approx(2 * rate(deepseek, parallel=Parallel(tp=8), batch=64))


def test_a_sparse_reader_skips() -> None:
    """DeepSeek-V3.2 reads 2,048 latents of 61 layers, and the indexer's key of every token."""
    sparse = load_model("deepseek-ai/DeepSeek-V3.2", offline=True)
    roles = ROLES | {Role.INDEX: FP8}

    assert cache_bytes_read(sparse.stack, roles, seq=100_000) == 61 * (2048 * 576 * 2 + 100_000 * 128)


def test_states_are_written_back() -> None:
    """A recurrent state is read and written by each token; how many tokens came before does not matter."""
    config = {
        "model_type": "mamba",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "conv_kernel": 4,
        "time_step_rank": 4,
        "vocab_size": 100,
    }
    model = load_model(config)

    for seq in (1, 1000):
        assert cache_bytes_read(model.stack, ROLES, seq=seq) == 2 * (2 * 128 * 16 * 4 + 128 * 3 * 2)


def test_cross_attention_uses_its_keys_once() -> None:
    """Keys and values of the encoder's output are weights of the prompt, not of a step."""
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "num_layers": 2,
        "num_decoder_layers": 3,
        "d_model": 64,
        "d_kv": 8,
        "d_ff": 128,
        "num_heads": 4,
        "vocab_size": 100,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
    }
    shares = weight_shares(load_model(config), "fp16")
    assert shares is not None
    once = sum(share.parameters for share in shares if share.use == "encoder")
    attention, feed_forward = 4 * 64 * 32, 2 * 64 * 128
    # Two encoder layers, each with its relative positions or none and two norms, the last norm; 3 x keys and values.
    least = 2 * (attention + feed_forward + 2 * 64) + 64 + 3 * 2 * 64 * 32

    assert least <= once <= least + 32 * 4


def test_what_is_not_known_is_left_out(llama: ModelSpec) -> None:
    """Without a rate memory alone bounds, without both nothing does; a note says so."""
    without_rates = replace(H100, tflops_dense=MappingProxyType({}))
    found, notes = noted_bound(llama, gpu=without_rates, batch=4096, seq=1)

    assert found.bound_by == found.prefill_bound_by == "memory bandwidth"
    assert [note.code for note in notes] == ["speed-partly-known"]
    assert bound(llama, gpu=replace(without_rates, memory_bandwidth_gbps=None)).decode_tokens_per_s_bound is None
    unknown, why = noted_bound(replace(llama, counted=None))
    assert unknown.definition == "unknown"
    assert [note.code for note in why] == ["speed-unknown"]


@given(
    batch=st.integers(1, 512),
    more=st.integers(1, 512),
    seq=st.integers(1, 131_072),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 8),
    bandwidth=st.floats(10, 20_000),
)
def test_laws(batch: int, more: int, seq: int, tp: int, pp: int, bandwidth: float) -> None:
    """More bandwidth, ranks or sequences never make fewer tokens a second; longer caches never more; a sequence gains nothing from others."""
    for name in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"):
        model = load_model(name, offline=True)
        shares = weight_shares(model)
        gpu = replace(H100, memory_bandwidth_gbps=bandwidth)
        given: dict[str, Any] = {"gpu": gpu, "tp": tp, "pp": pp, "seq": seq, "shares": shares}
        now = rate(model, batch=batch, **given)
        slack = 1 - 1e-9

        assert rate(model, batch=batch, **given | {"gpu": replace(gpu, memory_bandwidth_gbps=2 * bandwidth)}) >= now * slack
        assert rate(model, batch=batch, **given | {"tp": 2 * tp}) >= now * slack
        assert rate(model, batch=batch + more, **given) >= now * slack
        assert rate(model, batch=batch + more, **given) / (batch + more) <= now / batch / slack
        assert rate(model, batch=batch, **given | {"seq": 2 * seq}) <= now / slack
        assert prompt(model, batch=batch, **given | {"seq": 2 * seq}) >= prompt(model, batch=batch, **given) * slack


@pytest.mark.parametrize("size", [2**40])
def test_absurd_sizes_are_numbers(llama: ModelSpec, deepseek: ModelSpec, size: int) -> None:
    """The largest lengths and batches that are allowed give finite seconds."""
    for model in (llama, deepseek):
        info = bound(model, seq=size, batch=size)
        assert info.decode_step_s_bound is not None
        assert 0 < info.decode_step_s_bound < float("inf")
        assert info.prefill_s_bound is not None
        assert 0 < info.prefill_s_bound < float("inf")


# --- no measurement is faster ---------------------------------------------------------------------------------------------

MEASURED = (
    # llama-bench, prompts: github.com/ggml-org/llama.cpp, pull requests 4766 and 7716. Multiplied as 8-bit integers: more than FP32 allows.
    ("p40-pcie-24gb", "meta-llama/Llama-2-7b-hf", "q4_0", 512, 0, 934.74),
    ("p40-pcie-24gb", "meta-llama/Meta-Llama-3-8B", "q5_0", 2048, 0, 784.71),
    # llama-bench, discussion 15013.
    ("rtx-5060-ti-16gb", "meta-llama/Llama-2-7b-hf", "q4_0", 512, 0, 3737.25),
    # llama-bench of generation: pull request 4766. FP16 at 1/64 of FP32 would allow four tokens a second.
    ("p40-pcie-24gb", "meta-llama/Llama-2-7b-hf", "q4_0", 64, 1, 56.79),
    # llama-batched-bench, 512 tokens before: llama.cpp, benches/dgx-spark.
    ("dgx-spark-gb10", "openai/gpt-oss-20b", "mxfp4_moe", 528, 16, 436.38),
    ("dgx-spark-gb10", "openai/gpt-oss-120b", "mxfp4_moe", 528, 8, 159.18),
    ("dgx-spark-gb10", "openai/gpt-oss-120b", "mxfp4_moe", 528, 16, 241.85),
    ("dgx-spark-gb10", "openai/gpt-oss-120b", "mxfp4_moe", 528, 32, 353.31),
    ("dgx-spark-gb10", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "q8_0", 528, 16, 231.44),
    ("dgx-spark-gb10", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "q8_0", 528, 32, 346.53),
)


@pytest.mark.parametrize(("gpu", "name", "weights", "seq", "batch", "measured"), MEASURED)
def test_no_measurement_is_faster(gpu: str, name: str, weights: str, seq: int, batch: int, measured: float) -> None:
    """Tokens per second that were published lie below the bound: of a prompt (no batch), or of a step with ``batch`` sequences."""
    model, card = load_model(name, offline=True), find_gpu(gpu)
    info = bound(model, gpu=card, seq=seq, batch=batch or 1, weights=weights, engine="llamacpp")
    assert info.prefill_s_bound is not None
    assert info.decode_tokens_per_s_bound is not None

    assert measured < (info.decode_tokens_per_s_bound if batch else seq / info.prefill_s_bound)


def test_a_slow_unit_is_no_limit(llama: ModelSpec) -> None:
    """A GTX 1080 Ti has 11.3 TFLOPS in 32 bits and 1/64 of that in 16: a step reads its weights in 33 ms, and computes in far less."""
    card, flops = find_gpu("gtx-1080-ti"), bound(llama, seq=8192).prefill_flops or 0

    assert bound(llama, gpu=card).bound_by == "memory bandwidth"
    assert prompt(llama, gpu=card, seq=8192) == pytest.approx(flops / 11.3e12)


def test_only_the_rate_of_32_bits_is_known(llama: ModelSpec) -> None:
    """It says nothing of tensor cores, which may be faster: a bound without a rate."""
    only = replace(H100, tflops_dense=MappingProxyType(dict.fromkeys(RATES) | {"fp32": 10.0}))

    assert bound(llama, gpu=only, seq=8192).prefill_bound_by == "memory bandwidth"
    assert bound(llama, gpu=only, seq=8192, weights="fp32", dtype="fp32").prefill_s_bound is not None


def test_sums_in_16_bits(llama: ModelSpec) -> None:
    """An RTX 3090 has 71 TFLOPS with sums in 32 bits, which vLLM asks for, and 142 with sums in 16 (NVIDIA's GA102 whitepaper)."""
    card, flops = find_gpu("rtx-3090"), bound(llama, seq=8192).prefill_flops or 0

    assert prompt(llama, gpu=card, seq=8192, engine="vllm") == pytest.approx(flops / 71e12, rel=0.01)
    assert prompt(llama, gpu=card, seq=8192, engine="llamacpp") == pytest.approx(flops / 142e12, rel=0.01)

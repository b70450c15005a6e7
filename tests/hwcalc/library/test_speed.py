"""Expected speeds: arithmetic written out for two models, single published measurements, laws, and refusals."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import hwcalc
from hwcalc import KvplanError, ModelSpec, load_model, plan
from hwcalc.library.plan import open_loaded
from hwcalc.library.speed import QUANTITIES, Speed
from hwcalc.planner.forecast import forecast
from hwcalc.planner.step_time import StepTimes, step_times
from hwcalc.profiles.gpus import find_gpu
from hwcalc.profiles.speed import FEW, find_speed_class, speed_classes
from tests.paths import ROOT

RATES = ("prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s")
LLAMA = {"engine": "vllm", "gpu": "h100-sxm5-80gb"}
DEEPSEEK = {"engine": "sglang", "gpu": "h100-sxm5-80gb", "gpus": 8, "tp": 8}
CARD = {"engine": "llamacpp", "gpu": "rtx-4090", "weights": "q4_k_m"}
SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("meta-llama/Llama-3.1-8B", LLAMA),
    "deepseek": ("deepseek-ai/DeepSeek-V3", DEEPSEEK),
    "replicas": ("deepseek-ai/DeepSeek-V3", {"engine": "vllm", "gpu": "h200-sxm-141gb", "gpus": 8, "dp": 8, "ep": 8}),
    "servers": ("meta-llama/Llama-3.1-8B", {**LLAMA, "gpus": 8, "dp": 8}),
    "card": ("Qwen/Qwen3-30B-A3B", CARD),
}


@cache
def model(name: str) -> ModelSpec:
    """A model, read once."""
    return load_model(SETUPS[name][0], offline=True)


def speed(name: str, **given: Any) -> Speed:
    """The speed of a setup."""
    return hwcalc.speed(model(name), **{**SETUPS[name][1], **given})


@cache
def steps(name: str) -> StepTimes:
    """The steps of a setup."""
    found = step_times(open_loaded(model(name), {**SETUPS[name][1], "seq": 16384})[0])
    assert found is not None
    return found


def test_a_step_of_llama_written_out() -> None:
    """32 sequences of 8,192 tokens of Llama-3.1-8B on an H100: 3,350 GB/s, 989.4 TFLOP/s, and the shares of the class."""
    shares = steps("llama").parameters
    assert shares is not None
    layers = 32 * (4096 * 10_240 + 3 * 4096 * 14_336 + 2 * 4096) + 4096
    head = 128_256 * 4096
    weights = 2 * (layers + head) + 32 * 2 * 4096
    cache_bytes = 32 * 8192 * 32 * 2 * 8 * 128 * 2
    scores = 32 * 32 * 4 * 32 * 128 * 8192
    terms = steps("llama").step(decoding=32, context=8192).terms

    assert terms["weights"] == pytest.approx(weights / (3.35e12 * shares.bandwidth_share))
    assert terms["cache"] == pytest.approx(shares.cache_times * cache_bytes / (3.35e12 * shares.bandwidth_share))
    assert terms["matrices"] == pytest.approx(2 * 32 * (layers + head) / (989.4e12 * shares.compute_shares["floats"]), rel=1e-4)
    assert terms["attention"] == pytest.approx(scores / (989.4e12 * shares.attention_share))
    assert terms["launches"] == pytest.approx(1e-6 * (shares.step_us + 32 * shares.layer_us + 32 * shares.sequence_us))
    assert terms["experts"] == terms["unpacking"] == terms["exchange"] == 0


def test_a_prompt_of_llama_written_out() -> None:
    """4,096 tokens in one chunk: two operations for each weight and token, and 4 x 32 x 128 for each pair of tokens and layer."""
    shares = steps("llama").parameters
    assert shares is not None
    layers = 32 * (4096 * 10_240 + 3 * 4096 * 14_336 + 2 * 4096) + 4096
    found = steps("llama").prompt(4096)

    assert found.terms["matrices"] == pytest.approx((2 * layers * 4096) / (989.4e12 * shares.compute_shares["floats"]), rel=1e-3)
    assert found.terms["attention"] == pytest.approx(32 * 4 * 32 * 128 * (4096 * 4097 // 2) / (989.4e12 * shares.attention_share))
    assert found.expected == pytest.approx(sum(found.terms.values()))


def test_a_step_of_deepseek_written_out() -> None:
    """16 sequences of 4,096 tokens of DeepSeek-V3 on eight H100: experts in fp8 with a scale for each 128 x 128, latents on every rank."""
    shares = steps("deepseek").parameters
    assert shares is not None
    expert = 3 * 7168 * 2048
    touched = 1 - (1 - 8 / 256) ** (16**shares.expert_power)
    experts = 58 * 256 * expert * (1 + 4 / 128**2) * touched / 8
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    eight_bit = 61 * attention + 3 * 3 * 7168 * 18_432 + 58 * expert
    sixteen_bit = 129_280 * 7168 + 58 * 256 * 7168
    weights = (eight_bit + 2 * sixteen_bit) / 8
    cache_bytes = 16 * 4096 * 61 * 576 * 2
    terms = steps("deepseek").step(decoding=16, context=4096).terms
    rate = 3.35e12 * shares.bandwidth_share
    link = 450e9 * shares.link_share
    sent = 2 * 2 * 7 / 8 * 16 * 7168 * 2

    assert terms["experts"] == pytest.approx(experts / (rate * shares.expert_bandwidth), rel=1e-3)
    assert terms["weights"] == pytest.approx(weights / rate, rel=2e-2)
    assert terms["cache"] == pytest.approx(shares.cache_times * cache_bytes / rate)
    assert terms["exchange"] == pytest.approx(61 * (1e-6 * (shares.exchange_us + 7 * shares.peer_us) + sent / link))
    assert shares.expert_layer_us is not None
    # A layer with latents launches 21 kernels, where another with experts launches 16.
    launched = 61 * 21 / 16
    assert terms["launches"] == pytest.approx(
        1e-6 * (shares.step_us + launched * shares.expert_layer_us + 16 * shares.sequence_us)
    )


def test_replicas_exchange_the_tokens_of_all_with_their_experts() -> None:
    """Eight replicas of attention, each with 16 tokens: before the experts a rank gets the 7 x 16 tokens of the others, and after them its sums.

    Replicas of a model without experts exchange nothing.
    """
    shares = steps("replicas").parameters
    assert shares is not None
    sent = 2 * 7 * 16 * 7168 * 2
    found = steps("replicas").step(decoding=16, context=4096).terms["exchange"]

    assert found == pytest.approx(61 * (1e-6 * (shares.exchange_us + 7 * shares.peer_us) + sent / (450e9 * shares.link_share)))
    assert steps("servers").step(decoding=16, context=4096).terms["exchange"] == 0


@pytest.mark.parametrize(
    ("gpu_id", "backend", "weights", "rate", "vectors"),
    [
        # 191e12 operations a second in 16 bits; 383e12 with 8-bit integers, which neither backend reaches. CUDA and ROCm add up blocks of 32
        # products, and each sum takes four instructions, each two operations on 32-bit numbers: of 47.8e12 and 82.6e12.
        ("radeon-ai-pro-r9700", "vulkan", "q8_0", 191e12, math.inf),
        ("radeon-ai-pro-r9700", "rocm", "q8_0", 191e12, 47.8e12),
        # 165.2e12 in 16 bits.
        ("rtx-4090", None, "q8_0", 660.6e12, 82.6e12),
        # In bf16 the driver has matrices on RDNA 4 alone: others multiply in 32 bits, at 29.7e12, and at 59.4e12 in fp16.
        ("radeon-ai-pro-r9700", "vulkan", "bf16", 191e12, math.inf),
        ("strix-halo-128gb", "vulkan", "bf16", 29.7e12, math.inf),
        ("strix-halo-128gb", "vulkan", "fp16", 59.4e12, math.inf),
        ("strix-halo-128gb", "rocm", "bf16", 59.4e12, math.inf),
        # Without matrix units products of 8-bit integers are added up, at 82.8e12; weights in 16 bits have 41.5e12.
        ("rx-6800-xt", "vulkan", "q8_0", 82.8e12, math.inf),
        ("rx-6800-xt", "rocm", "q8_0", 82.8e12, 20.7e12),
        ("rx-6800-xt", "rocm", "fp16", 41.5e12, math.inf),
    ],
)
def test_the_rate_of_matrices_is_that_of_the_kernels(
    gpu_id: str, backend: str | None, weights: str, rate: float, vectors: float
) -> None:
    """512 tokens of Llama-3.1-8B with llama.cpp: the operations of its layers and of one row of the head, by hand."""
    gpu = find_gpu(gpu_id)
    opened, _ = open_loaded(model("llama"), {"engine": "llamacpp", "gpu": gpu.id, "weights": weights, "seq": 1024})
    operations = 2 * (512 * 32 * (4096 * 10_240 + 3 * 4096 * 14_336) + 128_256 * 4096)
    scaling = operations / 2 / 32 * 4 * 2
    times = step_times(opened, speed_class=find_speed_class("llamacpp", gpu, backend))
    assert times is not None
    assert times.parameters is not None
    share = times.parameters.compute_shares["gguf" if weights == "q8_0" else "floats"]
    assert times.step(prompt_tokens=512).terms["matrices"] == pytest.approx(
        (operations / rate + scaling / vectors) / share, rel=1e-3
    )


def test_attention_of_llama_cpp_on_amd_is_at_the_rate_of_its_vectors() -> None:
    """512 tokens of Llama-3.1-8B on Strix Halo, whose vectors reach 29.7e12, and on an RTX 4090, whose matrices reach 330.3e12 in 16 bits."""
    scores = 32 * 4 * 32 * 128 * (512 * 513 // 2)
    for gpu_id, rate in (("strix-halo-128gb", 29.7e12), ("rtx-4090", 330.3e12)):
        opened, _ = open_loaded(model("llama"), {"engine": "llamacpp", "gpu": gpu_id, "weights": "q8_0", "seq": 1024})
        times = step_times(opened)
        assert times is not None
        assert times.parameters is not None
        took = scores / (rate * times.parameters.attention_share)
        assert times.step(prompt_tokens=512).terms["attention"] == pytest.approx(took, rel=1e-3)


def test_layers_take_longer_to_launch_on_a_card() -> None:
    """32 layers of Llama-3.1-8B with ROCm: on a card 3.6 times as long as on a processor that shares its memory."""
    layers = []
    for gpu_id in ("radeon-ai-pro-r9700", "strix-halo-128gb"):
        gpu = find_gpu(gpu_id)
        opened, _ = open_loaded(model("llama"), {"engine": "llamacpp", "gpu": gpu_id, "weights": "q8_0", "seq": 1024})
        times = step_times(opened, speed_class=find_speed_class("llamacpp", gpu, "rocm"))
        assert times is not None
        assert times.parameters is not None
        launches = times.step(decoding=1, context=512).terms["launches"]
        layers.append(launches * 1e6 - times.parameters.step_us - times.parameters.sequence_us)

    assert layers[0] == pytest.approx(3.6 * layers[1])


def test_kernels_read_no_faster_than_was_seen() -> None:
    """8.03 billion parameters in bf16 on an M1 Max, which reads 317.6 GB/s at most, and on an M3 Max, at the share of its class of 400 GB/s."""
    seconds = {}
    for gpu_id in ("apple-m1-max", "apple-m3-max-40c"):
        opened, _ = open_loaded(model("llama"), {"engine": "llamacpp", "gpu": gpu_id, "weights": "fp16", "seq": 1024})
        times = step_times(opened)
        assert times is not None
        assert times.parameters is not None
        seconds[gpu_id] = (
            times.step(decoding=1, context=1).terms["weights"]
            * {
                "apple-m1-max": 317.6e9,
                "apple-m3-max-40c": 400e9 * times.parameters.bandwidth_share,
            }[gpu_id]
        )

    # All of them but the embedding: of it one row is read.
    assert seconds == pytest.approx(dict.fromkeys(seconds, 2 * (8_030_261_248 - 128_256 * 4096)), rel=1e-3)


def test_eight_bit_weights_are_unpacked_where_matrices_are_not_of_integers() -> None:
    """gpt-fast multiplies in 16 bits on an A100, at 19.5e12 operations a second with 32-bit numbers; vLLM multiplies 8-bit integers."""
    gpu = find_gpu("a100-sxm4-80gb")
    opened, _ = open_loaded(model("llama"), {"engine": "reference", "gpu": gpu.id, "weights": "int8", "seq": 1024})
    local, server = (step_times(opened, speed_class=find_speed_class(engine, gpu)) for engine in ("gpt-fast", "vllm"))
    assert local is not None
    assert server is not None
    assert local.parameters is not None
    # The 32 layers without their norms.
    numbers = 32 * (4096 * 10_240 + 3 * 4096 * 14_336)
    unpacking = 2 * numbers / (19.5e12 * local.parameters.unpack_shares["blocks"])
    found = local.step(decoding=1, context=1024).terms

    assert found["unpacking"] == pytest.approx(math.hypot(found["weights"], unpacking) - found["weights"], rel=1e-2)
    assert server.step(decoding=1, context=1024).terms["unpacking"] == 0


MEASURED = (
    # llama-bench, github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, 2024: LLaMA 3 8B Q4_K_M on four RTX 3090, tg 512.
    (
        "meta-llama/Meta-Llama-3-8B",
        {"engine": "llamacpp", "gpu": "rtx-3090", "gpus": 4, "weights": "q4_k_m"},
        1,
        512,
        1,
        "decode",
        108.66,
    ),
    # llama.cpp benches/dgx-spark, build b6918: qwen2.5-coder-7b Q8_0, four sequences behind 512 tokens.
    ("Qwen/Qwen2.5-7B", {"engine": "llamacpp", "gpu": "dgx-spark-gb10", "weights": "q8_0"}, 512, 32, 4, "decode", 104.33),
    # github.com/ggml-org/llama.cpp/discussions/15013: LLaMA 2 7B Q4_0 on an RTX 5060 Ti, tg 128.
    (
        "meta-llama/Llama-2-7b-hf",
        {"engine": "llamacpp", "gpu": "rtx-5060-ti-16gb", "weights": "q4_0"},
        1,
        128,
        1,
        "decode",
        90.94,
    ),
    # vLLM issue 18725: QwQ-32B on eight H200, 6.49 ms between tokens.
    ("Qwen/Qwen2.5-32B", {"engine": "vllm", "gpu": "h200-sxm-141gb", "gpus": 8, "tp": 8}, 137, 266, 1, "decode", 1 / 0.00649),
)


@pytest.mark.parametrize(("name", "setup", "prompt", "output", "users", "kind", "value"), MEASURED)
def test_published_measurements_lie_in_the_range(
    name: str, setup: dict[str, Any], prompt: int, output: int, users: int, kind: str, value: float
) -> None:
    """Single figures, each with its source, are between the low and the high end, and below the bound."""
    found = hwcalc.speed(name, prompt=prompt, output=output, concurrency=users, offline=True, **setup)
    rate = found.decode_tokens_per_s

    assert kind == "decode"
    assert rate.low <= value <= rate.high
    assert value < rate.bound


@given(st.sampled_from(sorted(SETUPS)), st.integers(1, 30_000), st.integers(1, 4_000), st.integers(1, 400), st.integers(1, 3_000))
@settings(max_examples=20, deadline=None)
def test_laws(name: str, prompt: int, output: int, users: int, more: int) -> None:
    """The range holds the expected value, which never beats the bound; more users are never faster each, and longer prompts never sooner."""
    times = steps(name)
    found = [forecast(times, prompt, output, users), forecast(times, prompt, output, users + 1 + more // 30)]
    longer = forecast(times, prompt + more, output, users)

    for one in (*found, longer):
        for quantity in (one.prefill_s, one.step_s, one.ttft_s, one.itl_s, one.e2e_s, one.cycle_s):
            assert quantity.bound <= quantity.low * (1 + 1e-9)
            assert quantity.low <= quantity.expected * (1 + 1e-9)
            assert quantity.expected <= quantity.high
    assert found[1].itl_s.expected >= found[0].itl_s.expected * (1 - 1e-9)
    assert found[1].ttft_s.expected >= found[0].ttft_s.expected * (1 - 1e-9)
    assert longer.ttft_s.expected >= found[0].ttft_s.expected * (1 - 1e-9)
    assert longer.prefill_s.bound >= found[0].prefill_s.bound


@given(st.sampled_from(sorted(SETUPS)), st.integers(1, 30_000), st.integers(1, 400), st.floats(1.0, 4.0))
@settings(max_examples=20, deadline=None)
def test_a_faster_accelerator_is_never_slower(name: str, prompt: int, users: int, factor: float) -> None:
    """With all rates so many times as high, every time is as short or shorter."""
    times = steps(name)
    rates = MappingProxyType({key: rate and rate * factor for key, rate in times.gpu.tflops_dense.items()})
    links = MappingProxyType({"gbps_bidirectional": 900 * factor})
    faster = replace(
        times,
        gpu=replace(times.gpu, tflops_dense=rates, interconnect=links),
        places=tuple(replace(place, bandwidth=place.bandwidth and place.bandwidth * factor) for place in times.places),
    )
    before, after = (forecast(one, prompt, 200, users) for one in (times, faster))

    for quantity in ("prefill_s", "step_s", "ttft_s", "itl_s", "e2e_s"):
        for end in ("bound", "expected", "low", "high"):
            assert getattr(getattr(after, quantity), end) <= getattr(getattr(before, quantity), end) * (1 + 1e-9)


def test_arrays_are_each_number() -> None:
    """Arrays broadcast, and hold what single calls return."""
    prompts, users = np.array([100, 8000]), np.array([[1], [40]])
    found = speed("llama", prompt=prompts, output=300, concurrency=users)

    assert found.itl_s.expected.shape == (2, 2)
    for row, count in enumerate(users.ravel().tolist()):
        for column, prompt in enumerate(prompts.tolist()):
            alone = speed("llama", prompt=prompt, output=300, concurrency=count)
            for name in QUANTITIES:
                many, single = (np.broadcast_to(getattr(one, name).expected, (2, 2)) for one in (found, alone))
                assert many[row, column] == pytest.approx(single[row, column], rel=2e-3), name


def test_who_does_not_fit_waits() -> None:
    """52 sequences of 8,500 tokens fit on an H100; of 300 users the others wait, and the engine makes no more tokens for that."""
    some, all_of_them = (speed("llama", prompt=8000, output=500, concurrency=count) for count in (52, 300))
    most = speed("llama", prompt=8000, output=500, concurrency="max")

    assert 40 < all_of_them.at_once < 60
    assert all_of_them.at_once == most.at_once
    assert all_of_them.output_tokens_per_s.expected == pytest.approx(most.output_tokens_per_s.expected)
    assert all_of_them.ttft_s.expected > some.ttft_s.expected
    assert "waiting" in {note.code for note in all_of_them.notes}


def test_a_speed_of_what_does_not_fit_says_so() -> None:
    """405 billion parameters in 16 bits are 810 GB, eight H100 have 640; in eight bits they fit."""
    asked: dict[str, Any] = {"prompt": 512, "engine": "vllm", "gpu": "h100-sxm5-80gb", "tp": 8}
    notes = [
        [note.code for note in hwcalc.speed("meta-llama/Llama-3.1-405B", concurrency=users, weights=weights, **asked).notes]
        for users in (1, 8, "max")
        for weights in (None, "fp8")
    ]

    assert ["does-not-fit" in codes for codes in notes] == [True, False] * 3
    assert not any("waiting" in codes for codes in notes)


def test_more_tokens_than_the_model_has_positions() -> None:
    """Llama-3.1 has 131,072 of them: the answer says so, as a plan does."""
    codes = [[note.code for note in speed("llama", prompt=tokens, output=72).notes] for tokens in (131_000, 131_001)]

    assert ["beyond-maximum" in one for one in codes] == [False, True]


def test_a_cached_prefix_comes_sooner() -> None:
    """What lies in the cache is not computed, but is read, and looked at by every token behind it."""
    whole, half = (speed("llama", prompt=8000, cached_prefix=prefix) for prefix in (0, 4000))

    assert half.ttft_s.expected < whole.ttft_s.expected
    assert half.ttft_s.expected > speed("llama", prompt=4000).ttft_s.expected


def test_a_plan_has_the_same() -> None:
    """The step of a plan and its prompt are those of the call; low and high lie around them."""
    found = plan(model("llama"), **LLAMA, seq=8192, batch=8)  # type: ignore[arg-type]
    assert found.speed is not None
    each, all_of_them = found.speed.tokens_per_s_each, found.speed.decode_tokens_per_s
    assert each is not None
    assert all_of_them is not None
    step = steps("llama").step(decoding=8, context=8192)

    assert each.expected == pytest.approx(1 / step.expected)
    assert all_of_them.expected == pytest.approx(8 / step.expected)
    assert all_of_them.bound == pytest.approx(found.speed.decode_tokens_per_s_bound)
    assert found.to_dict()["speed"]["prefill_s"]["expected"] == pytest.approx(speed("llama", prompt=8192).ttft_s.expected)
    figure = next(one for one in found.speed.steps if one.name == "expected_step_s")
    assert figure.expected == pytest.approx(sum(term.expected for term in figure.terms)) == pytest.approx(step.expected)


def test_with_a_prompt_a_plan_knows_requests() -> None:
    """With --prompt the rest of a sequence is its output: there is a time to the first token, between tokens, and in all, and rates with it."""
    found = plan(model("llama"), **LLAMA, seq=8192, prompt=7168, batch=8).speed  # type: ignore[arg-type]
    called = speed("llama", prompt=7168, output=1024, concurrency=8)
    assert found is not None

    for name in ("ttft_s", "itl_s", "e2e_s", "prefill_tokens_per_s", "output_tokens_per_s"):
        for end in ("expected", "low", "high"):
            assert getattr(getattr(found, name), end) == pytest.approx(getattr(getattr(called, name), end))
    whole = plan(model("llama"), **LLAMA, seq=8192, batch=8).speed  # type: ignore[arg-type]
    assert whole is not None
    assert whole.prefill_s is not None
    assert whole.prefill_tokens_per_s is not None
    assert whole.prefill_tokens_per_s.expected == pytest.approx(8192 / (whole.prefill_s.expected or 0))
    assert whole.output_tokens_per_s is None


def test_engines_that_nobody_measured_have_a_bound_alone() -> None:
    """TGI: no expected value, and a note that says why."""
    found = hwcalc.speed(model("llama"), engine="tgi", gpu="h100-sxm5-80gb", prompt=1000, output=100)

    assert found.itl_s.expected is None
    assert found.itl_s.bound > 0
    assert found.itl_s.definition == "bound"
    assert "No expected speed of TGI on h100-sxm5-80gb" in " ".join(note.message for note in found.notes)


def test_engines_that_are_not_planned_are_answered() -> None:
    """ExLlamaV2 was measured; its memory is that of the formulas."""
    found = hwcalc.speed(model("llama"), engine="exllamav2", gpu="rtx-4090", weights="exl2_4bpw", prompt=100, output=100)

    assert found.engine == "exllamav2"
    assert found.itl_s.expected is not None


def test_names_in_other_letters() -> None:
    """ATOM is the engine of AMD; TensorRT-LLM's replicas share experts where dp and ep are given."""
    atom = hwcalc.speed(model("deepseek"), engine="ATOM", gpu="mi355x", gpus=8, tp=8, prompt=100, output=10)
    dealt = hwcalc.speed(model("deepseek"), engine="TensorRT-LLM", gpu="b200-180gb", gpus=8, dp=8, ep=8, prompt=100, output=10)

    assert (atom.engine, atom.speed_class) == ("atom", "server-instinct")
    assert (dealt.dp, dealt.ep, dealt.speed_class) == (8, 8, "server-blackwell")


def test_without_an_engine_the_usual_one_runs() -> None:
    """In a datacenter that is vLLM, on a card llama.cpp; the answer says so."""
    found = [hwcalc.speed(model("llama"), gpu=gpu, prompt=100, output=10) for gpu in ("h100-sxm5-80gb", "rtx-4090")]

    assert [one.engine for one in found] == ["vllm", "llamacpp"]
    assert all(one.notes[0].code == "default-engine" for one in found)


def test_accepted_drafts_add_tokens() -> None:
    """With three tokens a step that computes two drafts and the one behind them, tokens come three times as often as such steps."""
    plain, drafted = (speed("llama", prompt=1000, output=100, concurrency=8, accepted_tokens=count) for count in (1, 3))
    step = sum(drafted.step_terms.values())

    assert drafted.decode_tokens_per_s.expected == pytest.approx(8 * 3 / step)
    # Weights and caches are read once, but for rows of the embedding; three times as many tokens go through the matrices.
    assert drafted.step_terms["weights"] == pytest.approx(plain.step_terms["weights"], rel=1e-4)
    assert drafted.step_terms["cache"] == pytest.approx(plain.step_terms["cache"])
    assert drafted.step_terms["matrices"] == pytest.approx(3 * plain.step_terms["matrices"])
    assert drafted.itl_s.expected < plain.itl_s.expected
    assert drafted.itl_s.bound < drafted.itl_s.low < drafted.itl_s.expected
    assert drafted.ttft_s.bound == plain.ttft_s.bound


def test_as_many_drafts_as_the_engine_is_told() -> None:
    """Two tokens by n-grams: a step computes three of each sequence, and adds three at most."""
    options: dict[str, Any] = {"engine": "vllm", "gpu": "h100-sxm5-80gb", "engine_options": {"speculative": "ngram:2"}}
    few = hwcalc.speed(model("llama"), prompt=1000, output=100, accepted_tokens=1.5, **options)
    plain = hwcalc.speed(model("llama"), prompt=1000, output=100, **options)

    assert few.step_terms["matrices"] == pytest.approx(3 * plain.step_terms["matrices"])
    with pytest.raises(KvplanError, match=r"accepted-tokens is 3\.5, but 2 tokens are drafted"):
        hwcalc.speed(model("llama"), prompt=1000, output=100, accepted_tokens=3.5, **options)


def test_defaults_take_longer() -> None:
    """Servers by the defaults of their engine were measured apart."""
    tuned, untuned = (speed("llama", prompt=1000, output=100, concurrency=8, tuned=one) for one in (True, False))

    assert untuned.itl_s.expected > tuned.itl_s.expected
    assert "default settings" in untuned.itl_s.source


def test_backends_differ() -> None:
    """On AMD's processors with shared memory llama.cpp runs with Vulkan or with ROCm; Vulkan where none is named."""
    shared = find_gpu("strix-halo-128gb")
    named = {word: find_speed_class("llamacpp", shared, word) for word in (None, "vulkan_radv", "ROCm 7.2", "hip")}

    assert [one and one.id.rpartition("-")[2] for one in named.values()] == ["vulkan", "vulkan", "rocm", "rocm"]
    amdvlk = find_speed_class("llamacpp", shared, "vulkan_amdvlk")
    assert amdvlk is not None
    assert amdvlk.id == "llamacpp-amd-amdvlk"


@pytest.mark.parametrize(
    ("gpu_id", "backend", "build", "found"),
    [
        # #18749 gave AMD's matrix units tiles of their own, on cards and processors alike.
        ("rx-7900-xtx", "vulkan", None, "llamacpp-amd-vulkan"),
        ("rx-7900-xtx", "vulkan", 7706, "llamacpp-amd-vulkan-before-b7707"),
        ("strix-halo-128gb", "vulkan", 7706, "llamacpp-amd-vulkan-before-b7707"),
        ("rx-7900-xtx", None, 7706, "llamacpp-amd-rocm"),
        ("mi210", None, None, "llamacpp-amd-rocm"),
    ],
)
def test_cards_and_processors_of_amd_share_a_class_since_their_kernels_do(
    gpu_id: str, backend: str | None, build: int | None, found: str
) -> None:
    """ROCm is the usual backend of cards, Vulkan that of processors."""
    speed_class = find_speed_class("llamacpp", find_gpu(gpu_id), backend, build)

    assert speed_class is not None
    assert speed_class.id == found


def test_builds_differ() -> None:
    """llama.cpp multiplies quantised matrices on the matrix units of RDNA 3.5 since b7279 (#17576). The newest build is planned by default."""
    before, since, newest = (
        hwcalc.speed(
            "meta-llama/Llama-2-7b-hf", engine=f"llamacpp{at}", gpu="strix-halo-128gb", weights="q4_0", prompt=512, backend="rocm"
        )
        for at in ("@b7278", "@b7279", "")
    )

    assert before.speed_class == "llamacpp-amd-rocm-before-b7279"
    assert since.speed_class == newest.speed_class == "llamacpp-amd-rocm"
    assert before.prefill_tokens_per_s.expected < since.prefill_tokens_per_s.expected == newest.prefill_tokens_per_s.expected


@pytest.mark.parametrize(("gpu", "products"), [("apple-m2", 1), ("rtx-4090", 4)])
@pytest.mark.parametrize(("weights", "packed", "reached"), [("q8_0", "blocks", 1), ("q6_k", "superblocks", 0.75)])
def test_unpacking_by_hand(gpu: str, products: int, weights: str, packed: str, reached: float) -> None:
    """Llama 2 7B has 32 x (4 x 4096^2 + 3 x 4096 x 11008) + 32000 x 4096 numbers that a step unpacks, while it reads them, and multiplies by."""
    numbers = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32_000 * 4096
    profile = find_gpu(gpu)
    found = find_speed_class("llamacpp", profile)
    assert found is not None
    terms = hwcalc.speed("meta-llama/Llama-2-7b-hf", engine="llamacpp", gpu=gpu, weights=weights, prompt=512).step_terms
    rates = {name: rate for name, rate in profile.tflops_dense.items() if rate is not None}

    unpacking = 2 * numbers / (products * rates["fp32"] * 1e12 * found.parameters.unpack_shares[packed])
    assert terms["unpacking"] == pytest.approx(math.hypot(terms["weights"], unpacking) - terms["weights"], rel=1e-6)
    rate = max(rates.get(name, 0) for name in ("int8", "fp16", "fp8"))
    # CUDA's kernels take four instructions of 32 bits, eight operations, for the scales of 32 products.
    scaling = 0 if gpu == "apple-m2" else 8 * numbers / 32 / (rates["fp32"] * 1e12)
    took = (2 * numbers / (rate * 1e12) + scaling) / (found.parameters.compute_shares["gguf"] * reached)
    assert terms["matrices"] == pytest.approx(took, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": 0}, "prompt"),
        ({"prompt": 100, "cached_prefix": 100}, "as many tokens as the prompt"),
        ({"prompt": "many"}, "many"),
        ({"prompt": 100, "concurrency": np.array([0.5])}, "no array of whole numbers"),
        ({"prompt": 100, "gpu": None}, "needs an accelerator"),
        ({"prompt": 100, "accepted_tokens": 0.5}, "from 1 to 100"),
        ({"prompt": 100, "engine": "nobodys"}, "nobodys"),
        (
            {"prompt": np.array([1, 2]), "concurrency": np.array([1, 2, 3])},
            r"prompt has the shape \(2,\), and concurrency \(3,\)",
        ),
        ({"prompt": np.array([8, 9]), "cached_prefix": np.array([1, 2, 3])}, r"prompt .*\(2,\), and cached_prefix \(3,\)"),
        ({"prompt": 100, "backend": "vulkan", **CARD}, "llamacpp on rtx-4090 has no backends"),
        ({"prompt": 100, "backend": "rocm", "engine": "vllm", "gpu": "mi300x"}, "vllm on .* has no backends"),
        ({"prompt": 100, "backend": "x", "gpu": "strix-halo-128gb", "engine": None}, "backend is 'x'.*amdvlk, rocm, vulkan"),
        ({"prompt": 100, "backend": "", "gpu": "strix-halo-128gb", "engine": "llamacpp"}, "backend is ''.*amdvlk, rocm, vulkan"),
    ],
)
def test_wrong_usage_is_refused(given: dict[str, Any], words: str) -> None:
    """What was given, and what is allowed."""
    with pytest.raises(KvplanError) as caught:
        speed("llama", **given)
    assert re.search(words, str(caught.value))


def test_classes_say_what_they_were_fitted_to() -> None:
    """Each class names its sources and numbers of rows; with few rows the range is wide."""
    for one in speed_classes():
        assert one.measurements > 0
        assert one.sources
        for kind, spread in one.ranges.items():
            assert spread.low < 1 < spread.high
            if 0 < one.rows.get(kind, 0) < FEW:
                assert spread.high / spread.low > 2, (one.id, kind)
        if one.measurements < FEW:
            assert one.text.startswith("few measurements")


def test_the_page_has_the_table_of_the_files() -> None:
    """docs/speed.md shows the errors and ranges that the files state."""
    from scripts.fit_speed import TABLE_BEGINS, TABLE_ENDS, table

    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert f"{TABLE_BEGINS}\n{table()}\n{TABLE_ENDS}" in page


def test_a_row_is_planned_as_the_file_that_was_measured() -> None:
    """llama-bench calls files of gpt-oss F16 whose dense weights have 16 bits. The row of gpt-oss-20b states the size of its file."""
    from scripts.speed_rows import weights_of

    row = {"engine": "llama.cpp", "model": "openai/gpt-oss-20b", "weight_dtype": "gpt-oss ?B F16"}
    planned = plan(row["model"], engine="llamacpp", seq=512, weights=weights_of(row), offline=True)
    assert planned.memory.weights.bytes == 13_779_630_336


def test_a_row_that_names_its_only_backend_is_compared(tmp_path: Path) -> None:
    """llama.cpp on NVIDIA has one class: that a row says CUDA changes nothing. On AMD the word tells backends apart."""
    from scripts.speed_rows import compared, rows_of

    row = {
        "id": 1, "source": "made for this test", "class": "local", "engine": "llama.cpp", "gpu": "l4", "model": "Qwen/Qwen3-8B",
        "weight_dtype": "Q8_0", "kv_dtype": "16bit", "prompt": 512, "output": 128, "depth": 0, "batch": 1, "metric": "decode_tps",
        "value": 20.0, "flags": [],
    }  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**row, "backend": word}) + "\n" for word in ("CUDA", None)), encoding="utf-8")

    (one, other), refused = compared(rows_of(file))

    assert refused == {}
    assert one.expected == other.expected
    assert one.speed_class == other.speed_class

"""Sizes of GGUF files that people have loaded, as llama.cpp printed them, against the files that are planned from a config.

llama-bench and the loader print the bytes of all tensors in GiB with two decimals, without the header; prediction layers count. Files of
unsloth's dynamic kind (UD-...), and files whose name is not known, are left out: no rule says what is in them. So is a Mistral Small of
24B, whose config in the catalog ties a table that the model does not.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from hwcalc import fit, load_model, plan
from hwcalc.errors import UnsupportedError
from hwcalc.quantization.gguf import file_tensors, mix_bytes
from hwcalc.quantization.planned import format_name
from hwcalc.report.emit import commands_to_start
from hwcalc.report.summary import hints_of

GIB: Final = 2**30

ARC: Final = "Arc Pro B70, LLM inference benchmarks (llama.cpp Vulkan), llama-bench of b9739, 2026-07-17"
MAX: Final = "llama-bench on an MS-S1 MAX: unsloth/GLM-4.5-Air-GGUF, bartowski/Mixtral-8x22B-v0.1-GGUF, unsloth/Llama-4-Scout-17B-16E-Instruct-GGUF"
IK: Final = "github.com/ikawrakow/ik_llama.cpp/pull/259: unsloth/DeepSeek-R1-GGUF, before the latent's matrix was divided"
BENCH: Final = "llama-bench tables in public repositories"

SIZES: Final = (
    ("meta-llama/Llama-3.1-8B", "q4_k_m", 4.58, ARC),
    ("meta-llama/Llama-3.1-8B", "q5_k_m", 5.33, ARC),
    ("meta-llama/Llama-3.1-8B", "q8_0", 7.95, ARC),
    ("meta-llama/Llama-3.1-70B", "q4_k_m", 39.59, ARC),
    ("meta-llama/Llama-3.1-70B", "q2_k", 24.56, ARC),
    ("meta-llama/Llama-3.1-70B", "iq3_xs", 27.29, ARC),
    ("meta-llama/Llama-3.1-70B", "q3_k_m", 31.91, "github.com/ollama/ollama/issues/10553"),
    ("Qwen/Qwen2.5-7B-Instruct", "q4_k_m", 4.36, "tools/llama-bench/README.md of llama.cpp"),
    ("Qwen/Qwen2.5-14B-Instruct", "q4_k_m", 8.37, ARC),
    ("Qwen/Qwen3-8B", "q4_k_m", 4.68, ARC),
    ("Qwen/Qwen3-8B", "q8_0", 8.11, BENCH),
    ("Qwen/Qwen3-14B", "q4_k_m", 8.38, ARC),
    ("Qwen/Qwen3-32B", "q4_k_m", 18.40, ARC),
    ("Qwen/Qwen3-30B-A3B", "q4_k_m", 17.28, "github.com/ggml-org/llama.cpp/issues/14235"),
    ("Qwen/Qwen3-235B-A22B", "q2_k", 79.80, BENCH),
    ("Qwen/Qwen3-235B-A22B", "q3_k_s", 94.47, BENCH),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "q4_k_m", 45.17, BENCH),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "q4_1", 46.62, BENCH),
    ("Qwen/Qwen3.5-27B", "q8_0", 27.04, BENCH),
    ("microsoft/phi-4", "q4_k_m", 8.43, ARC),
    ("microsoft/phi-4", "q8_0", 14.51, BENCH),
    ("google/gemma-3-12b-it", "q4_k_m", 6.79, ARC),
    ("google/gemma-3-27b-it", "q4_k_m", 15.40, ARC),
    ("openai/gpt-oss-20b", "mxfp4_moe", 11.27, ARC),
    ("openai/gpt-oss-120b", "mxfp4_moe", 59.02, ARC),
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "q4_k_m", 6.07, ARC),
    ("zai-org/GLM-4-32B-0414", "q4_k_m", 18.32, ARC),
    ("zai-org/GLM-4.5-Air", "q4_k_m", 67.96, MAX),
    ("zai-org/GLM-4.5-Air", "q4_k_s", 62.27, BENCH),
    ("mistralai/Mixtral-8x22B-v0.1", "q4_k_m", 79.71, MAX),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "q4_k_m", 60.86, MAX),
    ("deepseek-ai/DeepSeek-R1", "q4_k_m", 376.65, IK),
    ("deepseek-ai/DeepSeek-V2-Lite", "q4_k_m", 9.65, BENCH),
    ("deepseek-ai/DeepSeek-V2-Lite", "q4_0", 8.29, BENCH),
    ("tiiuae/Falcon-H1-7B-Base", "q8_0", 7.51, BENCH),
    ("tiiuae/Falcon-H1-7B-Base", "q4_k_m", 4.28, BENCH),
    ("ibm-granite/granite-4.0-h-tiny", "iq4_xs", 3.49, BENCH),
    ("tencent/Hunyuan-A13B-Instruct", "q4_k_m", 45.43, BENCH),
)  # fmt: skip
"""(model, mix, GiB, source)."""

WITHOUT_MTP: Final = {"Qwen/Qwen3-Next-80B-A3B-Instruct"}
"""Files made before the converter kept the prediction layers."""
WITH_MATRIX: Final = {("ibm-granite/granite-4.0-h-tiny", "iq4_xs")}


@pytest.mark.parametrize(("model", "mix", "published", "source"), SIZES)
def test_tensors_of_published_files(model: str, mix: str, published: float, source: str) -> None:
    """Within a fifth of a percent and the last digit; the promise is two percent."""
    spec = load_model(model)
    found = mix_bytes(spec, mix, imatrix=(model, mix) in WITH_MATRIX, mtp=model not in WITHOUT_MTP)
    assert found is not None
    assert sum(found.values()) / GIB == pytest.approx(published, rel=0.002, abs=0.006), source


@pytest.mark.parametrize(
    ("mix", "published"),
    [
        ("q2_k", 58.27), ("q3_k_s", 58.27), ("q4_0", 58.32), ("q3_k_m", 58.33), ("q4_1", 58.41), ("q4_k_s", 58.45), ("q4_k_m", 58.46),
        ("q5_k_s", 58.56), ("q5_k_m", 58.57), ("q6_k", 58.94), ("q8_0", 59.03), ("fp16", 60.88),
    ],
)  # fmt: skip
def test_experts_that_the_checkpoint_has_in_four_bits_stay(mix: str, published: float) -> None:
    """huggingface.co/unsloth/gpt-oss-120b-GGUF lists its files in GiB, with 13 MiB of header; bartowski's card says the same of all mixes."""
    found = mix_bytes(load_model("openai/gpt-oss-120b"), mix)
    assert found is not None
    assert sum(found.values()) / GIB + 0.013 == pytest.approx(published, abs=0.006)


@pytest.mark.parametrize(
    ("weights", "published"),
    [("mxfp4_moe", 12.1), ("f16", 13.8), (None, 12.1)],
)
def test_experts_stay_in_files_that_are_not_quantised(weights: str | None, published: float) -> None:
    """In GB: gpt-oss-20b of ggml-org, which is planned without a format, and of unsloth in 16 bits. The converter repacks the experts whatever --outtype it is given."""
    found = plan("openai/gpt-oss-20b", engine="llamacpp", seq=512, weights=weights).memory.weights.bytes
    assert found is not None
    assert found / 1e9 == pytest.approx(published, abs=0.05)
    types = {
        one.type
        for one in file_tensors(load_model("openai/gpt-oss-20b"), format_name(weights)) or ()
        if "_exps.weight" in one.name
    }
    assert types == {"mxfp4"}


def test_fewer_than_four_bits_replace_them() -> None:
    """Where rows are divided, two bits are what somebody who asks for two bits wants."""
    found = mix_bytes(load_model("deepseek-ai/DeepSeek-V4-Flash"), "q2_k")
    assert found is not None
    assert "mxfp4" not in found
    kept = mix_bytes(load_model("deepseek-ai/DeepSeek-V4-Flash"), "q4_k_m")
    assert kept is not None
    assert kept["mxfp4"] > 0.9 * sum(kept.values())


def test_enough_of_them() -> None:
    """Models and mixes."""
    assert len({model for model, *_ in SIZES}) >= 24
    assert len({mix for _, mix, *_ in SIZES}) >= 10


@pytest.mark.parametrize(("mix", "published"), [("bf16", 65.53), ("q8_0", 34.82)])
def test_whole_files(mix: str, published: float) -> None:
    """huggingface.co/bartowski/Qwen_Qwen3-32B-GGUF lists files in GB: tensors and header."""
    spec = load_model("Qwen/Qwen3-32B")
    tensors = file_tensors(spec, mix)
    assert tensors is not None
    # Tokens, their types and merges take about 45 bytes a token.
    header = 45 * (spec.vocab_size or 0) + 64 * len(tensors)
    assert (sum(one.bytes for one in tensors) + header) / 1e9 == pytest.approx(published, abs=0.011)


def test_a_plan_without_a_format_is_of_the_published_file() -> None:
    """The start line names the published MXFP4 file, so that its bytes are planned, with --weights mxfp4_moe or without.

    Ollama's own gpt-oss:20b keeps 16 bits beside the experts, and its plan does too.
    """
    named, plain = (plan("openai/gpt-oss-20b", engine="llamacpp", seq=512, weights=name) for name in ("mxfp4_moe", None))

    assert plain.memory == named.memory
    ollama = plan("openai/gpt-oss-20b", engine="ollama", seq=512).memory.weights.bytes or 0
    assert ollama > (plain.memory.weights.bytes or 0)


def test_ollamas_own_file_is_planned_everywhere() -> None:
    """gpt-oss:20b of ollama.com/library has 14 GB: plan, ``--weights auto`` and fit have its bytes, and no other file starts by its name."""
    options: dict[str, Any] = {"engine": "ollama", "gpu": "h100", "seq": 4096}
    plain, auto, other = (plan("openai/gpt-oss-20b", weights=name, **options) for name in (None, "auto", "mxfp4_moe"))
    [listed] = fit("openai/gpt-oss-20b", **options).models

    assert (plain.memory.weights.bytes or 0) / 1e9 == pytest.approx(13.8, abs=0.05)
    assert plain.memory.per_gpu == auto.memory.per_gpu
    assert (listed.weights, listed.needed_bytes) == (None, plain.memory.per_gpu.total)
    assert [commands_to_start(one)[-1][1] for one in (plain, auto)] == ["ollama run gpt-oss:20b"] * 2
    assert commands_to_start(other)[-1][1] == "ollama run hf.co/ggml-org/gpt-oss-20b-GGUF:MXFP4"


def test_the_file_of_others_is_named_beside_ollamas_own() -> None:
    """Where Ollama's file of gpt-oss leaves experts to the host, the smaller one of others is faster, and a hint has its format."""
    options: dict[str, Any] = {"engine": "ollama", "gpu": "rtx-4070", "seq": 16384}
    own = plan("openai/gpt-oss-20b", **options)
    (hint,) = hints_of(own)
    (name,) = re.findall(r"--weights (\w+)", hint)
    rates = []
    for made in (own, plan("openai/gpt-oss-20b", weights=name, **options)):
        assert made.speed is not None
        assert made.speed.tokens_per_s_each is not None
        rates.append(made.speed.tokens_per_s_each.expected or 0)
    assert rates[0] < rates[1]


def test_a_format_that_no_model_can_have_is_an_error_of_the_list() -> None:
    """As it is for one model, and not a list of nothing."""
    with pytest.raises(UnsupportedError, match="makes none in mxfp4") as raised:
        fit("gpt-oss", engine="ollama", gpu="h100", weights="mxfp4", seq=4096)
    assert "--weights mxfp4_moe" in raised.value.hint

"""Bytes of quantised checkpoints as their schemes give them, against the files that publishers released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from hwcalc import ModelSpec, load_model, plan
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.formats import BF16
from hwcalc.formulas.weights import Part, WeightRole
from hwcalc.quantization.planned import planned_scheme
from tests.hwcalc.parsers.weights.published_rules import step_mtp

GIB: Final = 1024**3
SIZES: Final[Mapping[str, float]] = {
    "deepseek-ai/DeepSeek-V4-Flash": 148.67,
    "deepseek-ai/DeepSeek-V4-Pro": 805.35,
    "moonshotai/Kimi-K2.5": 554.33,
    "moonshotai/Kimi-K3": 1454,
    "nvidia/DeepSeek-V4-Flash-NVFP4": 156.75,
    "nvidia/DeepSeek-V4-Pro-NVFP4": 850.42,
    "nvidia/GLM-5.2-NVFP4": 432.95,
    "nvidia/Kimi-K2.6-NVFP4": 554.34,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 18.03,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 119.56,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 74.85,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 328.18,
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 20.10,
    "nvidia/Qwen3.5-122B-A10B-NVFP4": 77.79,
    "nvidia/Qwen3.5-397B-A17B-NVFP4": 233.99,
    "nvidia/Qwen3.6-27B-NVFP4": 20.43,
    "nvidia/Qwen3.6-35B-A3B-NVFP4": 21.85,
    "zai-org/GLM-5.2-FP8": 703.77,
}
"""Sizes of repositories in GiB as the Hub lists their files: with tokenizers, headers and indexes, and routers in fp32 where they are."""


def stored(model: ModelSpec, *, mtp: bool = True) -> int:
    """Bytes of all tensors of a checkpoint in its published scheme; what it leaves alone is in bf16."""
    scheme, known = planned_scheme(model, None)
    assert known
    assert model.counted is not None
    blocks = [block for block in model.counted.blocks if mtp or block.part is not Part.MTP]
    pairs = [(block, weight) for block in blocks for weight in block.weights]
    assert scheme is not None
    return sum(scheme.bytes(block, weight, BF16) for block, weight in pairs)


@pytest.mark.parametrize("model_id", SIZES)
def test_sizes_of_files(model_id: str) -> None:
    """The tensors take what the files take, but for 0.26 % at most: what else a repository holds."""
    taken = stored(load_model(model_id)) / GIB

    assert SIZES[model_id] * 0.9974 < taken < SIZES[model_id] + 0.005


def test_nemotron_nano_to_the_byte() -> None:
    """19,339,781,632 bytes of tensors. The router is in fp32, and it has a bias, in fp32 too, for 23 layers of 128 experts."""
    model = load_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    routers = 23 * 128 * 2688

    assert stored(model) + routers * 2 + 23 * 128 * 4 == 19_339_781_632


def test_nemotron_super_to_the_byte() -> None:
    """80,297,329,824 bytes of tensors: with a router bias in fp32 for 41 layers, and two cache scales for 8 attentions."""
    model = load_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")

    assert stored(model) + 41 * 512 * 4 + 8 * 2 * 4 == 80_297_329_824


def test_ministral_stores_what_the_hub_says() -> None:
    """822,899,712 numbers in bf16 and 3,026,190,336 in fp8, each matrix with two scales."""
    model = load_model("mistralai/Ministral-3-3B-Instruct-2512")
    assert model.counted is not None
    matrices = sum(
        block.count for block in model.counted.blocks for weight in block.weights
        if block.part is Part.LANGUAGE and weight.role is WeightRole.LINEAR
    )  # fmt: skip

    assert stored(model) == 822_899_712 * 2 + 3_026_190_336 + matrices * 8


@pytest.mark.parametrize(
    "model_id",
    [
        "nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4", "nvidia/GLM-5-NVFP4", "nvidia/Llama-3.1-70B-Instruct-FP8",
        "nvidia/MiniMax-M3-NVFP4", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "nvidia/Qwen3-235B-A22B-NVFP4",
    ],
)  # fmt: skip
def test_weights_of_a_plan_are_known(model_id: str) -> None:
    """A plan on a GPU has the bytes of the weights, and a verdict."""
    planned = plan(model_id, seq=1000, gpu="h100-sxm5-80gb", tp=8)

    assert planned.memory.weights.bytes == stored(load_model(model_id), mtp=False)
    assert planned.fit is not None


def test_a_section_of_the_text_leaves_the_tower_alone() -> None:
    """Kimi-K2.5 quantises inside ``text_config``: its vision tower stays in bf16. At the top the same section takes it along."""
    model = load_model("moonshotai/Kimi-K2.5")
    inside = {**model.config, "text_config": dict(model.config["text_config"])}
    section = inside["text_config"].pop("quantization_config")
    counted = load_model({**inside, "quantization_config": section})

    assert model.facts.quantizes_text_only
    assert not counted.facts.quantizes_text_only
    assert stored(model) > stored(counted)


def test_layers_behind_the_last_are_those_of_multi_token_prediction() -> None:
    """``model.layers.78*`` of GLM-5.2 with its 78 layers is the layer for multi-token prediction: it stays in bf16."""
    model = load_model("nvidia/GLM-5.2-NVFP4")
    assert model.counted is not None

    assert stored(model) - stored(model, mtp=False) == model.counted.mtp * 2


def test_bitnet_stores_four_weights_in_a_byte() -> None:
    """Its 210 matrices of 2,084,044,800 ternary numbers take a quarter of the bytes and a 16-bit scale each; the rest is in bf16."""
    model = load_model("microsoft/bitnet-b1.58-2B-4T")
    assert model.counted is not None
    layer = 2560 * (20 + 5 + 5 + 20) * 128 + 3 * 2560 * 6912

    assert 30 * layer == 2_084_044_800
    assert stored(model) == 30 * layer // 4 + 30 * 7 * 2 + (model.counted.total - 30 * layer) * 2 == 1_178_562_980


def test_transformers_unpacks_bitnet() -> None:
    """Its linear layers have the weights in bf16: on the GPU they take what they take without quantisation, and a note says so."""
    packed = plan("microsoft/bitnet-b1.58-2B-4T", seq=1000, gpu="l4", engine="reference")
    unpacked = plan("microsoft/bitnet-b1.58-2B-4T", seq=1000, gpu="l4", engine="transformers")
    counted = load_model("microsoft/bitnet-b1.58-2B-4T").counted
    assert counted is not None

    assert packed.memory.per_gpu.weights == packed.memory.weights.bytes == unpacked.memory.weights.bytes
    assert unpacked.memory.per_gpu.weights == 2 * counted.total
    assert "weights-unpacked" in {note.code for note in unpacked.notes}
    assert "weights-unpacked" not in {note.code for note in packed.notes}


def test_vllm_refuses_bitnet() -> None:
    """No release has the method."""
    with pytest.raises(UnsupportedError, match="bitnet"):
        plan("microsoft/bitnet-b1.58-2B-4T", seq=1000, engine="vllm")


@pytest.mark.parametrize(
    ("section", "known", "bits"),
    [
        ({"quant_method": "bitnet"}, True, 2),
        ({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}, True, 16),
        ({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}, True, 2),
        ({"quant_method": "bitnet", "linear_class": "something else"}, False, 16),
        ({"quant_method": "bitnet", "quantization_mode": "something else"}, False, 16),
    ],
)
def test_sections_of_bitnet(section: dict[str, str], known: bool, bits: int) -> None:
    """A checkpoint that is quantised online has 16-bit weights; what is not understood is unknown."""
    model = load_model({**load_model("microsoft/bitnet-b1.58-2B-4T").config, "quantization_config": section})
    scheme, understood = planned_scheme(model, None)
    assert model.counted is not None
    block, weight = next(
        (block, weight) for block in model.counted.blocks for weight in block.weights if weight.role is WeightRole.LINEAR
    )

    assert understood is known
    formats = [BF16] if scheme is None else [form for _, form in scheme.formats(block, weight, BF16)]
    assert [form.bits for form in formats] == [bits]


def test_step_to_the_byte() -> None:
    """The index of the 16-bit files has 402,730,656,512 bytes: router biases of 42 layers are in fp32, and three draft layers join."""
    model = load_model("stepfun-ai/Step-3.7-Flash")
    assert model.counted is not None

    assert 2 * (model.counted.total + step_mtp(model)) + 42 * 288 * 4 == 402_730_656_512


def test_step_in_fp8() -> None:
    """Its 26 files have 212,523,666,872 bytes: less than 200,000 are left for their headers."""
    model = load_model("stepfun-ai/Step-3.7-Flash-FP8")
    left = 212_523_666_872 - (stored(model) + 2 * step_mtp(model) + 42 * 288 * 4)

    assert 0 < left < 200_000

"""Weight formats and the rules that give them out: arithmetic written out, and the forms that quantisers write."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import UsageError
from hwcalc.formulas.formats import (
    AWQ,
    BF16,
    BNB4,
    BNB4_DOUBLE,
    BNB8,
    FP8,
    FP8_BLOCK,
    FP8_CHANNEL,
    GPTQ,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    TERNARY,
    WeightFormat,
)
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights, experts, gated_mlp, linear
from hwcalc.profiles.catalog import list_models
from hwcalc.quantization.config import read_scheme
from hwcalc.quantization.scheme import Scheme, uniform_scheme
from tests.catalog import find_model

ROWS, COLUMNS = 4096, 1024


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (BF16, ROWS * COLUMNS * 2),
        (FP8, ROWS * COLUMNS + 4),
        (FP8_CHANNEL, ROWS * COLUMNS + ROWS * 2),
        (FP8_BLOCK, ROWS * COLUMNS + 32 * 8 * 4),
        (MXFP4, ROWS * COLUMNS // 2 + ROWS * 32),
        (NVFP4, ROWS * COLUMNS // 2 + ROWS * 64 + 8),
        (INT8, ROWS * COLUMNS + ROWS * 2),
        (INT4, ROWS * COLUMNS // 2 + ROWS * 8 * 2),
        # Packed numbers, an fp16 scale and a 4-bit zero point for each of 8 groups a row, and an index for each column.
        (GPTQ, ROWS * COLUMNS // 2 + ROWS * 8 * 2 + ROWS * 8 // 2 + COLUMNS * 4),
        (AWQ, ROWS * COLUMNS // 2 + ROWS * 8 * 2 + ROWS * 8 // 2),
        (BNB4, ROWS * COLUMNS // 2 + ROWS * COLUMNS // 64 * 4),
        (BNB4_DOUBLE, ROWS * COLUMNS // 2 + ROWS * COLUMNS // 64 + ROWS * COLUMNS // 64 // 256 * 4),
        (BNB8, ROWS * COLUMNS + ROWS * 4),
        (TERNARY, ROWS * COLUMNS // 4 + 2),
    ],
    ids=lambda value: value.name if isinstance(value, WeightFormat) else "",
)
def test_format(form: WeightFormat, expected: int) -> None:
    """A 4,096 x 1,024 matrix takes what the format's definition says."""
    assert expected == form.bytes(Weight(path="w", shape=(ROWS, COLUMNS), role=WeightRole.LINEAR))


def test_ragged_edges_take_whole_tiles() -> None:
    """129 x 130 in tiles of 128 x 128 has four scales; 33 numbers in groups of 32 have two a row."""
    ragged = Weight(path="w", shape=(129, 130), role=WeightRole.LINEAR)
    row = Weight(path="w", shape=(2, 33), role=WeightRole.LINEAR)

    assert 129 * 130 + 4 * 4 == FP8_BLOCK.bytes(ragged)
    assert 2 * 33 // 2 + 2 * 2 == MXFP4.bytes(row)


def model() -> Weights:
    """Two layers with attention, a router and four experts, and a head."""
    layer = (
        *linear("self_attn.q_proj", 128, 128),
        *experts(gated_mlp(128, 128, path="mlp.experts"), 4, 2),
        *linear("mlp.gate", 128, 4, role=WeightRole.ROUTER),
    )
    head = linear("lm_head", 128, 256, role=WeightRole.HEAD)
    return Weights(blocks=(Block(kind="layer", weights=layer, count=2), Block(kind="head", weights=head)))


def taken(scheme: Scheme | None) -> int:
    """Bytes of the model under a scheme, bf16 beside it."""
    assert scheme is not None
    return sum(scheme.bytes(block, weight, BF16) for block in model().blocks for weight in block.weights)


Q, EXPERTS, ROUTER, HEAD = 128 * 128, 4 * 3 * 128 * 128, 4 * 128, 256 * 128
GROUP: dict[str, Any] = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}


def nv(numbers: int, tensors: int) -> int:
    """NVFP4 bytes of so many numbers in so many tensors."""
    return numbers // 2 + numbers // 16 + 8 * tensors


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # One fp32 scale for each 128 x 128 tile; router and head stay.
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            2 * (Q + 4 + EXPERTS + 12 * 4 + ROUTER * 2) + HEAD * 2,
        ),
        ({"quant_method": "fp8"}, 2 * (Q + 4 + EXPERTS + 12 * 4 + ROUTER * 2) + HEAD * 2),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]},
            (Q * 2 + Q + 4) + 2 * (EXPERTS + 12 * 4 + ROUTER * 2) + HEAD * 2,
        ),
        # Only the experts, whatever else there is.
        ({"quant_method": "mxfp4"}, 2 * (Q * 2 + EXPERTS // 2 + EXPERTS // 32 + ROUTER * 2) + HEAD * 2),
        (
            {"quant_method": "modelopt", "config_groups": {"g": GROUP}, "ignore": ["lm_head", "model.layers.1.self_attn*"]},
            nv(Q, 1) + Q * 2 + 2 * (nv(EXPERTS, 12) + ROUTER * 2) + HEAD * 2,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP}, "ignore": ["re:.*self_attn.*", "lm_head"]},
            2 * (Q * 2 + nv(EXPERTS, 12) + ROUTER * 2) + HEAD * 2,
        ),
        (
            {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*.experts.*"]}},
            2 * (nv(Q, 1) + EXPERTS * 2 + ROUTER * 2) + HEAD * 2,
        ),
        (
            {"quant_method": "modelopt", "config_groups": {"g": GROUP | {"targets": ["lm_head", "model.layers.0.mlp.experts"]}}},
            2 * (Q * 2 + ROUTER * 2) + nv(EXPERTS, 12) + EXPERTS * 2 + nv(HEAD, 1),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            2 * (Q // 2 + Q // 16 + EXPERTS // 2 + EXPERTS // 16 + ROUTER * 2) + HEAD * 2,
        ),
    ],
)
def test_scheme(config: dict[str, Any], expected: int) -> None:
    """Each quantiser's own way to say what it takes and what it leaves alone."""
    assert expected == taken(read_scheme(config))


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "gptq", "bits": 4, "group_size": "all"},
        {"quant_method": "gptq"},
        {"quant_method": "gptq", "bits": 4.0},
        {"quant_method": "awq", "w_bit": True},
        {"quant_method": "awq", "bits": None},
        {"quant_method": "awq", "bits": 4, "group_size": -1.0},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4.0, "type": "int"}}}},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+$"]},
        {"quant_method": "compressed-tensors", "config_groups": {"g": None}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3, "type": "int"}}}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": 7},
        {},
    ],
)
def test_unknown_schemes_are_unknown(config: dict[str, Any]) -> None:
    """What is not understood is no number; a regular expression of another form is never run."""
    assert read_scheme(config) is None


NVIDIA = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
KEPT = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}
MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        **{
            f"model.layers.1.mlp.experts.{i}.{name}_proj": {"quant_algo": "NVFP4"}
            for i in range(4)
            for name in ("gate", "up", "down")
        },
    },
}
REST = 2 * ROUTER * 2 + HEAD * 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MIXED, Q + 8 + Q * 2 + EXPERTS * 2 + nv(EXPERTS, 12) + REST),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, 2 * (Q + 4 + EXPERTS + 12 * 4) + REST),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 2 * (Q + Q // 32 + EXPERTS + EXPERTS // 32) + REST),
        (KEPT, 2 * (Q + EXPERTS) * 2 + REST),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}, 2 * (Q + EXPERTS) * 2 + REST),
        (NVIDIA | {"ignore": [r"re:.*layers\.1\..*"]}, nv(Q, 1) + nv(EXPERTS, 12) + (Q + EXPERTS) * 2 + REST),
        (NVIDIA | {"ignore": [r"re:.*layers\.[1-3]\..*"]}, nv(Q, 1) + nv(EXPERTS, 12) + (Q + EXPERTS) * 2 + REST),
        (NVIDIA | {"ignore": ["model.layers.1*"]}, nv(Q, 1) + nv(EXPERTS, 12) + (Q + EXPERTS) * 2 + REST),
        (NVIDIA | {"ignore": ["model.layers.1?.mlp*"]}, 2 * (nv(Q, 1) + nv(EXPERTS, 12)) + REST),
        (NVIDIA | {"ignore": ["re:.*self_attn$"]}, 2 * (nv(Q, 1) + nv(EXPERTS, 12)) + REST),
        (NVIDIA | {"ignore": [r"re:.*mlp\.experts\.\d+\.(gate|up)_proj$"]}, 2 * (nv(Q, 1) + nv(Q * 4, 4) + Q * 16) + REST),
    ],
)
def test_named_layers(config: dict[str, Any], expected: int) -> None:
    """Layers by number, by regular expression and by glob; and what quantises nothing but the cache."""
    assert expected == taken(read_scheme(config))


def test_gptq_head_and_exceptions() -> None:
    """``lm_head`` takes the head along, "-:" leaves modules alone, and other settings for some are not read."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}

    def packed(rows: int, tensors: int = 1) -> int:
        return tensors * (rows * 128 // 2 + rows * 2 + rows // 2 + 128 * 4)

    assert 2 * (packed(128) + packed(128, 12) + ROUTER * 2) + packed(256) == taken(read_scheme(config))
    assert 2 * (Q * 2 + packed(128, 12) + ROUTER * 2) + packed(256) == taken(
        read_scheme(config | {"dynamic": {r"-:.*self_attn.*": {}}})
    )
    assert read_scheme(config | {"dynamic": {r"+:.*self_attn.*": {"bits": 8}}}) is None


@pytest.mark.parametrize(
    "names",
    [
        ["visual.blocks.0.attn.qkv", "model.visual.blocks.1.attn.qkv"],
        ["model.visual"],
        ["re:visual.*"],
        ["re:.*visual.*"],
        ["visual*"],
        [r"re:model\.visual\.blocks\.\d+\.attn\.qkv"],
    ],
)
def test_towers_are_left_alone(names: list[str]) -> None:
    """A tower by its layers, by its name and by pattern; a language model's layer of that number is another."""
    scheme = read_scheme({"quant_method": "fp8", "modules_to_not_convert": names})
    (weight,) = linear("visual.blocks.attn.qkv", 128, 384)
    (query,) = linear("self_attn.q_proj", 128, 128)

    assert scheme is not None
    assert 2 * 2 * 128 * 384 == scheme.bytes(Block(kind="layer", weights=(weight,), part=Part.VISION, count=2), weight, BF16)
    assert 2 * (Q + 4) == scheme.bytes(Block(kind="layer", weights=(query,), count=2), query, BF16)


def test_a_layer_of_another_block() -> None:
    """Leaving alone the MLP of layers 0 and 1, which are dense, costs the experts of layers 2 and 3 nothing."""
    never = ["model.layers.0.mlp", "model.layers.1.mlp"]
    scheme = read_scheme({"quant_method": "fp8", "modules_to_not_convert": never})
    (dense,) = linear("mlp.up_proj", 128, 128)
    (expert,) = experts(linear("mlp.experts.up_proj", 128, 128), 4, 2)

    assert scheme is not None
    assert 2 * Q * 2 == scheme.bytes(Block(kind="mlp", weights=(dense,), count=2, layers=(0, 1)), dense, BF16)
    assert 2 * 4 * (Q + 4) == scheme.bytes(Block(kind="moe", weights=(expert,), count=2, layers=(2, 3)), expert, BF16)


def test_kimi_keeps_its_experts() -> None:
    """Layer 0 of Kimi-K2.6 is dense: leaving it alone leaves all 60 layers of 384 experts in NVFP4. Shared experts stay in bf16."""
    result = plan("nvidia/Kimi-K2.6-NVFP4", seq=100).memory.weights
    (moe,) = (part for part in result.parts if part.kind == "moe")
    numbers, shared, router = 60 * 384 * 3 * 7168 * 2048, 60 * 3 * 7168 * 2048, 60 * 384 * 7168

    assert moe.bytes == nv(numbers, 60 * 384 * 3) + (shared + router) * 2


def test_names_of_no_module_are_told() -> None:
    """A module that is left alone under a name that the model does not have is named; a norm is no loss."""
    blocks = (Block(kind="layer", weights=linear("visual.blocks.attn.qkv", 8, 24), part=Part.VISION, count=2),)
    names = ["visual.blocks.0.attn.wqkv", "visual.blocks.0.norm1", "visual.blocks.1.attn.qkv", "vision_tower.resampler"]
    scheme = read_scheme({"quant_method": "fp8", "modules_to_not_convert": names})

    assert scheme is not None
    assert scheme.strangers(blocks) == ("attn.wqkv", "vision_tower.resampler")


def test_many_names_are_cheap_or_unknown() -> None:
    """Layers listed one by one are looked up; more patterns than any quantiser writes are not read."""
    listed = [f"model.layers.{i}.mlp.experts.{j}.up_proj" for i in range(100) for j in range(500)]

    assert read_scheme(NVIDIA | {"ignore": listed}) is not None
    assert read_scheme(NVIDIA | {"ignore": [f"re:.*a{i}.*" for i in range(5_000)]}) is None
    assert read_scheme(NVIDIA | {"ignore": [7]}) is None


def test_experts_in_four_bits_beside_fp8() -> None:
    """``expert_dtype``: half a byte a number and one a group of 32 for the routed experts, fp8 tiles for the rest."""
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    assert 2 * (Q + 4 + EXPERTS // 2 + EXPERTS // 32 + ROUTER * 2) + HEAD * 2 == taken(read_scheme(config, "fp4"))
    assert read_scheme(config, "fp8") == read_scheme(config)
    assert read_scheme(config, "fp3") is None
    assert read_scheme(config, ["fp4"]) is None


def test_deepseek_v4_flash() -> None:
    """43 layers of 256 experts, each of 3 x 4,096 x 2,048 numbers: 147.2 GB in MXFP4, where fp8 took 277.1 GB.

    The files keep what compresses keys and values, and the weights of the indexer's heads, in bf16: 315 million numbers.
    """
    numbers = 43 * 256 * 3 * 4096 * 2048
    pools, heads = 21 * 2 * 1024 + 20 * 2 * 512 + 21 * 2 * 256, 21 * 64
    kept, tiles = (pools + heads) * 4096, (pools // 128 + 21) * 32
    all_fp8 = 285_541_272_366 + kept - tiles * 4

    assert plan("deepseek-ai/DeepSeek-V4-Flash", seq=100).memory.weights.bytes == (
        all_fp8 - (numbers + numbers // 128**2 * 4) + numbers // 2 + numbers // 32
    )
    pools, heads = 30 * 2 * 1024 + 31 * 2 * 512 + 30 * 2 * 256, 30 * 64
    kept, tiles = (pools + heads) * 7168, (pools // 128 + 30) * 56
    assert plan("sgl-project/DeepSeek-V4-Pro-FP8", seq=100).memory.weights.bytes == 1_575_489_266_182 + kept - tiles * 4


def test_every_format_can_be_asked_for() -> None:
    """--weights takes any format; experts and attention get it, router and head do not."""
    assert 2 * (Q // 2 + Q // 32 + EXPERTS // 2 + EXPERTS // 32 + ROUTER * 2) + HEAD * 2 == taken(uniform_scheme("mxfp4"))
    assert uniform_scheme("mxfp3") is None


def test_weights_option() -> None:
    """Qwen3-8B in bf16 is 2 bytes a parameter, and an unknown format a usage error that lists the known ones."""
    result = plan("Qwen/Qwen3-8B", seq=100)

    assert result.model.parameters.total is not None
    assert result.memory.weights.bytes == 2 * result.model.parameters.total
    assert result.memory.total_bytes == result.memory.weights.bytes + result.cache.total_bytes
    assert plan("Qwen/Qwen3-8B", seq=100, weights="fp32").memory.weights.bytes == 4 * result.model.parameters.total
    with pytest.raises(UsageError, match="not a known weight format"):
        plan("Qwen/Qwen3-8B", seq=100, weights="fp7")


@pytest.mark.parametrize(
    ("given", "meant"), [("4bit", "q4_k_m or q4_0 or mlx_4bit"), ("q5", "q5_k_m or q5_0 or mlx_5bit"), ("nvfp5", "nvfp4")]
)
def test_a_format_by_its_bits(given: str, meant: str) -> None:
    """Who names only bits hears the formats that have them."""
    with pytest.raises(UsageError) as caught:
        plan("Qwen/Qwen3-8B", seq=100, weights=given)

    assert meant in (caught.value.hint or "").partition("? Known:")[0]


QUANTISED = [
    model_id
    for model_id in list_models()
    if isinstance((find_model(model_id) or {}).get("config", {}).get("quantization_config"), dict)
]


@pytest.mark.parametrize("model_id", QUANTISED)
def test_catalog_schemes(model_id: str) -> None:
    """Every quantised catalog model's scheme is understood."""
    config = (find_model(model_id) or {})["config"]["quantization_config"]

    assert read_scheme(config) is not None

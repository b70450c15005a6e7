"""Weights in a plan: exact from file headers, estimated from the config, and with unusual values in the config."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.quantization.ggml import MIXES
from hwcalc.quantization.planned import weight_formats

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
# Embeddings and head, two layers of attention, three MLP matrices and two norms, and the last norm.
PARAMETERS = 2 * 1000 * 512 + 2 * (512 * (512 + 128 + 128) + 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 512


def test_parameters_and_bytes() -> None:
    """The count is the arithmetic of the shapes, and bf16 is two bytes of each."""
    result = plan(CONFIG, seq=10)

    assert result.model.parameters.total == result.model.parameters.active == PARAMETERS
    assert result.memory.weights.bytes == 2 * PARAMETERS
    assert result.memory.weights.definition == "estimate"
    assert sum(part.parameters for part in result.memory.weights.parts) == PARAMETERS
    assert sum(part.bytes for part in result.memory.weights.parts) == 2 * PARAMETERS
    assert result.memory.total_bytes == result.memory.per_gpu.total == 2 * PARAMETERS + result.cache.total_bytes


def test_a_tied_head_is_counted_once() -> None:
    """tie_word_embeddings takes 1,000 x 512 off."""
    assert plan(CONFIG | {"tie_word_embeddings": True}, seq=10).model.parameters.total == PARAMETERS - 1000 * 512


@pytest.mark.parametrize("name", weight_formats())
def test_every_format(name: str) -> None:
    """No format takes more than fp32, none less than its bits a number, and the parameters stay what they are."""
    result = plan(CONFIG, seq=10, weights=name)
    size, low, high = result.memory.weights.bytes, result.memory.weights.low, result.memory.weights.high
    bits = int(name.lstrip("itqmxfp")[0]) if name in MIXES else 4

    assert size is not None
    assert low is not None
    assert high is not None
    assert PARAMETERS * bits // 8 < low <= size <= high <= 4 * PARAMETERS
    assert result.model.parameters.total == PARAMETERS
    assert low == high or name in MIXES


@pytest.mark.parametrize("value", [-1, 0, 10**30, 1.5, "x", None, [], {}, math.nan, math.inf, True])
@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size", "tie_word_embeddings", "mlp_bias"])
def test_strange_values_leave_the_cache_as_it_is(key: str, value: object) -> None:
    """A key that only the weights read never changes the cache, and gives a whole number of bytes or none.

    ``quantization_config`` is no such key: it may say the dtype of the cache too, so that a strange one is an error.
    """
    config = CONFIG | {key: value}
    try:
        result = plan(config, seq=10)
    except KvplanError:
        pytest.fail("a key of the weights stopped the plan of the cache")
    size = result.memory.weights.bytes

    assert result.cache.total_bytes == plan(CONFIG, seq=10).cache.total_bytes
    assert size is None or (isinstance(size, int) and size >= 0)
    json.dumps(result.to_dict(), allow_nan=False)


def test_an_assumed_model_has_no_weights() -> None:
    """--assume speaks of the cache alone."""
    model = load_model(CONFIG | {"model_type": "new"}, assume="gqa")

    assert model.counted is None
    assert plan(model, seq=10).memory.total_bytes is None


def test_prediction_layers_stand_apart() -> None:
    """DeepSeek-V3: 671.03 billion without its prediction layer, which only the high end of the bytes counts."""
    result = plan("deepseek-ai/DeepSeek-V3", seq=10, weights="bf16")
    weights = result.memory.weights

    assert result.model.parameters.total == 671_026_404_352
    assert result.model.parameters.mtp is not None
    assert weights.high == 2 * (671_026_404_352 + result.model.parameters.mtp)
    assert weights.bytes == weights.low == 2 * 671_026_404_352


@pytest.mark.parametrize(
    ("engine", "weights"),
    [
        (engine, weights)
        for engine in ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "transformers")
        for weights in (None, "fp8", "awq", "int4")
        if (engine, weights) != ("tensorrt_llm", "awq")
    ],
)
@pytest.mark.parametrize(
    "model", ["openai/gpt-oss-20b", "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "google/gemma-3-4b-it"]
)
def test_all_gpus_together_take_what_each_takes(model: str, engine: str, weights: str | None) -> None:
    """On one GPU the total is that of the GPU. On two of tensor parallelism, which hold the same, it is what both need.

    Of the cache the total has what is stored, once for each GPU that keeps a copy.
    """
    one = plan(model, engine=engine, weights=weights, gpu="b300", seq="8k").memory
    two = plan(model, engine=engine, weights=weights, gpu="b300", seq="8k", tp=2)

    assert one.total_bytes == one.per_gpu.total
    each = two.memory.per_gpu
    assert None not in {each.total, each.weights, two.memory.total_bytes}
    assert two.memory.loaded_bytes == 2 * (each.weights or 0)
    assert two.memory.total_bytes == 2 * ((each.total or 0) - each.cache) + two.memory.cache.bytes


def test_stages_are_loaded_in_the_proportion_of_their_tensors() -> None:
    """Two stages of a layer each: the first has the embedding besides, the second the head and the last norm of 512."""
    layer = 512 * (512 + 128 + 128) + 512 * 512 + 3 * 512 * 1024 + 2 * 512
    memory = plan(CONFIG, seq=10, pp=2).memory

    assert memory.per_gpu.weights == 2 * (1000 * 512 + layer + 512)
    assert memory.loaded_bytes == 2 * PARAMETERS
    assert memory.total_bytes == memory.loaded_bytes + memory.cache.bytes


def test_padding_of_experts_is_loaded() -> None:
    """On an H100 vLLM makes experts of 2,880 x 2,880 ones of 3,072 x 2,880: a fifteenth more. The rows of the table add up."""
    memory = plan("openai/gpt-oss-120b", engine="vllm", gpu="h100", seq="16k").memory
    experts = next(part for part in memory.weights.parts if part.kind == "moe")
    mxfp4 = next(form.bytes for form in experts.formats if form.format == "mxfp4")

    assert memory.loaded_bytes == (memory.weights.bytes or 0) + mxfp4 // 15
    assert memory.activations is not None
    assert memory.overhead is not None
    parts = memory.loaded_bytes + memory.cache.bytes + memory.activations.bytes + memory.overhead.bytes
    assert memory.total_bytes == memory.per_gpu.total == parts

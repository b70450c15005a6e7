"""Weights on a rank by ideal sharding: the arithmetic of a few models, and laws for all models."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import ModelSpec, load_model
from hwcalc.engines.rank_weights import rank_weight_bytes
from hwcalc.engines.setup import Parallel
from hwcalc.quantization.scheme import uniform_scheme

LAYER: Final = (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096 + 2 * 4096) * 2
"""One layer of Llama-3.1-8B in bf16: queries and output, keys and values, three matrices of the MLP, two norms."""
TABLE: Final = 128_256 * 4096 * 2


def held(name: str | dict[str, Any], **layout: Any) -> tuple[int, ...]:
    """Bytes on a rank of each stage."""
    ranks = {size: layout.pop(size) for size in ("tp", "pp", "dp", "ep") if size in layout}
    found = rank_weight_bytes(load_model(name), Parallel(**ranks), **layout)
    assert found is not None
    return found


def test_one_rank_holds_the_model() -> None:
    """32 layers, embedding and head, the last norm."""
    assert held("meta-llama/Llama-3.1-8B") == (32 * LAYER + 2 * TABLE + 8192,) == (16_060_522_496,)


def test_nothing_is_padded() -> None:
    """OPT-125m has 50,272 rows: 7 ranks have 7,182 of them, the last one less. vLLM would cut 50,304."""
    model = load_model("facebook/opt-125m")
    assert model.counted is not None
    whole = held("facebook/opt-125m", weight_dtype="fp16")

    assert whole == (2 * model.counted.total,)
    rest = 2 * (model.counted.total - 50_272 * 768)
    assert held("facebook/opt-125m", weight_dtype="fp16", tp=7)[0] >= 2 * 7182 * 768 + rest // 7


def test_key_value_heads_are_repeated() -> None:
    """16 ranks, 8 heads: a rank has one whole head of keys and of values, and a sixteenth of all other matrices."""
    norms = 65 * 4096 * 2
    keys_and_values = 32 * 2 * 1024 * 4096 * 2
    rest = 16_060_522_496 - norms - keys_and_values

    assert held("meta-llama/Llama-3.1-8B", tp=16) == (rest // 16 + keys_and_values // 8 + norms,)


def test_the_latent_is_on_every_rank() -> None:
    """DeepSeek-V3: what leads down to the latents of queries, keys and values is whole, and so are norms and the router."""
    one, two = held("deepseek-ai/DeepSeek-V3")[0], held("deepseek-ai/DeepSeek-V3", tp=2)[0]
    down = 61 * ((1536 + 576) * 7168 + 1536 + 512)
    norms = (2 * 61 + 1) * 7168
    routers = 58 * 256 * 7168

    assert 2 * two - one == (down + norms + routers) * 2


def test_experts_are_cut_or_dealt_and_attention_is_not_shared_by_dp() -> None:
    """Qwen3-30B-A3B: 128 experts of 3 x 768 x 2,048 in 48 layers; all are resident, whatever a token uses."""
    model = "Qwen/Qwen3-30B-A3B"
    experts = 48 * 128 * 3 * 768 * 2048 * 2

    assert held(model)[0] - held(model, ep=8)[0] == experts - experts // 8
    assert held(model)[0] - held(model, dp=8)[0] == experts - experts // 8
    assert held(model, ep=3)[0] - held(model, ep=128)[0] == experts // 128 * (43 - 1)
    assert held(model, tp=4, ep=4) == held(model, tp=4)


def test_stages_and_a_tied_head() -> None:
    """The embedding is on the first stage and the head on the last one: a tied table is there twice."""
    assert held("meta-llama/Llama-3.1-8B", pp=3) == (11 * LAYER + TABLE, 11 * LAYER, 10 * LAYER + TABLE + 8192)
    tied = held("Qwen/Qwen3-1.7B", pp=2)
    assert sum(tied) - held("Qwen/Qwen3-1.7B")[0] == 151_936 * 2048 * 2


def test_the_first_dense_layers_are_on_the_first_stage() -> None:
    """DeepSeek-V3 has an MLP in its first three layers and experts in all others: with a stage for each layer it shows."""
    stages = held("deepseek-ai/DeepSeek-V3", pp=61)
    mlp, moe = 3 * 18_432 * 7168 * 2, (256 * 7168 + 257 * 3 * 2048 * 7168) * 2

    assert stages[3] - stages[2] == moe - mlp
    assert stages[3] == stages[30]


def test_quantised_matrices_are_cut_with_their_scales() -> None:
    """fp8: one byte for each number of a matrix and 4 for its scale, two for embedding, head and norms."""
    half = (2 * 128_256 * 4096 // 2 + 65 * 4096) * 2
    matrices = 16_060_522_496 // 2 - 2 * 128_256 * 4096 - 65 * 4096

    assert held("meta-llama/Llama-3.1-8B", tp=2, scheme=uniform_scheme("fp8")) == (matrices // 2 + 32 * 7 * 4 + half,)


@pytest.mark.parametrize("weight_dtype", [None, "fp16", "fp32"])
def test_the_models_own_dtype(weight_dtype: str | None) -> None:
    """The default is the dtype of the config: fp32 stays fp32."""
    config = {**load_model("facebook/opt-125m").config, "torch_dtype": "float32"}
    elements = 4 if weight_dtype != "fp16" else 2

    assert held(config, weight_dtype=weight_dtype)[0] == elements * held("facebook/opt-125m", weight_dtype="fp16")[0] // 2


def test_uncounted_weights_are_unknown() -> None:
    """A model whose weights are not counted gives None."""
    model = load_model("meta-llama/Llama-3.1-8B")
    bare = ModelSpec(**{name: getattr(model, name) for name in ModelSpec.__annotations__ if name != "counted"})

    assert rank_weight_bytes(bare) is None


NAMES: Final = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/Jamba-v0.1",
    "Qwen/Qwen2.5-VL-7B-Instruct",
)
SIZES: Final = st.integers(1, 70)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(NAMES), tp=SIZES, dp=st.integers(1, 9), ep=SIZES, pp=st.integers(1, 12))
def test_laws(name: str, tp: int, dp: int, ep: int, pp: int) -> None:
    """All ranks hold the model; more ranks never make one hold more; stages add up."""
    model = load_model(name)
    whole = rank_weight_bytes(model)
    mine = rank_weight_bytes(model, parallel=Parallel(tp=tp, dp=dp, ep=ep, pp=pp))
    more = rank_weight_bytes(model, parallel=Parallel(tp=tp + 1, dp=dp, ep=ep, pp=pp))
    staged = rank_weight_bytes(model, parallel=Parallel(pp=pp))
    assert whole is not None
    assert mine is not None
    assert more is not None
    assert staged is not None

    assert len(mine) == pp
    assert sum(mine) * max(tp * dp, tp * ep) >= whole[0]
    assert all(after <= before for after, before in zip(more, mine, strict=True))
    assert sum(staged) >= whole[0]
    assert all(part <= stage for part, stage in zip(mine, staged, strict=True))


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b")), ep=st.integers(2, 300))
def test_dealing_experts_out_takes_experts_only(name: str, ep: int) -> None:
    """With expert parallelism a rank keeps ceil(experts / ep) whole experts of each layer."""
    model = load_model(name)
    assert model.counted is not None
    one = sum(
        2 * weight.elements // weight.copies * block.count
        for block in model.counted.blocks
        for weight in block.weights
        if weight.copies > 1 and block.part.value != "mtp"
    )
    experts = max(weight.copies for block in model.counted.blocks for weight in block.weights)

    gone = held(name, weight_dtype="bf16")[0] - held(name, weight_dtype="bf16", ep=ep)[0]
    assert gone == one * (experts - -(-experts // ep))

"""Adapters on a rank: arithmetic of Llama-3.1-8B, what PEFT makes, and what vLLM's layers allocate."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import load_model
from hwcalc.engines.options import Lora, parse_lora
from hwcalc.engines.setup import Parallel
from hwcalc.engines.transformers.weights import TRANSFORMERS
from hwcalc.engines.vllm.weights import slot_rank, vllm_lora_bytes_rank
from hwcalc.engines.weights_beside import lora_bytes_rank
from hwcalc.errors import UsageError

LLAMA: Final = "meta-llama/Llama-3.1-8B"
ATTENTION: Final = 16 * (4096 + 4096) + 2 * 16 * (4096 + 1024) + 16 * (4096 + 4096)
"""Queries, keys and values, output of one layer at rank 16."""
MLP: Final = 3 * 16 * (4096 + 14_336)

SMALL_MOE: Final = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 130,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("targets", "each", "peft"),
    [("all", ATTENTION + MLP, 41_943_040), ("attention", ATTENTION, 13_631_488), ("mlp", MLP, 28_311_552)],
)
def test_llama(targets: str, each: int, peft: int) -> None:
    """32 layers; PEFT 0.21.2 counts as many trainable numbers with target_modules of those names."""
    assert 32 * each == peft
    lora = Lora(rank=16, targets=targets)
    found = lora_bytes_rank(load_model(LLAMA), lora)

    assert found is not None
    assert (found.low, found.expected, found.high) == (2 * peft,) * 3
    several = lora_bytes_rank(load_model(LLAMA), Lora(rank=16, count=8, targets=targets, dtype="fp32"))
    assert several is not None
    assert several.expected == 8 * 4 * peft


def test_every_linear_layer_that_torch_builds() -> None:
    """The count is the same as from the modules of a small model on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, vocab_size=130
    )
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    layers = [module for name, module in built.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    found = lora_bytes_rank(load_model(config.to_dict()), Lora(rank=4))

    assert found is not None
    assert found.expected == 2 * sum(4 * (layer.in_features + layer.out_features) for layer in layers)


def test_experts_and_what_peft_makes_of_them() -> None:
    """PEFT 0.21.2, all-linear, rank 16: 61,568 numbers in two layers; routers, and rank 32 beside gate and up in one tensor."""
    attention = 16 * (64 + 64) * 2 + 16 * (64 + 32) * 2
    gate_up, down, router = 4 * 32 * (64 + 64), 4 * 16 * (32 + 64), 16 * (64 + 4)
    assert 2 * (attention + gate_up + down + router) == 61_568
    found = lora_bytes_rank(load_model(SMALL_MOE), Lora(rank=16))

    assert found is not None
    assert found.low == 2 * 2 * attention
    assert found.expected == 2 * 2 * (attention + 3 * 4 * 16 * (64 + 32))
    assert found.high == 2 * 61_568


def test_two_ranks() -> None:
    """Cut by outputs A is whole and B halves; cut by inputs (output and down) A halves and B is whole."""
    columns = 16 * (4096 + 2048) + 2 * 16 * (4096 + 512) + 2 * 16 * (4096 + 7168)
    rows = 16 * (2048 + 4096) + 16 * (7168 + 4096)
    found = lora_bytes_rank(load_model(LLAMA), Lora(rank=16), parallel=Parallel(tp=2))
    stages = lora_bytes_rank(load_model(LLAMA), Lora(rank=16), parallel=Parallel(tp=2, pp=2))

    assert found is not None
    assert found.expected == 2 * 32 * (columns + rows)
    assert stages is not None
    assert 2 * stages.expected == found.expected


def test_experts_that_are_dealt_out_take_their_adapters_along() -> None:
    """Two of four experts on each of two ranks."""
    one, two = (lora_bytes_rank(load_model(SMALL_MOE), Lora(rank=16), parallel=Parallel(ep=ep)) for ep in (1, 2))
    assert one is not None
    assert two is not None
    assert one.expected - two.expected == 2 * 2 * 2 * 3 * 16 * (64 + 32)


def test_transformers_leaves_attention_whole_where_its_plan_does() -> None:
    """DeepSeek-V3's plan cuts MLPs and experts alone."""
    found = [
        lora_bytes_rank(
            load_model("deepseek-ai/DeepSeek-V3"), Lora(rank=8, targets="attention"), parallel=Parallel(tp=tp), rules=TRANSFORMERS
        )
        for tp in (1, 8)
    ]
    assert found[0] == found[1] is not None


@settings(deadline=None, max_examples=40)
@given(tp=st.integers(1, 64), ep=st.integers(1, 64), pp=st.integers(1, 8), rank=st.integers(1, 512))
def test_laws(tp: int, ep: int, pp: int, rank: int) -> None:
    """A rank holds no more than the whole and all of them at least that; twice the rank is twice the bytes."""
    model = load_model("Qwen/Qwen3-30B-A3B")
    whole, mine = (
        lora_bytes_rank(model, Lora(rank=rank)),
        lora_bytes_rank(model, Lora(rank=rank), parallel=Parallel(tp=tp, ep=ep, pp=pp)),
    )
    twice = lora_bytes_rank(model, Lora(rank=2 * rank), parallel=Parallel(tp=tp, ep=ep, pp=pp))
    assert whole is not None
    assert mine is not None
    assert twice is not None
    assert mine.low <= mine.expected <= mine.high
    assert mine.expected <= whole.expected <= mine.expected * tp * ep * pp
    assert twice.expected == 2 * mine.expected


def test_vllm_has_slots_for_tables_too() -> None:
    """Beside embedding and logits, 16 x (128,256 + 4,096) each, on every rank whole; layers as on any rank."""
    tables = 2 * 16 * (128_256 + 4096)
    one, two = (vllm_lora_bytes_rank(load_model(LLAMA), Lora(rank=16, count=4), parallel=Parallel(tp=tp)) for tp in (1, 2))
    shared = lora_bytes_rank(load_model(LLAMA), Lora(rank=16, count=4), parallel=Parallel(tp=2))

    assert one is not None
    assert two is not None
    assert shared is not None
    assert one.low == one.high == 4 * 2 * (41_943_040 + tables)
    assert two.expected == shared.expected + 4 * 2 * tables


def test_vllm_tied_tables_have_two_slots() -> None:
    """Qwen3-1.7B's table is both embedding and head: rows of 151,936 beside each, on one stage or on two."""
    model, beside = load_model("Qwen/Qwen3-1.7B"), 8 * (151_936 + 2048) * 2
    plain = lora_bytes_rank(model, Lora(rank=8))
    found = vllm_lora_bytes_rank(model, Lora(rank=8))
    halves = vllm_lora_bytes_rank(model, Lora(rank=8), parallel=Parallel(pp=2))

    assert plain is not None
    assert found is not None
    assert halves is not None
    assert found.expected == plain.expected + 2 * beside
    assert halves.expected == plain.expected // 2 + beside


def test_vllm_experts_and_routers() -> None:
    """Qwen3-MoE has A and B for each of three matrices; gpt-oss one A for gate and up together. Routers are layers as well."""
    model = load_model(SMALL_MOE)
    found = vllm_lora_bytes_rank(model, Lora(rank=16))
    attention = 16 * (64 + 64) * 2 + 16 * (64 + 32) * 2
    layer = attention + 3 * 4 * 16 * (64 + 32) + 16 * (64 + 4)
    assert found is not None
    assert found.expected == 2 * (2 * layer + 2 * 16 * (130 + 64))

    oss = load_model("openai/gpt-oss-20b")
    three = lora_bytes_rank(oss, Lora(rank=16, targets="mlp"))
    fused = vllm_lora_bytes_rank(oss, Lora(rank=16, targets="mlp"))
    assert three is not None
    assert fused is not None
    assert three.expected - fused.low == 2 * 24 * 32 * 16 * 2880


@pytest.mark.parametrize(("rank", "slot"), [(1, 1), (2, 8), (16, 16), (24, 32), (257, 320), (512, 512)])
def test_vllm_ranks(rank: int, slot: int) -> None:
    """``max_lora_rank`` is one of nine numbers."""
    assert slot_rank(rank) == slot


def test_vllm_refuses() -> None:
    """A rank above 512, and a vocabulary above 258,048 where it has slots for tables."""
    with pytest.raises(UsageError, match="up to rank 512"):
        vllm_lora_bytes_rank(load_model(LLAMA), Lora(rank=513))
    large = load_model({**SMALL_MOE, "vocab_size": 258_049})
    with pytest.raises(UsageError, match="258,049"):
        vllm_lora_bytes_rank(large, Lora(rank=8))
    assert vllm_lora_bytes_rank(large, Lora(rank=8, targets="attention")) is not None


def test_what_is_typed() -> None:
    """Keys may come in any order, with spaces and capitals; missing ones have defaults."""
    assert parse_lora("rank=16,count=8") == Lora(rank=16, count=8)
    assert parse_lora(" Targets=MLP, rank = 4 ,dtype=fp16") == Lora(rank=4, targets="mlp", dtype="fp16")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "16",
        "count=8",
        "rank=0",
        "rank=-1",
        "rank=8193",
        "rank=1e3",
        "rank=١٦",
        "rank=NaN",
        "rank=16,rank=16",
        "rank=16,",
        "rank=16,count=0",
        "rank=16,count=99999999999999999999",
        "rank=16,targets=heads",
        "rank=16,dtype=int4",
        "rank=16,alpha=32",
        "rank=" + "9" * 5000,
    ],
)
def test_what_is_refused(text: str) -> None:
    """Each error says what is allowed, and no message is long."""
    with pytest.raises(UsageError) as raised:
        parse_lora(text)
    assert "targets=all|attention|mlp" in raised.value.hint
    assert len(raised.value.message) < 200

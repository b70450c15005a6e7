"""What data-parallel replicas have in common: experts where attention alone is replicated, and otherwise nothing."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.lmdeploy.layout import PYTORCH_WEIGHTS, TURBOMIND_WEIGHTS
from hwcalc.engines.rank_weights import REFERENCE, rank_weight_bytes
from hwcalc.engines.setup import Parallel
from hwcalc.engines.sglang.memory import SGLANG
from hwcalc.errors import UsageError

EXPERTS: Final = 48 * 128 * 3 * 768 * 2048 * 2
"""Qwen3-30B-A3B in bf16."""
ATTENTION: Final = {"sglang": {"enable_dp_attention": "true"}, "tensorrt-llm": {"enable_attention_dp": "true"}}


def held(engine: str, dp: int, **wanted: Any) -> int | None:
    """Bytes of weights on the fullest GPU."""
    gpu = "apple-m3-ultra" if engine == "mlx" else "h100-sxm5-80gb"
    budget = plan("Qwen/Qwen3-30B-A3B", seq=4096, batch=2, engine=engine, gpu=gpu, dp=dp, **wanted).fit.budget  # type: ignore[union-attr]
    return None if budget is None else next(part.expected for part in budget.parts if part.name == "weights")


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "mlx", "mistral-rs", "tgi", "transformers"])
def test_servers_of_their_own_have_all_experts(engine: str) -> None:
    """A replica beside another one is a server that holds the whole model."""
    assert held(engine, 1) == held(engine, 2)


@pytest.mark.parametrize("engine", ["reference", "vllm", "sglang", "tensorrt-llm", "lmdeploy"])
def test_replicas_of_attention_share_experts(engine: str) -> None:
    """Experts are cut over all ranks; each rank has all of attention."""
    options = ATTENTION.get(engine, {})
    alone, shared = (held(engine, dp, engine_options=options) for dp in (1, 2))
    assert alone is not None
    assert shared is not None
    assert EXPERTS // 2 <= alone - shared < EXPERTS // 2 + 2**30


def test_replicas_of_attention_share_every_mlp() -> None:
    """DeepSeek-V3 on two replicas: half of its experts, of the shared one, of three dense MLPs and, in SGLang, of the head."""
    model, two = load_model("deepseek-ai/DeepSeek-V3"), Parallel(dp=2)
    experts, dense, head = 58 * 256 * 3 * 2048 * 7168, (58 * 2048 + 3 * 18_432) * 3 * 7168, 129_280 * 7168
    for rules, halved in ((REFERENCE, experts), (PYTORCH_WEIGHTS, experts + dense), (SGLANG, experts + dense + head)):
        (alone,), (shared,) = (rank_weight_bytes(model, ranks, rules=rules) or (0,) for ranks in (Parallel(), two))
        assert alone - shared == halved // 2 * 2, rules.engine


def test_tables_of_lmdeploy() -> None:
    """Its PyTorch classes do not cut embedding and head, but for the embedding of DeepSeek; TurboMind cuts both."""
    two = Parallel(tp=2)
    for name, cut, table in (("meta-llama/Llama-3.1-8B", 0, 128_256 * 4096), ("deepseek-ai/DeepSeek-V3", 1, 129_280 * 7168)):
        own, ideal, turbomind = (
            rank_weight_bytes(load_model(name), two, rules=rules) or (0,)
            for rules in (PYTORCH_WEIGHTS, REFERENCE, TURBOMIND_WEIGHTS)
        )
        assert own[0] - ideal[0] == (2 - cut) * table // 2 * 2
        assert turbomind == ideal


def test_experts_are_not_dealt_to_other_servers() -> None:
    """Two servers of SGLang with two GPUs each deal experts out over two."""
    with pytest.raises(UsageError, match="share no experts"):
        held("sglang", 2, tp=2, ep=4)
    assert held("sglang", 2, tp=2, ep=2) == held("sglang", 1, tp=2, ep=2)

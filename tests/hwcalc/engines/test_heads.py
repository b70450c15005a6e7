"""Ten key/value heads (Phi-4) on some numbers of ranks: what engines start with, and what they refuse."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.errors import KvplanError

PHI = "microsoft/phi-4"
ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "mistral-rs", "tgi")


@pytest.mark.parametrize("tp", [1, 2, 5, 10])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "mistral-rs"])
def test_ranks_share_ten_heads_evenly(engine: str, tp: int) -> None:
    """Each rank has as many; mistral.rs keeps all heads of Phi-3 on every rank."""
    cache = plan(PHI, engine=engine, seq=4096, tp=tp).cache
    assert cache.per_gpu_bytes * tp == cache.total_bytes


@pytest.mark.parametrize("tp", [4, 8])
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_that_do_not_are_refused(engine: str, tp: int) -> None:
    """``divide`` in the projections of vLLM and SGLang, ``duplicate_kv_weight`` of TensorRT-LLM, and checks by name in the others."""
    with pytest.raises(KvplanError, match=r"key/value heads|KV heads|num_key_value_heads"):
        plan(PHI, engine=engine, seq=4096, tp=tp)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_replicas_of_attention_have_whole_heads(engine: str) -> None:
    """Ten replicas on ten GPUs, which share no head."""
    assert plan(PHI, engine=engine, seq=4096, batch=10, dp=10).cache.per_gpu_bytes > 0

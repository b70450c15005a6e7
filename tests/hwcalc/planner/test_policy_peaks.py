"""The prefill of a policy is counted in two ways that must agree: by kvpress's tensors one by one, and as a part of a plan."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import keep, load_model, plan
from hwcalc.engines.policies import PART, peaks_of
from hwcalc.model import Definition
from hwcalc.planner.context import open_request
from hwcalc.planner.solve import holds_in
from hwcalc.policies.parse import parse_policy
from tests.hwcalc.policies.tiny import tiny

POLICIES: Final = (
    "knorm:compression_ratio=0.5", "keydiff:compression_ratio=0.9", "random:compression_ratio=0.3", "streamingllm:compression_ratio=0.7",
    "tova:compression_ratio=0.5", "snapkv:compression_ratio=0.5,window_size=16", "pyramidkv:compression_ratio=0.5,window_size=16",
    "observedattention:compression_ratio=0.5", "expectedattention:compression_ratio=0.5",
    "expectedattention:compression_ratio=0.5,use_covariance=false,n_future_positions=8",
    "simlayerkv:lazy_threshold=0,n_recent=32", "think:key_channel_compression_ratio=0.5",
    "adakv:press=(snapkv:compression_ratio=0.5,window_size=16)", "adakv:press=(knorm:compression_ratio=0.5)",
    "duoattention:head_compression_ratio=0.5", "criticalkv:press=(knorm:compression_ratio=0.5)",
    "chunkkv:press=(snapkv:compression_ratio=0.5,window_size=16)", "chunk:press=(knorm:compression_ratio=0.5),chunk_length=64",
    "keyrerotation:press=(tova:compression_ratio=0.5)",
    "perlayercompression:press=(knorm),compression_ratios=[0.1,0.5,0.9,0.3]",
    "composed:presses=[(snapkv:compression_ratio=0.5,window_size=16),(knorm:compression_ratio=0.5)]",
)  # fmt: skip
MODELS: Final[tuple[dict[str, Any], ...]] = ({}, {"kv": 1}, {"kv": 2, "heads": 8}, {"kind": "qwen3", "kv": 2})


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("tokens", [200, 900])
def test_a_plan_and_kvpress_count_the_same(name: str, model: dict[str, Any], tokens: int) -> None:
    """What kvpress needs above cache and scratch is what one layer's forward pass makes, which a plan counts with its activations."""
    config = tiny(model)
    kept = keep(config, name, prompt=tokens)
    peaks = peaks_of(open_request(load_model(config), seq=tokens, policy=parse_policy(name)))
    assert kept.prefill_peak is not None
    assert kept.prefill_peak.definition is Definition.MEASURED

    hidden, mlp, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = hidden // heads
    vectors = 5 * hidden + 3 * mlp + 2 * heads * width + 2 * width + 2 * heads + 2
    blocks = 4 * (768 * (512 + 2 + width) + 16 * heads * width) + 64
    activations = 4 * tokens * vectors + blocks
    assert 0 <= kept.prefill_peak.high - max(peaks.prefill, peaks.cache) <= activations
    assert {extra.name: extra.bytes for extra in peaks.extras} == {extra.name: extra.bytes for extra in kept.beside}


@pytest.mark.parametrize("engine", ["reference", "transformers@5.2", "vllm", "llamacpp"])
@pytest.mark.parametrize(
    "name", ["observedattention:compression_ratio=0.5", "h2o:budget=2048", "expectedattention:compression_ratio=0.5"]
)
def test_what_is_said_of_the_peak_is_what_is_needed(engine: str, name: str) -> None:
    """The fullest moment that a plan names is no more than the plan needs: rows of scores are those of one pass."""
    found = plan("Qwen/Qwen3-8B", seq="32k", engine=engine, gpu="h100-sxm5-80gb", policy=name, offline=True)
    assert found.policy is not None
    assert found.memory.per_gpu.total is not None
    assert found.memory.per_gpu.weights is not None

    assert found.policy.prefill_peak_bytes <= found.memory.per_gpu.total - found.memory.per_gpu.weights


def test_rows_of_scores_are_those_of_a_chunk() -> None:
    """On an H100 vLLM reads 8,192 of 32,768 tokens at once: 32 heads x 10 bytes and a mask, a quarter of the square."""
    found = plan(
        "Qwen/Qwen3-8B",
        seq=32_768,
        engine="vllm",
        gpu="h100-sxm5-80gb",
        policy="observedattention:compression_ratio=0.5",
        engine_options={"max_num_batched_tokens": "8192"},
        offline=True,
    )
    assert found.policy is not None
    assert found.fit is not None
    assert found.fit.budget is not None

    scores = (10 * 32 + 2) * 8_192 * 32_768
    assert found.policy.prefill_peak_bytes == scores + 32_768 * 36 * 4_096
    part = next(part for part in found.fit.budget.parts if part.name == PART)
    assert part.high <= scores


@pytest.mark.parametrize("samples", [2, 5])
def test_branches_that_fork_have_one_prefill(samples: int) -> None:
    """Samples of one request: its prompt is read, scored and cut once, whatever comes behind it."""
    asked: dict[str, Any] = {
        "seq": "8k",
        "prompt": "7k",
        "policy": "snapkv:compression_ratio=0.5",
        "engine": "reference",
        "offline": True,
    }
    one, more = plan("Qwen/Qwen3-8B", **asked).policy, plan("Qwen/Qwen3-8B", samples=samples, **asked).policy
    assert one is not None
    assert more is not None

    assert more.prefill_peak_bytes == one.prefill_peak_bytes == 35 * 3584 * 4096 + 7168 * 4096 + 32 * 7168 * (64 * 12 + 128 * 2)
    assert more.beside == one.beside


@pytest.mark.parametrize(
    "policy", ["triattention:kv_budget=512,divide_length=128", "simlayerkv:lazy_threshold=0,n_recent=600,n_initial=30"]
)
@pytest.mark.parametrize("engine", ["reference", "transformers@5.2"])
def test_a_length_holds_only_if_all_shorter_ones_do(policy: str, engine: str) -> None:
    """TriAttention keeps 639 of 639 tokens and 512 of 640, SimLayerKV 631 of 631 and 629 of 632."""
    crest = 639 if policy.startswith("tri") else 631
    config = tiny({"dtype": "bfloat16"})
    size = plan(config, seq=crest - 17, engine=engine, policy=policy, offline=True).cache.total_bytes
    asked = parse_policy(policy)
    holds = [
        holds_in(open_request(load_model(config), seq=tokens, engine=engine, policy=asked), size)
        for tokens in (crest - 18, crest - 17, crest - 16, crest, crest + 1, crest + 5)
    ]

    assert holds == [True, True, False, False, False, False]
    whole = plan(config, seq=crest, engine=engine, policy=policy, offline=True).cache.total_bytes
    assert holds_in(open_request(load_model(config), seq=crest + 1, engine=engine, policy=asked), whole)

"""Weights on a rank of transformers: what it loaded on 2, 3 and 4 ranks, and what its plans say word by word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.rank_weights import rank_weight_bytes
from hwcalc.engines.setup import Parallel
from hwcalc.engines.transformers.weights import TRANSFORMERS, check_layout, plan_of
from hwcalc.errors import UsageError
from tests.paths import GOLDEN as ROWS

GOLDEN: Final = json.loads((ROWS / "transformers_ranks.json").read_text(encoding="utf-8"))
CONFIGS: Final[Mapping[str, dict[str, Any]]] = GOLDEN["configs"]
LOADED: Final = [case for case in GOLDEN["cases"] if "parameters" in case]
REFUSED: Final = [case for case in GOLDEN["cases"] if "error" in case]

GPT2: Final = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}


def layout(case: Mapping[str, Any]) -> str:
    """A name for a case."""
    return " ".join([case["model_type"], *(f"{name}{case[name]}" for name in ("tp", "pp", "ep") if name in case)])


@pytest.mark.parametrize("case", LOADED, ids=layout)
def test_what_transformers_loads(case: Mapping[str, Any]) -> None:
    """The fullest rank, or every stage, to the number; four bytes each."""
    model = load_model(CONFIGS[case["model_type"]])
    ranks = {name: case.get(name, 1) for name in ("tp", "pp", "ep")}
    ours = rank_weight_bytes(model, weight_dtype="fp32", parallel=Parallel(**ranks), rules=TRANSFORMERS)

    measured = case["parameters"] if ranks["pp"] > 1 else [max(case["parameters"])]
    assert ours == tuple(4 * count for count in measured)


@pytest.mark.parametrize("case", LOADED, ids=layout)
def test_what_it_cannot_run(case: Mapping[str, Any]) -> None:
    """A key or value head in two halves loads, and then the first forward pass fails; it does for no other reason here."""
    model = load_model(CONFIGS[case["model_type"]])
    if "is invalid for input of size" in case.get("forward", ""):
        with pytest.raises(UsageError, match="in the middle of a head"):
            check_layout(model, parallel=Parallel(tp=case["tp"], ep=case.get("ep", 1)))
    else:
        check_layout(model, parallel=Parallel(tp=case.get("tp", 1), ep=case.get("ep", 1)))


@pytest.mark.parametrize("case", REFUSED, ids=layout)
def test_what_it_refuses(case: Mapping[str, Any]) -> None:
    """Experts that do not divide."""
    assert "Cannot evenly shard" in case["error"]
    with pytest.raises(UsageError, match="evenly"):
        check_layout(load_model(CONFIGS[case["model_type"]]), parallel=Parallel(tp=case["tp"], ep=case["ep"]))


def test_families_without_a_plan_are_refused() -> None:
    """GPT-2 has no plan at all, Llama none for experts."""
    with pytest.raises(UsageError, match="no tensor-parallel plan for gpt2"):
        check_layout(load_model(GPT2), parallel=Parallel(tp=2))
    with pytest.raises(UsageError, match="no expert-parallel plan for llama"):
        check_layout(load_model("meta-llama/Llama-3.1-8B"), parallel=Parallel(ep=2))


_FIRST: Final = frozenset({"colwise", "colwise_gather_output", "packed_colwise"})
_LAST: Final = frozenset({"rowwise", "rowwise_split_input", "packed_rowwise"})


def share(name: str, shape: tuple[int, ...], style: str | None, ranks: int) -> int:
    """Numbers that the first rank has of a parameter by a word of the plan (docstrings of distributed/tensor_parallel.py)."""
    sizes = list(shape)
    if style == "embedding_rowwise":
        sizes[0] = -(-sizes[0] // ranks)
    elif style in _FIRST:
        dimension = -1 if len(sizes) == 1 else -2
        sizes[dimension] = -(-sizes[dimension] // ranks)
    elif style in _LAST and not name.endswith("bias"):
        sizes[-1] = -(-sizes[-1] // ranks)
    count = 1
    for size in sizes:
        count *= size
    return count


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model_type", sorted(CONFIGS))
def test_the_plans_own_words(model_type: str, ranks: int) -> None:
    """The model on the meta device, its plan spelled out for every parameter, and the words read without our rules."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys = dict(CONFIGS[model_type])
    config = CONFIG_MAPPING[keys.pop("model_type")](**keys)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
        built.tie_weights()
    styles = built._expand_parallel_plan(built.tp_plan)
    named = dict(built.named_parameters())
    expected = sum(share(name, parameter.shape, styles.get(name), ranks) for name, parameter in named.items())

    ours = rank_weight_bytes(
        load_model(CONFIGS[model_type]), weight_dtype="fp32", parallel=Parallel(tp=ranks), rules=TRANSFORMERS
    )
    assert ours == (4 * expected,)


def test_the_text_of_a_composite_model_goes_by_its_own_plan() -> None:
    """Gemma-3's text is cut, its tower (SigLIP, which has no plan) is not; DeepSeek-V3's attention is whole, its experts are cut."""
    gemma, deepseek = load_model("google/gemma-3-27b-it"), load_model("deepseek-ai/DeepSeek-V3")

    assert "self_attn.q_proj" in plan_of(gemma).outputs
    assert not any("self_attn" in module for module in plan_of(deepseek).outputs)
    one, two = (rank_weight_bytes(deepseek, parallel=Parallel(tp=tp), rules=TRANSFORMERS) for tp in (1, 2))
    assert one is not None
    assert two is not None
    experts, shared, dense = 58 * 256 * 3 * 2048 * 7168, 58 * 3 * 2048 * 7168, 3 * 3 * 18_432 * 7168
    assert one[0] - two[0] == 2 * (experts + shared + dense + 2 * 129_280 * 7168) // 2


# Heads of keys on each of two ranks after a forward pass of the same small models, transformers 5.23.0.
KEY_HEADS: Final = {
    "llama": 2,
    "gemma3_text": 2,
    "phi3": 4,
    "olmo2": 4,
    "gpt_oss": 4,
    "glm4_moe": 2,
    "gpt_neox": 4,
    "deepseek_v3": 1,
}


@pytest.mark.parametrize("model_type", sorted(KEY_HEADS))
def test_the_cache_of_a_rank(model_type: str) -> None:
    """Of 4 heads (gpt_neox 8, a latent 1) two ranks have half each only where the projection leaves them there."""
    config = CONFIGS[model_type]
    found = plan(config, seq=3, engine="transformers", dtype="fp32", tp=2).cache.per_gpu_bytes

    each = 2 * 8 * 4 if model_type != "deepseek_v3" else (16 + 8) * 4
    assert found == 3 * config["num_hidden_layers"] * KEY_HEADS[model_type] * each


def test_states_are_whole() -> None:
    """Qwen3-Next's linear layers gather their projections: conv (1, 128, 4) and state (1, 8, 8, 8) in fp32 on each of two ranks."""
    config = {**CONFIGS["qwen3_next"], "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    found = plan(config, seq=3, engine="transformers", dtype="fp32", tp=2).cache.per_gpu_bytes

    assert found == 2 * (128 * 4 + 8 * 8 * 8) * 4 + 2 * 3 * 2 * 8 * 4

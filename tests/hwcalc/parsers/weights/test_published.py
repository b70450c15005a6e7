"""Parameters counted from the catalog's configs, against the counts that were published with the models.

Both agree to the last element, or rules say what the published count counts besides: arithmetic over the numbers of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from hwcalc import ModelSpec, load_model, plan
from hwcalc.formulas.weights import Part
from hwcalc.profiles.catalog import list_models
from hwcalc.quantization.planned import planned_scheme
from tests.catalog import find_model
from tests.hwcalc.parsers.weights import published_rules as rules
from tests.hwcalc.parsers.weights.published_rules import Rule

MTP: Final[tuple[Rule, ...]] = (rules.mtp, rules.router_bias, rules.mtp_router_bias)
TILES: Final[tuple[Rule, ...]] = (*MTP, rules.scales, rules.mtp_scales)
HASHED: Final[tuple[Rule, ...]] = (*MTP, rules.token_table)
MASKS: Final[tuple[Rule, ...]] = (rules.masks, rules.rotary_of_a_quarter)
FOUR_BITS: Final[tuple[Rule, ...]] = (rules.packed, rules.scales, *MTP)

EXPLAINED: Final[Mapping[str, tuple[Rule, ...]]] = {
    **dict.fromkeys(
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-9B",
            "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3.6-27B",
            "Qwen/Qwen3.6-35B-A3B", "XiaomiMiMo/MiMo-7B-Base", "XiaomiMiMo/MiMo-7B-RL", "Qwen/Qwen3-Next-80B-A3B-Thinking",
            "Qwen/Qwen3.5-0.8B-Base", "Qwen/Qwen3.5-2B-Base", "Qwen/Qwen3.5-4B-Base", "Qwen/Qwen3.5-9B-Base", "Qwen/Qwen3.8-27B",
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        ),
        (rules.mtp,),
    ),
    **dict.fromkeys(
        (
            "deepseek-ai/DeepSeek-V3.2", "tencent/Hy3-preview", "zai-org/GLM-4.5", "zai-org/GLM-4.7", "zai-org/GLM-4.7-Flash",
            "zai-org/GLM-5", "zai-org/GLM-5.1", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8", "zai-org/GLM-5.3", "deepseek-ai/DeepSeek-R1",
            "zai-org/GLM-4.5-Air", "zai-org/GLM-4.5-Base",
        ),
        MTP,
    ),
    **dict.fromkeys(
        (
            "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.2-Exp", "zai-org/GLM-5.1-FP8",
            "zai-org/GLM-5-FP8", "deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3.1-Terminus",
        ),
        TILES,
    ),
    **dict.fromkeys(("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"), HASHED),
    **dict.fromkeys(
        (
            "Aleph-Alpha/Kolibri-1", "inclusionAI/Ling-1T", "inclusionAI/Ling-flash-2.0", "inclusionAI/Ling-mini-2.0",
            "inclusionAI/Ring-1T", "MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.7", "MiniMaxAI/MiniMax-M3",
            "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6", "moonshotai/Kimi-K3", "moonshotai/Kimi-Linear-48B-A3B-Instruct",
            "rednote-hilab/dots.llm1.inst", "MiniMaxAI/MiniMax-M2.1", "moonshotai/Kimi-Linear-48B-A3B-Base",
        ),
        (rules.router_bias,),
    ),
    **dict.fromkeys(
        (
            "bigcode/starcoder", "google/gemma-4-26B-A4B", "ibm-granite/granite-3.0-1b-a400m-base",
            "ibm-granite/granite-3.0-3b-a800m-base", "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "OpenGVLab/InternVL3-8B-hf", "Qwen/Qwen1.5-0.5B", "Qwen/Qwen1.5-1.8B-Chat", "Qwen/Qwen3-1.7B", "tiiuae/falcon-7b",
            "tiiuae/falcon-11B", "tiiuae/falcon-40b", "tiiuae/falcon-180B", "tiiuae/falcon-7b-instruct", "bigcode/starcoder2-15b",
            "bigcode/starcoder2-15b-instruct-v0.1", "Qwen/Qwen3-0.6B", "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        ),
        (rules.head_twice,),
    ),
    **dict.fromkeys(
        (
            "01-ai/Yi-6B-200K", "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf", "microsoft/Phi-3-small-8k-instruct",
            "meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-13b-chat-hf", "meta-llama/Llama-2-70b-chat-hf",
        ),
        (rules.rotary_in_layers,),
    ),
    **dict.fromkeys(
        (
            "EleutherAI/pythia-12b", "EleutherAI/pythia-160m", "EleutherAI/pythia-1b", "EleutherAI/pythia-2.8b",
            "EleutherAI/pythia-410m", "EleutherAI/pythia-6.9b", "EleutherAI/pythia-1.4b",
        ),
        MASKS,
    ),
    **dict.fromkeys(
        (
            "Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-32B-FP8",
            "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
        ),
        (rules.scales,),
    ),
    **dict.fromkeys(
        (
            "nvidia/Gemma-4-26B-A4B-NVFP4", "nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/GLM-5.1-NVFP4", "nvidia/MiniMax-M2.5-NVFP4",
            "nvidia/MiniMax-M2.7-NVFP4", "nvidia/Qwen3.5-122B-A10B-NVFP4", "nvidia/Qwen3.6-27B-NVFP4",
            "nvidia/Qwen3.6-35B-A3B-NVFP4",
        ),
        (rules.packed,),
    ),
    **dict.fromkeys(("nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4", "nvidia/GLM-5-NVFP4"), FOUR_BITS),
    **dict.fromkeys(
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "nvidia/DeepSeek-V4-Pro-NVFP4"),
        (*FOUR_BITS, rules.mtp_packed, rules.mtp_scales, rules.token_table),
    ),
    **dict.fromkeys(("google/gemma-4-E2B-it", "google/gemma-4-E4B-it"), (rules.shared_keys, rules.layer_scalars)),
    **dict.fromkeys(("openai-community/gpt2", "openai-community/gpt2-medium"), (rules.masks,)),
    **dict.fromkeys(("google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it"), (rules.layer_scalars, rules.standardised)),
    **dict.fromkeys(
        ("moonshotai/Moonlight-16B-A3B", "moonshotai/Moonlight-16B-A3B-Instruct", "moonshotai/Kimi-K2-Instruct"),
        (rules.router_bias, rules.rotary_in_layers),
    ),
    "baidu/ERNIE-4.5-21B-A3B-PT": (rules.ernie_mtp,),
    "dots-studio/dots3-note-prev": (rules.dots_mtp, rules.router_bias, rules.tower_router_bias),
    "EleutherAI/gpt-neo-2.7B": (rules.masks_of_local_layers,),
    "LGAI-EXAONE/K-EXAONE-236B-A23B": (rules.router_bias, rules.exaone_mtp),
    "microsoft/bitnet-b1.58-2B-4T": (rules.ternary,),
    "MiniMaxAI/MiniMax-M2.5": (rules.router_bias, rules.scales),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": (rules.static_scales,),
    "mistralai/Mistral-Small-4-119B-2603": (rules.static_scales,),
    "mistralai/Mixtral-8x22B-v0.1": (rules.padded_vocabulary,),
    "moonshotai/Kimi-K2-Base": (rules.router_bias, rules.scales, rules.rotary_in_layers),
    "nvidia/GLM-5.3-NVFP4": (rules.packed, *MTP),
    "nvidia/MiniMax-M3-NVFP4": (rules.packed, rules.router_bias),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": (rules.packed, rules.scales, rules.router_bias),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": (rules.packed, rules.mtp),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (rules.packed, *MTP, rules.cache_scales),
    "nvidia/Qwen3-235B-A22B-NVFP4": (rules.packed, rules.scales),
    "moonshotai/Kimi-VL-A3B-Instruct": (rules.router_bias, rules.rotary_in_layers),
    "thinkingmachines/Inkling": (rules.mtp, rules.routed_bias),
    "skt/A.X-K1": (rules.unused_norms,),
    "stepfun-ai/Step-3.7-Flash": (rules.router_bias, rules.step_mtp),
    "stepfun-ai/Step-3.7-Flash-FP8": (rules.router_bias, rules.step_mtp, rules.scales),
    "THUDM/glm-4-9b-chat": (rules.rotary_once,),
    "XiaomiMiMo/MiMo-V2-Flash": (rules.router_bias, rules.scales, rules.mimo_mtp, rules.mimo_scales),
    "zai-org/GLM-4.6": (*MTP, rules.mtp_shares_tables),
}  # fmt: skip

ROUND: Final[Mapping[str, int]] = {
    "facebook/opt-1.3b": 10**8, "facebook/opt-2.7b": 10**8, "facebook/opt-6.7b": 10**8, "facebook/opt-13b": 10**9, "facebook/opt-30b": 10**9,
    "nvidia/NVIDIA-Nemotron-Nano-12B-v2": 10**7, "Zyphra/Zamba2-7B-Instruct": 10**7,
}  # fmt: skip
"""Published counts that are round, and the unit to which they are."""

KIMI_K2: Final = (
    "128 numbers a layer stay; converted files of the base model hold inverse frequencies, but of 7,168 / 64 / 2 = 56 a layer "
    "(NVIDIA-NeMo/Megatron-Bridge #1861), and the part of a head that turns would have 32"
)
OPEN: Final[Mapping[str, tuple[tuple[Rule, ...], int, str]]] = {
    "hpcai-tech/grok-1": ((), -1_684_820_992, "314 billion, the publisher's figure, are those of the layers without the embedding, and cut"),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": ((), -991_176_960, "675 billion, the card's figure, are 673 of language and 2.5 of the tower"),
    "mistralai/Mistral-Medium-3.5-128B": ((), 3_717_755_648, "the catalog's config has the language part alone: no vision tower, no projector"),
    "moonshotai/Kimi-K2-Instruct-0905": ((rules.router_bias, rules.scales), 61 * 128, KIMI_K2),
    "moonshotai/Kimi-K2-Thinking": ((rules.router_bias,), 61 * 128, KIMI_K2),
    "nvidia/GLM-5.2-NVFP4": (
        (), 35_970_819_840, "the Hub's count is more than the elements of any storage of it; its files, 432.95 GiB, agree with the plan",
    ),
}  # fmt: skip
"""Published counts that no rule gives: the rules that hold, the elements that they leave over, and what is known of these."""

UNPUBLISHED: Final = frozenset(
    {
        "facebook/bart-large", "baichuan-inc/Baichuan2-13B-Chat", "baichuan-inc/Baichuan2-7B-Chat", "CohereForAI/aya-23-8B", "nvidia/Kimi-K2.5-NVFP4",
        "nvidia/Kimi-K2.6-NVFP4", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
        "nvidia/Qwen3.5-397B-A17B-NVFP4",
        "openbmb/MiniCPM-2B-128k", "openbmb/MiniCPM-MoE-8x2B", "OrionStarAI/Orion-14B-Chat", "Qwen/Qwen-1_8B-Chat",
        "Qwen/Qwen3-32B-FP8-Static-PerTensor", "RWKV/rwkv-5-world-3b", "sgl-project/DeepSeek-V4-Pro-FP8", "internlm/internlm-chat-7b",
        "mistralai/Devstral-2-123B-Instruct-2512", "nvidia/Kimi-K2.7-Code-NVFP4", "sgl-project/DeepSeek-V4-Flash-FP8",
        "Snowflake/snowflake-arctic-embed-m", "zai-org/GLM-5.3-FP8",
    }
)  # fmt: skip
"""Catalog models for which no published count was found."""

UNCOUNTED: Final[Mapping[str, str]] = {
    "fla-hub/rwkv7-0.4B-world": "the catalog's config leaves out the ranks of its decay, gate and value projections",
    "stepfun-ai/step3": "its vision tower is code of the model's own, and the catalog's config does not describe it",
}
"""Catalog models whose weights nobody counts, each with its reason."""


def published(model_id: str) -> int | None:
    """The count that came with the model: of parameters, or of the elements that its files store."""
    entry: Mapping[str, Any] = find_model(model_id) or {}
    total: int | None = (entry.get("parameters") or {}).get("total") or entry.get("stored_elements")
    return total


def total(model: ModelSpec) -> int:
    """The parameters as kvplan counts them."""
    assert model.counted is not None
    return model.counted.total


def by_the_rules(model: ModelSpec, count: int) -> bool:
    """Whether a published count is equal to the last element, with what the rules add; a round count is equal to its own unit."""
    if model.counted is None or model.id in UNCOUNTED:
        return model.counted is None and model.id in UNCOUNTED
    if model.id in ROUND:
        unit = ROUND[model.id]
        return (count % unit, count) == (0, (total(model) + unit // 2) // unit * unit)
    if model.id in OPEN:
        holding, left, why = OPEN[model.id]
        # Nothing left is explained, and stands in another table.
        return count - total(model) - sum(rule(model) for rule in holding) == left != 0 and why != ""
    added = sum(rule(model) for rule in EXPLAINED.get(model.id, ()))
    return count == total(model) + added and (added == 0) is (model.id not in EXPLAINED)


def test_published_counts() -> None:
    """Every count that was published with a model of the catalog is that of the rules."""
    counts = {model_id: count for model_id in list_models() if (count := published(model_id))}

    assert len(counts) > 500
    assert [model_id for model_id, count in counts.items() if not by_the_rules(load_model(model_id), count)] == []


def test_round_figures_say_so() -> None:
    """A count that ends in seven zeros was not counted, and its entry says that it was rounded."""
    entries = {model_id: (find_model(model_id) or {}).get("parameters") or {} for model_id in list_models()}
    round_ones = {model_id for model_id, counts in entries.items() if counts and counts["total"] % 10**7 == 0}

    assert round_ones == {model_id for model_id, counts in entries.items() if "rounded" in (counts.get("source") or "")}
    assert set(ROUND) < round_ones <= {*ROUND, *OPEN}


def test_grok_is_cut_not_rounded() -> None:
    """314 billion are those of the layers, 314.88, without what follows the point; the embedding is 0.8 billion more."""
    model = load_model("hpcai-tech/grok-1")

    assert published(model.id) == (total(model) - rules.table(model)) // 10**9 * 10**9 == 314 * 10**9


def test_mistral_large_has_a_tower() -> None:
    """675 billion are 673 of language and 2.5 of an encoder for images, in the model card's words: so are those of the config."""
    model = load_model("mistralai/Mistral-Large-3-675B-Instruct-2512")
    parts = {part: sum(block.elements for block in rules.blocks(model) if block.part is part) for part in Part}

    assert parts[Part.LANGUAGE] // 10**9 == 673
    assert parts[Part.VISION] // 10**8 == 24
    assert round((parts[Part.VISION] + parts[Part.PROJECTOR]) / 10**9, 1) == 2.6
    assert published(model.id) == (673 * 10**9 + 25 * 10**8) // 10**9 * 10**9


STORAGE: Final = frozenset(
    rule for name, rule in vars(rules).items() if not name.startswith("_") and re.search("scales|packed|ternary", name)
)
"""The rules that count how weights are stored: packed numbers, and scales."""


@pytest.mark.parametrize("model_id", [name for name, how in EXPLAINED.items() if not STORAGE.isdisjoint(how)])
def test_a_count_of_storage_needs_a_plan_of_it(model_id: str) -> None:
    """Where a published count proves that weights are packed or scaled, the plan stores them so: less than 16 bits each."""
    model = load_model(model_id)
    scheme, known = planned_scheme(model, None)
    weights = plan(model, seq=64, dtype="bf16").memory.weights.bytes

    assert known
    assert scheme is not None
    assert scheme.rules
    assert weights is not None
    assert weights < 2 * (total(model) - rules.mtp(model))


def test_no_other_row_is_without_a_count() -> None:
    """Where nobody published a count, or it was not found, the list says so."""
    assert {model_id for model_id in list_models() if not published(model_id)} == UNPUBLISHED


def test_tables_name_models_once() -> None:
    """Every model of a table is one of the catalog, and stands in one table."""
    tables = [EXPLAINED, ROUND, OPEN, UNPUBLISHED, UNCOUNTED]
    names = [name for each in tables for name in each]

    assert len(names) == len(set(names))
    assert set(names) <= set(list_models())

"""Heads and widths of unlike layers: what is cached and what is weighed are those that transformers and vLLM build."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from hwcalc import load_model, plan
from hwcalc.formulas import LayerKind, SharedCache, SparseIndexer, Stack
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Part
from hwcalc.model import ModelSpec
from scripts.live_classes import built as of_defaults
from scripts.live_classes import generating

SMALL: Final = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS: Final = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: Final = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 24}
INDEXER: Final = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 8}
IN_TURN: Final = ["full_attention", "sliding_attention"] * 2


def of_kind(stack: Stack, wanted: type[LayerKind]) -> dict[int, Any]:
    """The kind of this type that each layer has, by layer number."""
    return {number: group.kind for group in stack.groups if isinstance(group.kind, wanted) for number in group.layers}


def rows(spec: ModelSpec, name: str) -> dict[int, int]:
    """Rows of the tensor of this name, by layer number."""
    assert spec.counted is not None
    return {
        number: weight.shape[0]
        for block in spec.counted.blocks
        if block.part is Part.LANGUAGE
        for weight in block.weights
        if weight.path.endswith(f"{name}.weight")
        for number in block.layers or ()
    }


def built(config: dict[str, Any], auto: Any = AutoModelForCausalLM) -> Any:
    """The model that transformers builds, without numbers in its tensors."""
    with torch.device("meta"):
        return auto.from_config(AutoConfig.for_model(**deepcopy(config)))


def built_rows(layers: Any, name: str) -> dict[int, int]:
    """Rows of the projection of this name in each layer of a model of transformers."""
    found = {number: getattr(layer.self_attn, name, None) for number, layer in enumerate(layers)}
    return {number: projection.weight.shape[0] for number, projection in found.items() if projection is not None}


def parameters(model: Any) -> int:
    """How many parameters a model of transformers has."""
    return sum(parameter.numel() for parameter in model.parameters())


def step(**keys: Any) -> dict[str, Any]:
    """A small Step-3.7 whose layers are full and sliding in turn."""
    text = {**SMALL, **EXPERTS, "share_expert_dim": 32, "layer_types": IN_TURN, "sliding_window": 16, **keys}
    return {"model_type": "step3p7", "text_config": text, "vision_config": {"width": 32, "layers": 1, "heads": 2}}


OTHER: Final = {"attention_type": "sliding_attention", "num_attention_heads": 8, "num_attention_groups": 4, "head_dim": 32}


@pytest.mark.parametrize(
    ("keys", "heads"),
    [
        ({}, 4),
        ({"num_sliding_attention_heads": 8}, 8),
        ({"attention_other_setting": OTHER}, 8),
        ({"num_sliding_attention_heads": 6, "attention_other_setting": OTHER}, 6),
    ],
)
def test_sliding_layers_of_step_have_other_query_heads_and_nothing_else(keys: dict[str, Any], heads: int) -> None:
    """4 x 16 query rows on full layers, ``heads`` x 16 on sliding ones; 2 x 16 keys on both, whatever the file says besides."""
    document = step(**keys)
    model = built(document, AutoModel).language_model
    spec = load_model(document)
    queries = {0: 64, 1: heads * 16, 2: 64, 3: heads * 16}

    assert rows(spec, "q_proj") == queries == built_rows(model.layers, "q_proj")
    assert rows(spec, "k_proj") == dict.fromkeys(range(4), 32) == built_rows(model.layers, "k_proj")
    kinds = of_kind(spec.stack, AttentionKind)
    assert {number: kind.num_attention_heads * 16 for number, kind in kinds.items()} == queries
    assert {kind.num_key_value_heads * kind.head_dim for kind in kinds.values()} == {32}
    # The head, 128 x 64, is not in the model without it.
    assert spec.counted is not None
    language = sum(block.elements for block in spec.counted.blocks if block.part is Part.LANGUAGE)
    assert language == parameters(model) + 128 * 64


def test_a_step_file_that_transformers_saved_says_the_same() -> None:
    """It holds the heads of each sliding layer in ``per_layer_config``."""
    document = step(num_sliding_attention_heads=8)
    saved = AutoConfig.for_model(**deepcopy(document)).to_dict()

    assert load_model(saved).stack == load_model(document).stack
    del saved["text_config"]["num_sliding_attention_heads"]
    assert load_model(saved).stack == load_model(document).stack


def mimo(**keys: Any) -> dict[str, Any]:
    """A small MiMo-V2 whose layers are full and sliding in turn."""
    own = {"model_type": "mimo_v2_flash", "v_head_dim": 8, "layer_types": IN_TURN, "sliding_window": 16}
    return {**SMALL, **EXPERTS, **own, **keys}


SWA: Final = {"swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 32, "swa_v_head_dim": 12}


def test_mimo_without_dims_of_its_own_doubles_the_heads_of_sliding_layers() -> None:
    """2 heads of 16 + 8 on full layers, 4 on sliding ones: cached, weighed and built by transformers alike."""
    spec, model = load_model(mimo()), built(mimo())

    assert rows(spec, "k_proj") == {0: 32, 1: 64, 2: 32, 3: 64} == built_rows(model.model.layers, "k_proj")
    assert rows(spec, "v_proj") == {0: 16, 1: 32, 2: 16, 3: 32} == built_rows(model.model.layers, "v_proj")
    assert {n: kind.num_key_value_heads for n, kind in of_kind(spec.stack, AttentionKind).items()} == {0: 2, 1: 4, 2: 2, 3: 4}
    assert spec.counted is not None
    assert spec.counted.total == parameters(model)
    assert not spec.readings


def test_mimo_sliding_layers_have_the_dims_that_vllm_reads() -> None:
    """All four ``swa_*`` keys count in vLLM 0.33: queries 8 x 32, keys 4 x 32, values 4 x 12. In transformers none does."""
    spec, model = load_model(mimo(**SWA)), built(mimo(**SWA))

    assert rows(spec, "q_proj") == {0: 64, 1: 256, 2: 64, 3: 256}
    assert rows(spec, "k_proj") == {0: 32, 1: 128, 2: 32, 3: 128}
    assert rows(spec, "v_proj") == {0: 16, 1: 48, 2: 16, 3: 48}
    cached = of_kind(spec.stack, AttentionKind)
    assert {n: kind.num_key_value_heads * kind.head_dim for n, kind in cached.items()} == rows(spec, "k_proj")
    assert {n: kind.num_key_value_heads * kind.v_head_dim for n, kind in cached.items()} == rows(spec, "v_proj")
    by_class = of_kind(spec.readings["transformers"], AttentionKind)
    keys = {n: kind.num_key_value_heads * kind.head_dim for n, kind in by_class.items()}
    assert keys == {0: 32, 1: 64, 2: 32, 3: 64} == built_rows(model.model.layers, "k_proj")
    built_by_class = spec.as_built_by("transformers")
    assert rows(built_by_class, "k_proj") == keys
    assert built_by_class.counted is not None
    assert built_by_class.counted.total == parameters(model)
    # The parameters of a model are those that transformers builds.
    assert spec.parameters is not None
    assert spec.parameters.total == parameters(model)
    assert plan(mimo(**SWA), seq=9, engine="transformers").memory.weights.bytes == 2 * parameters(model)


def test_mimo_values_are_as_wide_as_keys_where_only_those_are_given() -> None:
    """Without ``swa_v_head_dim`` a sliding layer of vLLM has values as wide as its keys: 2 x 2 heads of 32."""
    assert rows(load_model(mimo(swa_head_dim=32)), "v_proj") == {0: 16, 1: 128, 2: 16, 3: 128}


def test_deepseek_v32_may_share_indexers_but_not_in_transformers() -> None:
    """With ``index_topk_freq`` 2 layers 0, 1, 3 keep indexer keys, as in vLLM 0.33; transformers keeps them on all four."""
    config = {**SMALL, **EXPERTS, **LATENT, **INDEXER, "model_type": "deepseek_v32", "index_topk_freq": 2, "n_shared_experts": 1}
    spec, layers = load_model(config), built(config).model.layers

    assert set(of_kind(spec.stack, SparseIndexer)) == {0, 1, 3} == set(rows(spec, "indexer.wk"))
    assert set(of_kind(spec.readings["transformers"], SparseIndexer)) == {0, 1, 2, 3}
    assert all(layer.self_attn.indexer is not None for layer in layers)
    assert set(rows(spec.as_built_by("transformers"), "indexer.wk")) == {0, 1, 2, 3}


def test_mistral_large4_layers_that_share_a_latent_may_keep_indexer_keys() -> None:
    """Layers 2 and 3 read the latent of layer 0; 3 has no indexer, and 2 keeps the keys of its own."""
    sharing = {"kv_source_layers": [0, 1, 0, 0], "indexer_types": ["full", "shared", "full", "shared"]}
    own = {"model_type": "mistral_large4_text", "n_shared_experts": 1, "first_k_dense_replace": 1, "no_rope_layers": [1, 0, 1, 1]}
    config = {**SMALL, **EXPERTS, **LATENT, **INDEXER, **own, **sharing, "num_key_value_heads": 4}
    spec, model = load_model(config), built(config, AutoModel)

    assert set(of_kind(spec.stack, SharedCache)) == {2, 3}
    assert set(of_kind(spec.stack, SparseIndexer)) == {0, 2} == set(rows(spec, "indexer.wk"))
    assert [layer.self_attn.indexer is not None for layer in model.layers] == [True, False, True, False]
    # Layer 1 has no positions: the 16 rotary channels of its keys come from the latent.
    projected = {0: 32 + 16, 1: 32}
    assert rows(spec, "kv_a_proj_with_mqa") == projected == built_rows(model.layers, "kv_a_proj_with_mqa")
    up = {0: 4 * (32 + 24), 1: 4 * (32 + 16 + 24), 2: 4 * (32 + 24), 3: 4 * (32 + 24)}
    assert rows(spec, "kv_b_proj") == up == built_rows(model.layers, "kv_b_proj")
    assert spec.counted is not None
    # Frequencies of the rotary table are no weights: a buffer until 5.23, half of 16 numbers of a parameter since.
    assert spec.counted.total == parameters(model) - 16 // 2 + 128 * 64


def test_deepseek_without_latent_weighs_what_it_caches() -> None:
    """DeepSeek-VL2's smallest language model: ``use_mla`` false, 4 heads of 64 / 4 = 16, and so 64 rows of keys and values."""
    spec = load_model({**SMALL, **EXPERTS, "num_key_value_heads": 4, "model_type": "deepseek_v2", "use_mla": False})

    assert rows(spec, "k_proj") == dict.fromkeys(range(4), 64) == rows(spec, "v_proj")
    assert {kind.num_key_value_heads * kind.head_dim for kind in of_kind(spec.stack, AttentionKind).values()} == {64}


NEWEST: Final = (
    "apertus1p5",
    "dory",
    "exaone",
    "hy_v4_vl",
    "inkling2_loop",
    "lara_mini",
    "omniasr",
    "sarvam_mla",
    "sarvam_moe",
)
"""Types that came with transformers 5.24, of which no figures were recorded."""


@pytest.mark.parametrize("model_type", NEWEST)
def test_parameters_of_the_newest_types(model_type: str) -> None:
    """Towers, tokenisers of pictures and sound, loops and gates between passes: all that the library builds of the class's defaults."""
    spec = load_model({"model_type": model_type, "architectures": [generating()[model_type]]})

    assert spec.counted is not None
    assert spec.counted.total == parameters(of_defaults(model_type, {}))

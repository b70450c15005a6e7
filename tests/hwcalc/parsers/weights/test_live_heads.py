"""Heads, activations and experts that a config class decides on: small models that transformers builds on the meta device."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import load_model
from tests.effort import sample

SMALL: Final = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The text's keys; towers keep the sizes of their classes, which cost nothing on the meta device."""

TEXTS: Final = {
    "llava": {"model_type": "llama"},
    "llava_next": {"model_type": "llama"},
    "llava_next_video": {"model_type": "llama"},
    "llava_onevision": {"model_type": "qwen2"},
    "video_llama_3": {"model_type": "qwen2"},
    "mistral3": {"model_type": "mistral"},
    "internvl": {"model_type": "qwen2"},
    "smolvlm": {"model_type": "llama"},
    "idefics3": {"model_type": "llama"},
}
TYPES: Final = (
    *TEXTS,
    "gemma3",
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "hunyuan_vl",
    "minimax_m3_vl",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
)
WORDS: Final = (None, True, False)


def built(config: Any, auto: Any) -> int:
    """Parameters of the model that transformers builds, tied ones once."""
    import torch

    with torch.device("meta"):
        model = auto.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def counted(config: dict[str, Any]) -> int:
    """Parameters that kvplan counts."""
    weights = load_model(config).counted
    assert weights is not None
    return weights.total


@pytest.mark.parametrize("model_type", sample(TYPES, 8))
def test_who_ties_the_head(model_type: str) -> None:
    """The whole model's key, the language model's, or either, as the class has it: every pair of words."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    for top in WORDS:
        for own in WORDS:
            text = {**SMALL, **TEXTS.get(model_type, {})} | ({} if own is None else {"tie_word_embeddings": own})
            document: dict[str, Any] = {"text_config": text} | ({} if top is None else {"tie_word_embeddings": top})
            config = AutoConfig.for_model(model_type, **document)
            total = built(config, AutoModelForImageTextToText)
            assert counted({"model_type": model_type, **document}) == total, (top, own)


@pytest.mark.parametrize("act", [None, "xielu", "silu"])
def test_the_activation_of_apertus(act: str | None) -> None:
    """Two learned numbers in each layer with ``xielu``, which is also what its class takes by itself."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = SMALL if act is None else {**SMALL, "hidden_act": act}
    assert counted({"model_type": "apertus", **keys}) == built(AutoConfig.for_model("apertus", **keys), AutoModelForCausalLM)


@pytest.mark.parametrize("model_type", ["qwen2_moe", "qwen3_moe", "flint"])
@pytest.mark.parametrize("number", [0, 4])
def test_no_experts(model_type: str, number: int) -> None:
    """Without experts every layer is dense."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = {**SMALL, "num_experts": number, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    assert counted({"model_type": model_type, **keys}) == built(AutoConfig.for_model(model_type, **keys), AutoModelForCausalLM)

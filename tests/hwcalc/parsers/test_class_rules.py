"""What a config class of transformers decides by itself: ties, defaults of nested configs, and a model type beside an architecture."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError
from hwcalc.model import BY_ARCHITECTURE
from hwcalc.parsers.sketch import UNKNOWN
from tests.tiny_configs import TINY_LLAMA

SMALL: dict[str, Any] = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}


def counted(document: dict[str, Any]) -> int:
    """Parameters that kvplan counts."""
    weights = load_model(document).counted
    assert weights is not None
    return weights.total


def test_a_class_that_never_ties() -> None:
    """The file's word does not tie what the class keeps as two tensors."""
    for model_type in ("nemotron_h", "kimi_linear", "bailing_hybrid", "xlstm"):
        document = {"model_type": model_type}
        assert counted({**document, "tie_word_embeddings": True}) == counted({**document, "tie_word_embeddings": False})


def test_a_null_window_beside_its_switch() -> None:
    """Qwen2 with the switch on and no window attends fully."""
    document = {**TINY_LLAMA, "model_type": "qwen2", "num_key_value_heads": 4, "sliding_window": None}
    full = plan(document, seq=64).cache.total_bytes
    assert plan({**document, "use_sliding_window": True}, seq=64).cache.total_bytes == full


def test_the_image_layers_of_mllama() -> None:
    """Without a list every fifth layer from the fourth on attends to the image."""
    named = {"model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
    assert load_model({"model_type": "mllama_text_model"}).stack == load_model(named).stack


def test_zamba2_with_other_heads_than_its_width() -> None:
    """Heads that do not fill the inner width are refused, as those of other Mamba-2 types are."""
    document = {"model_type": "zamba2", "hidden_size": 64, "n_mamba_heads": 8, "mamba_headdim": 8}
    with pytest.raises(ConfigError, match="n_mamba_heads x mamba_headdim"):
        load_model(document)


def test_a_model_type_that_contradicts_its_architecture() -> None:
    """A Grok file that calls itself GIT is neither; one whose two names are read alike is accepted."""
    grok = {**SMALL, "model_type": "git", "architectures": ["Grok1ForCausalLM"], "num_key_value_heads": 2}
    with pytest.raises(UnknownArchitectureError, match=r"git.*Grok1ForCausalLM"):
        load_model(grok)
    alike = {**TINY_LLAMA, "num_key_value_heads": 4, "sliding_window": None, "architectures": ["MistralForCausalLM"]}
    assert load_model(alike).model_type == "llama"


def test_a_nested_config_that_its_class_fills_in() -> None:
    """Voxtral's class puts its own widths into a text_config without them."""
    text = {"model_type": "llama", "num_hidden_layers": 2}
    filled = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 3072}
    short = load_model({"model_type": "voxtral", "text_config": text})
    assert short.stack == load_model({"model_type": "voxtral", "text_config": {**text, **filled}}).stack


def test_helium_projects_to_the_hidden_width() -> None:
    """Heads of 64 x 20 = 1,280 numbers: the output projection stays 2,560 x 2,560, and queries, keys and values halve."""
    full, half = ({"model_type": "helium", "num_hidden_layers": 1, "head_dim": width} for width in (128, 64))
    assert counted(full) - counted(half) == 3 * 20 * 64 * 2560


def test_pi0_has_no_head_over_words() -> None:
    """Its class reads actions from the second stack: untied embeddings add nothing."""
    assert counted({"model_type": "pi0", "tie_word_embeddings": False}) == counted({"model_type": "pi0"})


def test_the_tables_of_florence_are_tied_by_its_text() -> None:
    """BART's encoder and decoder have tables of their own (2 x 672 x 1,024) if the text's key says so; the head stays tied."""
    text = {"model_type": "bart", "vocab_size": 672}
    tied, own = ({"model_type": "florence2", "text_config": {**text, "tie_word_embeddings": tied}} for tied in (True, False))
    assert counted(own) - counted(tied) == 2 * 672 * 1024


def test_the_heads_of_unlimited_ocr_share_the_hidden_width() -> None:
    """1,280 / 10 heads = 128, whatever head_dim says."""
    plain = {"model_type": "unlimited_ocr_text", "architectures": ["UnlimitedOcrForConditionalGeneration"]}
    assert load_model({**plain, "head_dim": 64}).stack == load_model(plain).stack


def test_no_shared_expert_of_hy3_is_one_as_wide_as_a_dense_layer() -> None:
    """Transformers' HYV3MLP takes ``intermediate_size`` for a width of 0."""
    plain = {
        "model_type": "hy_v3",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
    }
    none, three = (counted({**plain, "num_shared_experts": count}) for count in (0, 3))
    assert none == three


TEXT: dict[str, Any] = {
    "model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584
}  # fmt: skip


@pytest.mark.parametrize("place", ["text_config", "llm_config", "thinker_config"])
@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"kv_latent": 384, "memory_slots": 16}, "kv_latent, memory_slots"), ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "kv_lora_rank, qk_rope_head_dim"),
        ({"layer_types": ["mamba2"] * 28}, "layer_types"), ({"num_hidden_layers": 40}, r"num_hidden_layers\. num_hidden_layers is 40, but \w+\.num_hidden_layers is 28"), ({"n_layer": 40}, "n_layer"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"), ({"num_kv_shared_layers": 8}, "num_kv_shared_layers"), ({"use_latent": True}, "use_latent"),
        ({"memory_config": {"slots": 16}}, "memory_config.slots"), ({"talker_config": {"num_hidden_layers": 24}}, "talker_config.num_hidden_layers"),
        ({"talker_config": {"text_config": {"num_key_value_heads": 2}}}, "talker_config.text_config.num_key_value_heads"),
        # Names that say nothing, a rotary width, and a width of heads that is not 3,584 / 28 = 128.
        ({"lat": 384, "mode": "mla"}, "lat, mode"), ({"qk_rope_head_dim": 64}, "qk_rope_head_dim"), ({"head_dim": 64}, "head_dim"), ({"cache_values": False}, "cache_values"),
    ],
)  # fmt: skip
def test_an_unknown_document_around_a_known_text_model(place: str, beside: dict[str, Any], named: str) -> None:
    """Nobody knows what its own code does with keys around the text model: those that no published config has are an error that names them."""
    document = {"model_type": "visX", place: TEXT, "vision_config": {"hidden_size": 1024, "num_attention_heads": 16}, **beside}
    with pytest.raises(UnreadKeysError, match=rf"may bear on memory around its qwen2 model: {named}\.") as caught:
        load_model(document)
    # The layers that are offered are as open.
    assert caught.value.written is None or UNKNOWN in caught.value.written[1]["layers_of"]
    for assume in ("qwen2", "llama", "gqa"):
        model = load_model(document, assume=assume)
        assert model.assumed
        assert all(key in " ".join(note.message for note in model.warnings) for key in beside), assume
    # A type whose class transformers has passes them over.
    known = document | {"model_type": "qwen2_5_omni_thinker" if place != "llm_config" else "llava", "text_config": TEXT}
    assert not load_model(known).assumed


def test_the_text_model_of_an_unknown_document_has_no_keys_of_its_own() -> None:
    """Its outer code may read them. What early versions wrote into every file says nothing of the cache."""
    with pytest.raises(UnreadKeysError, match=r"does not have: text_config\.lat\."):
        load_model({"model_type": "visX", "text_config": TEXT | {"lat": 384}})
    early = {
        "temperature": 1.0,
        "top_k": 50,
        "num_beams": 1,
        "length_penalty": 1.0,
        "max_position_embeddings": 4096,
        "intermediate_size": 8,
    }
    assert not load_model({"model_type": "visX", "text_config": TEXT | early}).assumed


def test_what_repeats_the_text_model_is_no_news() -> None:
    """Layers, heads and widths said again, under their own name or another, what is empty, and towers: 28 layers x 2 x 4 x 128 x 2 bytes."""
    beside = {
        "num_hidden_layers": 28,
        "n_head": 28,
        "n_kv_heads": 4,
        "hidden_size": 3584,
        "head_dim": 128,
        "kv_lora_rank": None,
        "use_mla": False,
    }
    document = {"model_type": "visX", "text_config": TEXT, "vision_config": {"num_attention_heads": 16, "depth": 24}, **beside}
    planned = plan(document, seq=1)
    assert 28 * 2 * 4 * 128 * 2 == planned.cache.total_bytes
    assert "exact" == planned.cache.definition
    assert ["model_type 'visX' is not known: read as qwen2 by its text_config."] == [
        note.message for note in planned.warnings if note.code == BY_ARCHITECTURE
    ]

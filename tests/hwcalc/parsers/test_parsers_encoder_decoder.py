"""Encoder-decoder and BERT-like configs: what each decoder layer keeps, and how long the encoder's output is."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import KvplanError, plan
from hwcalc.errors import UnsupportedError
from hwcalc.planner.result import Plan

BF16 = 2


def planned(config: dict[str, Any], **request: Any) -> Plan:
    """A plan in bf16."""
    return plan(config, dtype="bf16", **request)


def kinds(config: dict[str, Any]) -> dict[str, int]:
    """Kinds of layers and how many of each."""
    return {layer.kind: layer.count for layer in planned(config, seq=16).model.layers}


WHISPER_LARGE = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_layers": 4,
    "decoder_attention_heads": 20,
    "num_hidden_layers": 32,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}


def test_whisper_keeps_its_own_1500_encoder_positions() -> None:
    """Cross attention holds max_source_positions, whatever the output length; num_hidden_layers is the encoder's."""
    p = planned(WHISPER_LARGE, seq=100)

    # 4 decoder layers, keys and values, 20 heads of 64
    assert p.cache.total_bytes == 4 * 2 * 20 * 64 * BF16 * (100 + 1500)
    assert p.request.encoder_seq == 1500


def test_the_decoders_own_maximum_is_the_default_length() -> None:
    """A Whisper config has no max_position_embeddings: max_target_positions is its longest output."""
    assert planned(WHISPER_LARGE).request.seq == 448


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("BartForConditionalGeneration", {"full_attention": 12, "cross_attention": 12}),
        ("BartModel", {"full_attention": 12, "cross_attention": 12}),
        ("BartForCausalLM", {"full_attention": 12}),
    ],
)
def test_a_causal_class_is_the_decoder_alone(architecture: str, expected: dict[str, int]) -> None:
    """...ForCausalLM has no encoder output to attend to."""
    assert kinds({"model_type": "bart", "architectures": [architecture]}) == expected


def test_decoder_layers_count_not_encoder_layers() -> None:
    """Blenderbot has 2 encoder and 24 decoder layers; its class maps num_hidden_layers to the encoder."""
    config = {"model_type": "blenderbot", "encoder_layers": 2, "decoder_layers": 24}

    assert kinds(config) == {"full_attention": 24, "cross_attention": 24}


def test_t5_width_is_heads_times_d_kv() -> None:
    """T5-3B: 32 heads of 128 on a model width of 1,024, and as many decoder layers as encoder layers."""
    config = {"model_type": "t5", "d_model": 1024, "num_heads": 32, "d_kv": 128, "num_layers": 24, "n_positions": 512}

    assert planned(config, seq=10, encoder_seq=0).cache.total_bytes == 24 * 2 * 32 * 128 * BF16 * 10
    assert planned(config, seq=10, encoder_seq=7).cache.total_bytes == 24 * 2 * 32 * 128 * BF16 * (10 + 7)
    assert kinds({**config, "num_decoder_layers": 6}) == {"full_attention": 6, "cross_attention": 6}
    assert kinds({**config, "architectures": ["T5EncoderModel"]}) == {"no_cache": 24}


def test_t5gemma_windows_every_second_layer_and_crosses_on_all() -> None:
    """A window of 5 caps half of the self attention; cross attention is never windowed."""
    decoder = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}
    config = {"model_type": "t5gemma", "encoder": {"num_hidden_layers": 40}, "decoder": decoder}
    per_position = 2 * 2 * 8 * BF16

    assert planned(config, seq=9, encoder_seq=30).cache.total_bytes == per_position * (2 * 5 + 2 * 9 + 4 * 30)


def test_dia_cross_attention_has_heads_of_its_own() -> None:
    """Dia 1.6B: 4 key/value heads to itself, 16 to the encoder, 128 wide, 18 layers."""
    config = {"model_type": "dia", "delay_pattern": [0, 8, 9], "decoder_config": {"num_hidden_layers": 18}}

    assert planned(config, seq=3, encoder_seq=5).cache.total_bytes == 18 * 2 * 128 * BF16 * (4 * 3 + 16 * 5)


@pytest.mark.parametrize(
    ("encoder", "tokens"),
    [
        ({"model_type": "vit", "image_size": 384, "patch_size": 16, "num_attention_heads": 12}, 24 * 24 + 1),
        ({"model_type": "deit", "image_size": 224, "patch_size": 16}, 14 * 14 + 2),
        # Donut: patches of 4, and three halvings between four stages: 2560/32 x 1920/32
        ({"model_type": "donut-swin", "image_size": [2560, 1920], "patch_size": 4, "depths": [2, 2, 14, 2]}, 80 * 60),
    ],
)
def test_an_image_encoder_fixes_the_encoder_length(encoder: dict[str, Any], tokens: int) -> None:
    """One token for each patch, and those that the encoder adds."""
    decoder = {"model_type": "mbart", "decoder_layers": 4, "d_model": 1024, "decoder_attention_heads": 16}
    config = {"model_type": "vision-encoder-decoder", "encoder": encoder, "decoder": decoder}

    p = planned(config, seq=50)

    assert p.request.encoder_seq == tokens
    assert p.cache.total_bytes == 4 * 2 * 1024 * BF16 * (50 + tokens)


def test_any_decoder_gets_cross_attention_in_a_pair() -> None:
    """An encoder-decoder pair with GPT-2 attends to the encoder on each of its layers."""
    decoder = {"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 32, "add_cross_attention": True}

    assert kinds({"model_type": "encoder-decoder", "encoder": {"model_type": "bert"}, "decoder": decoder}) == {
        "full_attention": 3,
        "cross_attention": 3,
    }


def test_a_pair_makes_a_decoder_of_a_bert_that_does_not_say_so() -> None:
    """The composite class sets is_decoder itself."""
    config = {"model_type": "encoder-decoder", "encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert"}}

    assert kinds(config) == {"full_attention": 12, "cross_attention": 12}


def test_bert_caches_only_as_a_decoder() -> None:
    """Attention in both directions keeps nothing, and the plan says why."""
    encoder = planned({"model_type": "bert"}, seq=100)
    decoder = planned({"model_type": "bert", "is_decoder": True}, seq=100)

    assert encoder.cache.total_bytes == 0
    assert "encoder-only" in {note.code for note in encoder.notes}
    assert decoder.cache.total_bytes == 12 * 2 * 768 * BF16 * 100
    assert kinds({"model_type": "bert", "is_decoder": True, "add_cross_attention": True})["cross_attention"] == 12


def test_heads_of_berts_kin_share_the_width_whatever_the_file_adds() -> None:
    """These classes know neither fewer key/value heads nor a width of heads: 8 heads of 256 // 8, as their matrices have."""
    config = {"model_type": "bert", "is_decoder": True, "hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 3}

    assert planned(config, seq=10).cache.total_bytes == 3 * 2 * 8 * 32 * BF16 * 10
    assert planned({**config, "num_key_value_heads": 2, "head_dim": 48}, seq=10).cache.total_bytes == 3 * 2 * 8 * 32 * BF16 * 10


def test_cpm_ant_has_a_width_of_heads_of_its_own() -> None:
    """Four heads of ``dim_head`` 48 on a width of 256, not of 64."""
    config = {"model_type": "cpmant", "hidden_size": 256, "num_attention_heads": 4, "dim_head": 48, "num_hidden_layers": 3}

    assert planned(config, seq=10).cache.total_bytes == 3 * 2 * 4 * 48 * BF16 * 10


def test_gpt_1_could_cache_but_transformers_does_not() -> None:
    """The reference counts what the model would keep, the library keeps nothing."""
    config = {"model_type": "openai-gpt"}

    assert planned(config, seq=100).cache.total_bytes == 12 * 2 * 768 * BF16 * 100
    assert planned(config, seq=100, engine="transformers").cache.total_bytes == 0


def test_moshi_slides_on_every_layer() -> None:
    """A window of 3,000 on all 32 layers, 32 heads of 128."""
    assert planned({"model_type": "moshi"}, seq=5000).cache.total_bytes == 32 * 2 * 32 * 128 * BF16 * 3000


@pytest.mark.parametrize("model_type", ["reformer", "xlnet"])
def test_memories_of_another_form_are_refused(model_type: str) -> None:
    """Hidden states in place of keys and values are no cache that kvplan has a formula for."""
    with pytest.raises(UnsupportedError, match="not keys and values"):
        planned({"model_type": model_type}, seq=10)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bart", "decoder_layers": -1},
        {"model_type": "bart", "decoder_attention_heads": 0},
        {"model_type": "t5", "d_kv": "wide"},
        {"model_type": "whisper", "d_model": 3},
        {"model_type": "whisper", "max_source_positions": float("inf")},
        {"model_type": "t5gemma", "decoder": []},
        {"model_type": "t5gemma", "decoder": {"layer_types": ["full_attention"]}},
        {"model_type": "bert", "is_decoder": "yes"},
        {"model_type": "encoder-decoder", "decoder": {"model_type": "encoder-decoder"}},
        {"model_type": "encoder-decoder", "decoder": {"model_type": "no-such-model"}},
        {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit", "image_size": [1, 2, 3], "patch_size": 1}},
        {"model_type": "bart", "decoder_kv_share_period": 2},
    ],
)
def test_a_damaged_config_is_a_documented_error(config: dict[str, Any]) -> None:
    """Values that make no sense, and keys about the cache that nobody reads, stop the plan."""
    with pytest.raises(KvplanError):
        planned(config, seq=10)

"""Weights of encoder-decoder and BERT-like models against transformers 5.23, in forms that its class defaults do not show."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.errors import ConfigError
from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from tests.hwcalc.parsers.weights.counted import read_weights

DECODER = {"is_decoder": True, "add_cross_attention": True}
T5GEMMA2 = {
    "encoder": {
        "model_type": "t5gemma2_encoder",
        "text_config": {"model_type": "t5gemma2_text", "num_hidden_layers": 2},
        "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 1},
    },
    "decoder": {"model_type": "t5gemma2_decoder", "num_hidden_layers": 4},
}


def weigh(model_type: str, architecture: str, **keys: Any) -> Weights | None:
    """Weights of a config with these keys, all others left to the class."""
    top = Config({"model_type": model_type, "architectures": [architecture], **keys})
    return read_weights(top, top)


# Each count is that of transformers' own class, built on the meta device.
@pytest.mark.parametrize(
    ("model_type", "architecture", "keys", "total"),
    [
        # A tie undone gives each side and the head a table of its own, beside the shared one.
        ("bart", "BartForConditionalGeneration", {"tie_word_embeddings": False}, 560_705_536),
        ("bart", "BartForCausalLM", {"tie_word_embeddings": False}, 305_555_456),
        ("bart", "BartModel", {"tie_word_embeddings": False}, 509_234_176),
        ("whisper", "WhisperForConditionalGeneration", {"tie_word_embeddings": False}, 57_676_800),
        ("fsmt", "FSMTForConditionalGeneration", {"tie_word_embeddings": True}, 397_848_576),
        (
            "marian",
            "MarianMTModel",
            {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60_000},
            475_747_328,
        ),
        # Tied it has 1,088,020,992: the decoder's table and the head are 262,208 x 2,304 each, and a row of its own comes with the table.
        ("t5gemma2", "T5Gemma2ForConditionalGeneration", T5GEMMA2, 1_088_020_992),
        ("t5gemma2", "T5Gemma2ForConditionalGeneration", {**T5GEMMA2, "tie_word_embeddings": False}, 2_296_277_760),
        ("longt5", "LongT5ForConditionalGeneration", {"encoder_attention_type": "transient-global"}, 60_509_952),
        ("udop", "UdopForConditionalGeneration", {"feed_forward_proj": "gated-gelu"}, 943_767_552),
        ("switch_transformers", "SwitchTransformersForConditionalGeneration", {"tie_word_embeddings": False}, 391_335_168),
        ("t5", "T5EncoderModel", {}, 35_330_816),
        ("seamless_m4t", "SeamlessM4TForSpeechToText", {"tie_word_embeddings": False}, 2_051_441_984),
        (
            "speecht5",
            "SpeechT5ForSpeechToText",
            {"feat_extract_norm": "layer", "conv_bias": True, "mask_time_prob": 0.0},
            151_174_016,
        ),
        ("bert", "BertLMHeadModel", DECODER, 137_881_146),
        ("bert", "BertLMHeadModel", {"tie_word_embeddings": False}, 132_985_716),
        ("bert", "BertModel", {}, 109_482_240),
        ("big_bird", "BigBirdForCausalLM", {**DECODER, "use_bias": False}, 156_422_838),
        ("electra", "ElectraForCausalLM", {"embedding_size": 256}, 17_519_674),
        ("rembert", "RemBertForCausalLM", DECODER, 1_163_354_044),
        ("roformer", "RoFormerForCausalLM", {**DECODER, "embedding_size": 384}, 133_362_896),
        ("roc_bert", "RoCBertForCausalLM", {"enable_shape": False}, 124_120_890),
        (
            "xmod",
            "XmodForCausalLM",
            {**DECODER, "languages": ["en_XX", "de_DE"], "adapter_layer_norm": True, "pre_norm": True},
            152_084_538,
        ),
        ("git", "GitForCausalLM", {"num_image_with_embedding": 6}, 176_623_674),
        ("xlm", "XLMWithLMHeadModel", {"n_langs": 3}, 667_125_185),
        (
            "vision-encoder-decoder",
            "VisionEncoderDecoderModel",
            {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2", **DECODER}},
            239_195_904,
        ),
        (
            "vision-encoder-decoder",
            "VisionEncoderDecoderModel",
            {"encoder": {"model_type": "vit", "hidden_size": 384}, "decoder": {"model_type": "roberta", **DECODER}},
            189_346_905,
        ),
    ],
)
def test_total_as_the_library_builds_it(model_type: str, architecture: str, keys: dict[str, Any], total: int) -> None:
    """Totals are exact to the parameter."""
    weights = weigh(model_type, architecture, **keys)
    assert weights is not None
    assert total == weights.total


def test_t5_layer_by_hand() -> None:
    """One layer on each side, four channels, two heads of three: every term written out."""
    keys = {"d_model": 4, "num_layers": 1, "num_heads": 2, "d_kv": 3, "d_ff": 5, "vocab_size": 7}
    weights = weigh("t5", "T5ForConditionalGeneration", relative_attention_num_buckets=8, **keys)
    attention = 4 * (4 * 6)
    encoder = attention + 2 * 4 * 5 + 2 * 4 + 4 + 8 * 2
    decoder = 2 * attention + 2 * 4 * 5 + 3 * 4 + 4 + 8 * 2
    assert weights is not None
    assert 7 * 4 + encoder + decoder == weights.total


def test_t5_of_version_1_1_has_a_head_of_its_own() -> None:
    """Flan-T5 base has 247,577,856 parameters, 32,128 x 768 of them in its head."""
    keys = {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 2048, "feed_forward_proj": "gated-gelu"}
    tied, untied = (weigh("t5", "T5ForConditionalGeneration", **keys, **extra) for extra in ({}, {"tie_word_embeddings": False}))
    assert tied is not None
    assert untied is not None
    assert 247_577_856 == untied.total
    assert 32_128 * 768 == untied.total - tied.total


def test_routed_experts_are_active_one_or_two_at_a_time() -> None:
    """Switch sends a token to one of 8 experts on 6 layers, NLLB to two of 128 on 6."""
    switch = weigh("switch_transformers", "SwitchTransformersForConditionalGeneration")
    nllb = weigh("nllb-moe", "NllbMoeForConditionalGeneration")
    assert switch is not None
    assert nllb is not None
    assert 6 * 7 * 2 * 768 * 2048 == switch.total - switch.active
    assert 6 * 126 * (2 * 1024 * 4096 + 4096 + 1024) == nllb.total - nllb.active


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("bart", "BartForSequenceClassification"),
        ("bert", "BertForTokenClassification"),
        ("seamless_m4t", "SeamlessM4TModel"),
        ("mvp", "MvpForQuestionAnswering"),
    ],
)
def test_other_classes_are_not_weighed(model_type: str, architecture: str) -> None:
    """A class with a head of another kind is unknown, never approximate."""
    assert weigh(model_type, architecture) is None


def test_pair_with_an_unknown_side_is_not_weighed() -> None:
    """Donut's encoder is of a type that nobody weighs."""
    pair = {"encoder": {"model_type": "donut-swin"}, "decoder": {"model_type": "mbart"}}
    assert weigh("vision-encoder-decoder", "VisionEncoderDecoderModel", **pair) is None


@pytest.mark.parametrize("value", [-1, 0, "many", 2**80, [1], float("nan")])
def test_a_value_that_makes_no_sense_is_named(value: object) -> None:
    """A hostile width gives an error that names its key."""
    with pytest.raises(ConfigError, match=r"d_model|hidden_size"):
        weigh("bart", "BartForConditionalGeneration", d_model=value)

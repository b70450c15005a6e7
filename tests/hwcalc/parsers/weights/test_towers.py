"""Parameters of towers and projectors: arithmetic written out, towers as transformers 5.23 builds them, and odd files."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.config import Config
from hwcalc.parsers.registry import find_tower, find_wrapper
from tests.hwcalc.parsers.weights.counted import read_weights

INDEX = json.loads(files("hwcalc.parsers").joinpath("index.json").read_text(encoding="utf-8"))
WRAPPED = sorted(model_type for types in INDEX["wrappers"].values() for model_type in types)
TEXT = {
    "model_type": "gemma3_text",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 10,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "image_size": 6,
    "patch_size": 2,
}
LAYER = 4 * (4 * 4 + 4) + (4 * 8 + 8) + (8 * 4 + 4) + 2 * 2 * 4
"""Four projections, two matrices and two norms, all with biases."""
PATCHES = 3 * 2 * 2 * 4 + 4 + 9 * 4
"""One filter for each of four channels, and a table of 3 x 3 positions."""


def weigh(top: Config, language: Config) -> tuple[Block, ...] | None:
    """What the document's wrapper gives."""
    wrapper = find_wrapper(top.model_type)
    assert wrapper is not None
    found = wrapper(top, language)
    return None if found is None else tuple(found)


def beside(**document: Any) -> tuple[Block, ...]:
    """The blocks beside the language model."""
    top = Config(document)
    language = top.sub("text_config")
    assert language is not None
    found = weigh(top, language)
    assert found is not None
    return found


def total(found: tuple[Block, ...], *parts: Part) -> int:
    """Parameters of the given parts, or of all."""
    return sum(block.elements for block in found if not parts or block.part in parts)


def test_each_row_of_the_index_names_something_that_weighs() -> None:
    """A row with a wrong room or name would otherwise be found by the first model that needs it."""
    towers = [model_type for types in INDEX["towers"].values() for model_type in types]
    assert len(towers) == len(set(towers))
    assert len(WRAPPED) == len(set(WRAPPED))
    assert all(callable(find_tower(model_type)) for model_type in towers)
    assert all(callable(find_wrapper(model_type)) for model_type in WRAPPED)


def test_siglip_and_the_projector_of_gemma3() -> None:
    """Patches, two layers and a norm; a pooling head unless it is switched off; then one matrix and a norm."""
    found = beside(model_type="gemma3", text_config=TEXT, vision_config={**SIGLIP, "vision_use_head": False})
    assert total(found, Part.VISION) == PATCHES + 2 * LAYER + 2 * 4
    assert total(found, Part.PROJECTOR) == 4 * 8 + 4
    head = 4 + (3 * 4 * 4 + 3 * 4) + (4 * 4 + 4) + 2 * 4 + (4 * 8 + 8) + (8 * 4 + 4)
    pooled = beside(model_type="gemma3", text_config=TEXT, vision_config=SIGLIP)
    assert total(pooled) - total(found) == head


def test_the_file_names_the_tower_where_its_class_lets_it() -> None:
    """LLaVA takes any tower: CLIP's class vector, its position, and a norm in front; patches without bias."""
    clip = {**SIGLIP, "model_type": "clip_vision_model"}
    found = beside(model_type="llava", text_config=TEXT, vision_config=clip)
    assert total(found, Part.VISION) == PATCHES - 4 + 2 * 4 + 2 * LAYER + 2 * 2 * 4
    assert total(found, Part.PROJECTOR) == (4 * 8 + 8) + (8 * 8 + 8)


def test_a_tower_that_nobody_weighs_leaves_the_whole_unknown() -> None:
    """No count is given for a part of a model."""
    document = {"model_type": "llava", "text_config": TEXT, "vision_config": {"model_type": "someone_elses_tower"}}
    top = Config(document)
    language = top.sub("text_config")
    assert language is not None
    assert read_weights(language, top) is None


def test_several_layers_of_a_tower_are_read_side_by_side() -> None:
    """The projector's first matrix widens with each layer that it reads."""
    one = beside(model_type="llava", text_config=TEXT, vision_config=SIGLIP, vision_feature_layer=-2)
    three = beside(model_type="llava", text_config=TEXT, vision_config=SIGLIP, vision_feature_layer=[-2, -5, 3])
    assert total(three) - total(one) == 2 * 4 * 8


QWEN = {
    "depth": 2,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_heads": 2,
    "patch_size": 2,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 9,
    "out_hidden_size": 8,
}


def test_qwen_merges_four_patches() -> None:
    """Patches of two frames; a norm over patches, and an MLP over four of them, once more for each tapped layer."""
    document = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": {**QWEN, "deepstack_visual_indexes": [0, 1]}}
    found = beside(**document)
    assert total(found, Part.VISION) == (3 * 2 * 2 * 2 * 4 + 4) + 9 * 4 + 2 * LAYER
    mlp = (16 * 16 + 16) + (16 * 8 + 8)
    assert total(found, Part.PROJECTOR) == (2 * 4 + mlp) + 2 * (2 * 16 + mlp)


def test_a_fixed_tower_is_its_class_whatever_the_file_calls_it() -> None:
    """Qwen3.5's files call their tower ``qwen3_5``, like the whole; its class knows better, and taps no layer."""
    named = beside(model_type="qwen3_5", text_config=TEXT, vision_config={**QWEN, "model_type": "qwen3_5"})
    plain = beside(model_type="qwen3_5", text_config=TEXT, vision_config=QWEN)
    assert total(named) == total(plain)
    assert total(named, Part.PROJECTOR) == 2 * 4 + (16 * 16 + 16) + (16 * 8 + 8)


@pytest.mark.parametrize(
    ("document", "parameters"),
    [
        # Counts of transformers 5.23 for the tower, built on the meta device from the same config.
        ({"model_type": "gemma3", "text_config": TEXT, "vision_config": {}}, 92_884_224),
        ({"model_type": "gemma3", "text_config": TEXT}, 92_884_224),
        ({"model_type": "mistral3", "text_config": TEXT}, 403_305_472),
        ({"model_type": "qwen2_vl", "text_config": TEXT}, 675_759_104),
        ({"model_type": "internvl", "text_config": TEXT}, 303_938_560),
        ({"model_type": "mllama", "text_config": TEXT}, 836_288_019),
        ({"model_type": "got_ocr2", "text_config": TEXT}, 89_670_912),
        ({"model_type": "qwen2_audio", "text_config": TEXT}, 636_968_960),
    ],
)
def test_missing_keys_are_those_of_the_class(document: dict[str, Any], parameters: int) -> None:
    """An empty tower is its class's, an absent one what the class of the whole builds then."""
    parts = (Part.VISION, Part.AUDIO, *((Part.PROJECTOR,) if document["model_type"] == "qwen2_vl" else ()))
    assert total(beside(**document), *parts) == parameters


def test_an_optional_tower() -> None:
    """Gemma 4 has no tower where the file has none."""
    top = Config({"model_type": "gemma4", "text_config": TEXT})
    assert top.part("vision_config") is None
    assert top.part("audio_config") is None


def test_both_names_of_a_field() -> None:
    """A class takes Whisper's names and its own for the same field."""
    own = {"hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    whisper = {"d_model": 4, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 8}
    common = {"model_type": "voxtral", "text_config": TEXT}
    counts = {total(beside(**common, audio_config=audio)) for audio in (own, whisper)}
    keys = 2 * (4 * (4 * 4) + 3 * 4 + (4 * 8 + 8) + (8 * 4 + 4) + 2 * 2 * 4)
    ends = (128 * 3 * 4 + 4) + (4 * 3 * 4 + 4) + 1500 * 4 + 2 * 4
    assert counts == {keys + ends + 8 * 8 + 8 * 8}


def test_deeper_layers_with_more_experts() -> None:
    """dots3.note: a token uses two experts of four, of eight, of none."""
    vision = {
        "hidden_size": 4,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "moe_intermediate_size": 6,
        "patch_size": 2,
        "adapter_in_dim": 4,
        "adapter_out_dim": 8,
        "num_experts_per_tok": 2,
        "pyramid_num_routed": [-1, 4, 8],
    }
    found = beside(model_type="dots3_note", text_config=TEXT, vision_config=vision)
    expert = 3 * 4 * 6
    sparse = [block for block in found if block.kind == "moe"]
    assert [block.elements for block in sparse] == [4 * expert + 4 * 4, 8 * expert + 8 * 4]
    assert [block.active_elements for block in sparse] == [2 * expert + 4 * 4, 2 * expert + 8 * 4]
    assert {w.role for block in sparse for w in block.weights} == {WeightRole.EXPERT, WeightRole.ROUTER}


def test_the_language_model_alone() -> None:
    """A class that leaves the towers out has none of their parameters."""
    assert beside(model_type="qwen3_5", architectures=["Qwen3_5ForCausalLM"], text_config=TEXT) == ()


def test_a_wrong_value_in_a_tower_names_its_place() -> None:
    """The message has the path of the key."""
    with pytest.raises(ConfigError, match=r"vision_config\.hidden_size is \"wide\""):
        beside(model_type="gemma3", text_config=TEXT, vision_config={"hidden_size": "wide"})


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 2**50), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size", "image_size", "mlp_ratio",
    "layer_types", "mlp_layer_types", "deepstack_visual_indexes", "hidden_sizes", "depths", "downsampling_ratios", "dim_head",
)  # fmt: skip


@given(
    model_type=st.sampled_from(WRAPPED),
    keys=st.dictionaries(st.sampled_from(_KEYS), _VALUES, min_size=1, max_size=3),
)
def test_hostile_towers(model_type: str, keys: dict[str, Any]) -> None:
    """Whatever a file says about its towers: a count, none, or a :class:`ConfigError`."""
    document: dict[str, Any] = {"model_type": model_type, "text_config": copy.deepcopy(TEXT)}
    document |= {key: dict(keys) for key in ("vision_config", "audio_config")}
    top = Config(document)
    language = top.sub("text_config")
    assert language is not None
    try:
        found = weigh(top, language)
    except ConfigError:
        return
    assert found is None or total(found) >= 0


DOTS_OCR: dict[str, Any] = {
    "model_type": "dots_ocr", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "sliding_window": 131072, "use_sliding_window": False, "vocab_size": 151936,
    "tie_word_embeddings": False,
    "vision_config": {
        "embed_dim": 1536, "hidden_size": 1536, "intermediate_size": 4224, "num_hidden_layers": 42, "num_attention_heads": 12,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 1, "post_norm": True, "use_bias": False,
    },
}  # fmt: skip


def test_dots_ocr_meets_its_published_count() -> None:
    """A Qwen2 of 28 layers and a tower of 42: the file of rednote-hilab/dots.ocr holds 3,039,179,264 parameters."""
    attention, mlp = 1536 * 2048 + 2048 + 1536**2, 3 * 1536 * 8960
    text = 2 * 151_936 * 1536 + 28 * (attention + mlp + 2 * 1536) + 1536
    patches, layer = 3 * 14 * 14 * 1536 + 1536 + 1536, 4 * 1536**2 + 3 * 1536 * 4224 + 2 * 1536
    merger = 2 * 1536 + (6144**2 + 6144) + (6144 * 1536 + 1536)
    parameters = load_model(DOTS_OCR).parameters

    assert parameters is not None
    assert parameters.total == text + patches + 42 * layer + 1536 + merger == 3_039_179_264


def test_dots_ocr_without_the_keys_of_its_tower_has_the_defaults_of_its_class() -> None:
    """They are those of the published file."""
    assert load_model({**DOTS_OCR, "vision_config": {}}).parameters == load_model(DOTS_OCR).parameters


MINICPM_V_26: dict[str, Any] = {
    "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 2.6, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 151666, "query_num": 64,
    "use_sliding_window": False, "sliding_window": 131072, "tie_word_embeddings": False, "drop_vision_last_layer": False,
    "vision_config": {"hidden_size": 1152, "image_size": 980, "intermediate_size": 4304, "model_type": "siglip",
                      "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14},
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "use_sliding_window": False, "sliding_window": None,
    "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
MINICPM_V_45 = {**MINICPM_V_26, **QWEN3_8B, "version": 4.5, "vocab_size": 151748}


def resampler(width: int) -> int:
    """64 queries, a projection of patches, an attention with biases, three norms and a last matrix."""
    attention = 3 * width**2 + 3 * width + width**2 + width
    return 64 * width + 1152 * width + attention + 3 * 2 * width + width**2


SO400M_LAYER = 4 * (1152**2 + 1152) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
SO400M_980 = (588 * 1152 + 1152 + 70**2 * 1152) + 27 * SO400M_LAYER + 2 * 1152
"""SigLIP without its head, for images of 70 x 70 patches."""


def parameters_of(document: dict[str, Any]) -> int | None:
    """All parameters of a document."""
    parameters = load_model(document).parameters
    return None if parameters is None else parameters.total


def test_minicpm_v_meets_its_published_counts() -> None:
    """2.6 is a Qwen2 and 4.5 a Qwen3: their files hold 8,099,175,152 and 8,695,895,280 parameters."""
    qwen2 = 2 * 151_666 * 3584 + 28 * (2 * 3584**2 + 3584 + 2 * (3584 * 512 + 512) + 3 * 3584 * 18_944 + 2 * 3584) + 3584
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 2 * 128 + 3 * 4096 * 12_288 + 2 * 4096
    qwen3 = 2 * 151_748 * 4096 + 36 * layer + 4096

    assert parameters_of(MINICPM_V_26) == qwen2 + SO400M_980 + resampler(3584) == 8_099_175_152
    assert parameters_of(MINICPM_V_45) == qwen3 + SO400M_980 + resampler(4096) == 8_695_895_280
    assert parameters_of({**MINICPM_V_26, "drop_vision_last_layer": True}) == 8_099_175_152 - SO400M_LAYER


def test_the_version_of_a_minicpm_says_what_its_language_model_is() -> None:
    """Its cache is that of the model it is; a version that nobody knows is an error."""
    for version, kept in ((2.6, 28 * 2 * 512 * 2), ("4.5", 36 * 2 * 1024 * 2)):
        document = MINICPM_V_26 if version == 2.6 else MINICPM_V_45
        for names in ({}, {"model_type": "minicpmo", "architectures": ["MiniCPMO"], "chunk_input": True}):
            assert plan({**document, **names, "version": version}, seq=1000, dtype="bf16").cache.bytes_per_token == kept
    # MiniCPM-V 2.5, a Llama, and 2.0, whose tower is not counted, do not say.
    nameless = {key: value for key, value in MINICPM_V_26.items() if key != "version" and "window" not in key}
    assert load_model(nameless).counted is not None
    assert parameters_of({**nameless, "hidden_size": 2304, "num_attention_heads": 36, "num_key_value_heads": 36}) is None
    with pytest.raises(ConfigError, match="version"):
        load_model({**MINICPM_V_26, "version": 3.1})


def test_nobody_counts_minicpm_o() -> None:
    """Its parts for sound and speech have no weights here."""
    assert parameters_of({**MINICPM_V_26, "model_type": "minicpmo", "architectures": ["MiniCPMO"]}) is None


def test_keye() -> None:
    """As vLLM builds it: Qwen3-8B, SigLIP for 27 x 27 patches with a second table, two layers; 1.5 norms what was merged."""
    vision = {"hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "num_attention_heads": 16,
              "num_hidden_layers": 27, "patch_size": 14}  # fmt: skip
    document = {"model_type": "Keye", "architectures": ["KeyeForConditionalGeneration"], **QWEN3_8B, "vision_config": vision}
    tower = SO400M_980 - (70**2 - 27**2) * 1152 + 32_768 * 1152
    projector = (4608**2 + 4608) + (4608 * 4096 + 4096)
    newer = {**document, "model_type": "KeyeVL1_5", "architectures": ["KeyeVL1_5ForConditionalGeneration"]}

    assert parameters_of(document) == 8_190_735_360 + tower + projector + 2 * 1152
    assert parameters_of(newer) == 8_190_735_360 + tower + projector + 2 * 4608
    assert plan(newer, seq=1000, dtype="bf16").cache.bytes_per_token == 36 * 2 * 8 * 128 * 2


PHI_4_MM: dict[str, Any] = {
    "model_type": "phi4mm", "architectures": ["Phi4MMForCausalLM"], "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064,
    "tie_word_embeddings": True, "sliding_window": 262144, "full_attn_mod": 1,
    "vision_lora": {"r": 256}, "speech_lora": {"r": 320},
    "audio_processor": {
        "name": "cascades",
        "config": {
            "attention_dim": 1024, "attention_heads": 16, "depthwise_multiplier": 1, "depthwise_seperable_out_channel": 1024,
            "ext_pw_out_channel": 1024, "input_size": 80, "kernel_size": 3, "linear_units": 1536, "num_blocks": 24,
            "time_reduction": 8, "nemo_conv_settings": {"conv_channels": 1024},
            "relative_attention_bias_args": {"t5_bias_max_distance": 500, "type": "t5"},
        },
    },
}  # fmt: skip


def test_phi4mm_meets_its_published_count() -> None:
    """Its file holds 5,574,460,384 parameters, of which the two adapters and the mean and deviation of 80 inputs are not counted."""
    adapted = (3072 + 5120) + (3072 + 3072) + (3072 + 16_384) + (8192 + 3072)
    model = load_model(PHI_4_MM)

    assert parameters_of(PHI_4_MM) == 5_574_460_384 - 32 * adapted * (256 + 320) - 2 * 80
    assert [note.code for note in model.notes if note.code != "without-effect"] == ["adapters-apart"]
    assert parameters_of({**PHI_4_MM, "audio_processor": {"name": "other"}}) is None

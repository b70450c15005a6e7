"""Parameters of towers and projectors: arithmetic written out, towers as transformers 5.23 builds them, and odd files."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model
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

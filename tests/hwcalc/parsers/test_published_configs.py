"""Configs as they were published: keys said twice, nulls, words for the kind of attention, and parts around the language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, UnreadKeysError
from hwcalc.formulas import CrossAttention, FullAttention
from hwcalc.formulas.attention import SlidingAttention
from hwcalc.model import LEFT_OUT
from hwcalc.parsers.config import ALIASES
from hwcalc.profiles.catalog import built_in
from tests.hwcalc.command import Capture, run

GEMMA2: Final[dict[str, Any]] = {
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 256,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 256000,
}
"""google/gemma-2-9b, without the keys that bear on no byte."""


def windows(config: dict[str, Any]) -> list[int | None]:
    """The window of each layer, ``None`` where every token is kept."""
    stack = load_model(config).stack
    kept = {number: group.kind for group in stack.groups for number in group.layers}
    return [kind.window if isinstance(kind, SlidingAttention) else None for _, kind in sorted(kept.items())]


def test_gemma_2_says_its_window_twice() -> None:
    """Both keys are in Google's files. 21 layers of 4,096 and 21 of 8,192 tokens: 21 x 12,288 x 2 x 8 x 256 x 2 bytes."""
    result = plan(GEMMA2, seq=8192)

    assert 21 * (4096 + 8192) * 2 * 8 * 256 * 2 == result.cache.total_bytes
    assert "exact" == result.cache.definition


def test_two_names_that_disagree_are_an_error() -> None:
    """Which of the two the author meant is a guess, so that the message has both with their values."""
    with pytest.raises(UnreadKeysError, match=r"sliding_window_size is 2048, but sliding_window, which says the same, is 4096\."):
        plan(GEMMA2 | {"sliding_window_size": 2048}, seq=8192)


@pytest.mark.parametrize("value", [2048, None])
def test_so_are_two_names_of_a_model_without_a_class(value: int | None) -> None:
    """Where the table of other names decides, the second name used to be passed over."""
    config = {
        "model_type": "xverse",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "num_key_value_heads": 8,
    }

    assert plan(config | {"num_kv_heads": 8}, seq=10).cache.total_bytes > 0
    with pytest.raises(ConfigError, match=r"num_kv_heads is .*, but num_key_value_heads, which says the same, is 8"):
        plan(config | {"num_kv_heads": value}, seq=10)


FOUR_LAYERS: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 1024,
}


@pytest.mark.parametrize(
    ("name", "fact"),
    [(name, key) for key, names in ALIASES.items() for name in names if key in FOUR_LAYERS],
)
def test_no_name_of_a_fact_may_contradict_the_one_that_is_read(name: str, fact: str) -> None:
    """The class reads none of these names; the file all the same says two things. A null says another thing too."""
    said = FOUR_LAYERS[fact]
    for other in (1000, str(said), None):
        with pytest.raises(
            UnreadKeysError, match=rf"{name} is {json.dumps(other)}, but {fact}, which says the same, is {said}\."
        ):
            load_model(FOUR_LAYERS | {name: other})
    assert load_model(FOUR_LAYERS | {name: said}).stack == load_model(FOUR_LAYERS).stack


def test_what_the_class_alone_says_may_not_be_contradicted_either() -> None:
    """A Llama of 8 layers is not one of the class's 32. A null beside the class's value is nothing said."""
    with pytest.raises(UnreadKeysError, match=r"n_layer is 8, but num_hidden_layers, which says the same, is 32\."):
        load_model({"model_type": "llama", "n_layer": 8})
    assert [None] * 32 == windows({"model_type": "llama", "n_layer": None})


@pytest.mark.parametrize("model_type", ["gemma2", "llama", "xverse"])
def test_a_null_beside_a_number_is_the_same_error_in_every_model(model_type: str) -> None:
    """No heads of their own and eight: it is one rule, with a class or without."""
    with pytest.raises(ConfigError, match=r"num_kv_heads is null, but num_key_value_heads, which says the same, is 8\."):
        load_model(FOUR_LAYERS | {"model_type": model_type, "num_kv_heads": None})


def test_a_string_is_told_from_a_number() -> None:
    """Without the quotes both values would look alike."""
    with pytest.raises(ConfigError, match=r'sliding_window_size is "4096", but sliding_window, which says the same, is 4096\.'):
        load_model(GEMMA2 | {"sliding_window_size": "4096"})


def test_an_alias_of_the_class_wins_over_its_field() -> None:
    """Transformers 5.23 sets the names of ``attribute_map`` after the fields: GPT2Config(n_head=12, num_attention_heads=16) has 16."""
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 1, "n_head": 12, "num_attention_heads": 16}

    assert 16 == load_model(config).stack.groups[0].kind.dims()["num_attention_heads"]


def test_a_null_window_is_no_window() -> None:
    """Mistral Small 3.1 publishes ``sliding_window: null``, where the class's default is 4,096."""
    base = {"model_type": "mistral", "num_hidden_layers": 2}

    assert [4096, 4096] == windows(base)
    assert [None, None] == windows(base | {"sliding_window": None})
    assert [77, 77] == windows(base | {"sliding_window": 77})
    assert {None} == set(windows(dict(load_model("mistralai/Mistral-Small-3.1-24B-Instruct-2503").config)))


def test_the_decoder_of_modernbert_slides() -> None:
    """``local_attention`` counts both directions: the class's window is its half, on all layers but every third."""
    config = {"model_type": "modernbert-decoder", "num_hidden_layers": 5}

    assert [None, 64, 64, None, 64] == windows(config)
    assert [None, 32, None, 32, None] == windows(config | {"local_attention": 64, "global_attn_every_n_layers": 2})


@pytest.mark.parametrize("architectures", [["BartModel"], ["BartModel", "BartForConditionalGeneration"], None])
def test_bart_is_an_encoder_and_a_decoder(architectures: list[str] | None) -> None:
    """12 decoder layers keep their own 512 tokens and the encoder's 1,024: 12 x 1,536 x 2 x 1,024 x 2 bytes."""
    config = dict(load_model("facebook/bart-large").config) | {"architectures": architectures}
    model = load_model(config)

    assert {FullAttention, CrossAttention} == {type(group.kind) for group in model.stack.groups}
    assert 12 * (512 + 1024) * 2 * 1024 * 2 == plan(config, seq=512, encoder_seq=1024, dtype="bf16").cache.total_bytes
    assert model.counted is not None
    # One table; 2 x 1,026 positions; norms of both embeddings; 12 layers of 4 matrices and 12 of 8, with MLPs.
    matrix, mlp, norm = 1024**2 + 1024, 2 * 1024 * 4096 + 4096 + 1024, 2 * 1024
    layers = 12 * (4 * matrix + mlp + 2 * norm) + 12 * (8 * matrix + mlp + 3 * norm)
    assert 50265 * 1024 + 2 * (1026 * 1024 + norm) + layers == 406_291_456 == model.counted.total


LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


@pytest.mark.parametrize(
    ("config", "word", "read"),
    [
        (LLAMA, "gqa", True),
        (LLAMA, "Grouped-Query", True),
        (LLAMA, "full", True),
        (LLAMA, "mha", False),
        (LLAMA, "mqa", False),
        (LLAMA, "mla", False),
        (LLAMA, "linear", False),
        (LLAMA, "block_sparse", False),
        (LLAMA, ["full", "linear"], False),
        (LLAMA | {"num_key_value_heads": 32}, "mha", True),
        (LLAMA | {"num_key_value_heads": 1}, "mqa", True),
        ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, "MLA", True),
        ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, "gqa", False),
        ({"model_type": "big_bird", "is_decoder": True}, "block_sparse", True),
        ({"model_type": "big_bird", "is_decoder": True}, "original_full", True),
        ({"model_type": "big_bird", "is_decoder": True}, "linear", False),
        ({"model_type": "bigbird_pegasus"}, "block_sparse", True),
    ],
)
def test_the_word_for_attention_is_read_or_refused(config: dict[str, Any], word: object, read: bool) -> None:
    """A word that says what heads and windows say changes nothing. Any other stops the plan by name."""
    for key in ("attention_type", "attention_method"):
        told = config | {key: word}
        if read and (key == "attention_type" or "bird" not in config["model_type"]):
            assert plan(config, seq=100, dtype="bf16").cache.total_bytes == plan(told, seq=100, dtype="bf16").cache.total_bytes
        else:
            with pytest.raises(UnreadKeysError, match=key):
                plan(told, seq=100, dtype="bf16")


def test_the_label_of_ignored_tokens_is_no_index() -> None:
    """Kimi K3 publishes ``ignore_index``, the label that a loss leaves out."""
    assert load_model(LLAMA | {"ignore_index": -100}).stack == load_model(LLAMA).stack
    with pytest.raises(UnreadKeysError):
        load_model(LLAMA | {"index_topk": 100})


def counted(config: dict[str, Any] | str) -> tuple[int, int]:
    """Parameters of the model, and of its multi-token prediction."""
    weights = load_model(config).counted
    assert weights is not None
    return weights.total, weights.mtp


def test_phi_3_vision() -> None:
    """The published count, to the parameter: language model, CLIP, two layers and two separators."""
    vision, projector = 303_507_456, 4096 * 3072 + 3072 + 3072**2 + 3072 + 2 * 4096

    assert 3_821_079_552 + vision + projector == 4_146_621_440 == counted("microsoft/Phi-3.5-vision-instruct")[0]


@pytest.mark.parametrize(
    "change",
    [
        {"img_processor": None},
        {"embd_layer": None},
        {"embd_layer": {"use_hd_transform": False, "projection_cls": "mlp"}},
        {"embd_layer": {"use_hd_transform": True, "projection_cls": "linear"}},
        {"img_processor": {"name": "siglip", "image_dim_out": 1024}},
    ],
)
def test_another_eye_is_not_counted(change: dict[str, Any]) -> None:
    """No file with another tower or projector was published: its cache is planned, its weights are unknown."""
    model = load_model(dict(load_model("microsoft/Phi-3.5-vision-instruct").config) | change)

    assert model.counted is None
    assert 32 == len(model.stack)


def test_kimi_vl() -> None:
    """MoonViT and its projector stand beside Moonlight's layers. The files hold 3,392 numbers more, as those of Moonlight do."""
    width, inner, square = 1152, 4304, 4 * 1152
    layer = 4 * (width**2 + width) + 2 * width * inner + inner + width + 4 * width
    tower = width * 3 * 14**2 + width + 64 * 64 * width + 27 * layer + 2 * width
    projector = 2 * width + square**2 + square + square * 2048 + 2048
    moonlight = counted("moonshotai/Moonlight-16B-A3B")[0]

    assert 15_960_111_936 - moonlight == 3392
    assert moonlight + tower + projector == 16_407_657_776 - 3392 == counted("moonshotai/Kimi-VL-A3B-Instruct")[0]


@pytest.mark.parametrize(("inner", "heads"), [(1536, 24), (2048, 32), (4096, 64), (512, 8)])
def test_falcon_h1_names_its_inner_width(inner: int, heads: int) -> None:
    """``mamba_d_ssm`` may be narrower or wider than expand x hidden_size = 2,048: transformers and vLLM take it where it is set."""
    config = dict(load_model("tiiuae/Falcon-H1-0.5B-Base").config) | {"mamba_d_ssm": inner, "mamba_n_heads": heads}
    cache = plan(config, seq=10, dtype="bf16").cache
    shapes = {tensor.name: tensor.shape for tensor in cache.tensors}

    assert (inner + 2 * 128,) == shapes["conv_state"]
    assert (heads, 64, 128) == shapes["recurrent_state"]
    assert 521_411_104 == counted("tiiuae/Falcon-H1-0.5B-Base")[0]


def test_a_falcon_h1_without_its_inner_width() -> None:
    """Transformers 5.23 then takes 1,024, finds that 24 heads of 64 are not as wide, and refuses. Null is expand x hidden_size."""
    config = dict(load_model("tiiuae/Falcon-H1-0.5B-Base").config)
    without = {key: value for key, value in config.items() if key != "mamba_d_ssm"}

    with pytest.raises(ConfigError, match=r"mamba_d_ssm is missing: .* 1,024, but 24 heads are 1,536 wide"):
        load_model(without)
    assert load_model(without | {"mamba_d_ssm": None, "mamba_n_heads": 32}).counted is not None


def test_inkling_as_published() -> None:
    """What transformers 5.23 builds, and eight layers of multi-token prediction: with 256 routing biases on each of 64 layers the
    published count.
    """
    total, mtp = counted("thinkingmachines/Inkling")
    model = load_model("thinkingmachines/Inkling")

    assert 947_117_161_538 == total
    assert 952_377_623_626 == total + mtp + 64 * 256
    assert (8, 1_048_576) == (model.facts.mtp_modules, model.max_position_embeddings)


@pytest.mark.parametrize(
    ("layers", "inner", "shared", "total", "published"),
    [(35, 16384, 15, 7_818_517_072, 7_849_978_192), (30, 8192, 10, 5_418_464_192, 5_439_438_272)],
)
def test_gemma_3n(layers: int, inner: int, shared: int, total: int, published: int) -> None:
    """E4B and E2B with both towers. Layers that share keys and values have none in transformers 5.23; the published files do."""
    text = {
        "hidden_size": 2048,
        "intermediate_size": [inner] * layers,
        "model_type": "gemma3n_text",
        "num_hidden_layers": layers,
        "num_kv_shared_layers": shared,
        "vocab_size": 262400,
    }
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": text}

    assert total == counted(config)[0]
    # Keys and values of two heads of 256, and the norm of the keys.
    assert published == total + shared * (2 * 2048 * 512 + 256)


def test_the_convolutional_tower_of_gemma_3n() -> None:
    """294,126,912 parameters by timm 1.0.31, ``mobilenetv5_300m_enc`` without a head; no other size was published."""
    weights = load_model({"model_type": "gemma3n"}).counted
    assert weights is not None
    seen = sum(block.elements for block in weights.blocks if block.part == "vision")

    assert 294_126_912 == seen
    assert load_model({"model_type": "gemma3n", "vision_config": {"architecture": "mobilenetv5_base"}}).counted is None


def test_a_broken_audio_stem_leaves_the_cache() -> None:
    """A stride that is no number stops the count, not the plan."""
    config = {"model_type": "gemma3n", "audio_config": {"sscp_conv_stride_size": [["x", 2], [2, 2]]}}
    model = load_model(config)

    assert model.counted is None
    assert "weights-unknown" in {note.code for note in model.notes}
    assert plan(config, seq=10, gpu="l4").fit is None


NOTHING: Final[tuple[Any, ...]] = (None, {}, [], "")


@pytest.mark.parametrize("value", [{"a": 1}, ["full"], 5, True])
@pytest.mark.parametrize("model_type", ["llama", "xverse", "gemma2"])
def test_a_kind_of_attention_that_is_no_word_is_refused(model_type: str, value: Any) -> None:
    """What is not a word is not understood, whatever it is. Nothing at all is nothing said."""
    for key in ("attention_type", "attention_method", "attn_type"):
        with pytest.raises(UnreadKeysError, match=key):
            load_model(FOUR_LAYERS | {"model_type": model_type, key: value})
        for nothing in NOTHING:
            assert load_model(FOUR_LAYERS | {"model_type": model_type, key: nothing}).stack


@pytest.mark.parametrize("value", ["x", "", [], ["fp8"], 8, True, False])
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_quantisation_that_is_no_object_is_an_error(key: str, value: Any) -> None:
    """It was passed over, and the weights were counted in bf16."""
    with pytest.raises(
        ConfigError, match=rf"{key} is .*, but must be an object that says how the weights are quantised, or null"
    ):
        load_model(FOUR_LAYERS | {key: value})
    with pytest.raises(ConfigError, match=rf"text_config\.{key} is "):
        load_model({"model_type": "mllama", "text_config": {"model_type": "mllama_text_model", key: value}})
    for nothing in NOTHING[:2]:
        assert load_model(FOUR_LAYERS | {key: nothing}).quantization is None


def test_the_early_name_of_the_quantisation_is_read() -> None:
    """An engine that reads the files, vLLM 0.33, takes ``compression_config`` where there is no ``quantization_config``."""
    scheme = {"quant_method": "compressed-tensors", "format": "float-quantized"}

    assert scheme == load_model(FOUR_LAYERS | {"compression_config": scheme}).quantization
    assert {"quant_method": "fp8"} == load_model(
        FOUR_LAYERS | {"compression_config": scheme, "quantization_config": {"quant_method": "fp8"}}
    ).quantization


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "llama", "num_hidden_layers": 32}, ("hidden_size 4096", "num_attention_heads 32")),
        ({"model_type": "qwen3", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128}, ("num_key_value_heads 32",)),
        ({"model_type": "llama", "num_hidden_layers": "32"}, ('num_hidden_layers is "32", but must be a whole number',)),
        ({"model_type": "opt", "n_layer": 12, "num_hidden_layers": None}, ("The file has n_layer 12: is that what is meant?",)),
    ],
)  # fmt: skip
def test_forgotten_dimensions_of_a_known_type(
    capsys: Capture, tmp_path: Path, config: dict[str, Any], named: tuple[str, ...]
) -> None:
    """A warning names what transformers would build, in the shortest answer too; what makes no sense is an error."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, said = run(capsys, str(path), "--seq", "1k", "--brief")
    assert ("The config leaves out" in out) is (status == 0)
    assert all(name in " ".join((out + said).split()) for name in named)


def test_published_files_leave_out_what_they_may() -> None:
    """Models of the catalog rely on the defaults of their classes: a note says so, never a warning."""
    for path in sorted(Path(built_in("models")).glob("*/*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert all(note.code != LEFT_OUT for note in load_model(document["id"], offline=True).warnings), path.stem

"""Dialects of models whose code lives with the model: each against a published figure or arithmetic written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UnreadKeysError
from hwcalc.formulas import CompressedAttention, FullAttention, NoCache, SharedCache, SinkAttention, SlidingAttention
from hwcalc.formulas.hybrid import ranges
from tests.hwcalc.parsers.remote_configs import (
    ARCTIC,
    BAICHUAN_13B,
    BF16,
    CHATGLM3,
    CHATGLM_6B,
    DEEPSEEK_REF,
    EXAONE,
    FALCON_7B_OLD,
    FALCON_40B_OLD,
    FP32,
    GROK_1,
    HUNYUAN_LARGE,
    INTERNLM25_20B,
    KIMI_K3,
    LING_MINI,
    MIMO_7B,
    MINIMAX_M1,
    MINIMAX_M3,
    NEMOTRON,
    OPENELM_1_1B,
    OURO,
    PHI_2,
    PHI_3_SMALL,
    PHI_4_FLASH,
    PLAMO_2_1B,
    PLAMO_13B,
    QWEN_1_8B,
    RING_MINI_LINEAR,
    RWKV_5,
    RWKV_6,
    RWKV_7,
    SARVAM_30B,
    SDAR_8B,
    SDAR_30B,
    SMALLTHINKER_4B,
    SMALLTHINKER_21B,
    STEP_3,
    TELECHAT,
    TELECHAT3_36B,
    Json,
    block,
    config,
    llama_like,
)


def kinds(model: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Kind, count and layer numbers, in order of first appearance."""
    return [(group.kind.name, group.count, ranges(group.layers)) for group in load_model(model).stack.groups]


# --- plain attention -------------------------------------------------------------------------------------------------


PLAIN = [
    ("baichuan", BAICHUAN_13B, 40 * 2 * 40 * 128 * BF16),
    # vLLM reserves 458,752 bytes for a block of 16 tokens of ChatGLM3 and 3,145,728 for one of InternLM2.5-20B.
    ("chatglm", CHATGLM3, 458_752 // 16),
    ("chatglm, the first", CHATGLM_6B, 28 * 2 * 32 * 128 * BF16),
    ("internlm2", INTERNLM25_20B, 3_145_728 // 16),
    ("qwen", QWEN_1_8B, 24 * 2 * 16 * 128 * BF16),
    ("exaone", EXAONE, 30 * 2 * 8 * 80 * BF16),
    ("phi-msft", PHI_2, 32 * 2 * 32 * 80 * BF16),
    ("phi3small", PHI_3_SMALL, 32 * 2 * 8 * 128 * BF16),
    ("grok-1", GROK_1, 64 * 2 * 8 * 128 * BF16),
    ("bailing_moe", LING_MINI, 20 * 2 * 4 * 128 * BF16),
    ("arctic", ARCTIC, 35 * 2 * 8 * 128 * BF16),
    # Step-3's report: one key and one value of 256 for all 64 query heads.
    ("step3", STEP_3, 61 * 2 * 1 * 256 * BF16),
    ("plamo", PLAMO_13B, 40 * 2 * 5 * 128 * BF16),
    ("RefinedWebModel", FALCON_7B_OLD, 32 * 2 * 1 * 64 * BF16),
    ("RefinedWeb", FALCON_40B_OLD, 60 * 2 * 8 * 64 * BF16),
    ("mimo", MIMO_7B, 36 * 2 * 8 * 128 * BF16),
    ("telechat", TELECHAT, 30 * 2 * 32 * 128 * BF16),
    ("telechat3", TELECHAT3_36B, 64 * 2 * 8 * 128 * BF16),
    ("sdar", SDAR_8B, 36 * 2 * 8 * 128 * BF16),
    ("sdar_moe", SDAR_30B, 48 * 2 * 4 * 128 * BF16),
    ("smallthinker, without windows", SMALLTHINKER_4B, 32 * 2 * 2 * 128 * BF16),
    ("sarvam_moe", SARVAM_30B, 19 * 2 * 4 * 64 * BF16),
    ("deepseek", llama_like("deepseek", 28, 2048, 16, num_key_value_heads=16), 28 * 2 * 16 * 128 * BF16),
    ("orion", llama_like("orion", 40, 5120, 40, num_key_value_heads=40), 40 * 2 * 40 * 128 * BF16),
    ("minicpm", llama_like("minicpm", 32, 4096, 32, num_key_value_heads=2), 32 * 2 * 2 * 128 * BF16),
    ("Yi", llama_like("Yi", 60, 7168, 56, num_key_value_heads=8), 60 * 2 * 8 * 128 * BF16),
    ("step1", llama_like("step1", 32, 3072, 48, num_attention_groups=4), 32 * 2 * 4 * 64 * BF16),
    ("codeshell", config("codeshell", 42, n_embd=4096, n_head=32, num_query_groups=8), 42 * 2 * 8 * 128 * BF16),
]


@pytest.mark.parametrize(("model", "per_token"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_plain_attention_in_other_words(model: Json, per_token: int) -> None:
    """Every layer keeps a key and a value of the model's own head count and width for every token."""
    planned = plan(model, seq=1000)
    assert per_token == planned.cache.bytes_per_token
    assert 1000 * per_token == planned.cache.total_bytes
    assert not planned.cache.state_bytes_per_sequence


def qwen3_parameters(layers: int, hidden: int, heads: int, kv_heads: int, mlp: int) -> int:
    """A Qwen3 with heads of 128 and a vocabulary of 151,936; ``mlp`` is all that a layer has beside attention and norms."""
    attention = 2 * hidden * heads * 128 + 2 * hidden * kv_heads * 128 + 2 * 128
    return 2 * 151_936 * hidden + layers * (attention + mlp + 2 * hidden) + hidden


@pytest.mark.parametrize(
    ("model", "total"),
    [
        # Embedding and head; queries and output, keys and values; gate, up and down; norms.
        (
            TELECHAT3_36B,
            2 * 131_072 * 6144 + 64 * (2 * 6144**2 + 2 * 6144 * 1024 + 3 * 6144 * 24_576 + 2 * 6144) + 6144,
        ),
        # The parameters of Qwen3-8B and Qwen3-30B-A3B, from which they were trained.
        (SDAR_8B, qwen3_parameters(36, 4096, 32, 8, 3 * 4096 * 12_288)),
        (SDAR_30B, qwen3_parameters(48, 2048, 32, 4, 128 * 3 * 2048 * 768 + 2048 * 128)),
        # The head is the embedding; every layer has experts and a router.
        (
            SMALLTHINKER_4B,
            151_936 * 1536 + 32 * (2 * 1536**2 + 2 * 1536 * 256 + 32 * 3 * 1536 * 768 + 1536 * 32 + 2 * 1536) + 1536,
        ),
        (
            SMALLTHINKER_21B,
            2 * 151_936 * 2560 + 52 * (2 * 2560 * 3584 + 2 * 2560 * 512 + 64 * 3 * 2560 * 768 + 2560 * 64 + 2 * 2560) + 2560,
        ),
        # One dense layer, then 128 experts and a shared one with a router, whose correction is a buffer. sarvamai/sarvam-30b has 32.2 B.
        (
            SARVAM_30B,
            2 * 262_144 * 4096
            + 19 * (4096 * 72 * 64 + 4096**2 + 2 * 64 + 2 * 4096)
            + 3 * 4096 * 8192
            + 18 * (129 * 3 * 4096 * 1024 + 4096 * 128)
            + 4096,
        ),
    ],
    ids=["telechat3", "sdar", "sdar_moe", "smallthinker 4B", "smallthinker 21B", "sarvam_moe"],
)
def test_parameters_of_plain_models(model: Json, total: int) -> None:
    """Counted as the model's own class builds them."""
    parameters = load_model(model).parameters

    assert parameters is not None
    assert parameters.total == total


def test_smallthinker_layers_slide_where_its_layout_says() -> None:
    """The file of the larger model has no model type. 13 layers keep all tokens, 39 the last 4,096."""
    full, window = 13 * 2 * 4 * 128 * BF16, 39 * 2 * 4 * 128 * BF16

    assert [(name, count) for name, count, _ in kinds(SMALLTHINKER_21B)] == [("full_attention", 13), ("sliding_attention", 39)]
    assert plan(SMALLTHINKER_21B, seq=16_384).cache.total_bytes == 16_384 * full + 4096 * window
    # Nothing slides without a layout.
    plain = {**SMALLTHINKER_21B, "sliding_window_layout": None}
    assert plan(plain, seq=16_384).cache.total_bytes == 16_384 * (full + window)


def test_smallthinker_in_llamacpp() -> None:
    """The converter writes the window and the experts under llama.cpp's names: a window of 4,096 has one batch of 512 more."""
    planned = plan({**SMALLTHINKER_21B, "max_position_embeddings": 16_384}, seq=16_384, engine="llamacpp")

    assert planned.cache.total_bytes == (13 * 16_384 + 39 * (4096 + 512)) * 2 * 4 * 128 * BF16


def test_telechat3_with_shared_layers_is_refused() -> None:
    """No published file shares layers, and the model's code does not say how."""
    with pytest.raises(ConfigError, match="share_ffn"):
        plan({**TELECHAT3_36B, "share_ffn": True}, seq=8)


def test_a_language_model_inside_a_wrapper_without_dialect() -> None:
    """InternVL's own files nest an internlm2 config under llm_config."""
    wrapped = {"model_type": "internvl_chat", "llm_config": INTERNLM25_20B, "vision_config": {"num_attention_heads": 16}}
    assert plan(INTERNLM25_20B, seq=8).cache.total_bytes == plan(wrapped, seq=8).cache.total_bytes


def test_the_architecture_names_a_file_without_model_type() -> None:
    """Without model_type the class's name in architectures decides."""
    nameless = {key: value for key, value in BAICHUAN_13B.items() if key != "model_type"} | {
        "architectures": ["BaichuanForCausalLM"]
    }
    assert plan(BAICHUAN_13B, seq=8).cache.total_bytes == plan(nameless, seq=8).cache.total_bytes


def test_mimo_slides_from_a_layer_on_when_asked_to() -> None:
    """use_sliding_window windows the layers from max_window_layers on, as in Qwen2."""
    assert kinds(MIMO_7B | {"use_sliding_window": True}) == [("full_attention", 32, "0-31"), ("sliding_attention", 4, "32-35")]


def test_sparse_minicpm_is_refused_by_name() -> None:
    """InfLLM-V2 keeps block keys beside the keys: a plan without them would be a guess."""
    sparse = llama_like("minicpm", 32, 4096, 32, num_key_value_heads=2, sparse_config={"kernel_size": 32, "window_size": 2048})
    with pytest.raises(UnreadKeysError, match=r"sparse_config\.window_size"):
        plan(sparse, seq=8)


# --- layers that differ ----------------------------------------------------------------------------------------------


def test_nemotron_blocks() -> None:
    """One entry for each layer: nothing, groups of its own, a window, or sinks and window that make 512 together."""
    heads = {"num_attention_heads": 64, "head_dim": 128, "v_head_dim": 128}
    full = FullAttention(**heads, num_key_value_heads=8)
    assert [
        (full,),
        (NoCache(),),
        (NoCache(),),
        (FullAttention(**heads, num_key_value_heads=4),),
        (SlidingAttention(**heads, num_key_value_heads=8, window=512),),
        (SinkAttention(**heads, num_key_value_heads=8, sink=4, window=508),),
        (full,),
    ] == list(load_model(NEMOTRON).stack)


def test_nemotron_super_keeps_49_of_80_layers() -> None:
    """Llama-3.3-Nemotron-Super-49B: 31 of 80 attention blocks are gone, the others have 8 key/value heads of 128."""
    blocks = [block(n_heads_in_group=8)] * 49 + [block(n_heads_in_group=None, no_op=True)] * 31
    model = llama_like("nemotron-nas", 80, 8192, 64, block_configs=blocks)
    assert plan(model, seq=8).cache.bytes_per_token == 49 * 2 * 8 * 128 * BF16


def test_decilm_heads_per_layer() -> None:
    """DeciLM-7B: a number of key/value heads for each layer."""
    model = llama_like("deci", 4, 4096, 32, num_key_value_heads_per_layer=[4, 4, 2, 1])
    assert plan(model, seq=8).cache.bytes_per_token == (4 + 4 + 2 + 1) * 2 * 128 * BF16


def test_openelm_heads_per_layer() -> None:
    """OpenELM-1.1B: 3 layers with 4 heads, 7 with 5, 8 with 6, 6 with 7 and 4 with 8, all of width 64."""
    heads = 3 * 4 + 7 * 5 + 8 * 6 + 6 * 7 + 4 * 8
    planned = plan(OPENELM_1_1B)
    assert heads * 2 * 64 * BF16 == planned.cache.bytes_per_token
    assert planned.request.seq == 2048


def test_hunyuan_layers_share_in_pairs() -> None:
    """Hunyuan-Large: every second layer reads the one before it, which halves the cache of its 64 layers of width 6400 / 80."""
    layers = load_model(HUNYUAN_LARGE).stack.layers
    assert all(isinstance(layer[0], SharedCache) == bool(index % 2) for index, layer in enumerate(layers))
    assert plan(HUNYUAN_LARGE, seq=8).cache.bytes_per_token == 32 * 2 * 8 * 80 * BF16


def test_hunyuan_factor_without_sharing() -> None:
    """Hunyuan-A13B carries cla_share_factor 2 with use_cla false: all 32 layers keep their own."""
    model = llama_like("hunyuan", 32, 4096, 32, num_key_value_heads=8, attention_head_dim=128, use_cla=False, cla_share_factor=2)
    assert plan(model, seq=8).cache.bytes_per_token == 32 * 2 * 8 * 128 * BF16


def test_ouro_keeps_every_run_of_the_stack() -> None:
    """Ouro-1.4B runs 24 layers four times: 96 caches."""
    assert plan(OURO, seq=8).cache.bytes_per_token == 4 * 24 * 2 * 16 * 128 * BF16


# --- hybrids and recurrent models ------------------------------------------------------------------------------------


def test_minimax_01_and_m1() -> None:
    """Ten of 80 layers are softmax; vLLM's state of one lightning layer on one of 8 GPUs is 262,144 bytes in bf16."""
    planned = plan(MINIMAX_M1, seq=8)
    assert planned.cache.bytes_per_token == 10 * 2 * 8 * 128 * BF16
    assert planned.cache.state_bytes_per_sequence == 70 * (262_144 * 8 // BF16) * FP32
    assert kinds(MINIMAX_M1) == kinds(MINIMAX_M1 | {"model_type": "minimax_text_01"})


def test_ring_linear() -> None:
    """Ring-mini-linear-2.0: layers 4, 9, 14 and 19 are softmax; layers that fill no group are softmax too."""
    assert kinds(RING_MINI_LINEAR) == [("lightning_attention", 16, "0-3,5-8,10-13,15-18"), ("full_attention", 4, "4,9,14,19")]
    assert kinds(RING_MINI_LINEAR | {"num_hidden_layers": 22})[1] == ("full_attention", 6, "4,9,14,19-21")


def test_plamo2() -> None:
    """PLaMo 2 1B: odd layers attend to 2,048 tokens, even ones hold 32 heads of 128 x 64 and three columns of x.

    A file without the window has the class's 2,048; null is no window.
    """
    assert kinds(PLAMO_2_1B) == [("mamba2", 8, "0,2,4,6,8,10,12,14"), ("sliding_attention", 8, "1,3,5,7,9,11,13,15")]
    state = 8 * (32 * 128 * 64 * FP32 + 32 * 128 * 3 * BF16)
    planned = plan(PLAMO_2_1B, seq=32_768)
    assert state == planned.cache.state_bytes_per_sequence
    assert state + 2048 * 8 * 2 * 1 * 128 * BF16 == planned.cache.total_bytes
    absent = {key: value for key, value in PLAMO_2_1B.items() if key != "attention_window_size"}
    assert kinds(absent) == kinds(PLAMO_2_1B)
    assert kinds(PLAMO_2_1B | {"attention_window_size": None})[1][0] == "full_attention"
    assert plan(PLAMO_2_1B | {"full_attention_idx": [1]}, seq=32_768).cache.bytes_per_token == 2 * 1 * 128 * BF16


def test_plamo3() -> None:
    """PLaMo 3: seven windows and one full layer in turn."""
    model = llama_like("plamo3", 16, 4096, 32, num_key_value_heads=4, head_dim=128, window_size=2048, sliding_window_pattern=8)
    assert kinds(model) == [("sliding_attention", 14, "0-6,8-14"), ("full_attention", 2, "7,15")]


def test_phi4flash() -> None:
    """SambaY: Mamba-1 on 0 to 16 in turn with windows, one full layer, and a second half that keeps nothing."""
    assert kinds(PHI_4_FLASH) == [
        ("mamba1", 9, "0,2,4,6,8,10,12,14,16"),
        ("sliding_attention", 8, "1,3,5,7,9,11,13,15"),
        ("full_attention", 1, "17"),
        ("no_cache", 7, "18,20,22,24,26,28,30"),
        ("shared_cache", 7, "19,21,23,25,27,29,31"),
    ]
    token = 2 * 20 * 64 * BF16
    state = 9 * (5120 * 16 * FP32 + 5120 * 3 * BF16)
    planned = plan(PHI_4_FLASH, seq=32_768)
    assert token == planned.cache.bytes_per_token
    assert state + 8 * 512 * token + 32_768 * token == planned.cache.total_bytes


def test_phi4flash_windows_as_a_list() -> None:
    """The class writes the window of each layer; a file that lists them reads the same."""
    windows = [512 if index < 16 and index % 2 else None for index in range(32)]
    assert kinds(PHI_4_FLASH) == kinds(PHI_4_FLASH | {"sliding_window": windows})


@pytest.mark.parametrize(
    ("model", "state"),
    [
        (RWKV_5, 32 * (40 * 64 * 64 * FP32 + 2 * 2560 * BF16)),
        # llama.cpp logs an S of 32 MiB for one sequence of the 7B model, and an R of 1 MiB, which it keeps in fp32.
        (RWKV_6, 32 * 2**20 + 2**20 // 2),
        (RWKV_7, 24 * (16 * 64 * 64 * FP32 + 2 * 1024 * BF16)),
    ],
    ids=["rwkv5", "rwkv6", "rwkv7"],
)
def test_rwkv(model: Json, state: int) -> None:
    """A matrix per head and two token shifts, whatever the length."""
    planned = plan(model, seq=4096)
    assert (0, state, state) == (
        planned.cache.bytes_per_token,
        planned.cache.state_bytes_per_sequence,
        planned.cache.total_bytes,
    )


def test_rwkv7_with_attention_layers() -> None:
    """Listed layers have softmax attention and keep the token shift of their feed-forward alone."""
    model = RWKV_7 | {"attn": {"layers": [3], "num_heads": 16, "num_kv_heads": 4, "window_size": 128}}
    assert kinds(model) == [("rwkv_matrix", 23, "0-2,4-23"), ("sliding_attention", 1, "3"), ("short_convolution", 1, "3")]
    one = 16 * 64 * 64 * FP32 + 2 * 1024 * BF16
    assert 23 * one + 1024 * BF16 == plan(model, seq=8).cache.state_bytes_per_sequence


# --- other types' files under a label of their own -------------------------------------------------------------------


def test_kimi_k3() -> None:
    """69 of 93 layers are KDA; SGLang's slot for them is 449,372,160 bytes, and 24 MLA layers keep 576 numbers a token."""
    planned = plan(KIMI_K3, seq=8)
    assert planned.cache.state_bytes_per_sequence == 449_372_160
    assert planned.cache.bytes_per_token == 24 * (512 + 64) * BF16


def test_deepseek_reference_keys() -> None:
    """DeepSeek-V4 in its reference code's keys: the last ratio is the draft layer's and no part of the stack."""
    ratios = [kind.compress_ratio for (kind,) in load_model(DEEPSEEK_REF).stack if isinstance(kind, CompressedAttention)]
    assert ratios == [128, 128, 4, 128]
    assert kinds(DEEPSEEK_REF) == kinds(DEEPSEEK_REF | {"model_type": "deepseek_v4"})


def test_minimax_m3() -> None:
    """Four key/value heads on 60 layers and one index key on 57: with those in bf16, SGLang's 137,472 bytes a token."""
    assert kinds(MINIMAX_M3) == [("full_attention", 60, "0-59"), ("sparse_indexer", 57, "3-59")]
    tensors = [tensor for group in load_model(MINIMAX_M3).stack.groups for tensor in group.kind.tensors() * group.count]
    assert sum(tensor.elements_per_position for tensor in tensors) * BF16 == 137_472


# --- damaged files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        NEMOTRON | {"block_configs": [block(n_heads_in_group=8)]},
        NEMOTRON | {"block_configs": [None] * 7},
        NEMOTRON | {"block_configs": [{"attention": None}] * 7},
        NEMOTRON | {"block_configs": [block(n_heads_in_group=128)] * 7},
        NEMOTRON | {"block_configs": [block(n_heads_in_group=8, window_length=4, num_sink_tokens=4)] * 7},
        NEMOTRON | {"block_configs": [block(n_heads_in_group=8, sparsify=["x"])] * 7},
        OPENELM_1_1B | {"num_kv_heads": [4] * 3},
        OPENELM_1_1B | {"num_kv_heads": [0] * 28},
        HUNYUAN_LARGE | {"use_mla": True},
        MINIMAX_M1 | {"attn_type_list": [0, 2] * 40},
        {key: value for key, value in MINIMAX_M1.items() if key != "attn_type_list"},
        PHI_4_FLASH | {"sliding_window": ["512"] * 32},
        RWKV_7 | {"value_dim": 2048},
        RWKV_5 | {"head_size": 96},
        KIMI_K3 | {"text_config": None},
        KIMI_K3 | {"text_config": {"model_type": "kimi_k3"}},
        STEP_3 | {"text_config": []},
        OURO | {"total_ut_steps": 0},
        OURO | {"use_sliding_window": True},
    ],
)
def test_what_makes_no_sense_is_refused(model: Json) -> None:
    """A damaged file is an error that says so."""
    with pytest.raises(ConfigError):
        plan(model, seq=8)


def test_a_nested_type_that_nobody_knows() -> None:
    """The label's own dialect hands over to one that exists, or refuses."""
    with pytest.raises(UnknownArchitectureError):
        plan(KIMI_K3 | {"text_config": {"model_type": "kimi_unheard_of"}}, seq=8)


ALL = [*(row[1] for row in PLAIN), NEMOTRON, OPENELM_1_1B, HUNYUAN_LARGE, OURO, MINIMAX_M1, RING_MINI_LINEAR, PLAMO_2_1B]
ALL += [PHI_4_FLASH, RWKV_5, RWKV_6, RWKV_7, KIMI_K3, DEEPSEEK_REF, MINIMAX_M3]

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 3) | st.none() | st.text(max_size=2), max_size=4),
    st.dictionaries(st.sampled_from(["layers", "num_heads", "attention", "model_type"]), st.integers(-1, 3), max_size=2),
)


@given(st.data())
def test_hostile_values_give_a_plan_or_an_error(data: st.DataObject) -> None:
    """One or two values replaced by anything: whole bytes or a documented error, never another exception."""
    model = dict(data.draw(st.sampled_from(ALL)))
    for key in data.draw(st.lists(st.sampled_from(sorted(model)), min_size=1, max_size=2)):
        model[key] = data.draw(HOSTILE)
    try:
        planned = plan(model, seq=8)
    except KvplanError:
        return
    assert isinstance(planned.cache.total_bytes, int)
    assert planned.cache.total_bytes >= 0

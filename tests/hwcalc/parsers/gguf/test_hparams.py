"""Metadata of GGUF files: what llama.cpp makes of the keys, and what it does not take."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import KvplanError, load_model, plan
from hwcalc.errors import ConfigError, UnknownArchitectureError
from hwcalc.formulas import FullAttention, LatentAttention, NoCache, RwkvMatrix, SharedCache, SlidingAttention
from hwcalc.parsers.gguf.architectures import ARCHITECTURES
from hwcalc.parsers.gguf.hparams import read_hparams
from hwcalc.parsers.gguf.parse import cached_layers, published_layers
from tests.effort import cases


def keys(arch: str, **more: Any) -> dict[str, Any]:
    """Metadata of a small model; ``__`` stands for the dot of a key, and None takes a key away."""
    given = {
        "block_count": 8,
        "context_length": 4096,
        "embedding_length": 512,
        "feed_forward_length": 1024,
        "attention__head_count": 8,
        "attention__head_count_kv": 2,
    } | more
    named = {f"{arch}.{name.replace('__', '.')}": value for name, value in given.items() if value is not None}
    return {"general.architecture": arch, **named}


def test_the_table_has_the_architectures_of_llama_cpp() -> None:
    """All that LLM_ARCH_NAMES of src/llama-arch.cpp lists in 0c1e57098, but the stub ``clip``."""
    assert len(ARCHITECTURES) == 152
    assert "clip" not in ARCHITECTURES
    assert sum(row.memory == "none" for row in ARCHITECTURES.values()) == 14


def test_head_widths_follow_from_the_first_layer() -> None:
    """512 / 8 = 64 numbers a head, unless the file says it; a first layer without heads makes them 0."""
    read = read_hparams(keys("llama"))
    assert (read.head_k, read.head_v, read.n_embd_k_gqa(0)) == (64, 64, 128)
    assert read_hparams(keys("qwen3", attention__key_length=128)).head_k == 128
    none = read_hparams(keys("deci", attention__head_count=[0, *[8] * 7], attention__head_count_kv=[0, *[2] * 7]))
    assert (none.head_k, none.n_embd_k_gqa(1)) == (0, 0)


@pytest.mark.parametrize(
    ("arch", "more", "expected"),
    [
        ("gemma2", {}, [True, False] * 4),
        ("gemma3", {"attention__sliding_window": 512}, [True] * 5 + [False, True, True]),
        ("gemma3", {}, [False] * 8),
        ("gemma3", {"attention__sliding_window": 0}, [False] * 8),
        ("cohere2moe", {"attention__sliding_window": 512}, [False, True, True, True] * 2),
        ("gpt-oss", {"attention__sliding_window": 128, "attention__sliding_window_pattern": 4}, [True, True, True, False] * 2),
        ("gpt-oss", {"attention__sliding_window": 128, "attention__sliding_window_pattern": [1, 0]}, [True] + [False] * 7),
        ("exaone4", {"attention__sliding_window": 512}, [False] * 8),
        ("phi3", {"attention__sliding_window": 512}, [False] * 8),
        ("llama", {"attention__sliding_window": 512}, [False] * 8),
        ("lfm2", {"attention__sliding_window": 64, "shortconv__l_cache": 3, "attention__head_count_kv": [0, 2] * 4}, [False, True] * 4),
    ],
)  # fmt: skip
def test_layers_with_a_window(arch: str, more: dict[str, Any], expected: list[bool]) -> None:
    """Periods, lists, and architectures whose window is ignored."""
    assert list(read_hparams(keys(arch, **more)).is_swa) == expected


def test_windows_that_the_file_does_not_decide() -> None:
    """Llama 4 has chunks of 8,192 and SmallThinker windows of 4,096 whatever the file says; 0 is none."""
    assert read_hparams(keys("llama4", attention__sliding_window=100)).n_swa == 8192
    assert read_hparams(keys("llama4")).n_swa == 8192
    assert not any(read_hparams(keys("llama4", attention__sliding_window=0)).is_swa)
    assert read_hparams(keys("smallthinker", attention__sliding_window=100)).n_swa == 4096
    assert read_hparams(keys("gemma2")).n_swa == 4096


def test_an_ignored_window_is_one_of_the_model_and_none_of_the_cache() -> None:
    """The file of a Mistral 7B names a window: the model has it, llama.cpp keeps every token."""
    read = read_hparams(keys("llama", attention__sliding_window=512))
    assert isinstance(published_layers(read)[0][0], SlidingAttention)
    assert isinstance(cached_layers(read)[0][0], FullAttention)
    model = load_model(keys("llama", attention__sliding_window=512))
    assert plan(model, seq=4096).cache.total_bytes * 8 == plan(model, seq=4096, engine="llamacpp").cache.total_bytes


def test_shared_layers() -> None:
    """Gemma 3n shares after 20 layers whatever the file says; Gemma 4 says how many last layers share."""
    third = read_hparams(keys("gemma3n", block_count=35, attention__sliding_window=512, attention__shared_kv_layers=10))
    assert [isinstance(layer[0], SharedCache) for layer in cached_layers(third)] == [False] * 20 + [True] * 15
    pattern = {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True, False] * 4}
    fourth = read_hparams(keys("gemma4", attention__shared_kv_layers=3, **pattern))
    assert fourth.kv_from_start == 5


def test_latents_with_and_without_their_keys() -> None:
    """New files keep one latent of 64 + 32 numbers, old ones keys of 96 and values of 64 for each of 8 heads."""
    old = {"attention__kv_lora_rank": 64, "attention__key_length": 96, "attention__value_length": 64, "rope__dimension_count": 32}
    legacy = read_hparams(keys("deepseek2", attention__head_count_kv=8, **old))
    assert not legacy.is_mla
    kept = cached_layers(legacy)[0][0]
    assert isinstance(kept, FullAttention)
    assert (kept.num_key_value_heads, kept.head_dim, kept.v_head_dim) == (8, 96, 64)
    new = {**old, "attention__value_length": 64, "attention__key_length_mla": 96, "attention__value_length_mla": 64}
    read = read_hparams(keys("deepseek2", attention__head_count_kv=1, **new))
    for layer in (cached_layers(read)[0][0], published_layers(legacy)[0][0]):
        assert isinstance(layer, LatentAttention)
        assert (layer.kv_lora_rank, layer.qk_rope_head_dim) == (64, 32)


def test_indexers_of_glm_5_2() -> None:
    """A file trained for a million tokens that lists no indexers has them on the first two layers and on every fourth."""
    indexer = {f"attention__indexer__{name}": size for name, size in (("head_count", 32), ("key_length", 128), ("top_k", 2048))}
    latent = {
        "attention__kv_lora_rank": 64,
        "attention__key_length": 96,
        "attention__value_length": 64,
        "rope__dimension_count": 32,
    }
    latent |= {"attention__key_length_mla": 96, "attention__value_length_mla": 64, "attention__head_count_kv": 1}
    short = read_hparams(keys("glm-dsa", **latent, **indexer))
    long = read_hparams(keys("glm-dsa", context_length=1_048_576, **latent, **indexer))
    assert all(short.indexer_full)
    assert long.indexer_full == (True, True, True, False, False, False, True, False)


def test_layers_for_multi_token_prediction_are_apart() -> None:
    """They count as blocks of the file; the main context keeps nothing for them, and theirs keeps them alone."""
    read = read_hparams(keys("glm4moe", nextn_predict_layers=1))
    assert (read.n_layer_all, read.n_layer) == (8, 7)
    assert len(published_layers(read)) == 7
    assert isinstance(cached_layers(read)[7][0], NoCache)
    drafts = cached_layers(read, drafts=True)
    assert [isinstance(layer[0], FullAttention) for layer in drafts] == [False] * 7 + [True]


def test_blocks_that_are_run_twice_and_one_that_is_added() -> None:
    """Nanbeige runs its blocks several times, each with a cache; Granite Switch has a layer with one head for its router."""
    assert len(cached_layers(read_hparams(keys("nanbeige", num_loops=3)))) == 24
    switch = cached_layers(read_hparams(keys("graniteswitch")))
    assert [layer[0].dims()["num_key_value_heads"] for layer in switch] == [2] * 8 + [1]


def test_recurrent_layers() -> None:
    """Qwen3-Next attends in every fourth layer, unless a list says which layers do not."""
    state = {
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 512,
        "ssm__state_size": 64,
        "ssm__time_step_rank": 8,
        "ssm__group_count": 4,
    }
    assert list(read_hparams(keys("qwen3next", **state)).is_recurrent) == [True, True, True, False] * 2
    listed = read_hparams(keys("qwen3next", **state, attention__recurrent_layers=[True] * 7 + [False]))
    assert list(listed.is_recurrent) == [True] * 7 + [False]
    # 3 x (512 + 2 x 4 x 64) inputs of the convolution, and 64 x 512 numbers of state.
    assert (listed.n_embd_r, listed.n_embd_s) == (3072, 32768)
    rwkv = read_hparams(
        keys("rwkv6qwen2", wkv__head_size=64, token_shift_count=1, attention__head_count=0, attention__head_count_kv=None)
    )
    kind = published_layers(rwkv)[0][0]
    assert isinstance(kind, RwkvMatrix)
    assert (kind.token_shifts, rwkv.n_embd_r, rwkv.n_embd_s) == (1, 512, 512 * 64)


def test_an_unknown_architecture_names_its_neighbours() -> None:
    """A name that is nearly right is put right."""
    with pytest.raises(UnknownArchitectureError, match="qwen33") as caught:
        load_model(keys("qwen33"))
    assert "qwen3" in caught.value.hint
    with pytest.raises(ConfigError, match=r"general\.architecture"):
        load_model({"general.architecture": 7})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"block_count": 0}, "block_count"),
        ({"block_count": 513}, "block_count"),
        ({"block_count": 10**30}, "block_count"),
        ({"block_count": None}, "block_count is missing"),
        ({"block_count": 8.5}, "block_count"),
        ({"block_count": True}, "block_count"),
        ({"embedding_length": -512}, "embedding_length"),
        ({"embedding_length": math.nan}, "embedding_length"),
        ({"context_length": "long"}, "context_length"),
        ({"attention__head_count": [8, 8]}, "a list of 2, but must be one number, or a list of 8"),
        ({"attention__head_count_kv": [2] * 7 + [-2]}, "head_count_kv"),
        ({"attention__head_count_kv": [2] * 7 + [2.5]}, "head_count_kv"),
        ({"attention__head_count_kv": {"0": 2}}, "head_count_kv"),
        ({"attention__causal": 3}, "causal"),
        ({"nextn_predict_layers": 9}, "nextn_predict_layers"),
        ({"expert_used_count": [1] * 600}, "expert_used_count"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(more: dict[str, Any], named: str) -> None:
    """The message names the key, the value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load_model(keys("llama", **more))
    assert named in str(caught.value)
    assert caught.value.hint


_VALUES = st.one_of(
    st.integers(-3, 600),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 9), max_size=10),
)


@settings(max_examples=cases(100, 300), deadline=None)
@given(arch=st.sampled_from(sorted(ARCHITECTURES)), data=st.data())
def test_any_value_is_an_answer_or_a_documented_error(arch: str, data: st.DataObject) -> None:
    """No value of a key that is read ends in a traceback."""
    names = ["block_count", "embedding_length", "attention__head_count", "attention__head_count_kv", "attention__key_length",
             "attention__sliding_window", "attention__sliding_window_pattern", "nextn_predict_layers", "ssm__conv_kernel",
             "ssm__inner_size", "ssm__state_size", "ssm__time_step_rank", "ssm__group_count", "kda__head_dim", "wkv__head_size",
             "shortconv__l_cache", "attention__kv_lora_rank", "attention__key_length_mla", "attention__value_length_mla",
             "attention__compress_ratios", "attention__indexer__key_length", "full_attention_interval", "num_loops"]  # fmt: skip
    chosen = data.draw(st.dictionaries(st.sampled_from(names), _VALUES, max_size=14))
    try:
        model = load_model(keys(arch, **chosen))
        plan(model, seq=2048)
        plan(model, seq=2048, engine="llamacpp")
    except KvplanError:
        pass


def test_numbers_and_lists_of_numpy_are_numbers_and_lists() -> None:
    """Readers of GGUF files give them (``GGUFReader`` of the package gguf)."""
    import numpy as np

    plain = keys("llama", attention__head_count_kv=[2, 4] * 4, attention__causal=True)
    arrays = {key: np.asarray(value)[()] if isinstance(value, (int, list)) else value for key, value in plain.items()}
    assert type(arrays["llama.block_count"]) is not int
    assert load_model(arrays).stack == load_model(plain).stack

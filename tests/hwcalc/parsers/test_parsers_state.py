"""Configs of recurrent-state and hybrid models: which layer keeps what, and how many bytes that is."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import KvplanError, plan
from hwcalc.planner.result import Plan

BF16, FP32, INT64 = 2, 4, 8


def planned(config: dict[str, Any], *, seq: int = 100, engine: str = "reference", **request: Any) -> Plan:
    """A plan in bf16."""
    return plan(config, seq=seq, dtype="bf16", engine=engine, **request)


def layers(config: dict[str, Any], engine: str = "reference") -> dict[str, str]:
    """Layer numbers by kind."""
    return {layer.kind: layer.layers.text for layer in planned(config, engine=engine).model.layers}


def total(config: dict[str, Any], **request: Any) -> int:
    """Bytes of one sequence."""
    return planned(config, **request).cache.total_bytes


MAMBA = {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24}
MAMBA2 = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 1, "num_heads": 8, "head_dim": 16}


def test_mamba_keeps_a_state_and_three_columns_and_nothing_per_token() -> None:
    """Kernel 4 needs three columns, which transformers rounds up to four; the state is d_inner x d_state in fp32."""
    state, column = 24 * 1536 * 16 * FP32, 24 * 1536 * BF16

    assert total(MAMBA) == total(MAMBA, seq=1) == state + 3 * column
    assert total(MAMBA, engine="transformers") == state + 4 * column
    assert planned(MAMBA).cache.bytes_per_token == 0


def test_a_spelled_out_inner_width_beats_expand() -> None:
    """Falcon-Mamba-7B says expand 16 beside intermediate_size 8,192 = 2 x hidden_size."""
    config = {"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16, "num_hidden_layers": 64}

    assert total({**config, "intermediate_size": 8192}) == 64 * 8192 * (16 * FP32 + 3 * BF16)


def test_mamba2_convolves_b_and_c_of_every_group_as_well() -> None:
    """8 heads of 16 and 8 groups of 128: the convolution has 128 + 2 x 8 x 128 channels."""
    assert total(MAMBA2) == 8 * 16 * 128 * FP32 + (128 + 2 * 8 * 128) * 3 * BF16


@pytest.mark.parametrize(
    "config",
    [
        {**MAMBA2, "num_heads": 7},
        {"model_type": "bamba", "mamba_d_head": 48},
        {"model_type": "zamba2", "num_hidden_layers": 3},
        {"model_type": "lfm2_moe"},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M|X"},
        {"model_type": "jamba", "attn_layer_offset": 8},
        {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [0, 1], "kda_layers": [2]}},
        {"model_type": "qwen3_next", "layer_types": ["mystery"] * 48},
        {"model_type": "qwen4_exp_text", "ple_layer_ids": [41]},
    ],
)
def test_a_config_that_contradicts_itself_is_an_error_with_a_name(config: dict[str, Any]) -> None:
    """Widths that do not multiply out, layers that are not there, patterns of unknown letters."""
    with pytest.raises(KvplanError):
        planned(config)


JAMBA_PAIR = {"full_attention": "4,12,20,28", "mamba1": "0-3,5-11,13-19,21-27,29-31"}


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"model_type": "jamba"}, JAMBA_PAIR),
        ({"model_type": "bamba", "num_hidden_layers": 4}, {"mamba2": "0-3"}),
        ({"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [1]}, {"mamba2": "0,2-3", "full_attention": "1"}),
        ({"model_type": "falcon_h1", "num_hidden_layers": 2}, {"full_attention": "0-1", "mamba2": "0-1"}),
        (
            {"model_type": "granitemoehybrid", "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"]},
            {"mamba2": "0,2", "full_attention": "1"},
        ),
        ({"model_type": "granitemoehybrid", "num_hidden_layers": 3}, {"mamba2": "0-2"}),
        ({"model_type": "zamba", "num_hidden_layers": 10}, {"mamba1": "0-9", "full_attention": "2,7"}),
        (
            {"model_type": "zamba2", "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]},
            {"mamba2": "0-2", "full_attention": "1"},
        ),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*EM"},
            {"mamba2": "0,4", "no_cache": "1,3", "full_attention": "2"},
        ),
        ({"model_type": "qwen3_next", "num_hidden_layers": 8}, {"gated_delta_net": "0-2,4-6", "full_attention": "3,7"}),
        ({"model_type": "bailing_hybrid", "num_hidden_layers": 6}, {"kimi_delta_attention": "0-4", "latent_attention": "5"}),
        ({"model_type": "minimax", "num_hidden_layers": 4}, {"full_attention": "0,2", "lightning_attention": "1,3"}),
        ({"model_type": "recurrent_gemma", "num_hidden_layers": 5}, {"real_gated_lru": "0-1,3-4", "sliding_attention": "2"}),
        ({"model_type": "lfm2", "num_hidden_layers": 3}, {"full_attention": "0-2"}),
        (
            {"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": [1]},
            {"short_convolution": "0,2", "full_attention": "1"},
        ),
        (
            {"model_type": "lfm3", "num_hidden_layers": 5},
            {"short_convolution": "0-1,3", "full_attention": "2", "sliding_attention": "4"},
        ),
    ],
)
def test_each_family_places_its_layers_by_its_own_rule(config: dict[str, Any], expected: dict[str, str]) -> None:
    """Which layers attend, which recur, which do both and which do neither."""
    assert layers(config) == expected


def test_kimi_counts_its_layers_from_one() -> None:
    """full_attn_layers [4] is the fourth layer, index 3."""
    nested = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4}
    config = {"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": nested}

    assert layers(config) == {"kimi_delta_attention": "0-2", "latent_attention": "3"}
    # three layers of 2 heads: 8 x 8 of state, 3 columns of 3 x 2 x 8 channels; one latent of 512 + 64 for each token
    assert total(config) == 3 * (2 * 8 * 8 * FP32 + 3 * 3 * 2 * 8 * BF16) + 100 * (512 + 64) * BF16


def test_zambas_shared_attention_still_keeps_keys_on_every_occurrence() -> None:
    """Its heads are 2 x hidden_size / heads wide, since the attention reads the layer's input and the embeddings together."""
    config = {
        "model_type": "zamba2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "n_mamba_heads": 4,
        "layers_block_type": ["hybrid", "hybrid"],
    }

    # keys and values of 4 heads of 32; state of 4 heads of 32 x 64; convolution over 128 + 2 x 64 channels
    assert total(config) == 2 * (100 * 2 * 4 * 32 * BF16 + 4 * 32 * 64 * FP32 + (128 + 2 * 64) * 3 * BF16)


def test_falcon_h1_names_its_inner_width_itself() -> None:
    """mamba_d_ssm wins over expand x hidden_size, and head_dim "auto" shares it out."""
    config = {"model_type": "falcon_h1", "num_hidden_layers": 1, "mamba_d_ssm": 96, "mamba_n_heads": 3, "mamba_d_head": "auto"}
    mamba = next(layer for layer in planned(config).model.layers if layer.kind == "mamba2")

    assert mamba.dims["head_dim"] == 96 // 3


def test_the_state_dtype_of_the_file_counts_for_the_model_but_not_for_transformers() -> None:
    """mamba_ssm_cache_dtype is a request to serving engines: transformers keeps what its kernels return, fp32."""
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "M", "mamba_ssm_cache_dtype": "bfloat16"}
    state, column = 128 * 64 * 128, (128 * 64 + 2 * 8 * 128) * BF16

    assert total(config) == state * BF16 + 3 * column
    assert total(config, engine="transformers") == state * FP32 + 4 * column


def test_a_vision_model_is_planned_by_its_text_config() -> None:
    """Qwen3.5's text model lies in text_config, which says which layers are linear."""
    text = {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_ssm_dtype": "float32"}
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"model_type": "qwen3_5_vision", "depth": 12}}

    # three delta nets: 32 heads of 128 x 128 and 8,192 channels; one layer of 2 heads of 256
    assert total(config) == 3 * (32 * 128 * 128 * FP32 + 8192 * 3 * BF16) + 100 * 2 * 2 * 256 * BF16
    assert layers(config) == {"gated_delta_net": "0-2", "full_attention": "3"}


def test_olmo_hybrid_derives_its_linear_widths() -> None:
    """Keys take 3/4 of hidden_size shared among the heads, values twice that: 96 and 192 in the 7B model."""
    net = planned({"model_type": "olmo_hybrid"}).model.layers[0]

    assert net.dims == {"num_key_heads": 30, "num_value_heads": 30, "key_head_dim": 96, "value_head_dim": 192, "d_conv": 4}


def test_transformers_packs_a_padding_flag_into_glm5_nexts_indexer() -> None:
    """The model needs a key and a gate for each token, 2 x 128; the library's entry is one element wider."""
    config = {"model_type": "glm5_next_text", "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    latent = 512 * BF16

    # fp8 with one fp32 scale for each 128 elements, then bf16
    assert planned(config).cache.bytes_per_token == latent + 2 * (128 + 4)
    assert total(config, engine="transformers") == 100 * (latent + (2 * 128 + 1) * BF16)


def test_minimax_files_list_their_attention_layers_in_a_key_that_transformers_does_not_read() -> None:
    """Seven lightning layers and one that attends; the library's class alternates."""
    config = {"model_type": "minimax", "num_hidden_layers": 8, "attn_type_list": [0] * 7 + [1]}

    assert layers(config) == {"lightning_attention": "0-6", "full_attention": "7"}
    assert layers(config, "transformers") == {"full_attention": "0,2,4,6", "lightning_attention": "1,3,5,7"}


def test_xlstm_rounds_its_widths_up_to_64() -> None:
    """hidden_size 200 and factor 0.5 make 128 for queries and keys, 256 for values."""
    config = {"model_type": "xlstm", "hidden_size": 200, "num_heads": 4, "num_hidden_layers": 1}

    assert total(config) == 4 * (32 * 64 + 32 + 1) * FP32
    assert total({**config, "inference_state_dtype": "bfloat16"}) == 4 * (32 * 64 + 32 + 1) * BF16


def test_inkling_convolves_keys_values_and_both_outputs() -> None:
    """Four convolutions beside the attention; transformers keeps a whole kernel of each, in fp32."""
    config = {"model_type": "inkling_text", "num_hidden_layers": 1, "layer_types": ["hybrid"], "hidden_size": 64}
    channels = 2 * 8 * 128 + 2 * 64
    attention = 100 * 2 * 8 * 128 * BF16

    assert total(config) == attention + channels * 3 * BF16
    assert total(config, engine="transformers") == attention + channels * 4 * FP32


def test_zayas_two_convolutions_need_two_columns_and_its_values_lag_a_token() -> None:
    """8 + 2 heads of 128 pass kernels of 2 and 2; half of the values, 128 of 256, come from the token before."""
    config = {"model_type": "zaya", "num_hidden_layers": 1}
    expected = 100 * 2 * 2 * 128 * BF16 + 1280 * 2 * BF16 + 128 * BF16

    assert total(config) == total(config, engine="transformers") == expected


QWEN4 = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "hc_count": 2,
    "ple_layer_ids": [2, 5],
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": 64,
    "indexer_compress_ratio": 16,
}


def test_qwen4_keeps_an_indexer_and_the_reach_of_its_embedding_convolutions() -> None:
    """Kernel 4 dilated by 3 looks back 9 tokens over both residual streams; transformers records token positions and ids too.

    It measured 261,816 bytes at 17 tokens and 1,022,048 at 600.
    """
    assert layers(QWEN4) == {
        "gated_delta_net": "0-2,4-6",
        "short_convolution": "1,4",
        "full_attention": "3,7",
        "sparse_indexer": "3,7",
    }
    nets = 6 * (8 * 32 * 32 * FP32 + 512 * 4 * BF16)
    embeddings = 2 * (2 * 256 * 9 * BF16 + 2 * INT64)
    per_token = 2 * (2 * 2 * 64 + 64) * BF16 + 3 * INT64

    assert nets + embeddings + 17 * per_token == 261_816
    assert total(QWEN4, seq=17, engine="transformers") == 261_816
    assert total(QWEN4, seq=600, engine="transformers") == 1_022_048

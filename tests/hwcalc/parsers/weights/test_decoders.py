"""Parameters of decoder-only models: arithmetic written out, published sizes, and what the file may say otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.errors import ConfigError
from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from tests.hwcalc.parsers.weights.counted import read_weights


def weigh(**config: Any) -> Weights:
    """The weights of a config whose language model is the whole document."""
    level = Config(config)
    weights = read_weights(level, level)
    assert weights is not None
    return weights


SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 10,
    "tie_word_embeddings": False,
}
ATTENTION = 8 * 8 + 2 * 4 * 8 + 8 * 8
MLP = 3 * 8 * 16
ENDS = 10 * 8 + 8 + 10 * 8
"""Embedding, last norm and head."""


def test_llama() -> None:
    """Four projections, three matrices and two norms a layer."""
    assert weigh(model_type="llama", **SMALL).total == 3 * (ATTENTION + MLP + 2 * 8) + ENDS


def test_biases_and_a_tied_head() -> None:
    """Each flag adds the biases that it names; a tied head is counted once."""
    plain = weigh(model_type="llama", **SMALL).total
    biased = weigh(model_type="llama", attention_bias=True, mlp_bias=True, **SMALL).total
    tied = weigh(model_type="llama", **{**SMALL, "tie_word_embeddings": True}).total
    assert biased - plain == 3 * ((8 + 4 + 4 + 8) + (16 + 16 + 8))
    assert plain - tied == 10 * 8


def test_layers_without_experts() -> None:
    """``mlp_only_layers`` and ``decoder_sparse_step`` leave a plain MLP; a token uses two of four experts."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "model_type": "qwen3_moe", **SMALL}
    expert, router, scales = 3 * 8 * 6, 4 * 8, 2 * 8 + 2 * 4
    sparse, dense = 4 * expert + router, MLP
    every = weigh(**moe)
    assert every.total == 3 * (ATTENTION + scales + sparse) + ENDS
    assert every.total - every.active == 3 * 2 * expert
    assert weigh(**moe, mlp_only_layers=[1]).total == 3 * (ATTENTION + scales) + 2 * sparse + dense + ENDS
    assert weigh(**moe, decoder_sparse_step=2).total == 3 * (ATTENTION + scales) + sparse + 2 * dense + ENDS


def test_head_with_only_a_bias() -> None:
    """A tied head of CTRL still has its bias."""
    ctrl = {"model_type": "ctrl", "n_embd": 8, "n_layer": 1, "n_head": 2, "dff": 16, "vocab_size": 10}
    layer = 4 * (8 * 8 + 8) + (8 * 16 + 16 + 16 * 8 + 8) + 2 * 2 * 8
    assert weigh(**ctrl).total == 10 * 8 + layer + 2 * 8 + 10


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
}


def test_deepseek_v3() -> None:
    """Total as transformers builds it; active 37.6 billion; the MTP layer has its own copies of embedding and head."""
    hidden, expert = 7168, 3 * 7168 * 2048
    attention = (1536 + 576) * hidden + 1536 + 512 + 1536 * 128 * (128 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * hidden
    sparse = 257 * expert + 256 * hidden
    weights = weigh(**DEEPSEEK_V3)
    assert weights.total == 671_026_404_352
    assert weights.total - weights.active == 58 * (256 - 8) * expert
    assert weights.mtp == attention + sparse + 2 * hidden + 2 * hidden * hidden + 3 * hidden + 2 * 129280 * hidden


def test_queries_without_a_low_rank() -> None:
    """``q_lora_rank`` null is one matrix, with neither the projections nor their norm."""
    ranked = weigh(**DEEPSEEK_V3).total
    plain = weigh(**{**DEEPSEEK_V3, "q_lora_rank": None}).total
    queries = 128 * 192
    assert plain - ranked == 61 * (7168 * queries - (7168 * 1536 + 1536 + 1536 * queries))


def test_deepseek_v4_flash_with_its_buffers() -> None:
    """Published: 290,944,616,402 elements. Of those, the routers' fixed tables are no parameters.

    The first 3 layers look experts up by token: 129,280 x 6 each; the other 40 and the MTP layer correct 256 experts.
    """
    weights = weigh(
        model_type="deepseek_v4",
        vocab_size=129280,
        num_hidden_layers=43,
        num_nextn_predict_layers=1,
        compress_ratios=[0, 0, *[4, 128] * 20, 4, 0],
    )
    assert weights.total + weights.mtp + 3 * 129_280 * 6 + (40 + 1) * 256 == 290_944_616_402


@pytest.mark.parametrize(
    ("published", "config"),
    [
        (
            271_527_168,  # apple/OpenELM-270M
            {
                "model_type": "openelm",
                "model_dim": 1280,
                "head_dim": 64,
                "num_transformer_layers": 16,
                "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
                "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
                "ffn_multipliers": [
                    *[0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13],
                    *[2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
                ],
                "ffn_dim_divisor": 256,
                "vocab_size": 32000,
                "normalize_qk_projections": True,
                "share_input_output_layers": True,
            },
        ),
        (
            7_737_708_544,  # internlm/internlm2-7b
            {
                "model_type": "internlm2",
                "bias": False,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_attention_heads": 32,
                "num_hidden_layers": 32,
                "num_key_value_heads": 8,
                "vocab_size": 92544,
            },
        ),
        (
            2_779_683_840,  # microsoft/phi-2 in its first form
            {"model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_inner": None, "n_layer": 32, "vocab_size": 51200},
        ),
        (
            478_584_608_768,  # Snowflake/snowflake-arctic-instruct
            {
                "model_type": "arctic",
                "hidden_size": 7168,
                "intermediate_size": 4864,
                "num_attention_heads": 56,
                "num_hidden_layers": 35,
                "num_key_value_heads": 8,
                "num_local_experts": 128,
                "num_experts_per_tok": 2,
                "vocab_size": 32000,
            },
        ),
    ],
)
def test_published_sizes(published: int, config: dict[str, Any]) -> None:
    """Models whose code lives with them come out at the size that their publisher's files have."""
    assert weigh(**config).total == published


def test_mimo_counts_its_mtp_layer_apart() -> None:
    """XiaomiMiMo/MiMo-7B-Base: 7,833,409,536 elements in the files, one MTP layer among them."""
    weights = weigh(
        model_type="mimo",
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=11008,
        vocab_size=151680,
        attention_bias=True,
        num_nextn_predict_layers=1,
        tie_word_embeddings=False,
    )
    assert weights.total + weights.mtp == 7_833_409_536


@pytest.mark.parametrize(
    "config",
    [
        {**SMALL, "model_type": "llama", "vocab_size": -1},
        {**SMALL, "model_type": "qwen3_moe", "mlp_only_layers": "all"},
        {**SMALL, "model_type": "step3p5", "moe_layers_enum": "1,x"},
        {**SMALL, "model_type": "llama4_text", "moe_layers": [None]},
        {**DEEPSEEK_V3, "kv_lora_rank": float("nan")},
        {**SMALL, "model_type": "nemotron-nas", "block_configs": [{}, {}, {}]},
    ],
)
def test_values_that_make_no_sense(config: dict[str, Any]) -> None:
    """They are refused by name."""
    with pytest.raises(ConfigError):
        weigh(**config)

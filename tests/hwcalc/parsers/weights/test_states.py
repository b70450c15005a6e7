"""Weights of recurrent and hybrid models: counts that transformers 5.23 gives, published ones, and arithmetic written out."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from tests.hwcalc.parsers.weights.counted import read_weights


def weigh(config: dict[str, Any]) -> Weights:
    """Weights of a config that is its own language level."""
    top = Config(config)
    weights = read_weights(top, top)
    assert weights is not None
    return weights


def test_mamba_layer_by_hand() -> None:
    """One layer of 8 channels: every term of Mamba-1 written out."""
    weights = weigh(
        {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "state_size": 2, "vocab_size": 10, "time_step_rank": 3}
    )
    mixer = 8 * 32 + (16 * 4 + 16) + 16 * (3 + 4) + (3 * 16 + 16) + 16 * 2 + 16 + 16 * 8
    assert 10 * 8 + 8 + mixer + 8 == weights.total


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # transformers' own counts.
        ("ai21labs/Jamba-v0.1", 51_570_323_328),
        ("ibm-granite/granite-4.0-h-small", 32_207_337_984),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120_668_687_360),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49_122_675_072),
        ("allenai/Olmo-Hybrid-7B", 7_430_870_688),
        ("LiquidAI/LFM2-8B-A1B", 8_339_929_856),
        # Published counts of models that transformers does not build.
        ("MiniMaxAI/MiniMax-Text-01", 456_089_655_296),
        ("microsoft/Phi-4-mini-flash-reasoning", 3_852_562_944),
        ("pfnet/plamo-2-1b", 1_291_441_920),
        # 2,779,931,837,184 published, with the 896 correction biases of 92 routers, which are no parameters.
        ("moonshotai/Kimi-K3", 2_779_931_837_184 - 92 * 896),
    ],
)
def test_total_of_catalog_models(name: str, total: int) -> None:
    """Totals are exact to the parameter."""
    config = load_model(name).config
    assert config is not None
    top = Config(config)
    weights = read_weights(top, top)
    assert weights is not None
    assert total == weights.total


def test_prediction_layers_stand_apart() -> None:
    """Qwen3-Next: 81,324,862,720 parameters are published, 79,674,391,296 without the one prediction layer."""
    config = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct").config
    assert config is not None
    weights = weigh(dict(config))
    hidden = 2048
    join = 2 * hidden * hidden + 3 * hidden
    attention = hidden * (8192 + 512 + 512) + 4096 * hidden + 2 * 256
    experts = 512 * 3 * hidden * 512 + 512 * hidden + 3 * hidden * 512 + hidden
    assert join + attention + experts + 2 * hidden == weights.mtp
    assert 81_324_862_720 == weights.total + weights.mtp


def test_nemotron_prediction_layers() -> None:
    """Nemotron 3 Super: 123,611,012,096 parameters are published, one attention layer and one of experts among them."""
    config = load_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8").config
    assert config is not None
    weights = weigh(dict(config))
    assert 123_611_012_096 == weights.total + weights.mtp


def test_active_leaves_out_the_experts_not_chosen() -> None:
    """Jamba: two of 16 experts on each of 16 layers; 14 are left out."""
    config = load_model("ai21labs/Jamba-v0.1").config
    assert config is not None
    weights = weigh(dict(config))
    assert weights.total - 16 * 14 * 3 * 4096 * 14336 == weights.active


def test_rwkv7_needs_its_low_ranks() -> None:
    """RWKV-7 0.4B has 450,767,872 parameters; a file without the ranks is not weighed."""
    config = {
        "model_type": "rwkv7", "hidden_size": 1024, "head_dim": 64, "intermediate_size": 4096, "num_hidden_layers": 24,
        "vocab_size": 65536, "norm_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    top = Config(config)
    assert read_weights(top, top) is None
    ranks = {"decay_low_rank_dim": 64, "a_low_rank_dim": 64, "v_low_rank_dim": 32, "gate_low_rank_dim": 128}
    assert weigh({**config, **ranks}).total == 450_767_872


def test_zamba2_shares_its_attention() -> None:
    """A second shared block is a whole block more, of which every place that runs it still has an adapter of its own."""
    config: dict[str, Any] = {"model_type": "zamba2"}
    one, two = (weigh({**config, "num_mem_blocks": count}).total for count in (1, 2))
    attention = 3 * 5120 * 5120 + 2560 * 5120
    assert attention + 3 * 2560 * 10240 + 5120 + 2560 == two - one


def test_qwen4_tables_have_prime_rows() -> None:
    """From 20 the next primes are 23 and 29: 52 rows, padded to 56."""
    plain: dict[str, Any] = {
        "model_type": "qwen4_exp_text", "hidden_size": 8, "num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2,
        "hc_count": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4, "vocab_size": 10,
        "shared_expert_intermediate_size": 4, "heads_per_ngram": 1, "ngram_size": 3, "ngram_vocab_size_base": 20,
        "make_ngram_vocab_size_divisible_by": 8,
    }  # fmt: skip
    table = 56 * (8 // 2)
    mixer = 8 * 16 + 8 * 8 + 3 * 16 + 16 * 4
    assert table + mixer == weigh({**plain, "ple_layer_ids": [1]}).total - weigh(plain).total


def test_per_layer_blocks_of_zamba2_and_qwen4_know_their_layers() -> None:
    """An adapter belongs to the layer that runs a shared block, an n-gram table to the layer that embeds; shared blocks to none."""
    hybrid = {"model_type": "zamba2", "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}
    layers = {block.kind: block.layers for block in weigh(hybrid).blocks}
    assert (1, 3) == layers["adapter"] == layers["join"]
    assert layers["attention"] is None

    embedded = {"model_type": "qwen4_exp_text", "num_hidden_layers": 4, "ple_layer_ids": [2, 3]}
    blocks = [block for block in weigh(embedded).blocks if block.kind == "ngram"]
    assert [(1, 2), (1,), (2,)] == [block.layers for block in blocks]


@pytest.mark.parametrize("model_type", ["zamba", "zamba2"])
def test_zamba_without_mamba_on_a_layer_is_not_counted(model_type: str) -> None:
    """The cache is planned all the same, with a note."""
    model = load_model({"model_type": model_type, "num_hidden_layers": 2, "layers_block_type": ["mamba", "attention"]})
    assert model.counted is None
    assert f"Parameters are not counted: a {model_type} model has Mamba on every layer." in [note.message for note in model.notes]

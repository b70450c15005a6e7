"""Formulas that are often quoted: what they give, against published ratios and sums by hand, and what they pass over."""

from __future__ import annotations

from typing import Any, Final

from hwcalc import explain
from hwcalc.library.often_quoted import QUOTED
from hwcalc.text import TIMES

TOKENS: Final = 32_768


def quoted(model: str | dict[str, Any], **options: Any) -> dict[int, str]:
    """The results of the formulas that are wrong for a model, each with what it passes over."""
    return {one.result: ", ".join(one.ignores) for one in explain(model, **{"seq": TOKENS, **options}).quoted}


def test_grouped_heads_ignored() -> None:
    """Llama 70B: 2 x 80 layers x 8,192 x 2 bytes is 2.5 MiB a token, 80 GiB at 32k; its 8 key/value heads keep an eighth."""
    found = quoted("meta-llama/Llama-3.1-70B-Instruct")

    assert found[2 * 80 * 8192 * TOKENS * 2] == "8 key/value heads serve 64 query heads"
    # "A 70B model's 32k in 20 GB": four bytes a number.
    assert "fp32" in found[2 * 80 * 8 * 128 * TOKENS * 4]
    assert 20 * 2**30 in found


def test_latent_caches() -> None:
    """DeepSeek-V3: 24.9 times by hidden_size (hf-mem, llmfit), 0.89 times without the rotary key (llm-cal), 71 times with full heads."""
    found = quoted("deepseek-ai/DeepSeek-V3")
    actual = 2_302_672_896

    assert actual == TOKENS * 61 * (512 + 64) * 2
    assert round((2 * 61 * 7168 * TOKENS * 2) / actual, 1) == 24.9
    assert "one latent of 512 + 64 numbers" in found[2 * 61 * 7168 * TOKENS * 2]
    assert round((61 * 512 * TOKENS * 2) / actual, 2) == 0.89
    assert "rotary key of 64" in found[61 * 512 * TOKENS * 2]
    assert "one latent" in found[61 * 128 * (192 + 128) * TOKENS * 2]
    # Not times layers.
    assert found[576 * TOKENS * 2] == "each of the 61 layers keeps a latent of its own"
    # 2 x layers x kv_lora_rank: LMCache pull request 694.
    assert "key and value at once" in found[2 * 61 * 512 * TOKENS * 2]


def test_latent_caches_are_whole_on_every_gpu() -> None:
    """tt-xla issue 5861: a latent is not divided by tp."""
    told = explain("deepseek-ai/DeepSeek-V3", seq=TOKENS, tp=8)
    (one,) = (one for one in told.quoted if one.subject == "KV cache of a GPU")

    assert (2_302_672_896 // 8, 2_302_672_896) == (one.result, one.actual)


def test_windows_ignored() -> None:
    """Gemma 3: 5.33 times where all 62 layers keep all tokens (hf-mem, llm-d, llmfit)."""
    found = quoted("google/gemma-3-27b-it")
    naive = 2 * 62 * 16 * 128 * TOKENS * 2

    assert round(naive / 3_120_562_176, 2) == 5.33
    assert found[naive] == "52 of 62 layers keep only 1,024 of 32,768 tokens"
    assert naive not in quoted("google/gemma-3-27b-it", seq=1024)


def test_windows_everywhere() -> None:
    """gpt-oss: 0.008 times where every layer is taken for a window (llm-cal)."""
    naive = 2 * 24 * 8 * 64 * 128 * 2

    assert round(naive / 808_452_096, 3) == 0.008
    assert quoted("openai/gpt-oss-20b")[naive] == "12 of 24 layers keep every token"


def test_state_alone() -> None:
    """Mamba-2: num_heads x head_dim channels keep d_state numbers each, and a convolution its last inputs."""
    config = {
        "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 2560, "state_size": 128, "num_heads": 80, "head_dim": 64,
        "n_groups": 1, "conv_kernel": 4, "expand": 2, "torch_dtype": "float16", "vocab_size": 50_288,
    }  # fmt: skip
    (told,) = (one for one in explain(config, seq=TOKENS).quoted if "d_state" in one.formula)

    # 64 layers x (80 x 64 x 128 x 4 bytes + (80 x 64 + 2 x 128) channels x 3 x 2 bytes).
    assert 64 * (80 * 64 * 128 * 4 + (80 * 64 + 2 * 128) * 3 * 2) == told.actual
    assert 64 * 128 * 4 == told.result
    assert told.ignores == ("each of 5,120 channels keeps 128 numbers", "the convolution keeps its last 3 inputs")


def test_own_head_dim_ignored() -> None:
    """Qwen3-0.6B: hidden_size / heads is 64 where the config has 128: half (Unsloth pull request 4757)."""
    config = {
        "model_type": "qwen3", "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_size": 1024, "torch_dtype": "bfloat16",
    }  # fmt: skip
    told = explain(config, seq=TOKENS)
    (one,) = (one for one in told.quoted if one.result == 2 * 28 * 8 * 64 * TOKENS * 2)

    assert 2 * one.result == told.plan.cache.total_bytes == one.actual
    assert one.ignores == ("head_dim is 128 in the config, not 1,024 / 16 = 64",)


def test_indexers_ignored() -> None:
    """DeepSeek-V3.2: the latent alone is 0.897 of what is kept: an indexer has a key of 128 fp8 numbers and a scale."""
    naive = 61 * (512 + 64) * TOKENS * 2
    found = quoted("deepseek-ai/DeepSeek-V3.2")

    assert naive + 61 * (128 + 4) * TOKENS == 2_566_520_832
    assert found[naive] == "an indexer keeps a key of 128 numbers for every token in 61 layers"
    assert naive not in quoted("deepseek-ai/DeepSeek-V3")


def test_cross_attention_ignored() -> None:
    """Whisper: the decoder also keeps keys and values of 1,500 encoder tokens in each of its layers."""
    config = {
        "model_type": "whisper", "d_model": 384, "decoder_layers": 4, "encoder_layers": 4, "decoder_attention_heads": 6,
        "encoder_attention_heads": 6, "max_source_positions": 1500, "max_target_positions": 448, "torch_dtype": "float32",
        "vocab_size": 51_865, "num_mel_bins": 80, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536,
    }  # fmt: skip

    assert "cross attention keeps 1,500 encoder tokens in 4 layers" in quoted(config, seq=448)[2 * 4 * 384 * 448 * 4]


def test_shared_layers_ignored() -> None:
    """Gemma 4 E2B: layers that read the cache of another keep none."""
    found = quoted("google/gemma-4-E2B-it")

    assert any("layers read the cache of another layer" in ignored for ignored in found.values())


def test_active_parameters_are_not_the_memory() -> None:
    """Weights by the parameters that a token uses are too few (llmfit issue 230)."""
    told = explain("deepseek-ai/DeepSeek-V3", seq=8192)
    (one,) = (one for one in told.quoted if one.subject == "weights")

    assert one.actual == told.plan.memory.weights.bytes
    assert 0.05 < one.result / one.actual < 0.06


def test_right_formulas_are_not_called_wrong() -> None:
    """Llama-2-7B is what the formula was made for: only the dtype can be got wrong."""
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "torch_dtype": "float32",
        "vocab_size": 32_000,
    }  # fmt: skip

    assert {} == quoted(config)
    assert [2 * 32 * 4096 * TOKENS * 4] == list(quoted({**config, "torch_dtype": "float16"}))


def test_an_engines_rounding_is_no_error_of_a_formula() -> None:
    """5,000 tokens are 313 blocks of 16: the formula is right, and the engine rounds up."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "torch_dtype": "float16",
    }

    assert [2 * 32 * 4096 * 5000 * 4] == list(quoted(config, seq=5000, engine="vllm"))


def test_every_quoted_formula_is_met() -> None:
    """No formula of the table is dead: some model shows it."""
    shown = set()
    for model in ("meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it", "Qwen/Qwen3-4B",
                  "tiiuae/falcon-mamba-7b", "deepseek-ai/DeepSeek-V3.2"):  # fmt: skip
        shown |= {(one.subject, one.formula) for one in explain(model, seq=TOKENS, batch=2, tp=8).quoted}

    formulas = {(one.subject, f" {TIMES} ".join(one.factors).replace(f" {TIMES} 1 /", " /")) for one in QUOTED}
    assert formulas - shown <= {(one.subject, f" {TIMES} ".join(one.factors)) for one in QUOTED if one.factors[-1] == "4"}

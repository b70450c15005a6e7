"""Weight formats by the names of published files: mixes of llama.cpp, bits per weight of ExLlama and MLX, other spellings.

The sizes are published: each with its source. A GGUF file also holds a header with the vocabulary, of up to 8 MB in these.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.formulas.formats import BF16
from hwcalc.model import ModelSpec
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.quantization.ggml import GGML, MIXES
from hwcalc.quantization.gguf import mix
from hwcalc.quantization.planned import format_name, weight_formats
from tests.hwcalc.command import Capture, run

LARGEST_HEADER: Final = 8_000_000


def llama(layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, vocabulary: int, **keys: Any) -> ModelSpec:
    """A Llama of these sizes."""
    return load_model(
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "tie_word_embeddings": False,
            "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": vocabulary, **keys,
        }
    )  # fmt: skip


LLAMA_8B: Final = llama(32, 4096, 14336, 32, 8, 128256)
LLAMA_13B: Final = llama(40, 5120, 13824, 40, 40, 32000)
LLAMA_1B: Final = llama(16, 2048, 8192, 32, 8, 128256, head_dim=64, tie_word_embeddings=True)

# tools/quantize/README.md of llama.cpp, "Llama 3.1 8B": bits per weight of the whole file's tensors.
BITS_PER_WEIGHT: Final = {
    "iq1_s": 2.0042, "iq1_m": 2.1460, "iq2_xxs": 2.3824, "iq2_xs": 2.5882, "iq2_s": 2.7403, "iq2_m": 2.9294, "q2_k_s": 2.9697,
    "q2_k": 3.1593, "iq3_xxs": 3.2548, "iq3_xs": 3.4977, "iq3_s": 3.6606, "iq3_m": 3.7628, "q3_k_s": 3.6429, "q3_k_m": 3.9960,
    "q3_k_l": 4.2979, "iq4_xs": 4.4597, "iq4_nl": 4.6818, "q4_k_s": 4.6672, "q4_k_m": 4.8944, "q5_k_s": 5.5704, "q5_k_m": 5.7036,
    "q6_k": 6.5633, "q8_0": 8.5008,
}  # fmt: skip


@pytest.mark.parametrize(("name", "published"), BITS_PER_WEIGHT.items())
def test_every_mix_of_llama_8b(name: str, published: float) -> None:
    """To the last of four digits."""
    assert LLAMA_8B.counted is not None
    scheme = mix(name, LLAMA_8B)
    size = sum(scheme.bytes(block, weight, BF16) for block in LLAMA_8B.counted.blocks for weight in block.weights)

    assert round(8 * size / LLAMA_8B.counted.total, 4) == published


@pytest.mark.parametrize(
    ("model", "name", "published"),
    [
        # huggingface.co/bartowski/Qwen_Qwen3-4B-GGUF: with an importance matrix; the head is the embedding.
        ("Qwen/Qwen3-4B", "bf16", 8.05),
        ("Qwen/Qwen3-4B", "q8_0", 4.28),
        ("Qwen/Qwen3-4B", "q6_k", 3.31),
        ("Qwen/Qwen3-4B", "q5_k_m", 2.89),
        ("Qwen/Qwen3-4B", "q5_k_s", 2.82),
        ("Qwen/Qwen3-4B", "q4_1", 2.60),
        ("Qwen/Qwen3-4B", "q4_k_m", 2.50),
        ("Qwen/Qwen3-4B", "q4_k_s", 2.38),
        # huggingface.co/unsloth/Qwen3-14B-GGUF, Qwen3-14B-Q4_K_M.gguf: 9,001,753,984 bytes.
        ("Qwen/Qwen3-14B", "q4_k_m", 9.001753984),
        # huggingface.co/bartowski/TableLLM-13b-GGUF: a Llama 2 of 13B, without an importance matrix.
        (LLAMA_13B, "q8_0", 13.83),
        (LLAMA_13B, "q6_k", 10.67),
        (LLAMA_13B, "q5_k_m", 9.23),
        (LLAMA_13B, "q5_k_s", 8.97),
        (LLAMA_13B, "q4_k_m", 7.86),
        (LLAMA_13B, "q4_k_s", 7.42),
        (LLAMA_13B, "iq4_nl", 7.41),
        (LLAMA_13B, "iq4_xs", 7.01),
        (LLAMA_13B, "q4_0", 7.36),
        (LLAMA_13B, "q3_k_l", 6.92),
        (LLAMA_13B, "q3_k_m", 6.33),
        (LLAMA_13B, "iq3_m", 5.98),
        # huggingface.co/bartowski/Llama-3.2-1B-Instruct-GGUF.
        (LLAMA_1B, "fp16", 2.48),
        (LLAMA_1B, "q8_0", 1.32),
        (LLAMA_1B, "q6_k", 1.02),
        (LLAMA_1B, "q5_k_m", 0.91),
        (LLAMA_1B, "q5_k_s", 0.89),
        (LLAMA_1B, "q4_k_m", 0.81),
        (LLAMA_1B, "q4_k_s", 0.78),
        # huggingface.co/MaziyarPanahi, GGUF files of merges of Mistral 7B.
        ("mistralai/Mistral-7B-Instruct-v0.2", "q8_0", 7.70),
        ("mistralai/Mistral-7B-Instruct-v0.2", "q5_k_m", 5.13),
        ("mistralai/Mistral-7B-Instruct-v0.2", "q4_k_m", 4.37),
        ("mistralai/Mistral-7B-Instruct-v0.2", "q4_k_s", 4.14),
        ("mistralai/Mistral-7B-Instruct-v0.2", "q3_k_l", 3.82),
        # huggingface.co/ikawrakow/mixtral-8x7b-quantized-gguf: eight experts have rules of their own. Its Q3_K_S is of January 2024, before
        # the attention's output of such models got five bits in that mix: 32 x 4096 x 4096 numbers, 138 MB.
        ("mistralai/Mixtral-8x7B-v0.1", "q4_k_m", 28.4),
        ("mistralai/Mixtral-8x7B-v0.1", "q4_k_s", 26.7),
        ("mistralai/Mixtral-8x7B-v0.1", "q3_k_m", 22.5),
        ("mistralai/Mixtral-8x7B-v0.1", "q5_k_s", 32.2),
    ],
)
def test_published_files(model: str | ModelSpec, name: str, published: float) -> None:
    """The published size in GB, cut or rounded to its digits, less a header."""
    size = plan(model, seq=1, weights=name).memory.weights.bytes
    digit = 10.0 ** (9 - len(str(published).partition(".")[2])) if published != 9.001753984 else 0.0

    assert size is not None
    assert published * 1e9 - LARGEST_HEADER - digit <= size <= published * 1e9 + digit


def test_with_and_without_an_importance_matrix() -> None:
    """A few mixes depend on it: low and high are both."""
    iq4 = plan(LLAMA_8B, seq=1, weights="iq4_xs").memory.weights
    assert iq4.low is not None
    assert iq4.high is not None
    assert iq4.low < iq4.high == iq4.bytes
    q4_k_m = plan(LLAMA_8B, seq=1, weights="q4_k_m").memory.weights
    assert q4_k_m.low == q4_k_m.high == q4_k_m.bytes
    assert q4_k_m.definition == "estimate"


def test_rows_that_a_block_does_not_divide() -> None:
    """Rows of 896 numbers: Q4_K becomes Q5_0, Q6_K becomes Q8_0, and rows of 100 numbers stay in 16 bits."""
    odd = llama(1, 896, 1024, 14, 2, 1000, head_dim=64)
    scheme = mix("q4_k_m", odd)
    assert odd.counted is not None
    named = {
        weight.path: [portion.format.name for portion in scheme.portions(block, weight, BF16)]
        for block in odd.counted.blocks
        for weight in block.weights
    }
    assert named["self_attn.q_proj.weight"] == ["q5_0"]
    assert named["mlp.down_proj.weight"] == ["q6_k"]
    assert named["lm_head.weight"] == ["q8_0"]
    tiny = llama(1, 100, 100, 10, 2, 1000)
    assert plan(tiny, seq=1, weights="q4_k_m").memory.weights.bytes is not None


def test_blocks_of_ggml() -> None:
    """The bytes of a block, by ggml-common.h; the cache formats of the same names agree."""
    blocks = {"q2_k": 84, "q3_k": 110, "q4_k": 144, "q5_k": 176, "q6_k": 210, "iq1_s": 50, "iq1_m": 56, "iq2_xxs": 66, "iq2_xs": 74,
              "iq2_s": 82, "iq3_xxs": 98, "iq3_s": 110, "iq4_xs": 136, "tq1_0": 54, "tq2_0": 66}  # fmt: skip
    for name, size in blocks.items():
        assert GGML[name].bits * 32 + GGML[name].scale_bytes == size
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"):
        dtype = find_dtype(name)
        assert dtype is not None
        assert dtype.block_elements == GGML[name].group
        assert dtype.block_bytes == GGML[name].bits * 4 + GGML[name].scale_bytes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Q4_K_M", "q4_k_m"), ("q4-k-m", "q4_k_m"), (" IQ4_XS ", "iq4_xs"), ("q4_k", "q4_k_m"), ("exl2 4.0bpw", "exl2_4bpw"),
        ("exl2-4.25", "exl2_4.25bpw"), ("EXL3 3.5bpw", "exl3_3.5bpw"), ("exl3_8bits", "exl3_8bpw"), ("bnb-nf4", "bnb4"),
        ("mlx-4bit", "mlx_4bit"), ("mlx 8bit", "mlx_8bit"), ("w4a16", "int4"), ("f16", "fp16"), ("AWQ", "awq"), ("gptq-int4", "gptq"),
    ],
)  # fmt: skip
def test_spellings(text: str, name: str) -> None:
    """As people write them."""
    assert format_name(text) == name


@pytest.mark.parametrize(
    "text", ["exl2", "exl2 9bpw", "exl2 0.5bpw", "exl2 8.5bpw", "mlx-7bit", "", "exl2 4.123bpw", "iq9", "x" * 9999]
)
def test_unknown_formats(text: str) -> None:
    """The error lists what is known, and that other bits can be named."""
    with pytest.raises(UnknownNameError) as error:
        format_name(text)
    assert "q4_k_m" in error.value.hint
    assert "exl2 3.5bpw" in error.value.hint


def test_bits_per_weight() -> None:
    """The matrices of the layers in so many bits, the head in six, the embedding in 16: as ExLlama's converters write them."""
    embedding = head = 128256 * 4096
    norms = 65 * 4096
    matrices = 8_030_261_248 - embedding - head - norms
    size = plan(LLAMA_8B, seq=1, weights="exl2 4.25bpw").memory.weights.bytes
    assert size == matrices * 17 // 32 + head * 6 // 8 + 2 * (embedding + norms)
    # mlx-lm prints 4.501 bits per weight for such models: a scale and a bias of 16 bits per group of 64.
    mlx = plan(LLAMA_8B, seq=1, weights="mlx-4bit").memory.weights.bytes
    assert mlx is not None
    assert round(8 * mlx / 8_030_261_248, 3) == 4.5


@pytest.mark.parametrize("name", sorted({*MIXES, "exl2_4bpw", "exl3_4bpw", "mlx_4bit"}))
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b", "tiiuae/falcon-7b", "facebook/bart-large"])
def test_any_model_in_any_format(model: str, name: str) -> None:
    """Experts, latents, fused projections and encoders: less than 16 bits, more than the numbers themselves."""
    whole = plan(model, seq=1, weights="bf16").memory.weights
    assert whole.bytes is not None
    if name == "q1_0" and model in ("tiiuae/falcon-7b", "openai/gpt-oss-20b"):
        with pytest.raises(UnsupportedError, match="no whole blocks of 128"):
            plan(model, seq=1, weights=name)
        return
    weights = plan(model, seq=1, weights=name).memory.weights
    assert weights.bytes is not None
    assert weights.low is not None
    assert weights.high is not None
    assert whole.bytes // 15 < weights.low <= weights.bytes <= weights.high
    assert weights.bytes < 0.8 * whole.bytes


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm@0.23"])
def test_on_a_gpu(engine: str) -> None:
    """A verdict and a bound on speed, on one GPU and on several."""
    for gpus in (1, 2):
        result = plan("Qwen/Qwen3-8B", seq="4k", weights="q4_k_m", engine=engine, gpu="l4", gpus=gpus)
        assert result.fit is not None
        assert result.fit.fits
        assert result.speed is not None


def test_on_the_command_line(capsys: Capture) -> None:
    """For a model without any GGUF file."""
    status, out, _ = run(capsys, "Qwen/Qwen3-8B", "--seq", "4k", "--weights", "Q4_K_M")
    assert status == 0
    assert "q4_k_m" in out
    assert "5,021,827,072 B" in out
    assert {"q4_k_m", "iq4_xs"} < set(weight_formats())

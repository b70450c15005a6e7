"""Logs that state anything at all: the answer is a document, or an error of the program's own."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.errors import KvplanError
from hwcalc.reconcile import reconcile
from tests.effort import cases

SMALL: Final = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
NUMBERS: Final = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "7",
        "16",
        "4096",
        "131,072",
        "0.5",
        "0.92",
        "1e9",
        "nan",
        "None",
        "99999999999999999999",
        "123456789012345678",
    ]
)
STATEMENTS: Final = (
    "Initializing a V1 LLM engine (v0.{0}) with config: max_seq_len={1}, tensor_parallel_size={2}, kv_cache_dtype={3}",
    "non-default args: {{'max_model_len': {0}, 'block_size': {1}, 'max_num_seqs': {2}, 'max_num_batched_tokens': {3}}}",
    "non-default args: {{'num_gpu_blocks_override': {0}, 'kv_cache_memory_bytes': {1}, 'dtype': '{2}', 'quantization': 'fp8'}}",
    "speculative_config={{'method': 'ngram', 'num_speculative_tokens': {0}}} non-default args, data_parallel_size={1}",
    "Available KV cache memory: {0} GiB",
    "# GPU blocks: {0}, # CPU blocks: {1}",
    "GPU KV cache size: {0} tokens, Maximum concurrency for {1} tokens per request: {2}x",
    "Free memory on device ({0}/{1} GiB) on startup. Desired GPU memory utilization is ({2}, {3} GiB)",
    "Actual usage is {0} GiB for consumed memory (weights + non-torch), {1} GiB for peak activation, {2} GiB for CUDAGraph memory.",
    "max seq len ({0}), ({1} GiB KV cache is needed, which is larger than the available KV cache memory ({2} GiB).",
    "Based on the available memory, the estimated maximum model length is {0}.",
    'vllm:cache_config_info{{block_size="{0}",num_gpu_blocks="{1}",kv_cache_size_tokens="{2}",kv_cache_max_concurrency="{3}"}} 1',
    "memory footprint: {0} GB, KV cache: {1} bytes",
    "llama_context: constructing llama_context",
    "llama_context: n_ctx = {0}",
    "llama_context: n_seq_max = {0}",
    "llama_context: n_ubatch = {0}",
    "llama_kv_cache: CUDA0 KV buffer size = {0} MiB",
    "llama_kv_cache: size = {0} MiB ( {1} cells, {2} layers, {3}/1 seqs), K (q8_0): 1.00 MiB, V (q4_0): 1.00 MiB",
    "load_tensors: offloaded {0}/{1} layers to GPU",
    "load_tensors: CUDA{0} model buffer size = {1} MiB",
    "|   - CUDA0 (RTX 4090)   | {0} = {1} + ( {2} =     0 +       0 +    4205) +       -2590 |",
    'msg="starting llama-server" cmd="--ctx-size {0} --parallel {1} --n-gpu-layers {2} --cache-type-k {3}"',
)


@given(
    st.lists(
        st.builds(lambda text, a, b, c, d: text.format(a, b, c, d), st.sampled_from(STATEMENTS), *[NUMBERS] * 4), max_size=6
    ),
    st.sampled_from([None, "l4"]),
)
@settings(max_examples=cases(100, 300))
def test_whatever_a_log_states(lines: list[str], gpu: str | None) -> None:
    """An answer that can be written as JSON, or an error of the program's own."""
    try:
        found = reconcile(SMALL, lines, gpu=gpu)
    except KvplanError as error:
        assert error.exit_code == 3  # noqa: PT017 - which error is the claim
    else:
        json.dumps(found.to_dict(), allow_nan=False)

"""The lines of TensorRT-LLM's log: what is read, what follows for the plan, and what agrees."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc import load_model
from hwcalc.planner.context import open_request
from hwcalc.reconcile.dialects.tensorrt_llm import TensorrtLog

V1: Final = """\
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 8.59 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.53 GiB for max tokens in paged KV cache (8736).
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 1.20 GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 1.10 GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 14.06 GiB, available KV cache memory when calculating max \
tokens: 16.05 GiB, fraction is set 0.9, kv size per token is 65536 bytes/token. device total memory 31.36 GiB, temporary kv cache memory \
during profiling 0.53 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : 16.05 GiB
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
"""
"""The figures of a public log of Llama-3.1-8B with an fp8 cache on an RTX 5090, in the wordings of the facts."""


def parsed(text: str) -> TensorrtLog:
    """The parser behind these lines."""
    parser = TensorrtLog()
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    return parser


def test_what_is_read() -> None:
    """Each figure once, the last pool of two."""
    facts = parsed(V1).facts
    stated = {name: facts.number(name) for name in ("tokens", "token_bytes", "block_tokens", "fraction")}
    assert stated == {"tokens": 263_008, "token_bytes": 65_536, "block_tokens": 32, "fraction": 0.9}
    assert facts.number("pool_bytes") == pytest.approx(16.05 * 2**30, abs=1)
    for name in ("weights_bytes", "activation_bytes", "non_torch_bytes", "peak_bytes", "available_bytes", "total_bytes"):
        assert name in facts
    assert facts.number("temporary_bytes") == pytest.approx(0.53 * 2**30, abs=1)
    # A = (T - P + K) x fraction, within the digits.
    total, peak, temporary = (float(facts.number(name) or 0) for name in ("total_bytes", "peak_bytes", "temporary_bytes"))
    assert (total - peak + temporary) * 0.9 == pytest.approx(facts.number("available_bytes"), abs=0.015 * 2**30)


def test_what_the_plan_takes_of_it() -> None:
    """Block, share and manager are stated."""
    assert parsed(V1).inputs() == (
        {},
        {"tokens_per_block": "32", "free_gpu_memory_fraction": "0.9", "manager": "v1"},
    )
    v2 = parsed("[TRT-LLM] [I] KV cache manager v2 device quota set to 16.0512GiB")
    assert v2.inputs() == ({}, {"manager": "v2"})


def test_what_agrees() -> None:
    """Bytes of a token, the size of the pool and its tokens."""
    parser = parsed(V1)
    _, options = parser.inputs()
    opened = open_request(
        load_model("meta-llama/Llama-3.1-8B"), engine="tensorrt-llm", seq=8192, dtype="fp8", weights="fp8", engine_options=options
    )
    rows, notes = parser.compare(opened, 0.0)
    assert {row.name for row in rows if row.within} >= {"bytes per token", "pool", "tokens"}
    assert not notes


def test_a_new_start_forgets_the_old_one() -> None:
    """Two starts in one file: the last one counts."""
    parser = parsed(V1 + V1.replace("263008", "263040"))
    assert (parser.starts, parser.facts.number("tokens")) == (2, 263_040)

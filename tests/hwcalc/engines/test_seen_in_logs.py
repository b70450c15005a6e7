"""Rules of engines that public start-up logs decided."""

from __future__ import annotations

from typing import Final

from hwcalc import plan
from hwcalc.units import GIB

QWEN: Final = "Qwen/Qwen2.5-1.5B-Instruct"


def test_four_bits() -> None:
    """7,168 bytes of numbers and 896 of scales are 8,064 a token, as in 5,539,718 tokens of about 41.7 GiB."""
    made = plan(QWEN, engine="sglang", seq=8192, dtype="fp4_mx_block16", kv_memory=8064 * 5_539_718)
    assert made.pool is not None
    assert made.pool.tokens == 5_539_718


def test_prompts_are_taken_whole() -> None:
    """A plan with ``chunked_prefill_size=-1`` reports it; the share of the GPU counts a batch of 16,384 tokens and no graphs of prompts."""
    made = plan(QWEN, engine="sglang", gpu="h100", seq=8192, engine_options={"chunked_prefill_size": "-1"})
    assert made.fit is not None
    assert made.fit.budget is not None
    share = made.fit.budget.requested_bytes / made.fit.budget.total_bytes
    # 512 + 1.5 x 16,384 + 128 + 2 x 256 MiB of 81,559.
    assert abs(share - round((81_559 - 25_728) / 81_559, 3)) < 0.001


def test_ranks_as_sglang_counts_them() -> None:
    """Replicas of attention: a note says which --tp this is there."""
    made = plan(
        "Qwen/Qwen3-235B-A22B",
        engine="sglang",
        seq=8192,
        tp=2,
        dp=8,
        kv_memory="25GiB",
        engine_options={"enable_dp_attention": "true"},
    )
    assert any("--tp 16 --dp 8" in note.message for note in made.notes)


def test_padded_experts_on_gb10() -> None:
    """13.72 GiB of gpt-oss-20b in a log of vLLM 0.13: Marlin pads 2,880 to 3,072 and 2,944. None of it on a B200."""
    for gpu, size in (("gb10", 13.67), ("b200", 12.82)):
        made = plan("openai/gpt-oss-20b", engine="vllm@0.13", gpu=gpu, seq=8192)
        assert made.fit is not None
        assert made.fit.budget is not None
        held = sum(part.expected for part in made.fit.budget.parts if part.section == "weights")
        assert abs(held / GIB - size) < 0.01

"""The cache of a policy in blocks and in cells is derived: every figure has an equation, and it gives the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import explain
from hwcalc.library.explained import ExplainedSection
from hwcalc.text import TIMES
from tests.hwcalc.library.test_explain import value
from tests.hwcalc.library.test_explain_policy import SMALL, figure, section

QWEN = "Qwen/Qwen3-8B"
BLOCK = 16 * 36 * 4096
"""Bytes of a block: 16 tokens of 36 layers, 2 x 8 heads x 128 numbers of 2 bytes."""


def all_derived(part: ExplainedSection) -> None:
    """No figure without an equation, and each gives what stands behind it."""
    for one in part.figures:
        assert one.numbers, one.name
        assert value(one.numbers) == pytest.approx(one.result, rel=1e-5), one


def test_a_saw_in_blocks() -> None:
    """TriAttention: 4,001 tokens of the prompt and the one of the next step lie in 251 blocks; 2,143 at the end in 134."""
    part = section(QWEN, engine="vllm@0.18", seq=8192, prompt=4001, policy="triattention")

    all_derived(part)
    end, most = figure(part, "cache at the end"), figure(part, "cache at the most")
    assert end.formula == f"batch {TIMES} ceil(kept / block_size) {TIMES} bytes_of_block"
    assert (end.numbers, end.result) == (f"1 {TIMES} ceil(2,143 / 16) {TIMES} 2,359,296", 134 * BLOCK)
    assert most.result == 251 * BLOCK
    # 2,048 of 4,001 in random places: all but about one survivor move into order.
    assert figure(part, "in order").numbers == "round(2,048 - 2,048 / (4,001 - 2,048 + 1))"
    assert figure(part, "at any time").numbers == "max(251, 136)"


def test_prompts_that_are_read_at_once() -> None:
    """Of 16 sequences only those of two batches have a whole prompt in blocks."""
    options: dict[str, Any] = {"engine": "vllm@0.18", "seq": 8192, "prompt": 4001, "batch": 16, "policy": "triattention"}
    part = section(QWEN, engine_options={"max_num_batched_tokens": "4096"}, **options)
    most = figure(part, "cache at the most")

    assert "prompts" in most.formula
    assert value(most.numbers) == most.result
    # 2 prompts end in one batch of 4,096, and the cut of one step is made in the next: 4 of 251 blocks, 12 of 136.
    assert most.result == (4 * 251 + 12 * 136) * BLOCK


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (QWEN, {"policy": "snapkv:compression_ratio=0.9", "seq": 4001, "batch": 3, "tp": 2}),
        (QWEN, {"policy": "snapkv:compression_ratio=0.9", "seq": 8192, "prompt": 4001, "compaction": "none"}),
        (QWEN, {"policy": "streamingllm:compression_ratio=0.5", "seq": 8191, "prompt": 4001, "compaction": "none"}),
        (QWEN, {"policy": "streamingllm:compression_ratio=0.5", "seq": 8191}),
        (QWEN, {"policy": "pyramidkv:compression_ratio=0.5", "seq": 8191, "prompt": 4001}),
        (QWEN, {"policy": "chunkkv:press=(snapkv:compression_ratio=0.7)", "seq": 4001}),
        (QWEN, {"policy": "rkv:budget=1024", "seq": 8191, "prompt": 4001, "batch": 2}),
        (SMALL, {"policy": "knorm:compression_ratio=0.5", "seq": 15}),
        ("google/gemma-3-27b-it", {"policy": "streamingllm:compression_ratio=0.5", "seq": 32_001, "prompt": 20_001, "batch": 3}),
    ],
)
def test_every_figure_in_blocks(model: object, options: dict[str, Any]) -> None:
    """Lengths that fill no block, several layers, ranges and random survivors, windows beside."""
    all_derived(section(model, engine="vllm", **options))


@pytest.mark.parametrize("policy", ["triattention", "h2o:budget=512", "snapkv:compression_ratio=0.5"])
@pytest.mark.parametrize(("batch", "unified"), [(1, "false"), (4, "false"), (4, "true")])
def test_every_figure_in_cells(policy: str, batch: int, unified: str) -> None:
    """llama.cpp's cells come in multiples of 256, for each sequence or for all together."""
    options: dict[str, Any] = {"seq": 8191, "prompt": 4001, "engine": "llamacpp", "engine_options": {"kv_unified": unified}}
    told = explain(QWEN, policy=policy, batch=batch, **options)
    part = next(one for one in told.sections if one.name == "policy")

    all_derived(part)
    if policy == "h2o:budget=512" and unified == "false":
        # A buffer has room for a prompt: 16 x 256 cells of 147,456 bytes.
        assert figure(part, "cache at the end").result == batch * 16 * 256 * 147_456


def test_a_short_last_block_has_its_own_chance() -> None:
    """One head keeps 5 of 20 tokens: a block of 16 is free where all 5 lie in the other 4, never; the 4 by C(16, 5) / C(20, 5)."""
    one_head = {**SMALL, "num_hidden_layers": 1, "num_key_value_heads": 1}
    free = figure(section(one_head, engine="vllm", seq=20, policy="knorm:compression_ratio=0.75"), "without compaction")

    assert free.result == pytest.approx(4368 / 15504, abs=1e-3)
    assert free.formula == f"floor(tokens / block_size) {TIMES} chance + last_chance"
    assert value(free.numbers) == pytest.approx(free.result, abs=1e-3)


def test_chunks_are_derived() -> None:
    """int(51 x 0.3) = 15 chunks of 20 tokens; and 4 x int(1,024 x 0.3) + int(914 x 0.3) of chunks of 1,024."""
    chunks = figure(section(SMALL, seq=1010, policy="chunkkv:press=(snapkv:compression_ratio=0.7)"), "behind the prompt")
    within = figure(section(SMALL, seq=5010, policy="chunk:press=(snapkv:compression_ratio=0.7)"), "behind the prompt")

    assert (chunks.result, chunks.low, value(chunks.numbers)) == (300, 290, 300)
    assert (within.result, value(within.numbers)) == (4 * 307 + 274, 4 * 307 + 274)


def test_a_prefix_that_no_policy_may_cut() -> None:
    """200 tokens are 12 whole blocks once for three sequences; 200 + 333 tokens of each are 34 blocks behind the prompt."""
    options: dict[str, Any] = {"seq": 14_179, "prompt": 3250, "shared_prefix": 200, "batch": 3, "engine": "vllm@0.9"}
    end = figure(section(QWEN, policy="tova:budget=333", **options), "cache at the end")

    assert end.result == value(end.numbers) == (12 + 3 * (34 - 12)) * BLOCK


def test_padding_is_derived() -> None:
    """Six rows of 800 tokens for two each of 100, 200 and 800."""
    part = section(SMALL, "sharing", engine="transformers", lengths="100,200,800", batch=6)

    padding = figure(part, "padding")
    assert (padding.numbers, padding.result) == (f"1 {TIMES} (6 {TIMES} 800 - 2,200)", 2600)

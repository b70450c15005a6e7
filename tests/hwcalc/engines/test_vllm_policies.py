"""vLLM under a cache policy: blocks that groups hold, prompts that are read, and TriAttention's plug-in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import plan
from hwcalc.engines.vllm.policies import chunked_tokens
from hwcalc.planner.result import Plan
from hwcalc.policies.parse import parse_policy

QWEN = "Qwen/Qwen3-8B"
GEMMA = "google/gemma-3-12b-it"
BLOCK = 2**16 * 36
"""Bytes of a block of 16 tokens of Qwen3-8B: 36 layers of 8 x 128 keys and values in 16 bits."""


def planned(policy: str | None, model: str = QWEN, **request: Any) -> Plan:
    """A plan of vLLM with a budget."""
    values: dict[str, Any] = {"seq": 32768, "engine": "vllm", "kv_memory": "20GiB", "offline": True} | request
    return plan(model, policy=policy, **values)


def test_a_prompt_is_in_blocks_before_it_is_cut() -> None:
    """A tenth of 30,000 tokens and 2,768 that follow are 361 blocks; while the prompt is read there are 1,875."""
    found = planned("snapkv:compression_ratio=0.9", prompt=30_000)
    tensors = {tensor.name: tensor.bytes for tensor in found.cache.tensors}

    assert found.pool is not None
    assert found.pool.blocks_per_request == 361
    assert tensors == {"keys_values": 361 * 2**16 * 36, "prompt_blocks": (1875 - 361) * BLOCK}
    assert found.cache.total_bytes == found.cache.per_gpu_bytes == 1875 * BLOCK == found.pool.needed_bytes
    usable = found.pool.blocks - 1 if found.pool.blocks else 0
    assert found.pool.max_requests == (usable - (1875 - 361)) // 361
    many = planned("snapkv:compression_ratio=0.9", prompt=30_000, batch=found.pool.max_requests)
    assert many.fit is not None
    assert many.fit.fits
    more = planned("snapkv:compression_ratio=0.9", prompt=30_000, batch=found.pool.max_requests + 1)
    assert more.fit is not None
    assert not more.fit.fits


def test_short_prompts_are_read_together() -> None:
    """A batch of 8,192 tokens holds the end of one prompt of 3,000 and two others whole."""
    options = {"max_num_batched_tokens": "8192"}
    found = planned("snapkv:compression_ratio=0.9", seq=4000, prompt=3000, batch=10, engine_options=options)
    (prompts,) = (tensor for tensor in found.cache.tensors if tensor.name == "prompt_blocks")

    # 300 + 1,000 tokens in 82 blocks; 3,000 in 188.
    assert prompts.bytes == 3 * (188 - 82) * BLOCK


def test_a_group_holds_what_its_longest_layer_needs() -> None:
    """PyramidKV at a half keeps 29,250 of 30,000 tokens in its first layer, so that all layers hold as many."""
    pyramid = planned("pyramidkv:compression_ratio=0.5", prompt=30_000).policy
    even = planned("snapkv:compression_ratio=0.5", prompt=30_000).policy

    assert pyramid is not None
    assert even is not None
    assert pyramid.blocks is not None
    assert even.blocks is not None
    assert pyramid.blocks.nominal == even.blocks.nominal == even.blocks.free_compacted == 937
    assert pyramid.blocks.free_compacted == 1875 - -(-pyramid.layers[0].kept // 16) < 50


def test_windows_keep_what_they_keep() -> None:
    """Groups with a window hold as many blocks as without a policy; those without it fewer."""
    cut, whole = planned("knorm:compression_ratio=0.9", GEMMA, prompt=30_000), planned(None, GEMMA)
    for one, other in zip(cut.cache.groups, whole.cache.groups, strict=True):
        if other.kind == "full":
            assert one.blocks_per_request < other.blocks_per_request
        else:
            assert one == other


def test_without_hybrid_manager_windows_are_whole() -> None:
    """Layers with a window are then kept whole, in a group with layers that the policy cuts: nothing comes back."""
    options = {"disable_hybrid_kv_cache_manager": "true"}
    found = planned("knorm:compression_ratio=0.9", GEMMA, prompt=30_000, engine_options=options)

    assert found.cache.total_bytes == planned(None, GEMMA, engine_options=options).cache.total_bytes


def test_states_keep_what_they_keep() -> None:
    """A hybrid: the attention shrinks, the states stay."""
    cut = planned("knorm:compression_ratio=0.9", "Qwen/Qwen3-Next-80B-A3B-Instruct", prompt=30_000, tp=4)
    whole = planned(None, "Qwen/Qwen3-Next-80B-A3B-Instruct", tp=4)

    for one, other in zip(cut.cache.groups, whole.cache.groups, strict=True):
        assert (one.blocks_per_request < other.blocks_per_request) == (other.kind == "full")


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        # 30,000 tokens in 1,875 blocks. Sinks lie in the first, and the last 2,995 of 2,999 kept tokens in 188: 1,686 come back.
        ("streamingllm:compression_ratio=0.9", 2048 - 1686),
        # A choice of heads: none comes back for certain.
        ("snapkv:compression_ratio=0.9", 2048),
        # One token in each of 36 x 8 heads lies in 288 blocks at the most.
        ("knorm:compression_ratio=0.99999", 2048 - (1875 - 288)),
    ],
)
def test_without_compaction(policy: str, blocks: int) -> None:
    """What does not come back is held."""
    found = planned(policy, prompt=30_000, compaction="none")

    assert found.pool is not None
    assert found.pool.blocks_per_request == blocks
    assert found.policy is not None
    assert found.policy.blocks is not None
    assert found.policy.blocks.steady == blocks


def test_a_rolling_window_without_compaction() -> None:
    """StreamingLLM with a budget: a block of sinks, and a window that may begin inside a block."""
    found = planned("streamingllm:budget=1024,n_sink=4", prompt=512, compaction="none")

    # 1,025 tokens within a step: 4 in the first block, 1,021 in at most 65.
    assert found.pool is not None
    assert found.pool.blocks_per_request == 1 + 65


def test_masks_hold_everything() -> None:
    """Nothing comes back, and no blocks are told of."""
    found = planned("adakv:press=(knorm:compression_ratio=0.5)")

    assert found.cache.total_bytes == planned(None).cache.total_bytes
    assert found.policy is not None
    assert found.policy.blocks is None
    assert "a block table for each head" in found.policy.support


def test_the_log_knows_nothing_of_a_policy() -> None:
    """Tokens and concurrency are those of the start-up log."""
    cut, whole = planned("triattention").pool, planned(None).pool

    assert cut is not None
    assert whole is not None
    assert (cut.tokens, cut.max_concurrency, cut.blocks) == (whole.tokens, whole.max_concurrency, whole.blocks)
    assert (cut.max_requests or 0) > (whole.max_requests or 0)


def test_longer_sequences_fit() -> None:
    """1.5 GiB hold 10,923 tokens, but a model's whole length with 2,048 kept; and what is found fits, and one token more does not."""
    request: dict[str, Any] = {"kv_memory": "1.5GiB", "engine_options": {"max_num_batched_tokens": "2048"}}
    cut, whole = planned("triattention", prompt=1000, **request), planned(None, **request)

    assert cut.pool is not None
    assert whole.pool is not None
    assert (cut.pool.max_seq, whole.pool.max_seq) == (40_960, 10_896)
    assert cut.fit is not None
    assert cut.fit.fits
    found = planned("snapkv:compression_ratio=0.5", prompt=8000, **request)
    assert found.pool is not None
    longest = found.pool.max_seq or 0
    assert planned("snapkv:compression_ratio=0.5", prompt=8000, **request | {"seq": longest}).fit.fits  # type: ignore[union-attr]
    assert not planned("snapkv:compression_ratio=0.5", prompt=8000, **request | {"seq": longest + 1}).fit.fits  # type: ignore[union-attr]


def test_one_request_that_does_not_fit() -> None:
    """The prompt needs its blocks, whatever stays of it."""
    found = planned("snapkv:compression_ratio=0.9", kv_memory="1GiB")

    assert found.fit is not None
    assert not found.fit.fits
    # As many blocks as without the policy: what vLLM says is what it would say.
    assert (
        found.fit.message
        == "To serve at least one request with the model's max seq len (32768), (4.5 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum model length is 7264."
    )


@pytest.mark.parametrize(
    ("version", "options", "offered"),
    [
        ("0.33", {}, False),
        ("0.19.0", {}, False),
        ("0.18", {}, True),
        ("0.14", {}, True),
        ("0.12", {"async_scheduling": "false"}, True),
        ("0.13", {"async_scheduling": "true"}, False),
        ("0.11", {}, False),
    ],
)
def test_the_plug_in_fits_few_releases(version: str, options: dict[str, str], *, offered: bool) -> None:
    """Its code asks for what vLLM had from 0.12 to 0.18."""
    found = planned("triattention", engine=f"vllm@{version}", engine_options=options).policy

    assert found is not None
    assert (found.offered, "plug-in" in found.support) == (offered, True)
    assert found.definition == ("engine" if offered else "assumed")


def test_the_plug_in_repacks() -> None:
    """It has no other way, and no group of unlike layers."""
    requests: tuple[dict[str, Any], ...] = ({"compaction": "fill"}, {"model": GEMMA})
    for request in requests:
        found = planned("triattention", engine="vllm@0.18", **request).policy
        assert found is not None
        assert not found.offered


def test_the_plug_in_reads_prompts_in_chunks() -> None:
    """A budget and two chunks; a prompt in one chunk lies there whole, and the step behind it adds a token."""
    chosen = parse_policy("triattention")
    assert chosen is not None

    assert chunked_tokens(chosen, 100_000, 2048) == 2048 + 2 * 2048
    assert chunked_tokens(chosen, 100_000, 100) == 2175 + 100
    assert chunked_tokens(chosen, 1500, 8192) == 1501
    protected = parse_policy("triattention:prefill_outside_budget=true")
    assert protected is not None
    assert chunked_tokens(protected, 100_000, 2048) == 100_001


@given(budget=st.integers(1, 400), every=st.integers(2, 80), chunk=st.integers(1, 300), prompt=st.integers(1, 3000))
def test_chunks_of_a_prompt_step_by_step(budget: int, every: int, chunk: int, prompt: int) -> None:
    """Each step takes blocks for its tokens, then cuts what lay there before, then writes: no step takes more than is said."""
    chosen = parse_policy(f"triattention:kv_budget={budget},divide_length={every}")
    assert chosen is not None
    length, most, read = 0, 0, 0
    for tokens in [*[chunk] * (prompt // chunk), prompt % chunk, *[1] * (2 * every)]:
        if read >= prompt and tokens != 1:
            continue
        most = max(most, length + tokens if read < prompt or tokens == 1 else 0)
        if length + tokens >= budget + every and length > budget:
            length = budget
        length, read = length + tokens, read + tokens
    bound = chunked_tokens(chosen, prompt, chunk)

    assert most <= max(bound, budget + every)
    if prompt > 4 * (budget + every + chunk) and chunk >= every:
        assert bound - chunk < most <= bound


def test_ten_times_less() -> None:
    """4.5 GiB of Qwen3-8B at 32,768 tokens, 450 MiB at the peak of a budget of 3,072, and 432 MiB behind a cut: 10.24 x and 10.67 x."""
    found = planned("triattention:kv_budget=3072", engine="vllm@0.18", prompt=1000)

    assert found.policy is not None
    assert found.policy.blocks is not None
    assert found.policy.full_bytes == 9 * 2**29
    assert found.cache.total_bytes == 450 * 2**20 == found.policy.blocks.steady * BLOCK
    assert found.policy.full_bytes / found.cache.total_bytes == 10.24
    assert (found.policy.blocks.held - found.policy.blocks.free_compacted) * BLOCK == 432 * 2**20


def test_the_cadence() -> None:
    """136 blocks before a cut and 128 behind it; 8 come back."""
    found = planned("triattention", engine="vllm@0.18", seq=8192, prompt=1024).policy

    assert found is not None
    assert found.blocks is not None
    assert (found.blocks.before, found.blocks.held, found.blocks.nominal, found.blocks.free_compacted) == (2176, 136, 8, 8)
    assert (found.blocks.steady, found.blocks.choosers) == (136, 8)


@pytest.mark.parametrize(
    "policy",
    [
        "h2o:budget=64",
        "quest",
        "think:key_channel_compression_ratio=0.5",
        "streamingllm:budget=64",
        "snapkv:compression_ratio=0.5",
    ],
)
def test_what_it_would_take(policy: str) -> None:
    """Each policy that vLLM lacks says what it would take."""
    found = planned(policy, seq=1024, prompt=512).policy

    assert found is not None
    assert not found.offered
    assert "it would take" in found.support


@pytest.mark.parametrize(
    "policy", ["adakv:press=(knorm:compression_ratio=0.5)", "kvzip:compression_ratio=0.5", "fastkvzip:compression_ratio=0.5"]
)
def test_what_masks_would_take(policy: str) -> None:
    """Whatever kvpress masks for each head alone needs a block table for each head."""
    found = planned(policy).policy

    assert found is not None
    assert "a block table for each head" in found.support


@given(
    tokens=st.integers(2, 5000),
    share=st.floats(0, 1),
    ratio=st.floats(0, 0.99),
    name=st.sampled_from(["knorm", "streamingllm", "pyramidkv"]),
    compaction=st.sampled_from(["repack", "fill", "none"]),
    model=st.sampled_from([QWEN, GEMMA]),
)
@settings(max_examples=40, deadline=None)
def test_a_policy_never_holds_more(tokens: int, share: float, ratio: float, name: str, compaction: str, model: str) -> None:
    """Than nothing dropped; and what stays is never below its own tokens."""
    prompt = max(1, int(tokens * share))
    sinks = ",n_sink=0" if name == "streamingllm" else ",window_size=1" if name == "pyramidkv" else ""
    if prompt < 2:
        return
    cut = planned(f"{name}:compression_ratio={ratio}{sinks}", model, seq=tokens, prompt=prompt, compaction=compaction)
    whole = planned(None, model, seq=tokens)

    assert cut.cache.total_bytes <= whole.cache.total_bytes
    assert cut.pool is not None
    assert whole.pool is not None
    assert (cut.pool.blocks_per_request or 0) <= (whole.pool.blocks_per_request or 0)
    assert cut.policy is not None
    blocks = cut.policy.blocks
    if blocks is not None:
        assert blocks.free_low <= blocks.free <= blocks.free_high <= blocks.free_compacted + 1
        assert blocks.most >= -(-max(one.most for one in cut.policy.layers) // 16)
        if len(cut.policy.layers) == 1:
            assert blocks.nominal <= blocks.free_compacted


@given(kept=st.floats(0.05, 0.9), seq=st.integers(500, 9000), gibibytes=st.integers(1, 20), batched=st.sampled_from((1024, 8192)))
@settings(max_examples=20, deadline=None)
def test_most_requests_is_the_largest_that_fits(kept: float, seq: int, gibibytes: int, batched: int) -> None:
    """As many as fit, and not one more, whether prompts are still read or not."""
    options = {"max_num_batched_tokens": str(batched), "max_num_seqs": "1000"}
    request: dict[str, Any] = {"seq": seq, "prompt": seq // 2, "kv_memory": f"{gibibytes}GiB", "engine_options": options}
    pool = planned(f"snapkv:compression_ratio={kept}", **request).pool
    assert pool is not None
    assert pool.max_requests is not None
    for batch, holds in ((pool.max_requests, True), (pool.max_requests + 1, False)):
        if 1 <= batch <= 1000:
            fit = planned(f"snapkv:compression_ratio={kept}", batch=batch, **request).fit
            assert fit is not None
            assert fit.fits is holds


@pytest.mark.parametrize("pp", [1, 2])
def test_a_model_without_a_cache_has_nothing_to_drop(pp: int) -> None:
    """An encoder keeps nothing of a sequence, so that its pool is the null block under a policy too."""
    model = "Snowflake/snowflake-arctic-embed-m"
    plain, cut = (planned(policy, model, engine="vllm@0.20", seq=400, pp=pp).pool for policy in (None, "streaming-llm"))

    assert cut is not None
    assert (cut.blocks, cut.needed_bytes, cut.fits) == (1, 0, True)
    assert cut == plain

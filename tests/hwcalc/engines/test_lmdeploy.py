"""LMDeploy: worked cases with their arithmetic, laws, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy, Shares, shares_of
from hwcalc.engines.lmdeploy.layout import FORMATS, Shape, aligned, pytorch_pieces, turbomind_pieces
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.setup import Request
from hwcalc.errors import KvplanError, UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import KINDS
from hwcalc.planner.context import open_request
from hwcalc.sources.listing import known_ids

GIB = 2**30
LLAMA = "meta-llama/Llama-3.1-8B"
GDN = "Qwen/Qwen3.5-35B-A3B"


def opened(model: str = LLAMA, **wanted: Any) -> LmdeployOccupancy:
    """What LMDeploy holds of a request."""
    options = {name: str(value) for name, value in wanted.pop("options", {}).items()}
    made = open_request(load_model(model), engine_options=options, **{"seq": 64, "engine": "lmdeploy", **wanted})
    assert isinstance(made, LmdeployOccupancy)
    return made


def shares_with(made: LmdeployOccupancy, free: int) -> Shares:
    """What becomes of the free memory."""
    return shares_of(made.block_pool, made.model.vocab_size or 0, free)


def pool(made: LmdeployOccupancy, budget: int) -> PoolInfo:
    """The pool of a budget."""
    found = made.pool(budget).value
    assert found is not None
    return found


def test_the_share_of_what_is_free() -> None:
    """Llama-3-8B on an H100, 60 GiB free: (64,424,509,440 - 10,240 x 128,256 x 2) x 0.8 / 8,388,608 = 5,893 blocks, 377,152 tokens."""
    made = opened()
    shares = shares_with(made, 60 * GIB)
    assert shares.runtime == (8192 + 2 * 1024) * 128_256 * 2 == 2_626_682_880
    assert shares.cache == int((60 * GIB - shares.runtime) * 0.8)
    assert sum(shares) == 60 * GIB
    found = pool(made, shares.cache)
    assert (found.blocks, found.tokens) == (5893, 377_152)


def test_a_smaller_forward_pass_where_little_is_free() -> None:
    """(8,192 + 2,048) x 128,256 x 2 of 2.75 GiB leave too little for 16 blocks: 4,096 tokens leave room for more."""
    made = opened()
    free = 2_626_682_880 + 50 * 2**20
    assert shares_with(made, free).runtime == (4096 + 2 * 1024) * 128_256 * 2
    assert pool(made, shares_with(made, free).cache).fits


@pytest.mark.parametrize(("blocks", "said"), [(2, "kv cache"), (15, "runtime"), (16, None)])
def test_too_few_blocks(blocks: int, said: str | None) -> None:
    """PyTorch starts with 16 blocks or more."""
    found = pool(opened(), blocks * 8_388_608)
    assert found.message == (said and f"No enough gpu memory for {said}.")
    assert found.fits is (said is None)


def test_a_block_is_reserved_and_a_session_ends_one_earlier() -> None:
    """Of 20 blocks 19 hold requests, and the longest session has 18 x 64 = 1,152 tokens."""
    budget = 20 * 8_388_608
    found = pool(opened(seq=64), budget)
    assert (found.blocks, found.max_requests, found.max_seq) == (20, 19, 1152)
    assert pool(opened(seq=1152), budget).fits
    assert not pool(opened(seq=1153), budget).fits
    assert pool(opened(seq=1280, options={"backend": "turbomind"}), budget).fits


def test_blocks_by_their_number() -> None:
    """Whatever the memory: TurboMind of 0.14 by cache_max_entry_count, PyTorch by num_gpu_blocks; more than there is do not start."""
    for options in ({"backend": "turbomind", "cache_max_entry_count": 100}, {"num_gpu_blocks": 100}):
        found = pool(opened(options=options, engine="lmdeploy@0.14"), 100 * 8_388_608)
        assert (found.blocks, found.fits) == (100, True)
        short = pool(opened(options=options, engine="lmdeploy@0.14"), 100 * 8_388_608 - 1)
        assert (short.fits, short.message) == (False, "CUDA out of memory. Tried to allocate 0.78 GiB.")
    states = opened(GDN, options={"num_gpu_blocks": 100, "max_batch_size": 1})
    needed = 100 * states.deployment.layout.block_bytes + states.block_pool.state_bytes
    assert [pool(states, size).fits for size in (needed - 1, needed)] == [False, True]


@pytest.mark.parametrize(("policy", "token"), [("0", 131_072), ("8", 67_584), ("4", 34_816), ("int8", 67_584), ("none", 131_072)])
def test_turbomind_has_the_same_bytes(policy: str, token: int) -> None:
    """Llama-3.1-8B: 32 layers x 8 heads x 2 x (128 x bits / 8 + 4 if it is quantised)."""
    for backend in ("turbomind", "pytorch"):
        assert pool(opened(options={"backend": backend, "quant_policy": policy}), GIB).bytes_per_token == token


def test_turbomind_keeps_a_latent_once() -> None:
    """GLM-4.7-Flash: 47 layers x 576 x 2 bytes, and no values."""
    for backend in ("turbomind", "pytorch"):
        made = pool(opened("zai-org/GLM-4.7-Flash", options={"backend": backend}), GIB)
        assert made.bytes_per_token == 47 * 576 * 2 == 54_144


def test_states_of_all_slots() -> None:
    """Qwen3.5-35B: 30 x (8,192 x 4 x 2 + 32 x 128 x 128 x 2) = 33,423,360 bytes a slot; 1,026 slots on an H100, 31.9 GiB."""
    made = opened(GDN)
    assert made.deployment.layout.slot_bytes == 30 * (8192 * 4 * 2 + 32 * 128 * 128 * 2) == 33_423_360
    assert made.deployment.settings.slots == 1024 + 2
    assert made.block_pool.state_bytes == 1026 * 33_423_360
    assert made.stored_bytes == made.block_pool.state_bytes + 64 * 20_480
    assert opened(GDN, options={"max_batch_size": 8, "prefix_cache_state_budget": 5}).deployment.settings.slots == 15
    old = opened(GDN, options={"max_batch_size": 8, "backend": "turbomind"}, engine="lmdeploy@0.14")
    assert old.deployment.settings.slots == 8
    wide = opened(GDN, options={"fp32_mamba_ssm_dtype": "true"})
    assert wide.deployment.layout.slot_bytes == 30 * (8192 * 4 * 2 + 32 * 128 * 128 * 4)
    assert wide.reported().environment == ("LMDEPLOY_FP32_MAMBA_SSM_DTYPE=1",)
    assert (
        pool(made, made.block_pool.state_bytes).message == "No enough gpu memory for state cache. Please reduce max_batch_size."
    )


@pytest.mark.parametrize(
    ("gpu", "batches"),
    [("a100-sxm4-80gb", 384), ("h100-sxm5-80gb", 1024), ("h200-sxm-141gb", 1024), ("l40s", 128), ("b200-180gb", 128)],
)
def test_sequences_at_once_follow_from_the_name_of_the_gpu(gpu: str, batches: int) -> None:
    """lmdeploy/utils.py get_max_batch_size."""
    assert opened(gpu=gpu).most_sequences() == (batches, "max_batch_size")


def test_a_window_frees_blocks_only_where_the_whole_model_has_one() -> None:
    """Mistral-7B keeps 4,096 tokens in at most 65 blocks behind a short prompt; gpt-oss keeps every token of every layer."""
    assert opened("mistralai/Mistral-7B-v0.1", seq=32_768, prompt=100).blocks == 4096 // 64 + 1
    assert opened("mistralai/Mistral-7B-v0.1", seq=32_768).blocks == 32_768 // 64
    assert opened("openai/gpt-oss-20b", seq=32_768, prompt=100).blocks == 32_768 // 64
    assert opened("google/gemma-3-27b-it", seq=32_768, prompt=100).deployment.settings.window == 0
    assert opened("Qwen/Qwen2.5-7B-Instruct", prompt=10).deployment.settings.window == 0


def test_more_ranks_than_heads_have_copies() -> None:
    """Qwen3-30B-A3B has four key/value heads: on eight ranks each is there twice."""
    four, eight = (opened("Qwen/Qwen3-30B-A3B", tp=tp) for tp in (4, 8))
    assert four.deployment.layout.block_bytes == eight.deployment.layout.block_bytes == 48 * 64 * 2 * 128 * 2
    assert eight.stored_bytes == 2 * four.stored_bytes


def test_blocks_of_a_wide_latent() -> None:
    """Without flash_mla, which needs a Hopper, heads of 512 numbers and more have blocks of 32 tokens."""
    assert opened("deepseek-ai/DeepSeek-V3", gpu="h200", tp=8).deployment.settings.block_size == 64
    assert opened("deepseek-ai/DeepSeek-V3", gpu="a100-sxm4-80gb", tp=16, weights="bf16").deployment.settings.block_size == 32
    assert opened("deepseek-ai/DeepSeek-V3", options={"flash_mla": "false"}).deployment.settings.block_size == 32


def test_prefix_caching_keeps_whole_blocks_once() -> None:
    """Of 1,000 tokens 15 blocks are shared by eight requests of 2,048."""
    options = {"enable_prefix_caching": "true"}
    shared = opened(seq=2048, batch=8, shared_prefix=1000, options=options)
    assert shared.held.total == 15 + 8 * (32 - 15)
    apart = opened(seq=2048, batch=8, shared_prefix=1000)
    assert apart.held.total == 8 * 32
    assert not apart.sharing_support.offered
    assert shared.needed_bytes == shared.held.total * 8_388_608


@given(
    heads=st.integers(1, 64),
    width=st.integers(1, 64).map(lambda number: 8 * number),
    policy=st.sampled_from(sorted(FORMATS)),
    kernel=st.sampled_from([16, 32, 64]),
    times=st.integers(1, 4),
)
def test_pieces_are_aligned_and_add_up(heads: int, width: int, policy: int, kernel: int, times: int) -> None:
    """Every piece is a multiple of 256 bytes, no format takes more than 16 bits with its scales, and TurboMind rounds nothing up."""
    shape = Shape(heads=heads, key=width, value=width)
    pieces = pytorch_pieces(shape, FORMATS[policy], kernel * times, kernel)
    assert all(piece.bytes % (256 * times) == 0 for piece in pieces)
    plain = sum(piece.bytes for piece in pytorch_pieces(shape, FORMATS[policy], kernel, kernel))
    assert sum(piece.bytes for piece in pieces) == times * plain
    if policy in (0, 4, 8) and width != 576:
        exact = sum(piece.bytes for piece in turbomind_pieces(shape, FORMATS[policy], kernel * times))
        assert exact <= sum(piece.bytes for piece in pieces) < exact + 4 * 256 * times
    assert aligned(width) - width < 256


def test_every_kind_of_layer_has_a_rule_or_is_refused() -> None:
    """The catalog's models: a plan with the bytes of its pieces, or a refusal that says what to do."""
    kinds: set[str] = set()
    hints: list[str | None] = []
    planned = 0
    for name in known_ids():
        model = load_model(name)
        try:
            made = opened(name, seq=300)
        except KvplanError as refused:
            hints.append(refused.hint)
            continue
        planned += 1
        kinds |= {group.kind.name for group in model.stack.groups}
        assert made.needed_bytes == made.blocks * made.deployment.layout.block_bytes + made.block_pool.state_bytes
    assert planned > 100
    assert all(hints)
    assert kinds <= {
        "full_attention", "sliding_attention", "chunked_attention", "latent_attention", "sparse_indexer", "gated_delta_net", "no_cache"
    }  # fmt: skip
    assert kinds < set(KINDS)


@pytest.mark.parametrize(
    ("model", "wanted", "error"),
    [
        ("microsoft/phi-2", {}, UnsupportedError),
        ("mistralai/Mistral-7B-v0.1", {"options": {"backend": "turbomind"}}, UnsupportedError),
        (LLAMA, {"options": {"backend": "turbomind"}, "dtype": "fp8"}, UnsupportedError),
        (LLAMA, {"dtype": "nvfp4"}, UnknownNameError),
        (LLAMA, {"dtype": "int8", "options": {"quant_policy": "4"}}, UsageError),
        (LLAMA, {"pp": 2}, UnsupportedError),
        (LLAMA, {"tp": 16, "dcp": 2}, UnsupportedError),
        (LLAMA, {"tp": 3}, UsageError),
        (LLAMA, {"tp": 2, "ep": 2}, UsageError),
        (LLAMA, {"gpu": "mi300x"}, UnsupportedError),
        (LLAMA, {"options": {"cache_block_seq_len": "48"}}, UsageError),
        (LLAMA, {"options": {"cache_max_entry_count": "1.2"}}, UsageError),
        (LLAMA, {"options": {"cache_max_entry_count": "1.2", "backend": "turbomind"}}, UsageError),
        (LLAMA, {"options": {"cache_max_entry_count": "4096"}}, UsageError),
        (LLAMA, {"options": {"quant_policy": "5"}}, UsageError),
        (LLAMA, {"options": {"backend": "turbomind", "num_gpu_blocks": "100"}}, UsageError),
        ("deepseek-ai/DeepSeek-V3.2", {"gpu": "a100-sxm4-80gb", "tp": 8}, UnsupportedError),
        ("zai-org/GLM-5.2", {"options": {"flash_mla": "false"}}, UnsupportedError),
        (LLAMA, {"policy": "h2o:budget=512"}, UnsupportedError),
        ("deepseek-ai/DeepSeek-V3", {"options": {"cache_block_seq_len": "128"}}, UsageError),
    ],
)
def test_refusals(model: str, wanted: dict[str, Any], error: type[KvplanError]) -> None:
    """Each says what to do."""
    with pytest.raises(error) as caught:
        opened(model, **wanted)
    assert caught.value.hint


def test_sparse_latents_have_a_format_of_their_own() -> None:
    """DeepSeek-V3.2: 61 x (656 + 128 + 4) bytes a token, whatever is asked for, which is said; since 0.16 other formats are refused."""
    made = opened("deepseek-ai/DeepSeek-V3.2", dtype="int8", engine="lmdeploy@0.15")
    assert pool(made, GIB).bytes_per_token == 61 * (656 + 128 + 4) == 48_068
    assert "dtype-ignored" in {note.code for note in made.notes}
    assert opened("deepseek-ai/DeepSeek-V3.2", engine="lmdeploy@0.16").deployment.settings.fp8_rows
    for release in ("0.16", "0.18"):
        with pytest.raises(UnsupportedError, match="Sparse MLA does not support"):
            opened("deepseek-ai/DeepSeek-V3.2", dtype="int8", engine=f"lmdeploy@{release}")


def test_the_buffer_of_indexers() -> None:
    """Since 0.17 a forward pass has 512 MiB for their scores: (8,192 + 2,048) x 129,280 x 2 + 536,870,912 bytes."""
    for release, more in (("0.16", 0), ("0.17", 512 * 2**20), ("0.18", 512 * 2**20)):
        made = opened("deepseek-ai/DeepSeek-V3.2", engine=f"lmdeploy@{release}")
        assert shares_with(made, 60 * GIB).runtime == 10_240 * 129_280 * 2 + more


@pytest.mark.parametrize(
    ("model", "release", "options", "words"),
    [
        ("bigcode/starcoder2-7b", "0.15", {}, "it was there before 0.15"),
        ("moonshotai/Kimi-K2.5", "0.16", {}, "it is there since 0.17"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "0.15", {"backend": "turbomind"}, "it is there since 0.16"),
        (LLAMA, "0.15", {"backend": "turbomind", "cache_max_entry_count": 100}, "no longer accepts"),
        (GDN, "0.15", {"backend": "turbomind"}, "slabs"),
    ],
)
def test_what_a_release_does_not_have(model: str, release: str, options: dict[str, Any], words: str) -> None:
    """Classes that came and went (module_map.py), and TurboMind's region of objects since 0.15."""
    with pytest.raises(KvplanError, match=words):
        opened(model, engine=f"lmdeploy@{release}", options=options)


def test_the_budget_of_a_gpu() -> None:
    """The pool is the share of what weights, context and the forward pass leave of the GPU."""
    made = plan(LLAMA, engine="lmdeploy", gpu="h100-sxm5-80gb", seq=8192)
    assert made.fit is not None
    assert made.fit.budget is not None
    budget = made.fit.budget
    parts = {part.name: part for part in budget.parts}
    free = budget.total_bytes - parts["weights"].expected - parts["context"].expected
    assert budget.expected == int((free - parts["forward pass"].expected) * 0.8)
    assert budget.low <= budget.expected <= budget.high
    half = plan(LLAMA, engine="lmdeploy", gpu="h100-sxm5-80gb", seq=8192, memory_utilization=0.4)
    assert half.fit is not None
    assert half.fit.budget is not None
    assert abs(2 * half.fit.budget.expected - budget.expected) <= 1


def test_versions() -> None:
    """A patch has the rules of its release."""
    engine, _ = find_engine("lmdeploy")
    assert {engine.version(text) for text in ("0.14", "0.14.0")} == {"0.14"}
    assert {engine.version(text) for text in (None, "0.18", "0.18.0")} == {"0.18"}
    with pytest.raises(UnknownNameError):
        engine.version("0.9")
    assert engine.unchecked(load_model(LLAMA), Request.of(seq=5)).deployment.version == "0.18"

"""Cache policies in a plan: what is left, what the prefill needs, and what both come to in the memory equation."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import keep, load_model, plan
from hwcalc.engines.policies import PART, peaks_of
from hwcalc.errors import UsageError
from hwcalc.model import Definition
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan
from hwcalc.policies.base import EAGER, AskedPolicy
from hwcalc.policies.parse import parse_policy, policies
from tests.hwcalc.policies.test_golden import ROWS
from tests.hwcalc.policies.tiny import tiny

WRITTEN: Final = {
    "h2o": "h2o:budget=64",
    "scissorhands": "scissorhands:budget=64",
    "rkv": "rkv:budget=64,divide_length=32",
    "triattention": "triattention:kv_budget=64,divide_length=16",
    "quest": "quest:token_budget=64",
    "streamingllm": "streamingllm:compression_ratio=0.5",
    "finch": "finch:compression_ratio=0.5",
    "composed": "composed:presses=[(knorm:compression_ratio=0.5),(streamingllm:compression_ratio=0.5)]",
    "perlayercompression": "perlayercompression:press=(knorm),compression_ratios=[0.1,0.2,0.5,0.9]",
    "simlayerkv": "simlayerkv:lazy_threshold=0.0,n_recent=64",
    "decoding": "decoding:base_press=(knorm),compression_interval=16,target_size=64",
    "compressionratiodecoding": "compressionratiodecoding:base_press=(knorm),compression_interval=16",
    "prefilldecoding": "prefilldecoding:prefilling_press=(knorm:compression_ratio=0.5),"
    "decoding_press=(decoding:base_press=(knorm),compression_interval=16,target_size=64)",
    "duoattention": "duoattention:head_compression_ratio=0.5,_duo=[16,32,0]",
    "dms": "dms:press=(knorm),threshold=-0.6,sliding_window_size=64",
    "think": "think:key_channel_compression_ratio=0.5",
}
"""A policy that does something, by name, where its ratio or the one inside does not say it."""


def written(name: str) -> str:
    """A policy of this name that drops something of a few hundred tokens."""
    if name in WRITTEN:
        return WRITTEN[name]
    names = {option.name for option in policies()[name].options}
    if "compression_ratio" in names:
        window = ",window_size=16" if "window_size" in names else ""
        return f"{name}:compression_ratio=0.5{window}"
    if "base_press" in names:
        return f"{name}:base_press=(knorm)"
    return f"{name}:press=(knorm:compression_ratio=0.5)" if "press" in names else name


def planned(policy: str, prompt: int = 200, output: int = 100, config: Any = None, **more: Any) -> Plan:
    """The plan of a tiny model."""
    return plan(config or tiny(), seq=prompt + output, prompt=prompt, policy=policy, **more)


@pytest.mark.parametrize("name", list(policies()))
def test_a_plan_agrees_with_what_is_kept(name: str) -> None:
    """Each of the policies: bytes behind the prompt, at the end and at the most; and the document is the plan."""
    policy = written(name)
    found, kept = planned(policy), keep(tiny(), policy, prompt=200, decode=100)
    info = found.policy
    assert info is not None

    assert (info.full_bytes, info.prefill_bytes, info.prefill_low_bytes) == (300 * 1024, kept.storage_bytes, kept.cache_low_bytes)
    assert info.last_bytes == kept.after_decode_bytes
    assert info.most_bytes == found.cache.total_bytes == sum(len(group.layers) * group.most for group in info.layers) * 256
    assert max(group.most for group in info.layers) == max(kept.most_tokens_within_step, *kept.per_layer)
    assert {number: group.kept for group in info.layers for number in group.layers} == dict(enumerate(kept.per_layer))
    assert {number: group.last for group in info.layers for number in group.layers} == dict(
        enumerate(kept.after_decode_per_layer)
    )
    assert info.saved_bytes == info.full_bytes - info.most_bytes >= 0
    assert json.loads(json.dumps(found.to_dict()))["policy"]["most_bytes"] == info.most_bytes


SCORERS: Final = ("knorm", "snapkv", "tova", "streamingllm", "pyramidkv", "keydiff")


@given(
    name=st.sampled_from(SCORERS),
    ratio=st.floats(0, 0.99),
    prompt=st.integers(70, 900),
    output=st.integers(0, 200),
    layers=st.integers(1, 6),
    kv=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_random_plans(name: str, ratio: float, prompt: int, output: int, layers: int, kv: int, batch: int) -> None:
    """A plan agrees with ``keep``, never holds more than without the policy, and is additive over layers and sequences."""
    policy = f"{name}:compression_ratio={ratio:.6f}"
    config = tiny({"layers": layers, "kv": kv})
    found = planned(policy, prompt, output, config, batch=batch)
    kept = keep(config, policy, prompt=prompt, decode=output, batch=batch)
    info = found.policy
    assert info is not None

    assert (info.prefill_bytes, info.last_bytes) == (kept.storage_bytes, kept.after_decode_bytes)
    assert info.prefill_bytes <= info.most_bytes <= info.full_bytes
    each = sum(len(group.layers) * group.most for group in info.layers)
    assert info.most_bytes == batch * each * 2 * kv * 16 * 4
    assert info.most_bytes == batch * planned(policy, prompt, output, config).cache.total_bytes
    assert info.full_prefill_peak_bytes == batch * prompt * layers * 2 * kv * 16 * 4


FIT: Final = {"sdpa": 3720 - 1024, EAGER: 2696 - 1024}
"""Bytes of activations for each token of the tiny models at their fullest: in the MLP, and in attention (``facts`` of the CPU allocator)."""
INNER: Final = 1024
"""Of those in the MLP, its inner vectors: gate and up, 2 x 128 x 4 bytes."""
PEAKS: Final = [
    row
    for row in ROWS
    if "prefill_peak_bytes" in row["expect"]
    and row["press"] is not None
    and row["press"][0]
    in {
        "KnormPress",
        "StreamingLLMPress",
        "ObservedAttentionPress",
        "TOVAPress",
        "RandomPress",
        "ChunkPress",
        "LagKVPress",
        "MergingPress",
    }
    and row.get("model", {}).get("dtype") is None
]


@pytest.mark.parametrize("row", PEAKS, ids=[row["name"] for row in PEAKS])
def test_the_peak_of_a_prefill(row: dict[str, Any]) -> None:
    """What the allocator of torch saw: in the last MLP everything is cut; in the last attention all layers but that one are."""
    chosen = parse_policy(row["press"])
    assert chosen is not None
    model, tokens, attention = load_model(tiny(row.get("model", {}))), row["N"], row.get("attn", "sdpa")
    opened = open_request(model, seq=tokens, policy=chosen)
    peaks = peaks_of(opened)
    scores = 0 if attention == "sdpa" else peaks.beside
    in_attention = FIT[EAGER] * tokens + 12 + peaks.scored + scores
    in_mlp = FIT["sdpa"] * tokens + peaks.cache

    assert peaks.cache == row["expect"]["cache_bytes"]
    assert row["expect"]["prefill_peak_bytes"] == (in_attention if attention == EAGER else in_mlp)
    if attention == EAGER:
        # The part of the memory equation is what attention needs beyond the MLP.
        assert in_attention - 12 == in_mlp + peaks.beyond(INNER * tokens)


SNAPKV: Final = [
    row for row in ROWS if row["name"] in {"snapkv-256-0.5-w64", "snapkv-peak-1024-w64", "pyramidkv-1000-0.7-w64-b20-l4"}
]


@pytest.mark.parametrize("row", SNAPKV, ids=[row["name"] for row in SNAPKV])
def test_the_peak_of_scores_of_a_window(row: dict[str, Any]) -> None:
    """In the hook two copies of the hidden vectors are gone, and the queries of the window are there: 64 x 64 x 4 bytes."""
    chosen = parse_policy(row["press"])
    assert chosen is not None
    tokens = row["N"]
    peaks = peaks_of(open_request(load_model(tiny(row.get("model", {}))), seq=tokens, policy=chosen))

    assert row["expect"]["prefill_peak_bytes"] == (FIT[EAGER] - 2 * 256) * tokens + 12 + 64 * 64 * 4 + peaks.prefill


def test_scores_that_take_more_than_is_saved() -> None:
    """Observed attention at 32k: 32 heads x 10 bytes and a mask, for one layer; on an H100 that does not fit, and it is said why."""
    found = plan("Qwen/Qwen3-8B", seq="32k", policy="observedattention:compression_ratio=0.5", gpu="h100-sxm5-80gb")
    whole = plan("Qwen/Qwen3-8B", seq="32k", gpu="h100-sxm5-80gb")
    assert found.policy is not None
    assert found.fit is not None
    assert whole.fit is not None
    scores = (10 * 32 + 2) * 32_768**2

    assert found.policy.loses
    assert not found.fit.fits
    assert whole.fit.fits
    assert found.policy.prefill_peak_bytes == scores + 35 * 16_384 * 4096 + 32_768 * 4096
    assert found.fit.budget is not None
    part = next(part for part in found.fit.budget.parts if part.name == PART)
    assert part.low <= part.expected <= part.high <= scores + whole.cache.total_bytes
    assert "policy-loses" in {note.code for note in found.warnings}
    assert (found.fit.max_seq or 0) < 32_768


def test_heads_share_scores_between_ranks() -> None:
    """On two tensor-parallel ranks each has half of the heads, and one mask."""
    peaks = [plan("Qwen/Qwen3-8B", seq="8k", policy="observedattention:compression_ratio=0.5", tp=tp).policy for tp in (1, 2, 4)]
    scores = [next(extra.bytes for extra in info.beside) for info in peaks if info is not None]

    assert scores == [(10 * heads + 2) * 8192**2 for heads in (32, 16, 8)]


def test_stages_hold_their_own_layers() -> None:
    """On pipeline stages a stage has its own layers alone, each whole until it is cut."""
    info = plan("Qwen/Qwen3-8B", seq="8k", policy="knorm:compression_ratio=0.5", pp=4).policy
    assert info is not None

    assert info.prefill_peak_bytes == (8 * 4096 + 8192) * 4096


@pytest.mark.parametrize("engine", ["reference", "transformers@5.2"])
@given(
    first=st.integers(1, 3000), more=st.integers(0, 500), ratio=st.sampled_from([0.0, 0.3, 0.9]), name=st.sampled_from(SCORERS)
)
@settings(max_examples=15, deadline=None)
def test_more_tokens_take_no_less(engine: str, name: str, ratio: float, first: int, more: int) -> None:
    """Of the prompt and of the output, for all but PyramidKV, whose rounding may take half a token a layer."""
    policy = f"{name}:compression_ratio={ratio}"
    try:
        sizes = [planned(policy, first + extra, 50, engine=engine).cache.total_bytes for extra in (0, more)]
    except UsageError:
        return

    assert sizes[0] <= sizes[1] + (name == "pyramidkv") * 4 * 256


def test_quantised_caches_hold_what_is_left() -> None:
    """Kvpress unpacks a layer, cuts it and quantises the rest: 4 bits and two scales for each 64 numbers of 512 of 1,024 tokens."""
    options = {"cache": "quantized"}
    config = tiny() | {"hidden_size": 256, "head_dim": 64}
    found = planned("knorm:compression_ratio=0.5", 1024, 0, config, engine="transformers@5.2", engine_options=options)
    numbers = 512 * 2 * 64

    assert found.cache.total_bytes == 4 * 2 * (numbers // 2 + 2 * 4 * numbers // 64)
    assert found.policy is not None
    assert found.policy.prefill_peak_bytes > found.policy.full_prefill_peak_bytes


def test_a_static_cache_frees_nothing() -> None:
    """It holds its positions whatever is dropped, and that is said."""
    found = planned("knorm:compression_ratio=0.5", engine="transformers@5.2", engine_options={"cache": "static"})

    assert found.policy is not None
    assert (found.policy.offered, found.policy.saved_bytes) == (False, 0)
    assert "static" in found.policy.support


@pytest.mark.parametrize(
    ("policy", "engine", "offered", "word"),
    [
        ("snapkv:compression_ratio=0.5", "transformers@5.2", True, "kvpress 0.5.5, SnapKVPress"),
        ("snapkv:compression_ratio=0.5", "transformers", False, "--engine transformers@5.2"),
        ("rkv:budget=64", "transformers@5.2", False, "4.48 to 4.55"),
        ("quest", "transformers@5.2", False, "4.45.2"),
        ("triattention", "transformers@5.2", False, "TriAttention"),
        ("tova:budget=64", "transformers@5.2", False, "ratio"),
        ("rkv:budget=64", "reference", True, "formulas"),
    ],
)
def test_who_has_a_policy(policy: str, engine: str, offered: bool, word: str) -> None:
    """What an engine lacks is planned as if it had it: assumed, with a warning."""
    found = planned(policy, engine=engine)
    assert found.policy is not None

    assert found.policy.offered is offered
    assert word in found.policy.support
    assert (found.cache.definition is Definition.ASSUMED) is not offered
    assert ("policy-not-offered" in {note.code for note in found.warnings}) is not offered


@pytest.mark.parametrize(
    ("policy", "rules", "definition"),
    [
        ("knorm:compression_ratio=0.5", "kvpress", Definition.ENGINE),
        ("streamingllm:compression_ratio=0.5", "paper", Definition.PUBLISHED),
        ("h2o:budget=64", "kvpress", Definition.PUBLISHED),
        ("chunkkv:press=(knorm:compression_ratio=0.5),chunk_length=64", "kvpress", Definition.ESTIMATE),
    ],
)
def test_what_the_numbers_are(policy: str, rules: str, definition: Definition) -> None:
    """An estimate has both ends."""
    found = planned(policy, policy_rules=rules)
    info = found.policy
    assert info is not None

    assert found.cache.definition is info.definition is definition
    assert (info.prefill_low_bytes < info.prefill_bytes) is (definition is Definition.ESTIMATE)
    assert info.most_low_bytes <= info.most_bytes


def test_a_policy_without_a_layer_has_no_effect() -> None:
    """Of a model of states alone nothing is dropped, and a note says so."""
    found = plan("state-spaces/mamba-130m-hf", seq=1000, policy="knorm:compression_ratio=0.5")
    whole = plan("state-spaces/mamba-130m-hf", seq=1000)

    assert found.cache.total_bytes == whole.cache.total_bytes
    assert found.cache.definition is whole.cache.definition
    assert "policy-no-effect" in {note.code for note in found.notes}
    assert not found.warnings


def test_a_token_more() -> None:
    """A token takes its bytes in every layer while the cache grows, and nothing where a budget holds."""
    growing, held = (planned(policy) for policy in ("knorm:compression_ratio=0.5", "streamingllm:budget=64"))

    assert growing.cache.bytes_per_token == 1024
    assert held.cache.bytes_per_token == 0


def test_what_a_step_reads() -> None:
    """What is kept; what is masked too; of Quest the pages and all keys of pages: 2 x 2 heads x 16 x 4 bytes for each of 64 pages."""
    knorm, masked, quest = (
        planned(policy, 1024, 0)
        for policy in ("knorm:compression_ratio=0.5", "adakv:press=(knorm:compression_ratio=0.5)", "quest:token_budget=128")
    )

    assert knorm.cache.read_bytes_per_step == 512 * 1024
    assert masked.cache.read_bytes_per_step == 1024 * 1024
    assert quest.cache.read_bytes_per_step == (2 * 1024 + 2 * 128) * 256 + 4 * 64 * 2 * 2 * 16 * 4


def test_solvers_find_what_fits() -> None:
    """The longest and the most under a policy fit, and one more does not."""
    asked: dict[str, Any] = {"policy": "knorm:compression_ratio=0.5", "prompt": 2048, "kv_memory": 8 * 2**20, "batch": 2}
    fit = plan(tiny(), seq=2048, **asked).fit
    assert fit is not None
    assert fit.max_seq is not None
    fitting, over = (plan(tiny(), seq=fit.max_seq + more, **asked).fit for more in (0, 1))
    assert fitting is not None
    assert over is not None

    assert (fitting.fits, over.fits) == (True, False)
    assert fit.max_seq == 8192 // 2 + 1024


def test_the_asked_policy_is_what_the_request_says() -> None:
    """Its defaults are kvpress's rules."""
    chosen = parse_policy("knorm")
    assert chosen is not None

    assert AskedPolicy(chosen=chosen).rules == "kvpress"

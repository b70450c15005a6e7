"""Why an engine's cache is not that of the formulas: the bytes are the whole difference, and each word holds in an experiment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.engines import ENGINES
from hwcalc.engines.causes import causes, growth_bytes, request_bytes, stored_words
from hwcalc.engines.deployment import Occupancy, without_sharing
from hwcalc.engines.stored import bytes_of
from hwcalc.errors import KvplanError
from hwcalc.formulas import FullAttention, LayerKind, SlidingAttention
from hwcalc.planner.context import open_request

MODELS = (
    "Qwen/Qwen3-8B",
    "openai/gpt-oss-20b",
    "google/gemma-3-27b-it",
    "google/gemma-4-E4B-it",
    "mistralai/Mistral-7B-v0.1",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/Nemotron-H-8B-Base-8K",
    "LiquidAI/LFM2-1.2B",
    "state-spaces/mamba-1.4b-hf",
    "MiniMaxAI/MiniMax-M1-80k",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "tiiuae/falcon-11B",
    "tiiuae/falcon-7b",
    "microsoft/phi-4",
    "bigcode/starcoder2-3b",
    "stepfun-ai/Step-3.7-Flash-FP8",
    "facebook/bart-large",
)
TOKENS = 5_000
WHOLE = 8_192
"""Whole blocks of every engine."""


@cache
def opened(model: str, engine: str, seq: int, **more: Any) -> Occupancy | None:
    """The request, if the engine takes it."""
    try:
        return open_request(load_model(model, offline=True), engine=engine, gpu="h200", seq=seq, **more)
    except KvplanError:
        return None


def asked(model: str, seq: int, **more: int) -> Iterator[tuple[Occupancy, Occupancy]]:
    """Each engine's request, and the formulas'."""
    batch = more.get("batch", 1)
    formulas = opened(model, "reference", seq, batch=batch)
    assert formulas is not None
    for engine in ENGINES:
        one = opened(model, engine, seq, **more)
        if one is not None:
            yield one, formulas


@pytest.mark.parametrize("model", MODELS)
def test_the_bytes_of_the_causes_are_the_whole_difference(model: str) -> None:
    """On one GPU, on several ranks, and on replicas; and every cause says something."""
    for more in ({"batch": 2}, {"tp": 4}, {"batch": 3, "dp": 2}):
        for one, formulas in asked(model, TOKENS, **more):
            found = causes(one, formulas)
            assert sum(cause.bytes for cause in found) == request_bytes(one) - formulas.stored_bytes, (one.engine.name, more)
            assert all(cause.bytes for cause in found)
            assert not {cause.words for cause in found} & {"", "counted by its own rules"}, (one.engine.name, more, found)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "google/gemma-3-27b-it"])
def test_what_is_shared_is_one_cause(model: str) -> None:
    """Beside those of sequences that have nothing in common."""
    shared = {"batch": 3, "shared_prefix": 1_000}
    formulas = opened(model, "reference", TOKENS, **shared)
    assert formulas is not None
    for engine in ENGINES:
        one = opened(model, engine, TOKENS, **shared)
        if one is not None:
            found = {cause.words: cause.bytes for cause in causes(one, formulas)}
            assert sum(found.values()) == request_bytes(one) - formulas.stored_bytes
            kept = request_bytes(one) == request_bytes(without_sharing(one))
            assert kept == ("shared tokens kept for each" in found) or engine == "reference"


def words_of(one: Occupancy, formulas: Occupancy) -> str:
    """All reasons as one text."""
    return "; ".join(cause.words for cause in causes(one, formulas))


@pytest.mark.parametrize("model", MODELS)
def test_a_window_that_is_not_honoured_is_as_large_as_none(model: str) -> None:
    """Its layers take what layers without a window take; where it is kept, a million more tokens do not take more than a prompt's chunk."""
    for one, formulas in asked(model, WHOLE):
        words = words_of(one, formulas)
        for group in formulas.stack.groups:
            kind = group.kind
            if not isinstance(kind, SlidingAttention) or kind.window >= WHOLE or kind not in one.kind_tensors:
                continue
            far = one.sized(seq=WHOLE + 2**20)
            grown = bytes_of(far.kind_tensors[kind])
            if "window not honoured" in words:
                assert bytes_of(one.kind_tensors[kind]) == as_full(kind, one, formulas), one.engine.name
            elif re.search(r"window of [\d,]+ kept as", words):
                assert grown < 40_000 * bytes_of(formulas.kind_tensors[kind]) // kind.window, one.engine.name


def as_full(kind: LayerKind, one: Occupancy, formulas: Occupancy) -> int:
    """What the reference keeps of a layer of these heads without a window."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    full = FullAttention(**{name: getattr(kind, name) for name in names})
    return sum(one.batch * WHOLE * tensor.bytes_per_position(one.dtypes.roles[tensor.role]) for tensor in full.tensors())


@pytest.mark.parametrize("model", MODELS)
def test_what_is_filled_up_to_a_length_has_room_for_it(model: str) -> None:
    """A sequence of the length that a block is filled up to takes not a byte more."""
    for one, formulas in asked(model, TOKENS):
        filled = {int(found.replace(",", "")) for found in re.findall(r"filled up to ([\d,]+) tokens", words_of(one, formulas))}
        for tokens in filled:
            full = [kind for kind in one.kind_tensors if isinstance(kind, FullAttention)]
            assert tokens > TOKENS
            assert all(bytes_of(one.sized(seq=tokens).kind_tensors[kind]) == bytes_of(one.kind_tensors[kind]) for kind in full), (
                one.engine.name
            )


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite"])
def test_what_several_ranks_have(model: str) -> None:
    """Eight ranks have a latent each; the formulas have it once."""
    one, formulas = opened(model, "sglang", WHOLE, tp=8), opened(model, "reference", WHOLE, batch=1)
    assert one is not None
    assert formulas is not None
    (cause,) = causes(one, formulas)
    assert (cause.words, cause.bytes) == ("latent on every rank", 7 * formulas.stored_bytes)


def words(model: str, engine: str, seq: int, **more: Any) -> dict[str, int]:
    """The causes of one engine's row."""
    one, formulas = opened(model, engine, seq, **more), opened(model, "reference", seq)
    assert one is not None
    assert formulas is not None
    return {cause.words: cause.bytes for cause in causes(one, formulas)}


def test_ranks_that_share_the_tokens() -> None:
    """Two heads on eight ranks are there four times, and twice where two ranks have half of the tokens each."""
    for engine in ("reference", "vllm"):
        found = words("zai-org/GLM-Z1-9B-0414", engine, 4_096, tp=8, dcp=2)
        assert found == {"a head on several ranks": 40 * 2 * 2 * 128 * 2 * 4_096}


def test_a_window_that_the_tokens_just_fill() -> None:
    """DynamicCache keeps one token less than the window, and fills nothing up."""
    (found,) = words("google/gemma-2-2b", "transformers", 4_096)
    assert found == "window of 4,096 kept as 4,095 tokens"


def test_copies_of_layers_whose_tensors_grow_unlike_stand_first() -> None:
    """DeepSeek-V4 has a latent on each of eight ranks; the ratios are those of one rank."""
    alone, ranks = (words("deepseek-ai/DeepSeek-V4-Flash", "sglang", 40_000, tp=tp) for tp in (1, 8))
    (one,) = [key for key in alone if key.startswith("compressed latent")]
    assert f"latent on every rank, {one}" in ranks


def test_worked_causes() -> None:
    """gpt-oss-20b, 12 layers of each kind, 8 heads of 64 in bf16: a token is 2,048 B of a layer."""
    by_name = {}
    for one, formulas in asked("openai/gpt-oss-20b", WHOLE):
        by_name[one.engine.name] = {cause.words: cause.bytes for cause in causes(one, formulas)}
    # DynamicCache keeps one token less than the window.
    assert by_name["transformers"] == {"window of 128 kept as 127 tokens": -12 * 2_048}
    assert by_name["lmdeploy"] == by_name["mistral-rs"] == {"window not honoured": 12 * 2_048 * (WHOLE - 128)}
    assert by_name["reference"] == {}


def test_what_is_stored_and_how_it_grows() -> None:
    """Twelve layers grow; states do not, and what an engine cuts to the model's longest grows up to there."""
    one = opened("Qwen/Qwen3-Next-80B-A3B-Instruct", "reference", WHOLE)
    assert one is not None
    # 12 layers with 2 heads of 256 in bf16.
    assert growth_bytes(one) == 12 * 2 * 2 * 256 * 2
    assert stored_words(one) == "conv, K, V bf16; state fp32"
    cut = opened("Qwen/Qwen3-8B", "ollama", 100_000)
    assert cut is not None
    assert growth_bytes(cut) == 36 * 2 * 8 * 128 * 2, "a cut context has the growth of the rows"

"""A policy that drops nothing changes no byte, whatever the engine, the model and what sequences share; and searches that end right."""

from __future__ import annotations

from typing import Any

import pytest

import hwcalc
from hwcalc import KvplanError

MODELS = (
    "Qwen/Qwen3-8B", "google/gemma-3-27b-it", "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2-Exp",
    "ai21labs/AI21-Jamba-Mini-1.5", "tiiuae/Falcon-H1-7B-Instruct", "mistralai/Mistral-7B-v0.1",
)  # fmt: skip
ENGINES = ("reference", "transformers@5.2", "vllm", "vllm@0.8.5", "vllm@0.17", "llamacpp", "ollama")
KEEP_ALL = ("snapkv:compression_ratio=0", "streamingllm:budget=100000", "rkv:budget=100000", "tova:compression_ratio=0")
SHARED: tuple[dict[str, Any], ...] = ({}, {"samples": 1}, {"shared_prefix": 3000}, {"samples": 4, "prompt": 3000})
OF_A_SENTENCE = ("steps", "message", "suggestions", "definition", "parts", "groups", "policy", "kept")


def numbers(found: object, place: str = "") -> dict[str, object]:
    """All numbers of a document, by their place."""
    if isinstance(found, dict):
        return {
            where: value
            for key, one in found.items()
            if key not in OF_A_SENTENCE
            for where, value in numbers(one, f"{place}.{key}").items()
        }
    if isinstance(found, list):
        return {where: value for number, one in enumerate(found) for where, value in numbers(one, f"{place}[{number}]").items()}
    return {} if isinstance(found, str) else {place: found}


def planned(model: str, **options: Any) -> hwcalc.Plan | None:
    """The plan, if the engine runs the model so."""
    try:
        return hwcalc.plan(model, seq=4000, kv_memory="60GiB", **options)
    except KvplanError:
        return None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_a_policy_that_keeps_everything_changes_no_byte(model: str, engine: str) -> None:
    """With a GPU's memory given; the longest context is not asked for, since a longer one may be above the budget."""
    for number, shared in enumerate(SHARED):
        plain = planned(model, engine=engine, batch=2, **shared)
        if plain is None:
            continue
        found = planned(model, engine=engine, batch=2, policy=KEEP_ALL[number % len(KEEP_ALL)], **shared)

        assert found is not None
        assert found.policy is not None
        assert (found.policy.saved_bytes, found.policy.loses) == (0, False)
        before, after = plain.to_dict(), found.to_dict()
        for part in ("cache", "memory", "pool", "fit", "sharing"):
            mine, theirs = numbers(after[part]), numbers(before[part])
            different = {place for place in mine.keys() | theirs.keys() if mine.get(place) != theirs.get(place)}
            # Lengths above the budget are cut.
            assert {place for place in different if "max_seq" not in place} == set(), (part, shared)


@pytest.mark.parametrize(("policy", "prompt", "scored"), [
    ("snapkv:compression_ratio=0", 3000, False),
    ("snapkv:compression_ratio=0.1", 3000, True),
    ("snapkv:budget=3000", 2999, False),
    ("snapkv:budget=3000", 3000, True),
    ("rkv:budget=3000", 2999, False),
    ("rkv:budget=3000", 3000, True),
    ("tova:compression_ratio=0", 3000, False),
    ("adakv:press=(snapkv:compression_ratio=0)", 3000, False),
    ("adakv:press=(snapkv:compression_ratio=0.5)", 3000, True),
])  # fmt: skip
def test_nothing_is_scored_where_nothing_is_dropped(policy: str, prompt: int, scored: bool) -> None:
    """Kvpress returns at a ratio of 0, and R-KV below its budget (``if kv_cache_len < self.budget``), before any score is made."""
    found = hwcalc.plan("Qwen/Qwen3-8B", seq=prompt, policy=policy)

    assert found.policy is not None
    assert bool(found.policy.beside) is scored
    assert bool(hwcalc.keep("Qwen/Qwen3-8B", policy, prompt=prompt).beside) is scored


def test_similarities_of_a_buffer_are_of_its_length_at_the_cut() -> None:
    """R-KV, budget 128: 256 tokens when it cuts after 200 more; 8 heads of 256 x 256 in bf16. Before its first cut, at 129, of 129."""
    found = [hwcalc.plan("Qwen/Qwen3-8B", seq=100 + more, prompt=100, policy="rkv:budget=128").policy for more in (20, 29, 200)]

    sizes = [[one.bytes for one in info.beside if one.name == "similarities of keys"] for info in found if info is not None]
    assert sizes == [[], [8 * 129 * 129 * 2], [8 * 256 * 256 * 2]]


def test_a_context_shift_has_no_more_cells_than_the_text() -> None:
    """4,000 tokens take 4,096 cells, and not the 100,096 of the budget; a budget of 1,000 takes 1,024."""
    wide, narrow, plain = (
        hwcalc.plan("Qwen/Qwen3-8B", seq=4000, prompt=900, engine="llamacpp", policy=policy).cache.total_bytes
        for policy in ("streamingllm:budget=100000", "streamingllm:budget=1000", None)
    )

    assert (wide, narrow, plain) == (4096 * 147_456, 1024 * 147_456, 4096 * 147_456)


@pytest.mark.parametrize("engine", ["reference", "transformers@5.2", "vllm", "llamacpp"])
@pytest.mark.parametrize("memory", [50_000_000, 300_000_000, 700_000_000])
def test_the_longest_context_is_found_above_lengths_that_a_policy_refuses(engine: str, memory: int) -> None:
    """A window of 2,000 tokens needs 2,001: shorter prompts say nothing of longer ones."""

    def fits(seq: int) -> bool:
        try:
            found = hwcalc.plan(
                "Qwen/Qwen3-8B", seq=seq, engine=engine, kv_memory=memory, policy="snapkv:compression_ratio=0.5,window_size=2000"
            )
        except KvplanError:
            return False
        return found.fit is not None and found.fit.fits

    options: dict[str, Any] = {"engine": engine, "kv_memory": memory, "policy": "snapkv:compression_ratio=0.5,window_size=2000"}
    found = hwcalc.plan("Qwen/Qwen3-8B", seq=20_000, **options).fit

    assert found is not None
    assert found.max_seq is not None
    assert (fits(found.max_seq) or found.max_seq == 0, fits(found.max_seq + 1)) == (True, False)
    assert found.max_seq or not any(map(fits, (2001, 2016, 2100)))


@pytest.mark.parametrize("shared", [{"samples": 4}, {"beams": 4}, {"shared_prefix": 3000, "samples": 4}])
@pytest.mark.parametrize("compaction", ["repack", "none"])
def test_what_comes_back_is_never_less_than_nothing(shared: dict[str, Any], compaction: str) -> None:
    """Branches that cut their own caches share no prompt: 4 x 3 copies of half of it are more than 3 whole ones."""
    found = hwcalc.plan(
        "Qwen/Qwen3-8B",
        seq=8000,
        prompt=6000,
        batch=3,
        engine="vllm",
        policy="snapkv:compression_ratio=0.5",
        compaction=compaction,
        **shared,
    ).policy

    assert found is not None
    assert found.most_bytes > found.full_bytes
    assert (found.saved_bytes, found.loses) == (0, True)

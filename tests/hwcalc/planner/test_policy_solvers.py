"""The answers of the solvers under cache policies are verdicts: what is said to fit fits, and one more does not."""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import plan
from hwcalc.engines.engine import Engine
from hwcalc.engines.policies import PART
from hwcalc.engines.reference import Reference
from hwcalc.engines.transformers.engine import Transformers
from hwcalc.errors import KvplanError
from hwcalc.planner.result import FitInfo, Plan
from hwcalc.planner.verdict import UNLIMITED, Verdict

MODELS: Final = ("Qwen/Qwen3-8B", "openai/gpt-oss-20b", "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-27b-it")
ENGINES: Final = ("vllm", "reference", "transformers", "llamacpp")
POLICIES: Final = (
    "snapkv:compression_ratio=0.9",
    "pyramidkv:compression_ratio=0.5",
    "observedattention:compression_ratio=0.75",
    "h2o:budget=512",
    "rkv:budget=512,divide_length=64",
    "triattention:kv_budget=512,divide_length=128",
    "quest:token_budget=512",
    "streamingllm:budget=512,n_sink=4",
    "decoding:base_press=(knorm),compression_interval=128,target_size=512",
    "cam:base_press=(knorm),compression_interval=128,target_size=512",
    "chunkkv:press=(knorm:compression_ratio=0.5),chunk_length=20",
)
KEY_BYTES: Final = 36 * 2 * 8 * 128 * 2
"""Bytes of a token of Qwen3-8B: layers, keys and values, heads, width, bf16."""


def drawn(seed: int) -> dict[str, Any]:
    """A request of this seed."""
    rnd = random.Random(seed)  # noqa: S311 - the same each time
    seq = rnd.choice((500, 2048, 10_000, 32_768, 120_000))
    asked: dict[str, Any] = {
        "model": rnd.choice(MODELS),
        "engine": ENGINES[seed % len(ENGINES)],
        "gpu": rnd.choice(("h100-sxm5-80gb", "h200", "l4")),
        "seq": seq,
        "batch": rnd.choice((1, 3, 30, 200)),
        "policy": rnd.choice(POLICIES),
    }
    if asked["engine"] == "llamacpp":
        # Else each number of sequences has its own layers on the host.
        asked["engine_options"] = {"n_gpu_layers": "all"}
    if rnd.random() < 0.5:
        asked["prompt"] = seq * 9 // 10
    # TriAttention's plug-in moves tokens inside blocks, which other sequences must not share.
    if rnd.random() < 0.4 and not asked["policy"].startswith("triattention"):
        asked |= rnd.choice(({"shared_prefix": seq // 10}, {"samples": 2, "prompt": seq * 9 // 10}))
    return asked


def verdict(asked: dict[str, Any], **change: int) -> FitInfo | None:
    """The verdict on a request with a change; ``None`` if it is refused."""
    if "prompt" in asked and "seq" in change:
        change["prompt"] = min(asked["prompt"], change["seq"])
    try:
        found = plan(**{**asked, **change}).fit
    except KvplanError:
        return None
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(16))
def test_an_answer_fits_and_one_more_does_not(seed: int) -> None:
    """The most sequences and the longest length, for certain and expected; and the fewest GPUs."""
    asked = drawn(seed)
    fit = verdict(asked)
    assert fit is not None
    for name, limit, varied in (
        ("max_batch", fit.limiting, "batch"),
        ("expected_max_batch", fit.expected_limiting, "batch"),
        ("max_seq", fit.limiting_seq, "seq"),
        ("expected_max_seq", fit.expected_limiting_seq, "seq"),
    ):
        answer: int = getattr(fit, name)
        for number, holds in ((answer, True), (answer + 1, False)):
            ends = number > answer and limit in ("model length", "planned length")
            if ends or not 0 < number < UNLIMITED or (varied == "seq" and number <= asked.get("shared_prefix", 0)):
                continue
            found = verdict(asked, **{varied: number})
            said = found is not None and (found.fits if name.startswith("expected") else found.verdict is Verdict.FITS)
            assert said is holds, f"{name} {answer} ({limit}): {varied} {number}, {asked}"
    layout = fit.min_layout
    if layout is not None:
        sizes = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
        found = verdict(asked, **sizes, gpus=layout.gpus)
        assert found is not None
        assert found.fits


def part_of(found: Plan) -> int:
    """What the policy takes beside the cache."""
    assert found.fit is not None
    assert found.fit.budget is not None
    return sum(part.high for part in found.fit.budget.parts if part.name == PART)


@pytest.mark.parametrize("tokens", [None, 32_768, 65_536])
def test_vllm_scores_the_prompts_of_one_pass(tokens: int | None) -> None:
    """32 heads x 32,768 keys x (64 queries x 12 B, and 128 x 2 B of a repeated key) = 1 GiB for each prompt that ends in the pass."""
    options = {} if tokens is None else {"max_num_batched_tokens": tokens}
    one, many = (
        plan(
            "Qwen/Qwen3-8B",
            seq="32k",
            policy="snapkv:compression_ratio=0.9",
            engine="vllm",
            gpu="h200",
            batch=batch,
            engine_options=options,
        )
        for batch in (1, 230)
    )
    prompts = 2 if tokens == 65_536 else 1
    assert one.policy is not None
    assert many.policy is not None
    assert sum(extra.bytes for extra in one.policy.beside) == 2**30
    assert sum(extra.bytes for extra in many.policy.beside) == prompts * 2**30
    # With larger passes the inner vectors of a layer, which are not there then, have more room.
    assert part_of(many) == part_of(one)
    assert bool(part_of(one)) is (tokens is None)


def test_lengths_too_short_for_a_policy_hide_no_answer() -> None:
    """1,300 tokens of Qwen3-8B are half of 2,601, and kvpress refuses a prompt that is no longer than the window of 2,500."""
    policy = "snapkv:compression_ratio=0.5,window_size=2500"
    found = plan("Qwen/Qwen3-8B", seq=4000, policy=policy, kv_memory=1300 * KEY_BYTES)
    assert found.fit is not None
    assert (found.fit.fits, found.fit.max_seq) == (False, 2601)
    found = plan("Qwen/Qwen3-8B", seq=4000, policy=policy, kv_memory=1200 * KEY_BYTES)
    assert found.fit is not None
    assert (found.fit.fits, found.fit.max_seq) == (False, 0)


def test_a_pool_is_not_said_to_hold_what_a_policy_refuses() -> None:
    """A prompt is whole in its blocks before it is cut: 2,600 tokens are 163 blocks, and of 2,500 tokens and fewer there is no plan."""
    policy = "snapkv:compression_ratio=0.5,window_size=2500"
    for blocks, longest in ((163, 2608), (156, 0)):
        memory = (blocks + 1) * 16 * KEY_BYTES
        found = plan("Qwen/Qwen3-8B", seq=4000, policy=policy, engine="vllm", kv_memory=memory)
        assert found.fit is not None
        assert found.pool is not None
        assert (found.fit.fits, found.fit.max_seq, found.pool.max_seq) == (False, longest, longest)


@pytest.mark.parametrize("engine", [Reference, Transformers])
@pytest.mark.parametrize("model", [*MODELS, "deepseek-ai/DeepSeek-V3"])
def test_layers_counted_by_token_are_those_of_their_tensors(
    engine: type[Engine], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way of a search comes to the same plan as all tensors one by one: cache, prefill, growth, and every answer."""
    cases = [
        {"policy": POLICIES[1], "prompt": 2001, "gpus": 2, "tp": 2, "batch": 3},
        {"policy": POLICIES[8], "prompt": 2001, "gpus": 2, "pp": 2, "batch": 5},
    ]

    def planned(case: dict[str, Any]) -> Plan:
        return plan(model, engine=engine.name, seq=3000, gpu="h200", **case)

    short = [planned(case) for case in cases]
    traits = vars(engine.deployment)["traits"]
    # An engine's own are an attribute, or follow from its deployment.
    of = traits.func if isinstance(traits, cached_property) else lambda _: traits
    monkeypatch.setattr(engine.deployment, "traits", property(lambda self: replace(of(self), sizes_by_token=False)))
    assert [planned(case) for case in cases] == short

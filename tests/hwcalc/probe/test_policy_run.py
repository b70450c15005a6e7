"""Policies with real tensors on the CPU: what is left of them is what the plan says, and a wrong plan is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.library.plan import load_request
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.policies.base import COMPACTIONS
from hwcalc.probe import policy_cut
from hwcalc.probe.devices import metering, open_device
from hwcalc.probe.policy_run import run_policy
from hwcalc.probe.result import PolicyFigure, PolicyRun
from tests.hwcalc.policies.drawn import given_policies

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "float32",
}
TOKEN = 2 * 2 * 16 * 4
"""Bytes of a token in a layer: keys and values of two heads with 16 numbers in fp32."""


def opened(model: Any, **options: Any) -> Occupancy:
    """The request with its policy."""
    spec, request = load_request(model, read_options(options))
    return open_request(spec, **request)


def ran(model: Any = LLAMA, usable: int = 2**30, **options: Any) -> PolicyRun:
    """The policy, run on the CPU."""
    return run_policy(opened(model, **options), open_device("cpu"), usable_bytes=usable)


def figure(run: PolicyRun, name: str) -> PolicyFigure:
    """One of its figures."""
    return next(one for one in run.figures if one.name == name)


def test_a_prompt_is_cut_layer_by_layer() -> None:
    """199 of 2,000 tokens stay; at the last layer the three before it are cut and it is whole, and then has its copy beside it."""
    run = ran(seq=2_004, prompt=2_000, policy="snapkv:compression_ratio=0.9,window_size=16")

    assert figure(run, "cache, one layer whole").measured == (3 * 199 + 2_000) * TOKEN
    assert figure(run, "with the copies of its cut").measured == (3 * 199 + 2_000 + 199) * TOKEN
    assert figure(run, "cache behind the prompt").measured == 4 * 199 * TOKEN
    assert figure(run, "cache at the end").measured == 4 * 203 * TOKEN
    assert (run.steps, run.in_place, run.survivors) == (4, True, "at random")
    assert run.copied_tokens == 4 * 2 * 199


def test_the_sawtooth_of_a_cadence() -> None:
    """R-KV's own run: 100 tokens of prompt and 600 of text are cut at 129 and then at 256, and 187 are left."""
    run = ran(seq=700, prompt=100, policy="rkv:budget=128")

    assert figure(run, "cache at the most").measured == 4 * 256 * TOKEN
    assert figure(run, "cache at the end").measured == 4 * 187 * TOKEN
    assert run.copied_tokens == 5 * 4 * 2 * 128
    assert run.in_place is True


def test_layers_of_unlike_lengths() -> None:
    """PyramidKV's row of 1,000 tokens: 975 in the first layer, fewer in each that follows."""
    run = ran(seq=1_000, policy="pyramidkv:compression_ratio=0.5,window_size=16", batch=3)

    assert figure(run, "cache behind the prompt").measured == 3 * (975 + 658 + 342 + 25) * TOKEN
    assert run.in_place is True


def test_masks_free_nothing() -> None:
    """Every token is stored."""
    run = ran(seq=1_000, policy="adakv:press=(knorm:compression_ratio=0.5)")

    assert figure(run, "cache behind the prompt").measured == 4 * 1_000 * TOKEN
    assert run.copied_tokens == 0


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen/Qwen3-0.6B", {}),
        ("Qwen/Qwen3-0.6B", {"dtype": "fp8"}),
        ("Qwen/Qwen3-0.6B", {"dtype": "q8_0"}),
        ("Qwen/Qwen3-0.6B", {"engine": "transformers"}),
        ("google/gemma-3-1b-it", {}),
        ("deepseek-ai/DeepSeek-V2-Lite", {}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}),
    ],
    ids=str,
)
def test_kinds_of_caches(model: str, options: dict[str, Any]) -> None:
    """Heads, latents, windows and states beside them, floats and packed rows: all survivors are found again."""
    run = ran(model, seq=210, prompt=200, offline=True, policy="knorm:compression_ratio=0.5", **options)

    assert run.in_place is True
    assert run.scaled is None
    assert figure(run, "with the copies of its cut").agrees


def test_the_rule_says_which_stay() -> None:
    """Sinks and the last tokens stay in place of a random choice."""
    run = ran(seq=300, policy="streamingllm:compression_ratio=0.5")

    assert run.survivors == "by the rule"
    assert run.in_place is True


def test_what_is_too_large_is_made_smaller() -> None:
    """Fewer sequences first, then fewer layers; and it says so."""
    plan = {"seq": 1_010, "prompt": 1_000, "policy": "knorm:compression_ratio=0.5"}

    assert "1 of 3 sequences" in str(ran(usable=2_000 * 4 * TOKEN, batch=3, **plan).scaled)
    assert "2 of 4 layers" in str(ran(usable=2_100 * TOKEN, **plan).scaled)
    with pytest.raises(UsageError, match="hold no layer"):
        ran(usable=1_000 * TOKEN, **plan)


def test_nothing_to_act_on() -> None:
    """A model of states alone has no token to drop."""
    with pytest.raises(UnsupportedError, match="nothing to act on"):
        ran("state-spaces/mamba-130m-hf", offline=True, seq=100, policy="knorm:compression_ratio=0.5")


def test_scores_are_made_for_real() -> None:
    """Eager attention in fp32 takes 36 bytes a pair with four heads, as kvpress's run did; so does its mask."""
    run = ran(seq=512, policy="observedattention:compression_ratio=0.5")

    assert figure(run, "eager attention scores").measured == 36 * 512 * 512
    run = ran(seq=512, policy="quest")
    assert figure(run, "keys of pages").measured == 4 * 512 // 16 * TOKEN


def test_scores_that_do_not_fit_are_made_of_fewer_tokens() -> None:
    """The figure says of how many."""
    one = figure(ran(seq=4_096, policy="h2o:budget=100", usable=64 * 2**20), "eager attention scores")

    assert one.remark.startswith("of 1 x 1,024 tokens")
    assert one.measured == 36 * 1_024 * 1_024


def test_a_wrong_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token more in one layer than the plan counts its bytes by."""
    real = policy_cut.Plan.at

    def wrong(self: Any, piece: Any, length: int) -> Any:
        one = real(self, piece, length)
        return replace(one, bytes=one.bytes + 4) if length == 199 and one.layer == 2 else one

    monkeypatch.setattr(policy_cut.Plan, "at", wrong)
    run = ran(seq=2_000, policy="snapkv:compression_ratio=0.9,window_size=16")

    assert not run.agrees
    assert not figure(run, "with the copies of its cut").agrees


def test_wrong_survivors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gather that takes the neighbours has the right size and the wrong content."""
    real = policy_cut._gathered

    monkeypatch.setattr(policy_cut, "_gathered", lambda tensor, index, piece: real(tensor, (index - 1).clamp(min=0), piece))
    run = ran(seq=200, policy="knorm:compression_ratio=0.5")

    assert run.in_place is False
    assert not run.agrees


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    policy=given_policies(),
    prompt=st.integers(1, 300),
    output=st.integers(0, 40),
    batch=st.integers(1, 2),
    engine=st.sampled_from(["reference", "transformers", "vllm"]),
    compaction=st.sampled_from(COMPACTIONS),
)
def test_any_policy_leaves_what_its_plan_says(
    policy: Any, prompt: int, output: int, batch: int, engine: str, compaction: str
) -> None:
    """Or is refused with an error of ours."""
    words = {"seq": prompt + output, "prompt": prompt, "batch": batch, "engine": engine, "compaction": compaction}
    try:
        run = ran({**LLAMA, "torch_dtype": "bfloat16"}, usable=2**27, policy=policy, **words)
    except KvplanError:
        return

    assert run.agrees, run.figures


def test_the_meter_counts_as_the_allocator() -> None:
    """Torch's own profiler sees the same bytes come and go."""
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with metering(open_device("cpu")) as meter, profile as events:
        first = torch.empty(3, 1_000, dtype=torch.uint8)
        second = torch.cat([first[:, 1:], first[:, :1]], dim=1)
        third = torch.softmax(second.to(torch.bfloat16), dim=-1, dtype=torch.float32)
        del first
    peak = now = 0
    for event in sorted(events.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)

    assert (meter.now, meter.peak) == (now, peak)
    assert third.shape == (3, 1_000)

"""The time of a step: the bound and the sum of its terms, arithmetic written out for known models, and laws."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import load_model
from hwcalc.library.plan import open_loaded
from hwcalc.planner.speed import bound_of
from hwcalc.planner.step_time import TERMS, StepTimes, link_rate, step_times
from hwcalc.profiles.gpus import find_gpu

SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": ("meta-llama/Llama-3.1-8B", {"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 8192, "batch": 32}),
    "sglang": (
        "deepseek-ai/DeepSeek-V3",
        {"engine": "sglang", "gpu": "h200-sxm-141gb", "gpus": 8, "tp": 8, "seq": 8192, "batch": 32},
    ),
    "llamacpp": ("google/gemma-3-27b-it", {"engine": "llamacpp", "gpu": "rtx-4090", "weights": "q4_k_m", "seq": 4096}),
    "host": ("meta-llama/Llama-3.1-70B", {"engine": "llamacpp", "gpu": "rtx-4090", "weights": "q4_k_m", "seq": 4096}),
}
LENGTHS = st.integers(1, 100_000)


@cache
def made(name: str) -> StepTimes:
    """The steps of a setup, made once."""
    model, options = SETUPS[name]
    times = step_times(open_loaded(load_model(model, offline=True), options)[0])
    assert times is not None
    return times


@pytest.mark.parametrize("name", SETUPS)
def test_the_bound_is_that_of_the_plan(name: str) -> None:
    """A step of the planned sequences, and a prompt of the planned length, have the bound of the plan."""
    model, options = SETUPS[name]
    bound = bound_of(open_loaded(load_model(model, offline=True), options)[0])
    assert bound is not None

    assert made(name).step(decoding=options.get("batch", 1), context=options["seq"]).bound == pytest.approx(
        bound.decode_step_s_bound
    )
    if name != "host":
        assert made(name).prompt(options["seq"]).bound == pytest.approx(bound.prefill_s_bound)


@given(st.sampled_from(sorted(SETUPS)), LENGTHS, st.integers(1, 512), LENGTHS, st.integers(1, 8192), st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_laws_of_a_step(name: str, context: int, decoding: int, longer: int, tokens: int, before: int) -> None:
    """The terms add up; the range holds the expected time, which never beats the bound; more to do takes longer."""
    times = made(name)
    step = times.step(decoding=decoding, context=context)
    mixed = times.step(decoding=decoding, context=context, prompt_tokens=tokens, prompt_context=before)

    for one in (step, mixed, times.prompt(tokens, before)):
        assert tuple(one.terms) == TERMS
        assert sum(one.terms.values()) == pytest.approx(one.expected)
        assert one.bound <= one.low * (1 + 1e-12)
        assert one.low <= one.expected <= one.high
        assert one.bound <= one.expected * (1 + 1e-12)
    for slower in (
        times.step(decoding=decoding + 1, context=context),
        times.step(decoding=decoding, context=context + longer),
        mixed,
    ):
        assert slower.expected >= step.expected
        assert slower.bound >= step.bound


@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(st.tuples(LENGTHS, st.integers(1, 300), st.integers(1, 4096)), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None)
def test_arrays_are_steps_by_themselves(name: str, steps: list[tuple[int, int, int]]) -> None:
    """An array of steps has the times of each."""
    times = made(name)
    contexts, decoding, tokens = (np.array(column) for column in zip(*steps, strict=True))
    together = times.step(decoding=decoding, context=contexts, prompt_tokens=tokens)
    prompts = times.prompt(tokens, contexts)

    for number, (context, count, prompt) in enumerate(steps):
        alone = times.step(decoding=count, context=context, prompt_tokens=prompt)
        assert together.expected[number] == pytest.approx(alone.expected)
        assert together.bound[number] == pytest.approx(alone.bound)
        assert prompts.expected[number] == pytest.approx(times.prompt(prompt, context).expected)


def test_unlike_requests() -> None:
    """Requests that are alike take the same, said one by one; unlike ones take what their sum takes."""
    times = made("vllm")

    assert times.mixed([(512, 1000)], [900, 900]).expected == pytest.approx(
        times.step(prompt_tokens=512, prompt_context=1000, decoding=2, context=900).expected
    )
    assert times.mixed([], [500, 1500]).expected == pytest.approx(times.step(decoding=2, context=1000).expected)


def test_links() -> None:
    """NVLink of 900 GB/s in both directions sends 450; sixteen lanes of the fourth PCIe 31.5."""
    assert link_rate(find_gpu("h100-sxm5-80gb")) == 450e9
    assert link_rate(find_gpu("rtx-4090")) == pytest.approx(31.5e9, rel=1e-3)

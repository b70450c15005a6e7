"""Policies in command lines that are offered, in the nearest plan that is accepted, and in notes on what has no effect."""

from __future__ import annotations

import shlex
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import plan, recommend
from hwcalc.cli.options import given_options
from hwcalc.errors import KvplanError, UsageError
from hwcalc.planner.asked import read_options
from hwcalc.planner.command_line import CommandLine
from hwcalc.policies.base import Chosen
from tests.hwcalc.command import QWEN, read
from tests.hwcalc.policies.drawn import chosen_policies

OTHERS: Final = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.integers(1, 4000),
        "policy_rules": st.sampled_from(["kvpress", "paper"]),
        "compaction": st.sampled_from(["repack", "fill", "none"]),
        "batch": st.integers(1, 9),
    },
)


def typed(line: str) -> dict[str, Any]:
    """The options of a command line of one plan, as keywords."""
    found = read(shlex.split(line)[1:])
    assert found is not None
    assert found[0] == "plan"
    return given_options("plan", found[1])


def outcome(options: dict[str, Any]) -> tuple[object, ...]:
    """What a plan comes to, or its error."""
    try:
        planned = plan(QWEN, seq=4000, engine="transformers", **options)
    except KvplanError as error:
        return (error.message,)
    return planned.cache, planned.policy, planned.request


@given(chosen_policies, OTHERS)
def test_a_line_with_a_policy_plans_the_same(chosen: Chosen, others: dict[str, Any]) -> None:
    """Whatever the policy, whatever stands beside it."""
    line = CommandLine(model=QWEN, given={"policy": chosen, **others}).text
    again = typed(line)

    assert read_options(again).policy == chosen
    assert {name: getattr(read_options(again), name) for name in others} == others
    assert outcome(again) == outcome({"policy": chosen, **others})


def test_every_line_of_advice_keeps_the_policy() -> None:
    """It plans what the plan was asked for, on what is offered."""
    options: dict[str, Any] = {"policy": "adakv:press=(snapkv:compression_ratio=0.5,window_size=8),alpha_safeguard=0.1"}
    planned = plan(QWEN, seq="32k", batch=16, engine="transformers", gpu="l4", policy_rules="paper", **options)

    assert planned.fit is not None
    assert planned.fit.suggestions
    for one in planned.fit.suggestions:
        again = typed(one.command)
        assert read_options(again).policy == read_options(options).policy
        assert again["policy_rules"] == "paper"
        found = plan(QWEN, **again).fit
        assert found is not None
        assert found.fits


def test_advice_offers_no_policy() -> None:
    """Dropping context changes what a model answers: by how much is for its user to measure, so that no policy is advised."""
    planned = plan(QWEN, seq="32k", batch=16, engine="transformers", gpu="l4")

    assert planned.fit is not None
    assert not any("--policy" in one.command for one in planned.fit.suggestions)


def test_the_nearest_plan_may_have_no_policy() -> None:
    """And nothing that is said of one."""
    with pytest.raises(UsageError) as caught:
        plan(QWEN, seq=8, policy="snapkv:compression_ratio=0.5", policy_rules="kvpress", compaction="fill")

    assert f"This works: kvplan {QWEN} --seq 8" in caught.value.hint
    assert caught.value.hint.endswith("--seq 8")


ENGINES: Final = ["reference", "transformers", "vllm", "llamacpp"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prompt_alone_has_no_effect(engine: str) -> None:
    """The documents with and without it differ in the request and the note alone."""
    documents = [plan(QWEN, seq=4000, engine=engine, **more).to_dict() for more in ({"prompt": 300}, {})]  # type: ignore[arg-type]
    said = [[note["message"] for note in document["notes"] if note["code"] == "no-policy"] for document in documents]
    for document in documents:
        del document["request"], document["notes"]

    assert said == [["--prompt: no effect without --policy, --shared-prefix, --samples, --beams or --gpu."], []]
    assert documents[0] == documents[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prompt_is_what_the_first_token_waits_for(engine: str) -> None:
    """On a GPU its length alone decides when the first token comes; nothing else of the plan depends on it."""
    with_it, without, short = (
        plan(QWEN, engine=engine, gpu="l4", seq=seq, prompt=prompt) for seq, prompt in ((4000, 300), (4000, None), (300, None))
    )
    assert with_it.speed is not None
    assert without.speed is not None
    assert short.speed is not None

    assert not any(note.code == "no-policy" for note in with_it.notes)
    assert (with_it.speed.prefill_s_bound, with_it.speed.prefill_flops) == (
        short.speed.prefill_s_bound,
        short.speed.prefill_flops,
    )
    assert with_it.speed.decode_step_s_bound == without.speed.decode_step_s_bound
    assert (with_it.cache, with_it.memory, with_it.fit) == (without.cache, without.memory, without.fit)


def test_a_prompt_beside_a_policy_has_one() -> None:
    """No note."""
    planned = plan(QWEN, seq=4000, prompt=300, policy="knorm:compression_ratio=0.5")

    assert not [note for note in planned.notes if note.code == "no-policy"]


def test_compaction_needs_blocks() -> None:
    """A cache of tensors has none; the default is not mentioned."""
    given_fill = plan(QWEN, seq=4000, policy="knorm:compression_ratio=0.5", compaction="fill")
    default = plan(QWEN, seq=4000, policy="knorm:compression_ratio=0.5")

    assert [note.message for note in given_fill.notes if note.code == "no-blocks"] == [
        "--compaction: no effect, as the cache of reference has no blocks."
    ]
    assert not [note for note in default.notes if note.code == "no-blocks"]


def test_what_is_said_of_a_policy_needs_one() -> None:
    """An error with what to add."""
    for more in ({"policy_rules": "paper"}, {"compaction": "none"}):
        with pytest.raises(UsageError) as caught:
            plan(QWEN, seq=100, **more)  # type: ignore[arg-type]
        assert "--policy NAME" in caught.value.hint


def test_hardware_for_a_policy() -> None:
    """Less of it than without; the result names the policy."""
    options: dict[str, Any] = {
        "seq": "32k",
        "batch": 16,
        "engine": "transformers",
        "gpu": ["h100", "h200", "b200"],
        "offline": True,
    }
    with_it, without = recommend(QWEN, policy="knorm:compression_ratio=0.9", **options), recommend(QWEN, **options)
    needed = {offer.gpu: offer.needed_bytes for offer in without.offers if offer.gpus == 1}

    assert (with_it.policy, without.policy) == ("knorm:compression_ratio=0.9", None)
    assert all(offer.needed_bytes < needed[offer.gpu] for offer in with_it.offers if offer.gpu in needed and offer.gpus == 1)
    assert {offer.gpu for offer in without.offers} <= {offer.gpu for offer in with_it.offers}

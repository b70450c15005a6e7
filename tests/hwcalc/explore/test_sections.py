"""What the page has beside the memory equation equals what the planner says."""

from __future__ import annotations

import random
from functools import cache
from typing import Any, Final

import pytest

from hwcalc import KvplanError, load_model, strategies
from hwcalc.explore.runs import PageAxes, PageLayout, Pools, Requests, page_engines, plan_options, runs_of
from hwcalc.explore.sections import BATCHES, POLICIES, sampled_lengths, sections_of
from hwcalc.library.plan import plan_loaded
from hwcalc.model import ModelSpec

MODELS: Final = (
    "Qwen/Qwen3-8B",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "ai21labs/Jamba-v0.1",
    "state-spaces/mamba-130m-hf",
)
GPU: Final = "h100-sxm5-80gb"


@cache
def model(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model(name, offline=True)


@cache
def sections(name: str) -> tuple[dict[str, Any], list[str]]:
    """The sections of a model, and the texts to which they point."""
    pools = Pools()
    found = sections_of(model(name), *_given(model(name), GPU, pools))
    return found, pools.pieces["texts"]


def value(column: Any, number: int) -> Any:
    """What a column has for a point."""
    return column[number] if isinstance(column, list) else column


@pytest.mark.parametrize("name", MODELS)
def test_what_the_cache_saves_is_what_strategies_say(name: str) -> None:
    """Operations and bytes at each sampled length are those of the strategies, digit by digit."""
    found, _ = sections(name)
    saved, rows = found["saved"], found["strategies"]
    assert saved["lengths"] == rows["lengths"] == list(sampled_lengths(model(name)))
    for number, seq in random.Random(f"saved {name}").sample(list(enumerate(saved["lengths"])), 3):  # noqa: S311
        answer = strategies(model(name), seq=seq, engine="reference")
        recompute, growth = answer.strategies[:2]
        assert saved["weights"] == (growth.total_flops is not None)
        assert int(saved["with_cache"][number]) == growth.flops_per_step
        assert int(saved["without_cache"][number]) == recompute.flops_per_step
        assert int(saved["total_with_cache"][number]) == growth.total_flops
        assert int(saved["total_without_cache"][number]) == recompute.total_flops
        for row, one in zip(rows["rows"], answer.strategies, strict=True):
            sizes = (one.full_bytes, one.held_bytes, one.peak_bytes, one.host_bytes)
            assert tuple(row[key][number] for key in ("bytes", "held", "peak", "host")) == sizes
            assert row["peak_is_bound"] == (one.name == "recompute")


def _given(spec: ModelSpec, gpu: str, pools: Pools) -> tuple[PageAxes, Pools, dict[str, Any], dict[str, Requests]]:
    """What the sections of a model are made of, on one GPU."""
    axes = PageAxes(gpus=(gpu,), layouts=(PageLayout(count=1, tp=1),))
    requests = {name: Requests(spec, name, axes) for name in axes.engines}
    return axes, pools, {name: runs_of(each, pools) for name, each in requests.items()}, requests


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_with_a_policy_is_that_of_the_plan(name: str) -> None:
    """All numbers of an answer, at drawn points of every policy that an engine has."""
    found, texts = sections(name)
    rows = found["policies"]
    if rows is None:
        assert name == "state-spaces/mamba-130m-hf"
        return
    drawn = random.Random(f"policies {name}")  # noqa: S311
    assert [row["policy"] for row in rows["rows"]] == list(POLICIES)
    for row in rows["rows"]:
        for engine in page_engines():
            answers = row["engines"][engine]
            places = [(seq, batch) for seq in rows["lengths"] for batch in BATCHES]
            point = drawn.randrange(len(places))
            seq, batch = places[point]
            options = {**plan_options(engine), "gpu": GPU, "policy": row["policy"]}
            if isinstance(answers, int):
                _assert_not_offered(name, options, texts[answers])
                continue
            if (why := value(answers["refused"], point)) is not None:
                with pytest.raises(KvplanError) as refused:
                    plan_loaded(model(name), {"seq": seq, "batch": batch, **options})
                assert texts[why].startswith(refused.value.message)
                continue
            _assert_equal(plan_loaded(model(name), {"seq": seq, "batch": batch, **options}).to_dict(), answers, point)


def _assert_not_offered(name: str, options: dict[str, Any], why: str) -> None:
    policy = _policy_of(name, options, why)
    if policy is None:
        return
    assert not policy.offered
    assert why
    assert why == policy.support or not policy.support


def _policy_of(name: str, options: dict[str, Any], why: str) -> Any:
    """What the plan says of its policy; ``None`` if there is no plan, for the reason ``why``."""
    try:
        return plan_loaded(model(name), {"seq": 4096, **options}).policy
    except KvplanError as error:
        refused = error.message
    assert why.startswith(refused)
    return None


def _assert_equal(document: dict[str, Any], answers: dict[str, Any], point: int) -> None:
    parts = {**document["cache"], "expected": document["memory"]["per_gpu"]["activations"]}
    for end in ("low", "high"):
        parts[end] = document["memory"]["activations"][end]
    for name in answers.keys() - {"refused", "gpus"}:
        assert value(answers[name], point) == parts[name], name


@pytest.mark.parametrize("gpu", [GPU, "apple-m4-max-40c"])
def test_every_policy_that_is_not_there_has_its_reason(gpu: str) -> None:
    """An engine that says nothing of policies has none: the page says that, and never an empty sentence."""
    pools = Pools()
    spec = model("Qwen/Qwen3-8B")
    rows = sections_of(spec, *_given(spec, gpu, pools))["policies"]["rows"]
    texts = pools.pieces["texts"]
    for row in rows:
        for answers in row["engines"].values():
            columns = [answers] if isinstance(answers, int) else answers["refused"]
            places = columns if isinstance(columns, list) else [columns]
            assert all(texts[place] for place in places if place is not None), row["policy"]

"""An occupancy: its kept answers equal fresh ones, and its notes have a fixed order."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import KvplanError, ModelSpec, load_model
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.engines.stored import stage_spans
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import plan_opened
from hwcalc.profiles.gpus import find_gpu
from tests.effort import sample

MODELS: Final = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "tiiuae/Falcon-H1-0.5B-Base",
    "ai21labs/Jamba-v0.1",
)


def fresh(name: str) -> ModelSpec:
    """A model for which nothing has been computed yet."""
    return replace(load_model(name))


def opened(model: ModelSpec, **wanted: Any) -> Occupancy | None:
    """The opened request, or None if the engine refuses it."""
    try:
        return open_request(model, **wanted)
    except KvplanError:
        return None


@pytest.mark.parametrize("engine", [*ENGINES])
@pytest.mark.parametrize("name", sample(MODELS, 4))
def test_opened_once_or_anew(name: str, engine: str) -> None:
    """A request that is changed from another one gives the same plan as a request that is opened anew."""
    common: dict[str, Any] = {"engine": engine, "seq": 3000, "batch": 2, "gpu": "h100-sxm5-80gb"}
    first = opened(load_model(name), **common)
    if first is None:
        # Ollama gives some architectures one slot (server/sched.go).
        common["batch"] = 1
        first = opened(load_model(name), **common)
    if first is None:
        # Some engines do not run some of these models, and say so; the first one every engine runs.
        assert name != MODELS[0], engine
        with pytest.raises(UnsupportedError):
            open_request(load_model(name), **common)
        return
    plan_opened(first)
    for change in (
        {"seq": 3},
        {"seq": 70_000},
        {"batch": 1},
        {"seq": 900, "batch": 40},
        {"tp": 2, "pp": 2},
        {"kv_memory": 2**33},
    ):
        anew = opened(fresh(name), **common | change)
        if anew is None:
            with pytest.raises(KvplanError):
                first.changed(**change)
            continue
        assert plan_opened(first.changed(**change)) == plan_opened(anew), change
    assert plan_opened(first) == plan_opened(open_request(fresh(name), **common))


@pytest.mark.parametrize("engine", [*ENGINES])
def test_a_deployment_has_one_budget_and_its_notes(engine: str) -> None:
    """The order of the questions does not change the answers or the notes."""
    long = open_request(load_model("meta-llama/Llama-3.1-8B"), engine=engine, seq=9000, gpu="rtx-4070")
    short = long.changed(seq=8000)

    assert short.budget is not None
    assert long.budget is not None
    assert short.notes == long.notes
    assert "gpu-memory-estimated" in {note.code for note in long.notes}
    assert long.deployment is short.deployment
    assert long.deployment is not long.changed(kv_memory=2**33).deployment


def test_notes_are_collected_once_each() -> None:
    """Notes keep their order and appear once; another request has its own notes."""
    made = open_request(load_model("Qwen/Qwen3-8B"), engine="vllm")
    codes = [note.code for note in made.notes]
    made.checked()

    assert [note.code for note in made.notes] == codes == ["default-seq", "default-dtype", "default-gpu"]
    assert [note.code for note in made.changed(gpu=find_gpu("l4"), dtype="fp8").notes] == []


def test_values_of_a_request_are_changed_by_their_own_names() -> None:
    """Values inside Parallel and Hardware can be changed by their own names."""
    request = Request.of(seq=8, parallel=Parallel(tp=2), hardware=Hardware(kv_memory=5))
    made = request.changed(seq=9, pp=3, kv_memory=None, calibrated=False)

    assert made == Request.of(seq=9, parallel=Parallel(tp=2, pp=3), hardware=Hardware(calibrated=False))
    assert (made.setup.gpus, request.setup.gpus) == (6, 2)


@pytest.mark.parametrize(
    ("engine", "asked", "known"),
    [
        ("sglang", "0.5", "0.5.23"),
        ("sglang", "v0.5.23", "0.5.23"),
        ("sglang", "0.5.2", None),
        ("tgi", "3.3.6-dev0", "3.3.6"),
        ("tensorrt-llm", "1.4.0rc1", "1.4"),
        ("tgi", "3.3.7", "3.3.7"),
        ("ollama", "0.33.0", "0.33"),
        ("lmdeploy", "0.14.2", "0.14"),
        ("lmdeploy", "0.1", None),
        ("mlx", "0", None),
    ],
)
def test_releases_of_a_line(engine: str, asked: str, known: str | None) -> None:
    """A line stands for its release, and what was made of a release has its rules; part of a number is no line."""
    if known is not None:
        assert find_engine(engine)[0].version(asked) == known
        return
    with pytest.raises(UnknownNameError, match="no rules for that version"):
        find_engine(engine)[0].version(asked)


@pytest.mark.parametrize("engine", [*ENGINES])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_without_the_rules_of_weights_is_what_they_say(name: str, engine: str) -> None:
    """The dtype of weights that are not quantised, where an engine follows the general rules, and the layers of a single stage."""
    found = opened(load_model(name), engine=engine, seq=1000)
    if found is None:
        return
    rules, layers = found.deployment.weight_rules(), len(found.deployment.plain_stack)

    assert tuple(rules.spans(layers, 1)) == stage_spans(found)
    if isinstance(found.engine, GeneralEngine):
        assert found.deployment.weight_dtype() == rules.weight_format(found.model, None).name

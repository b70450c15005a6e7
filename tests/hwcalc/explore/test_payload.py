"""What stands in a page is what the plan says: its numbers, its refusals, and the words of the command line."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

from hwcalc import explore, load_model, plan
from hwcalc.engines.forms import MemoryForm
from hwcalc.errors import KvplanError
from hwcalc.explore.build import PageModel, json_text, payload_of
from hwcalc.explore.runs import AS_PUBLISHED, PageAxes, every, page_engines, plan_options, sentence
from hwcalc.report.emit import commands_to_start
from tests.hwcalc.explore.evaluate import form_at, grid_at, options_at
from tests.hwcalc.form_answers import differences

_MODELS = ("Qwen/Qwen3-8B", "google/gemma-3-12b-it")
_STATES = 25


@cache
def _payload() -> dict[str, Any]:
    """The payload of two models, as the page reads it."""
    models = tuple(PageModel(spec=load_model(name), argument=name) for name in _MODELS)
    found: dict[str, Any] = json.loads(json_text(payload_of(models, PageAxes())))
    return found


def _planned(options: dict[str, Any], model: str, seq: int, batch: int) -> Any:
    """The plan, or the sentence of its error."""
    try:
        return plan(load_model(model), seq=seq, batch=batch, **options)
    except KvplanError as error:
        return error.message


def test_what_sources_leave_open_is_told() -> None:
    """A state that a plan warns of has the plan's sentence; one that it does not warn of has none."""
    model = load_model("Qwen/Qwen3-0.6B")
    gpus = ("rx-7600-xt", "l4")
    axes = PageAxes(gpus=gpus, engines=("vllm",))
    payload = json.loads(json_text(payload_of((PageModel(spec=model, argument=model.id),), axes)))
    grid = payload["models"][0]["engines"]["vllm"]["rest"]
    for place, gpu in enumerate(gpus):
        told = payload["rests"][grid_at(grid, (0, 0, 0, place))].get("open", [])
        assert [payload["texts"][text] for text in told] == [
            note.message for note in plan(model, engine="vllm", gpu=gpu, seq=4096).warnings
        ]
        assert bool(told) is (gpu == "rx-7600-xt")


@pytest.mark.parametrize("engine", page_engines())
@pytest.mark.parametrize("name", _MODELS)
def test_states_are_plans(name: str, engine: str) -> None:
    """States drawn from all choices: equal integers, or the same refusal."""
    payload = _payload()
    model = next(one for one in payload["models"] if one["id"] == name)
    runs = model["engines"][engine]
    assert "curve" in runs, form_at(payload, model, engine, (0, 0, 0, 0))
    draw = random.Random(f"{name} {engine}")  # noqa: S311 - no secret
    sizes = [len(runs["dtypes"]), len(runs["weights"]), len(payload["layouts"]), len(payload["gpus"])]
    places = every(sizes)
    for _ in range(_STATES):
        place = draw.choice(places)
        options = options_at(payload, model, engine, place)
        form = form_at(payload, model, engine, place)
        seq = draw.randint(128, 4 * model["max_seq"])
        batch = draw.choice(payload["batches"])
        if isinstance(form, MemoryForm) and form.refuses_more:
            batch = min(batch, form.most_sequences or batch)
        planned = _planned(options, name, seq, batch)
        if isinstance(planned, str) or isinstance(form, str):
            assert isinstance(form, str), (options, seq, batch, planned)
            assert isinstance(planned, str), (options, seq, batch, form)
            assert form.startswith(planned)
            continue
        assert isinstance(form, MemoryForm)
        assert differences(form, planned) == {}, (options, seq, batch)


def test_prices_are_those_of_plans() -> None:
    """Of each GPU in each number, with the day; of what no dated row prices there is none."""
    payload = _payload()
    for gpu in payload["gpus"]:
        for count in {layout["count"] for layout in payload["layouts"]}:
            cost = plan("Qwen/Qwen3-8B", gpu=gpu["id"], gpus=count, seq=1024, cost=True).cost
            assert gpu["prices"].get(str(count)) == (None if cost is None else [cost.usd_per_hour, cost.price.text])
    assert any(gpu["prices"] for gpu in payload["gpus"])


@pytest.mark.parametrize("priced", [{"price": {"h100": "2.5/h"}}, {"own": "2xl4", "kwh": "0.15"}, {"spot": True}, {"use": "60%"}])
def test_prices_are_those_of_plans_with_the_same_options(priced: dict[str, Any]) -> None:
    """One's own price, the power of what one owns, spot machines, and the share of the time: $2.50 an hour of an H100 are $20 of eight."""
    text = explore("Qwen/Qwen3-8B", gpu="l4,h100", **priced)
    payload = json.loads(text.partition('id="payload">')[2].partition("</script>")[0])
    for gpu in payload["gpus"]:
        for count in (1, 2, 4, 8):
            cost = plan("Qwen/Qwen3-8B", gpu=gpu["id"], gpus=count, seq=1024, **{"cost": True, **priced}).cost
            assert gpu["prices"].get(str(count)) == (None if cost is None else [cost.usd_per_hour, cost.price.text])
    assert payload["use"] == (0.6 if "use" in priced else 0.4)
    if "price" in priced:
        assert payload["gpus"][1]["prices"]["8"][0] == 20


def test_the_first_formats_are_those_of_a_command_line_without_them() -> None:
    """The default has the engine's own name for it."""
    payload = _payload()
    for model in payload["models"]:
        for engine, runs in model["engines"].items():
            if "curve" in runs:
                made = plan(load_model(model["id"]), engine=engine, seq=4096, gpu="h100-sxm5-80gb")
                assert (runs["dtypes"][0], runs["weights"][0]) == (made.request.kv_dtype, "as published")


@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_what_starts_an_engine_is_what_the_plan_says(engine: str) -> None:
    """In each format of the weights, with the remark on it: llama.cpp's converter keeps the MXFP4 of gpt-oss."""
    spec = load_model("openai/gpt-oss-20b")
    page = payload_of((PageModel(spec=spec, argument="gpt-oss-20b"),), PageAxes(gpus=("h200-sxm-141gb",), engines=(engine,)))
    model, texts = page["models"][0], page["texts"]
    starts, names = model["starts"][engine], model["engines"][engine]["weights"]
    for place, name in enumerate(names):
        weights = None if name == AS_PUBLISHED else name
        try:
            made = plan(spec, gpu="h200-sxm-141gb", seq=8192, batch=3, weights=weights, **plan_options(engine))
        except KvplanError:
            continue
        typed = grid_at(starts["commands"], (0, place, 0))
        if typed is None:
            assert [words for _, words, _ in commands_to_start(made)] == [""], name
            continue
        holes = {"{model}": "openai/gpt-oss-20b", "{seq}": "8192", "{batch}": "3", "{cells}": "24576"}
        line = texts[typed]
        for hole, filled in holes.items():
            line = line.replace(hole, filled)
        assert [("start", line, texts[starts["remarks"][place]])] == commands_to_start(made), name
    if engine == "llamacpp":
        assert "ggml-org/gpt-oss-20b-GGUF:MXFP4 " in texts[grid_at(starts["commands"], (0, 0, 0)) or 0]
        assert not texts[starts["remarks"][names.index("q4_k_m")]]


def test_the_same_models_give_the_same_text() -> None:
    """Whatever was planned before."""
    spec = load_model(_MODELS[0])
    axes = PageAxes(gpus=("l4", "apple-m4-max-40c"), engines=("reference", "vllm"))
    first, second = (json_text(payload_of((PageModel(spec=one, argument="x"),), axes)) for one in (spec, load_model(_MODELS[0])))

    assert first == second


def test_what_an_engine_refuses_has_its_own_sentence() -> None:
    """Its message and its hint; a plan knows further what to type."""
    payload = _payload()
    model = payload["models"][0]
    gpu = next(place for place, one in enumerate(payload["gpus"]) if one["id"].startswith("apple"))
    with pytest.raises(KvplanError) as refused:
        plan(load_model(model["id"]), **options_at(payload, model, "vllm", (0, 0, 0, gpu)), seq=4096)

    said = form_at(payload, model, "vllm", (0, 0, 0, gpu))
    assert isinstance(said, str)
    assert len(said) > len(refused.value.message)
    assert sentence(refused.value).startswith(said)

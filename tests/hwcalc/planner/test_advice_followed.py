"""Every line of advice of random plans is followed: it is read as a command line, and then fits as it says."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from msgspec.structs import asdict

from hwcalc import load_model
from hwcalc.cli import main
from hwcalc.engines import ENGINES
from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError
from hwcalc.library.plan import plan_loaded
from hwcalc.model import ModelSpec
from hwcalc.planner.advice import MOST_LINES
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.catalog import list_models
from hwcalc.profiles.gpus import UnknownGpuError, find_gpu, list_gpus
from hwcalc.profiles.instances import list_instances
from hwcalc.units import human_bytes
from tests.effort import cases
from tests.hwcalc.command import read_plan

PLANS = cases(50, 5000)
MODELS = 60
PARTS = 5
DTYPES = {
    "reference": ("bf16", "fp8", "q8_0", "int8"),
    "vllm": ("auto", "fp8", "int8_per_token_head"),
    "transformers": ("auto", "fp16"),
    "llamacpp": ("auto", "q8_0", "q8_0:f16"),
    "ollama": ("auto", "q8_0"),
}
WEIGHTS = ("bf16", "fp8", "awq", "int8", "nvfp4", "bnb4")
GGUF = ("q4_k_m", "q8_0", "iq4_xs", "bf16")
OPTIONS = {
    "vllm": ({"max_num_seqs": "4"}, {"enforce_eager": "true"}, {"max_num_batched_tokens": "2048"}, {"cpu_offload_gb": "4"}),
    "transformers": ({"cache": "static"}, {"cache": "offloaded"}),
    "llamacpp": (
        {"n_gpu_layers": "all"},
        {"n_gpu_layers": "10"},
        {"n_ubatch": "2048"},
        {"flash_attn": "off"},
        {"swa_full": "true"},
    ),
    "ollama": ({"num_gpu": "999"}, {"num_batch": "1024"}),
}


@lru_cache(maxsize=MODELS)
def model_of(name: str) -> ModelSpec:
    """A model of the catalog, read once."""
    return load_model(name, offline=True)


def requests(part: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Random requests; most are too large for their hardware, as those that ask for advice are."""
    draw = random.Random(20_261_122 + part)  # noqa: S311 - a seed, so that each run tries the same
    models = draw.sample(list_models(), MODELS // PARTS)
    while True:
        engine = draw.choice([*ENGINES, "vllm"])
        asked: dict[str, Any] = {"engine": engine, "seq": draw.choice((1000, 8192, 32_768, 131_072, 300_000))}
        asked["batch"] = draw.choice((1, 1, 4, 20, 100))
        if draw.random() < 0.1:
            asked["instance"] = draw.choice(list_instances())
        else:
            asked["gpu"] = draw.choice(list_gpus())
        if draw.random() < 0.3:
            asked["dtype"] = draw.choice(DTYPES.get(engine, ("auto",)))
        if draw.random() < 0.3:
            asked["weights"] = draw.choice(GGUF if engine in ("llamacpp", "ollama") else WEIGHTS)
        if draw.random() < 0.2 and "gpu" in asked:
            asked["gpus"] = draw.choice((2, 4, 8, 16))
        elif draw.random() < 0.4 and "gpu" in asked:
            asked |= {
                draw.choice(("tp", "pp", "dp")): draw.choice((2, 4, 8)),
                draw.choice(("tp", "pp", "dp")): draw.choice((1, 2)),
            }
        if draw.random() < 0.1:
            asked["margin"] = draw.choice((0.02, "25%"))
        if draw.random() < 0.1:
            asked["memory_utilization"] = draw.choice((0.5, 0.95))
        if draw.random() < 0.1:
            asked["kv_memory"] = draw.choice(("512MiB", "8GiB"))
        if draw.random() < 0.15 and engine in OPTIONS:
            asked["engine_options"] = draw.choice(OPTIONS[engine])
        yield draw.choice(models), asked


def followed(command: str) -> Plan:
    """The plan of a command line, as the command itself reads it."""
    model, given = read_plan(command)
    return plan_loaded(model_of(model), given)


def can_be_joined(gpu: str | None, gpus: int) -> bool:
    """Whether a machine by itself has so many that can be linked. An instance may have a part of an accelerator, without a profile."""
    try:
        return gpu is None or not find_gpu(gpu).whole_machine or gpus <= find_gpu(gpu).node
    except UnknownGpuError:
        return True


def says_speed(one: Try, plan: Plan) -> bool:
    """Whether a line says the expected speed of its plan, in two digits or whole tokens, and none where nothing is expected."""
    said = re.search(r"; ([0-9.,]+) tokens/s( each)?", one.effect)
    each = None if plan.speed is None else plan.speed.tokens_per_s_each
    if each is None or each.expected is None:
        return said is None
    if said is None:
        # What the engine needs to start, and what is judged by limits of time, has other words.
        return plan.within is not None or "need a state block" in one.effect
    near = pytest.approx(each.expected, rel=0.006, abs=0.51 if each.expected >= 10 else 0.051)
    return float(said[1].replace(",", "")) == near and (said[2] is not None) == (plan.request.batch > 1)


def is_true(one: Try, plan: Plan) -> bool:
    """Whether what a line says that it holds is what its plan says, for certain or by the expected value; and how fast it is."""
    fit = plan.fit
    assert fit is not None
    assert says_speed(one, plan)
    probable = one.effect.endswith("probably fits")
    longest = re.search(r"; up to ([0-9,]+) tokens", one.effect)
    if plan.request.engine == "ollama" and longest is not None:
        # Its batch follows from the room that is left, so that a longer context may fit where a shorter one does not.
        longer = followed(re.sub(r" --seq \S+|$", f" --seq {longest[1].replace(',', '')}", one.command, count=1)).fit
        return longer is not None and longer.fits and (probable or longer.verdict == Verdict.FITS)
    held = re.search(r"; holds ([0-9,]+)", one.effect)
    if held is not None:
        return int(held[1].replace(",", "")) == (fit.expected_max_batch if probable else fit.max_batch)
    if longest is not None:
        return int(longest[1].replace(",", "")) == (fit.expected_max_seq if probable else fit.max_seq)
    left = re.search(r"; leaves ([^;]+)", one.effect)
    if left is not None:
        assert fit.budget is not None
        return left[1] == human_bytes((fit.budget.expected if probable else fit.budget.low) - plan.cache.per_gpu_bytes)
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_every_line_of_advice_can_be_followed(part: int) -> None:
    """Each is a command that the program reads; it fits, and for certain unless the line says otherwise."""
    planned = lines = 0
    for name, asked in requests(part):
        try:
            plan = plan_loaded(model_of(name), asked, advise=True)
        except KvplanError:
            continue
        if plan.fit is None:
            continue
        planned += 1
        suggestions = plan.fit.suggestions
        required = 0 if plan.pool is None or not plan.fit.fits else len(plan.pool.requires)
        assert len(suggestions) <= MOST_LINES + required
        assert len({one.command for one in suggestions}) == len(suggestions)
        for one in suggestions:
            lines += 1
            again = followed(one.command)
            fit = again.fit
            assert fit is not None
            assert fit.fits, (asked, one)
            assert (fit.verdict == Verdict.FITS) is not one.effect.endswith("probably fits"), (asked, one)
            assert is_true(one, again), (asked, one, fit)
            assert "all layers" not in one.effect or fit.gpu_layers == fit.all_layers, (asked, one, fit)
            assert fit.gpus <= plan.fit.gpus or can_be_joined(fit.gpu, fit.gpus), (asked, one)
        if planned == PLANS // PARTS:
            break
    assert lines > PLANS // PARTS


def test_the_command_itself_says_that_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Pasted, with all of the command line behind it: exit status 0."""
    tried = 0
    for name, asked in requests(99):
        try:
            plan = plan_loaded(model_of(name), asked, advise=True)
        except KvplanError:
            continue
        for one in plan.fit.suggestions[:1] if plan.fit is not None else ():
            assert main([*shlex.split(one.command)[1:], "--offline", "--quiet"]) == 0, one
            assert "does not fit" not in capsys.readouterr().out
            tried += 1
        if tried == 20:
            break


SLOW: tuple[tuple[str, dict[str, Any]], ...] = (
    ("meta-llama/Llama-3.1-8B", {"gpu": "l40s", "seq": 8192, "batch": 100, "ttft": "1s", "min_rate": 40}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "h100-sxm5-80gb", "seq": 8192, "batch": 40, "ttft": "1s", "min_rate": 40}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "l40s", "gpus": 8, "seq": 8192, "batch": 100, "min_rate": 40}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "mi300x", "seq": 8192, "batch": 40, "itl": "12ms"}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "h100-sxm5-80gb", "seq": 8192, "ttft": "2s", "itl": "30ms", "rate": 10}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "rtx-4090", "seq": 8192, "batch": 20, "itl": "15ms", "engine": "sglang"}),
    ("meta-llama/Llama-3.1-8B", {"gpu": "rtx-4090", "seq": 8192, "batch": 4, "itl": "25ms", "engine": "llamacpp"}),
    ("Qwen/Qwen3-32B", {"gpu": "h100-sxm5-80gb", "seq": 16_384, "batch": 30, "e2e": "20s", "prompt": 15_000}),
    ("openai/gpt-oss-120b", {"gpu": "h100-sxm5-80gb", "gpus": 2, "seq": 32_768, "batch": 200, "itl": "40ms"}),
)


@pytest.mark.parametrize(("model", "asked"), SLOW)
def test_every_line_of_advice_holds_within_the_limits_of_time(model: str, asked: dict[str, Any]) -> None:
    """Pasted, each fits within the limits that were asked for, and the fewest GPUs do so too. The users that it serves are those of its plan."""
    plan = plan_loaded(model_of(model), {"engine": "vllm"} | asked, advise=True)
    assert plan.within is not None
    assert plan.within.holds is False
    assert plan.fit is not None
    assert plan.fit.suggestions
    limits = {name: getattr(plan.within, name) for name in ("ttft_s", "itl_s", "e2e_s", "min_tokens_per_s")}
    for one in plan.fit.suggestions:
        again = followed(one.command)
        assert again.fit is not None
        assert again.fit.fits, one
        assert again.within is not None
        assert again.within.holds, one
        assert {name: getattr(again.within, name) for name in limits} == limits
        serves = re.search(r"; serves ([0-9,]+) within", one.effect)
        assert serves is None or int(serves[1].replace(",", "")) == again.within.users
    if plan.fit.min_layout is not None:
        fewest = {"gpus": plan.fit.min_gpus, **asdict(plan.fit.min_layout), "instance": None}
        found = plan_loaded(model_of(model), {"engine": "vllm"} | asked | fewest).within
        assert found is not None
        assert found.holds


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({"gpu": "rtx-4090-laptop-16gb", "batch": 10, "itl": "30ms"}, "recommend"),
        ({"gpu": "l40s", "batch": 4000, "ttft": "1s", "min_rate": 40}, "fleet"),
        ({"gpu": "l40s", "batch": 4, "itl": "1us"}, ""),
    ],
)
def test_where_no_change_of_the_plan_is_fast_enough_another_command_is_named(
    asked: dict[str, Any], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It finds something: the pasted command ends well. What nothing holds names none."""
    fit = plan_loaded(model_of("meta-llama/Llama-3.1-8B"), {"engine": "vllm", "seq": 8192} | asked, advise=True).fit
    assert fit is not None
    words = [shlex.split(one.command.partition(" > ")[0])[1:] for one in fit.suggestions]
    assert [line for line in words if line[0] in ("recommend", "fleet")] == [line for line in words[:1] if line[0] == command]
    assert (words[0][0] if words else "") == command
    if command:
        assert main([*words[0], *(["--offline", "--quiet"] if command == "recommend" else [])]) == 0
        assert capsys.readouterr().out

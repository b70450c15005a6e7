"""Plans of one model share deployments. Whatever was planned before, in whatever order, a plan is that of a model which is read anew.

``KEPT_CASES`` is the number of requests of each engine, and ``KEPT_SEED`` another seed: ``KEPT_CASES=400 pytest tests/hwcalc/test_deployments_kept.py``
takes some minutes.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar, Final

import pytest
from msgspec.structs import replace

import hwcalc
from hwcalc import KvplanError, ModelSpec, load_model
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.deployment import Deployment
from hwcalc.engines.models import known_dtype
from hwcalc.engines.reference import Reference, ReferenceDeployment
from hwcalc.engines.setup import Hardware, Load, Parallel, Request, Setup
from hwcalc.engines.stored import Dtypes
from hwcalc.formulas import Role
from hwcalc.model import Noted
from hwcalc.planner.context import open_request
from hwcalc.profiles.gpus import find_gpu
from tests.hwcalc.test_promises import AT_HOME, DTYPES, GPUS, OPTIONS, POLICIES, WEIGHTS

CASES: Final = int(os.environ.get("KEPT_CASES", "8"))
SEED: Final = os.environ.get("KEPT_SEED", "1")
MODELS: Final = (
    "Qwen/Qwen3-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite", "google/gemma-3-27b-it", "Qwen/Qwen3-Coder-Next",
    "mistralai/Mistral-7B-v0.1", "facebook/bart-large", "ai21labs/AI21-Jamba2-3B",
)  # fmt: skip


def requests(engine: str, dice: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Random requests about two models, of few setups and many loads, without an end."""
    models = dice.sample(MODELS, 2)
    gpus = dice.sample(AT_HOME if engine in ("llamacpp", "ollama", "mlx") else GPUS, 2)
    while True:
        asked: dict[str, Any] = {"engine": engine, "seq": int(2 ** dice.uniform(1, 17)), "batch": int(2 ** dice.uniform(0, 8))}
        for chance, name, values in (
            (0.9, "gpu", gpus),
            (0.3, "gpus", (2, 4)),
            (0.2, "dtype", DTYPES.get(engine)),
            (0.2, "weights", WEIGHTS.get(engine, ("fp8", "bf16"))),
            (0.3, "engine_options", OPTIONS.get(engine)),
            (0.1, "kv_memory", ("512MiB", "8GiB")),
            (0.2, "tp", (2, 4)),
            (0.1, "pp", (2, 3)),
            (0.1, "dp", (2, 4)),
            (0.1, "ep", (1, 2)),
            (0.1, "dcp", (1, 2)),
            (0.1, "margin", ("2%", "30%")),
            (0.1, "memory_utilization", (0.5, 0.95)),
            (0.1, "lora", ("rank=16", "rank=64,count=4")),
            (0.1, "draft", ("Qwen/Qwen3-0.6B",)),
            (0.1, "prompt", (1, 1000)),
            (0.1, "encoder_seq", (7, 500)),
            (0.1, "shared_prefix", (1, 500)),
            (0.1, "samples", (2, 4)),
            (0.1, "policy", POLICIES),
        ):
            if values is not None and dice.random() < chance:
                asked[name] = dice.choice(values)
        yield dice.choice(models), asked


def answer(model: ModelSpec, asked: dict[str, Any]) -> object:
    """The document of a plan, or the words of its refusal."""
    try:
        return json.loads(json.dumps(hwcalc.plan(model, **asked).to_dict()))
    except KvplanError as error:
        return type(error).__name__, str(error), error.hint


def differences(one: object, other: object, path: str = "") -> Iterator[str]:
    """Where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from differences(one.get(name), other.get(name), f"{path}.{name}")
    elif one != other:
        yield f"{path}: {str(one)[:200]} was {str(other)[:200]}"


@pytest.mark.parametrize("engine", [*ENGINES])
def test_the_order_of_plans_changes_none(engine: str) -> None:
    """On shared models, forwards and backwards, and on a model that was never planned."""
    dice = random.Random(f"{engine} {SEED}")  # noqa: S311 - cases, not secrets
    cases = list(islice(requests(engine, dice), CASES))
    fresh = [answer(load_model(name, offline=True), asked) for name, asked in cases]
    shared = {name: load_model(name, offline=True) for name, _ in cases}
    for order in (range(CASES), reversed(range(CASES))):
        for number in order:
            name, asked = cases[number]
            told = [*differences(answer(shared[name], asked), fresh[number])]
            assert not told, (name, asked, told)


def test_equal_setups_share_a_deployment() -> None:
    """Length and number of sequences are no part of a setup."""
    model = load_model("Qwen/Qwen3-8B")
    asked: dict[str, Any] = {"engine": "vllm", "gpu": "h100", "engine_options": {"block_size": "32"}}
    first, other = open_request(model, seq=100, **asked), open_request(model, seq=4096, batch=9, **asked)
    assert first.deployment is other.deployment
    assert first.deployment is not open_request(model, seq=100, **{**asked, "gpu": "h200"}).deployment
    assert first.deployment is not open_request(load_model("Qwen/Qwen3-8B"), seq=100, **asked).deployment


def test_every_field_of_a_setup_tells_deployments_apart() -> None:
    """None can be forgotten: a field that is added is compared too."""
    other = {
        "dtype": "fp8", "engine_version": "0.20", "parallel": Parallel(tp=2), "hardware": Hardware(gpu=find_gpu("l4")), "weights": "fp8",
        "lora": object(), "draft": load_model("Qwen/Qwen3-0.6B"), "option_draft": load_model("Qwen/Qwen3-0.6B"), "options": {"a": "b"},
        "policy": object(), "others": {"keeping": "all"},
    }  # fmt: skip
    assert other.keys() == set(Setup.__struct_fields__)
    for name, value in other.items():
        assert replace(Setup(), **{name: value}) != Setup(), name


class NewSetup(Setup):
    """A setup with a field that no engine reads."""

    unheard_of: str = ""


@pytest.mark.parametrize("engine", [*ENGINES])
def test_a_field_that_nobody_reads_changes_nothing(engine: str) -> None:
    """Its setups have deployments of their own, with the same answers."""
    model, gpu = load_model("Qwen/Qwen3-8B"), find_gpu("m4-max-64gb" if engine == "mlx" else "l4")
    found = find_engine(engine)[0]
    load = Load(seq=4096, batch=3)
    told = []
    for setup in (
        Setup(hardware=Hardware(gpu=gpu)),
        *(NewSetup(hardware=Hardware(gpu=gpu), unheard_of=word) for word in ("a", "b")),
    ):
        opened = found.open(model, Request(setup=setup, load=load))
        told.append((opened.needed_bytes, opened.stored_bytes, opened.budget, opened.notes))
    assert told[0] == told[1] == told[2]


class ReadingDeployment(ReferenceDeployment):
    """A server that keeps its cache in the format that the new field names."""

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        assert isinstance(self.setup, NewSetup)
        dtype = known_dtype(self.setup.unheard_of)
        return Noted(Dtypes(kv=dtype.name, roles=MappingProxyType(dict.fromkeys(Role, dtype))))


class Reading(Reference):
    """The reference engine with such servers."""

    deployment: ClassVar[type[Deployment]] = ReadingDeployment


def test_a_field_that_is_read_is_never_stale() -> None:
    """It is written where it is read and nowhere else; plans of one model in any order have its own value each."""
    model, gpu, engine, load = load_model("Qwen/Qwen3-8B"), find_gpu("l4"), Reading(), Load(seq=1000, batch=2)
    # 36 layers x 8 heads x (128 + 128) x 1,000 tokens x 2 sequences
    elements = 36 * 8 * 256 * 2000
    for word, size in (("bf16", 2), ("fp8_e4m3", 1), ("bf16", 2), ("fp32", 4), ("fp8_e4m3", 1)):
        setup = NewSetup(hardware=Hardware(gpu=gpu), unheard_of=word)
        assert engine.open(model, Request(setup=setup, load=load)).needed_bytes == size * elements

"""An engine that nobody has heard of: a class and a row in the table, and every command has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

import hwcalc.engines
from hwcalc import load_model
from hwcalc.cli import completion
from hwcalc.engines import ENGINES
from hwcalc.engines.deployment import Deployment, Occupancy
from hwcalc.engines.facts import Facts
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.models import known_dtype
from hwcalc.engines.options import Choices, EngineOption, integer_option
from hwcalc.engines.stored import Dtypes, StoredTensor, store_all
from hwcalc.formulas import FullAttention, LayerKind, Role
from hwcalc.model import Definition, Noted
from hwcalc.planner.context import open_request
from tests.hwcalc.command import QWEN, Capture, run

COPIES = EngineOption(name="copies", help="copies of the cache", default="2", check=integer_option(1, 8))


class ToyDeployment(GeneralDeployment):
    """Keys and values in 16 bits."""

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        plain = known_dtype("bf16")
        return Noted(Dtypes(kv="bf16", roles=MappingProxyType(dict.fromkeys(Role, plain))))


class ToyOccupancy(GeneralOccupancy):
    """Keys and values, several times."""

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        copies = range(int(self.setup.options.get("copies", COPIES.default)))
        return store_all(self, (replace(one, name=f"{one.name}_{copy}") for copy in copies for one in kind.tensors()))


class Toy(GeneralEngine):
    """Keys and values of full attention, twice."""

    deployment: ClassVar[type[Deployment]] = ToyDeployment
    occupancy: ClassVar[type[Occupancy]] = ToyOccupancy

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "a toy, twice"
    label: ClassVar[str] = "Toy"
    definition: ClassVar[Definition] = Definition.ENGINE
    versions: ClassVar[tuple[str, ...]] = ("2.0", "1.0")
    source: ClassVar[str] = "this test"
    facts: ClassVar[Facts] = Facts(cache_is="two copies of every key and value", choices=Choices())
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset({FullAttention})
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({"copies": COPIES})


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ENGINES, "toy", (__name__, "Toy"))
    yield
    hwcalc.engines._load.cache_clear()


# 36 layers x 8 heads x (128 + 128) x 2 bytes x 4,096 tokens, twice
BYTES = 2 * 36 * 8 * 256 * 2 * 4096
PLAN = (QWEN, "--engine", "toy", "--seq", "4096")


def answer(capsys: Capture, *words: str) -> Any:
    """The document of a command that succeeds."""
    status, out, err = run(capsys, *words, "--json")
    assert status == 0, err
    return json.loads(out)


def test_plan(capsys: Capture) -> None:
    """Its bytes, its verdict, its version, its option."""
    found = answer(capsys, *PLAN, "--gpu", "l40s")
    assert found["cache"]["total_bytes"] == BYTES
    assert found["fit"]["verdict"] == "fits"
    assert found["request"]["engine_version"] == "2.0"
    assert answer(capsys, *PLAN, "--engine-option", "copies=3")["cache"]["total_bytes"] == BYTES * 3 // 2
    assert run(capsys, *PLAN, "--engine-option", "copies=9")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        PLAN,
        (*PLAN, "--verbose", "--gpu", "l40s"),
        (*PLAN, "--format", "markdown"),
        (*PLAN, "--tp", "2", "--pp", "2", "--gpu", "l4"),
        (*PLAN, "--kv-memory", "10GiB"),
        (*PLAN, "--shared-prefix", "1024", "--users", "4"),
        ("explain", *PLAN, "--gpu", "l40s"),
        (QWEN, "--engine", "all", "--seq", "4096", "--gpu", "l40s"),
        ("compare", QWEN, "--engine", "toy,vllm", "--seq", "4096", "--gpu", "l40s"),
        ("diff", QWEN, "Qwen/Qwen3-4B", "--engine", "toy", "--seq", "4096"),
        ("sweep", *PLAN[:3], "--seq", "1024,4096", "--users", "1,2"),
        ("recommend", *PLAN),
        ("fit", "--engine", "toy", "--gpu", "rtx-4090", "--seq", "4096", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B"),
        ("strategies", *PLAN),
        ("plot", *PLAN, "--gpu", "l40s"),
        ("policies", "h2o"),
        ("engines",),
        ("engines", "toy@1.0"),
        ("engines", "--format", "csv"),
        ("engines", "--kinds"),
        (*PLAN, "--policy", "h2o:budget=1024"),
    ],
    ids=" ".join,
)
def test_a_command(words: tuple[str, ...], capsys: Capture) -> None:
    """It answers, and names the engine."""
    status, out, err = run(capsys, *words)
    assert status in (0, 1), err
    assert out
    assert "Traceback" not in out + err
    assert "toy" in (out + err).lower() or words[0] in ("diff", "fit", "recommend", "strategies", "sweep", "policies")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*PLAN, "--emit", "toy"), "toy"),
        (("mistralai/Mistral-7B-v0.1", *PLAN[1:]), "no rule for sliding_attention layers (sliding-window attention) in Toy"),
        ((QWEN, "--engine", "toy@3"), "toy@3"),
    ],
)
def test_what_it_cannot_do(words: tuple[str, ...], says: str, capsys: Capture) -> None:
    """A sentence and a hint."""
    status, out, err = run(capsys, *words)
    assert status in (2, 3), out
    assert says in err
    assert "Traceback" not in err


def test_what_is_listed(capsys: Capture) -> None:
    """The list of engines, and completion."""
    assert "toy" in {one["name"] for one in answer(capsys, "engines")["engines"]}
    assert "toy" in completion.engines("to")
    assert any(word.startswith("copies=") for word in completion.engine_options("cop"))


def test_what_a_probe_allocates() -> None:
    """Its tensors, layer by layer: what a rank of each stage holds."""
    opened = open_request(load_model(QWEN), engine="toy", seq=4096, pp=2)
    assert sum(one.bytes for stage in (0, 1) for one in opened.allocation(stage)) == BYTES


def test_check(tmp_path: Path, capsys: Capture) -> None:
    """A check file names it."""
    file = tmp_path / "kvplan.yaml"
    file.write_text(
        f"schema_version: 1\nchecks:\n  - model: {QWEN}\n    engine: toy\n    gpu: l40s\n    seq: 4096\n", encoding="utf-8"
    )
    status, out, err = run(capsys, "check", str(file))
    assert status in (0, 1), err + out

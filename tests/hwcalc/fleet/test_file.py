"""The file of a fleet: what it may say, and faults at their place."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import jsonschema
import pytest
import yaml

from hwcalc.check.file import CheckFileError, CheckUsageError
from hwcalc.cli.fleet import EXAMPLE
from hwcalc.errors import UsageError
from hwcalc.fleet.file import Conditions, FleetFile, parse_fleet, read_growth
from hwcalc.report.schema import json_schema

MODEL = "models: [{model: m, users: 2}]\n"
NODE = "nodes: [{gpu: l4}]\n"


def read(text: str) -> FleetFile:
    """The fleet of a text without its version."""
    return parse_fleet(f"schema_version: 1\n{text}", "fleet.yaml")


def test_models_and_nodes() -> None:
    """Options are those of a plan; the prompt and the output make a length; nodes have a number each, and may be rented."""
    fleet = read(
        "defaults: {engine: vllm, seq: 8k, itl: 50ms}\n"
        "models:\n"
        "  - {model: org/a, users: 20, prompt: 3k, output: 1k, block-size: 32}\n"
        "  - {name: b, model: org/b, concurrency: 3, itl: null, weights: fp8}\n"
        "nodes:\n"
        "  - {gpu: 4xl40s, count: 3}\n"
        "  - {name: cloud, instance: 'aws:p5.48xlarge', rent: {at_most: 2}, price: 40/h}\n"
        "  - {gpu: h100-sxm, gpus: 8, rent: true, count: 2}\n"
        "growth: 150%\nsurvive: 1\nrolling: true\n"
    )
    a, b = fleet.models
    own, cloud, both = fleet.nodes

    assert (a.name, a.users) == ("org/a", 20)
    assert a.options == {
        "engine": "vllm",
        "itl": 0.05,
        "prompt": 3072,
        "seq": 4096,
        "engine_options": {"block_size": "32"},
    }
    assert (b.name, b.users, b.options) == ("b", 3, {"engine": "vllm", "seq": 8192, "weights": "fp8"})
    assert (own.name, own.gpus, own.count, own.rent) == ("4xl40s", 4, 3, 0)
    assert (cloud.hardware, cloud.gpus, cloud.count, cloud.rent) == ({"instance": "aws/p5.48xlarge"}, 8, 0, 2)
    assert (cloud.usd_per_hour, cloud.where) == (Decimal(40), "fleet.yaml:8")
    assert (both.gpu, both.gpus, both.count, both.rent) == ("h100-sxm5-80gb", 8, 2, 1000)
    assert fleet.conditions == Conditions(survive=1, growth=Fraction(3, 2), rolling=True)


def test_cut_gpus() -> None:
    """Of eight GPUs each is cut into seven slices, or into as many as stand side by side; an instance may be cut too."""
    cut, instance = read(
        f"{MODEL}nodes: [{{gpu: 8xh100-sxm, mig: 7x1g.10gb}}, {{instance: aws/p5.48xlarge, mig: 3g.40gb, rent: true}}]\n"
    ).nodes

    assert (cut.name, cut.gpus, cut.devices) == ("8xh100-sxm5-80gb, 7x1g.10gb", 8, 56)
    assert cut.hardware == {"gpu": "h100-sxm5-80gb-mig-1g.10gb"}
    assert (instance.devices, instance.hardware) == (16, {"gpu": "h100-sxm5-80gb-mig-3g.40gb"})
    assert instance.whole.id == "h100-sxm5-80gb"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (NODE, "1:1", "models must be a list"),
        (MODEL, "1:1", "nodes must be a list"),
        (f"{MODEL}nodes: []\n", "3:8", "nodes must be a list"),
        (f"models: [{{users: 2}}]\n{NODE}", "2:10", "no id"),
        (f"models: [{{model: m}}]\n{NODE}", "2:10", "no users"),
        (f"models: [{{model: m, users: 2, rate: 3}}]\n{NODE}", "2:10", "both users and a rate"),
        (f"models: [{{model: m, rate: 3 furlongs}}]\n{NODE}", "2:27", "not a rate"),
        (f"models: [{{model: m, users: 0}}]\n{NODE}", "2:28", "users is '0'"),
        (f"models: [{{model: m, users: 2, gpu: l4}}]\n{NODE}", "2:31", "no key 'gpu'"),
        (f"models: [{{model: m, users: 2, tensor-parallel-size: 2}}]\n{NODE}", "2:53", "no tp"),
        (f"models: [{{model: m, users: 2, output: 1k}}]\n{NODE}", "2:39", "beside prompt"),
        (f"models: [{{model: m, users: 2, engine: vlm}}]\n{NODE}", "2:39", "'vlm' is not known"),
        (f"{MODEL}nodes: [{{gpu: l4, rent: {{at_most: 2000}}}}]\n", "3:35", "at_most is '2000'"),
        (f"models: [{{model: m, users: 2, weights: auto}}]\n{NODE}", "2:40", "auto chooses for one GPU"),
        (f"models: [{{model: m, users: 2, ttft: 2}}]\n{NODE}", "2:37", "ttft"),
        (f"models: [{{model: m, users: 2}}, {{model: m, users: 2}}]\n{NODE}", "2:32", "'m' stands twice"),
        (f"{MODEL}nodes: [{{count: 2}}]\n", "3:9", "a gpu or an instance"),
        (f"{MODEL}nodes: [{{gpu: l4, instance: p5.48xlarge}}]\n", "3:9", "a gpu or an instance"),
        (f"{MODEL}nodes: [{{gpu: nothing}}]\n", "3:15", "not known"),
        (f"{MODEL}nodes: [{{gpu: 9xh100}}]\n", "3:15", "up to 8"),
        (f"{MODEL}nodes: [{{gpu: 2xl4, gpus: 3}}]\n", "3:15", "differ"),
        (f"{MODEL}nodes: [{{instance: p5.48xlarge, gpus: 3}}]\n", "3:39", "its own number"),
        (f"{MODEL}nodes: [{{gpu: h100, mig: 8x1g.10gb}}]\n", "3:26", "up to 7 of h100-sxm5-80gb-mig-1g.10gb"),
        (f"{MODEL}nodes: [{{gpu: h100, mig: '3g.40gb,2g.20gb'}}]\n", "3:26", "slices of one kind"),
        (f"{MODEL}nodes: [{{gpu: l4, mig: 1g.6gb}}]\n", "3:24", "none of l4 is known"),
        (f"{MODEL}nodes: [{{gpu: l4, rent: 3}}]\n", "3:25", "rent is true"),
        (f"{MODEL}nodes: [{{gpu: l4, price: 3/h}}]\n", "3:26", "for rent"),
        (f"{MODEL}nodes: [{{gpu: l4, rent: true, price: 3}}]\n", "3:38", "not said per hour"),
        (f"{MODEL}nodes: [{{gpu: l4, count: 5000}}]\n", "3:26", "count is '5000'"),
        (f"models: [{{model: m, users: 2M}}]\n{NODE}", "2:28", "users is '2M'"),
        (f"{MODEL}nodes: [{{gpu: l4, rent: true, price: 1e9/h}}]\n", "3:38", "price"),
        (f"{MODEL}nodes: [{{gpu: l4, rent: true, price: 900000/h}}]\n", "3:38", "price is too high"),
        (f"{MODEL}{NODE}growth: 101\n", "4:9", "growth is"),
        (f"{MODEL}{NODE}survive: 9\n", "4:10", "survive is '9'"),
        (f"{MODEL}{NODE}growth: 0.5\n", "4:9", "growth is '0.5'"),
        (f"{MODEL}{NODE}rolling: 3\n", "4:10", "not true or false"),
        (f"{MODEL}{NODE}nods: 3\n", "4:1", "Did you mean nodes?"),
    ],
)
def test_faults(text: str, place: str, words: str) -> None:
    """Each names its line and column, and what is allowed."""
    with pytest.raises(CheckUsageError) as raised:
        read(text)
    faults = [raised.value, *raised.value.others]

    assert [f"fleet.yaml:{place}: " in str(fault) for fault in faults] == [True] * len(faults)
    assert words in f"{raised.value.message} {raised.value.hint}"


@pytest.mark.parametrize(
    "text", ["", "- 1", "a: &x 1", "models: *x", "!!python/object:os.system {}", "[" * 50, "a: 1\na: 2", "\0", "--- 1\n--- 2"]
)
def test_hostile(text: str) -> None:
    """Nothing is expanded, constructed or called."""
    with pytest.raises((CheckFileError, CheckUsageError), match=r"^fleet\.yaml"):
        parse_fleet(text, "fleet.yaml")


@pytest.mark.parametrize("word", ["", "x", "0x", "1/0", "-2", "nan", "inf", "1e9", "2y", True, "50%"])
def test_no_growth(word: object) -> None:
    """A factor is a number from 1."""
    with pytest.raises(UsageError, match="growth is"):
        read_growth(word)


def test_example() -> None:
    """The example is read, and its schema, with which editors complete the file, takes it."""
    jsonschema.validate(yaml.safe_load(EXAMPLE), json_schema("fleet-file"))

    assert [model.name for model in parse_fleet(EXAMPLE, "fleet.yaml").models] == ["chat", "small", "agents"]

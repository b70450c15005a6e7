"""Fleets of real models: each replica does what its plan says, and an answer adds up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import hwcalc
from hwcalc import plan, read_launch
from hwcalc.errors import UsageError
from hwcalc.fleet.result import Fleet
from hwcalc.planner.verdict import Verdict
from hwcalc.report.fleet import fleet_text
from hwcalc.report.schema import json_schema
from hwcalc.report.text import PIPED_WIDTH
from hwcalc.report.view import View
from tests.hwcalc.command import Capture, read_plan, run
from tests.paths import ROOT

FILE = ROOT / "docs/fleet.yaml"
SMALL: dict[str, Any] = {
    "schema_version": 1,
    "models": [{"model": "Qwen/Qwen3-8B", "users": 40, "seq": "8k", "engine": "vllm"}],
    "nodes": [{"gpu": "2xl4", "count": 1}],
}
"""One model on two L4, of which one holds one user for sure."""


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """The fleet of docs/fleet.md, of which any node may fail."""
    return hwcalc.fleet(FILE, survive=1)


def test_replicas_are_as_planned(fleet: Fleet) -> None:
    """The plan of each says that so many users are sure: they fit, within the limits; and its command is that plan."""
    for group in fleet.groups:
        model, options = read_plan(group.command)
        planned = plan(model, **options)

        assert planned.fit is not None
        assert planned.within is not None
        assert (planned.fit.verdict, planned.within.holds_low) == (Verdict.FITS, True)
        assert (planned.request.batch, planned.fit.gpus) == (group.users_each, group.gpus)
        assert planned.fit.gpus == group.tp * group.pp * group.dp


def test_answer_adds_up(fleet: Fleet) -> None:
    """Nodes hold all replicas, none has more than its GPUs, and what is left of each node's failure serves all users."""
    groups = fleet.groups
    held = [
        {
            model.name: sum(
                each.replicas * groups[each.group].users_each for each in nodes.holds if groups[each.group].model == model.name
            )
            for model in fleet.models
        }
        for nodes in fleet.nodes
        for _ in range(nodes.count)
    ]
    for model in fleet.models:
        users = [each[model.name] for each in held]

        assert model.served == sum(users)
        assert model.served_after_failure == sum(users) - max(users)
        assert model.served_after_failure >= model.planned_users == model.users
    for number, group in enumerate(groups):
        assert group.replicas == sum(
            nodes.count * each.replicas for nodes in fleet.nodes for each in nodes.holds if each.group == number
        )
    for nodes in fleet.nodes:
        assert nodes.gpus_used == sum(each.replicas * groups[each.group].gpus for each in nodes.holds) <= nodes.gpus


def test_money(fleet: Fleet) -> None:
    """Each node costs its dated price, 55.04 dollars an hour of a p5.48xlarge in July 2026, and 730 hours are a month."""
    (rented,) = fleet.rent
    (price,) = fleet.prices

    assert (fleet.holds, fleet.optimal, rented.node) == (True, True, "aws/p5.48xlarge")
    assert (price.usd_per_hour, price.date) == (55.04, "2026-07-20")
    assert "karpenter" in price.source
    assert fleet.usd_per_hour == fleet.usd_per_hour_least == rented.count * 55.04
    assert fleet.usd_per_month == pytest.approx(fleet.usd_per_hour * 730)


def test_own_prices() -> None:
    """That of the file wins, then the caller's; the cheaper kind of node is rented; without any the line is named."""
    nodes = [{"gpu": "8xh100-sxm", "rent": True}, {"name": "mine", "gpu": "8xh100-sxm", "rent": True, "price": "9/h"}]
    cheap = hwcalc.fleet({**SMALL, "nodes": nodes})
    given = hwcalc.fleet({**SMALL, "nodes": nodes}, price={"8xh100-sxm": "7/h"})

    assert [(each.node, each.usd_per_hour) for each in cheap.rent] == [("mine", 9.0)]
    assert [(each.node, each.usd_per_hour) for each in given.rent] == [("8xh100-sxm5-80gb", 7.0)]
    with pytest.raises(UsageError, match=r"fleet:1: .* no price") as raised:
        hwcalc.fleet({**SMALL, "nodes": [{"gpu": "dgx-spark", "rent": True}]})
    assert "price: " in raised.value.hint


def test_what_lacks() -> None:
    """Two L4 serve two users, each alone or both together: some of 40 lack, and so many nodes more are enough that they all are served."""
    fleet = hwcalc.fleet(SMALL)
    (model,) = fleet.models
    (more,) = fleet.additions
    enough = hwcalc.fleet({**SMALL, "nodes": [{"gpu": "2xl4", "count": 1 + more.count}]})

    assert (fleet.holds, model.unserved, more.node) == (False, 40 - model.served, "2xl4")
    assert enough.holds
    assert not hwcalc.fleet({**SMALL, "nodes": [{"gpu": "2xl4", "count": more.count}]}).holds


def test_model_that_runs_nowhere() -> None:
    """The reason is said, and no addition is."""
    fleet = hwcalc.fleet({**SMALL, "models": [{"model": "deepseek-ai/DeepSeek-V3", "users": 1, "seq": "8k", "engine": "vllm"}]})

    assert (fleet.holds, fleet.models[0].unserved, fleet.additions) == (False, 1, ())
    assert fleet.models[0].reason.startswith("2xl4: ")


def test_parts_of_a_gpu() -> None:
    """Without limits of time, servers of vLLM share a GPU: half or a quarter of the 0.92 that one may use; with limits none does."""
    models = [{"model": f"Qwen/Qwen3-{size}", "users": 10, "seq": "4k", "engine": "vllm"} for size in ("0.6B", "1.7B", "4B")]
    nodes = [{"gpu": "2xl40s"}]
    shared = hwcalc.fleet({**SMALL, "models": models, "nodes": nodes})
    timed = hwcalc.fleet({**SMALL, "models": [{**each, "itl": "1s"} for each in models[:2]], "nodes": nodes})

    assert shared.holds
    assert {group.gpu_share for group in shared.groups} == {0.25, 0.5}
    assert shared.nodes[0].gpus_used == sum(group.gpu_share * group.replicas for group in shared.groups) <= 2
    for group in shared.groups:
        model, options = read_plan(group.command)

        assert options["memory_utilization"] == str(0.92 * group.gpu_share)
        assert plan(model, **options).fit.verdict is Verdict.FITS  # type: ignore[union-attr]
    assert {group.gpu_share for group in timed.groups} == {1.0}


def test_slices() -> None:
    """A replica has one slice, and serves what its plan on the slice says; the node costs what it costs whole; limits of time are not sure there."""
    models = [{"model": "Qwen/Qwen3-0.6B", "users": 60, "seq": "4k", "engine": "vllm"}]
    nodes = [{"gpu": "h100-sxm", "mig": "7x1g.10gb"}, {"instance": "aws/p5.48xlarge", "mig": "1g.20gb", "rent": True}]
    cut = hwcalc.fleet({**SMALL, "models": models, "nodes": nodes})
    timed = hwcalc.fleet({**SMALL, "models": [{**models[0], "ttft": "9s"}], "nodes": nodes[:1]})
    (group,), (used,) = cut.groups, cut.nodes
    model, options = read_plan(group.command)
    planned = plan(model, **options).fit

    assert options["gpu"] == "h100-sxm5-80gb-mig-1g.10gb"
    assert planned is not None
    assert (planned.verdict, planned.max_batch) == (Verdict.FITS, group.users_each)
    assert group.replicas == -(-60 // group.users_each)
    assert (used.gpus, used.gpus_used, used.mig, cut.left[0].free_gpus) == (7, group.replicas, "1g.10gb", 7 - group.replicas)
    assert [(price.node, price.usd_per_hour) for price in cut.prices] == [("aws/p5.48xlarge, 4x1g.20gb", 55.04)]
    assert "no engine was measured on a MIG slice" in timed.models[0].reason


def test_a_model_that_needs_several_nodes(capsys: Capture, tmp_path: Path) -> None:
    """DeepSeek-V3 has more weights, 671 GB in fp8, than eight H100: it has two whole nodes, which fail together, and no node is had twice."""
    models = [{"model": "deepseek-ai/DeepSeek-V3", "users": 150, "seq": "8k", "engine": "vllm"}, *SMALL["models"]]
    content = {**SMALL, "models": models, "nodes": [{"gpu": "8xh100-sxm", "count": 6}]}
    plain, survived = hwcalc.fleet(content), hwcalc.fleet(content, survive=1)
    wide = next(group for group in plain.groups if group.gpus > 8)
    model, options = read_plan(wide.command)
    planned = plan(model, **options).fit

    assert (wide.gpus, wide.nodes) == (16, 2)
    assert planned is not None
    assert (planned.verdict, planned.gpus) == (Verdict.FITS, 16)
    assert wide.users_each >= 150
    for fleet, replicas, used in ((plain, 1, 3), (survived, 2, 6)):
        assert fleet.holds
        assert next(group.replicas for group in fleet.groups if group.nodes == 2) == replicas
        assert sum(nodes.count for nodes in fleet.nodes) == used
        assert {nodes.joined: nodes.gpus_used for nodes in fleet.nodes}[2] == 8
    assert "rolling keeps a replica within" in hwcalc.fleet(content, rolling=True).models[0].reason
    timed = hwcalc.fleet({**content, "models": [{**models[0], "ttft": "9s"}]})
    assert "a network between nodes" in timed.models[0].reason
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    commands = run(capsys, "fleet", str(file), "--emit", "command")[1]
    assert commands.count("vllm serve") == len(plain.groups)
    # vLLM's own flags (vllm/engine/arg_utils.py), beside the only server that has two nodes.
    assert commands.count("# Spans 2 nodes of 8 GPUs. On each: --data-parallel-size-local 8") == 1
    status, _, err = run(capsys, "fleet", str(file), "--emit", "kubernetes")
    assert (status, "--emit command" in err) == (2, True)


def test_a_replica_over_nodes_is_tried_where_each_serves_more_so(capsys: Capture, tmp_path: Path) -> None:
    """Four nodes of eight A40 hold a replica for all 200 users at $3.52/h each; seven would be needed one by one. Rolling keeps to one."""
    model: dict[str, Any] = {"model": "meta-llama/Llama-3.3-70B-Instruct", "users": 200, "seq": "16k", "engine": "vllm"}
    node = {"gpu": "8xa40", "rent": True, "price": "3.52/h"}
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"schema_version": 1, "models": [model], "nodes": [node]}), encoding="utf-8")
    wide = plan(model["model"], engine="vllm", seq="16k", batch=200, gpu="a40", gpus=32, tp=8, pp=4).fit
    text = " ".join(run(capsys, "fleet", str(file))[1].split())

    assert wide is not None
    assert wide.verdict is Verdict.FITS
    assert [(nodes.count, nodes.joined) for nodes in hwcalc.fleet(file).nodes] == [(4, 4)]
    assert "rented for $14.08/h" in text
    assert "on 1, 2, 4 or all GPUs of one node, or on 4 whole nodes joined, costs less" in text
    assert "The time of the network between joined nodes is not counted." in text
    alone = hwcalc.fleet(file, rolling=True)
    assert sum(nodes.count for nodes in alone.nodes) == -(-200 // max(group.users_each for group in alone.groups)) + 1


@pytest.mark.parametrize(
    ("model", "users"),
    [("deepseek-ai/DeepSeek-V3", 300), ("Qwen/Qwen3-235B-A22B", 200), ("meta-llama/Llama-3.3-70B-Instruct", 200)],
)
def test_a_fleet_costs_no_more_than_one_server(model: str, users: int) -> None:
    """What ``recommend`` offers for all users, such as three joined nodes, a fleet of one model may have too."""
    content = {
        "schema_version": 1,
        "models": [{"model": model, "users": users, "seq": "16k", "engine": "vllm"}],
        "nodes": [{"gpu": "8xh100", "rent": True, "price": "20/h"}],
    }
    (offer,) = hwcalc.recommend(model, engine="vllm", seq="16k", users=users, gpu="h100", price={"h100": "2.5/h"}).offers
    assert offer.cost is not None

    assert hwcalc.fleet(content).usd_per_hour <= offer.cost.usd_per_hour


def test_requests_that_arrive(capsys: Capture, tmp_path: Path) -> None:
    """A replica has as many in a second as its own plan says may arrive for sure, in whole thousandths; five a second, or 300 a minute, are as many such parts."""
    models = [{"model": "Qwen/Qwen3-8B", "rate": "300/min", "seq": "4k", "prompt": "3k", "engine": "vllm", "ttft": "2s"}]
    content = {**SMALL, "models": models, "nodes": [{"gpu": "h100-sxm", "count": 9}]}
    fleet = hwcalc.fleet(content)
    (group,), (model,) = fleet.groups, fleet.models
    name, options = read_plan(group.command)
    arrivals = plan(name, **options).within.arrivals  # type: ignore[union-attr]

    assert arrivals is not None
    assert group.rate_each is not None
    assert options["rate"] == f"{group.rate_each:g}"
    assert group.rate_each <= (arrivals.most_rate_low or 0) < group.rate_each + 0.001
    assert (model.users, model.planned_users, model.unserved) == (5, 5, 0)
    assert group.replicas == -(-5000 // round(1000 * group.rate_each))
    assert model.served == pytest.approx(group.replicas * group.rate_each)
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({**content, "nodes": [{"gpu": "h100-sxm"}]}), encoding="utf-8")
    status, out, _ = run(capsys, "fleet", str(file))
    assert (status, "Qwen/Qwen3-8B: " in out, " of 5/s" in out) == (1, True, True)


def test_command(capsys: Capture, tmp_path: Path) -> None:
    """Status 1 where users are not served; JSON by its schema; rows, Markdown, a picture."""
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    status, out, _ = run(capsys, "fleet", str(file), "--json")
    document = json.loads(out)

    assert status == 1
    jsonschema.validate(document, json_schema("fleet"))
    status, out, _ = run(capsys, "fleet", str(file))
    assert (status, out.splitlines()[0][:23]) == (1, "Not all users are serve")
    assert f"{document['models'][0]['unserved']} of 40" in out
    assert run(capsys, "fleet", str(file), "--format", "csv")[1].startswith("model,node,gpu,gpus,gpu_share,tp,")
    assert "| model | users |" in run(capsys, "fleet", str(file), "--format", "markdown")[1]
    run(capsys, "fleet", str(file), "--plot", str(tmp_path / "fleet.svg"))
    assert "Qwen/Qwen3-8B" in (tmp_path / "fleet.svg").read_text(encoding="utf-8")
    assert "1 x 2xl4" in run(capsys, "fleet", str(file), "--plot", "-")[1]


def test_manifests(capsys: Capture, tmp_path: Path) -> None:
    """Each group of replicas is a Deployment of that many, under a name of its own, which is read as a server with the same options."""
    file = tmp_path / "fleet.yaml"
    nodes = [{"gpu": "l40s", "count": 2}, {"gpu": "h100-sxm", "count": 1}]
    users = {"model": "Qwen/Qwen3-8B", "users": 60, "seq": "8k", "engine": "vllm"}
    file.write_text(yaml.safe_dump({**SMALL, "models": [users], "nodes": nodes}), encoding="utf-8")
    fleet = json.loads(run(capsys, "fleet", str(file), "--json")[1])
    status, text, _ = run(capsys, "fleet", str(file), "--emit", "kubernetes")
    deployments = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]

    assert status == 0
    assert len(fleet["groups"]) == 2
    assert [each["spec"]["replicas"] for each in deployments] == [each["replicas"] for each in fleet["groups"]]
    assert [each["metadata"]["name"] for each in deployments] == ["qwen3-8b", "qwen3-8b-2"]
    assert len(read_launch(text)) == 2
    assert run(capsys, "fleet", str(file), "--emit", "command")[1].count("vllm serve Qwen/Qwen3-8B --max-model-len 8192") == 2


def test_no_command_starts_the_formulas(capsys: Capture, tmp_path: Path) -> None:
    """A model whose file names no engine is planned by the formulas: the error says what to write."""
    file = tmp_path / "fleet.json"
    model = {"model": "Qwen/Qwen3-8B", "users": 1, "seq": "8k"}
    file.write_text(json.dumps({**SMALL, "models": [model]}), encoding="utf-8")
    for form in ("command", "kubernetes"):
        status, out, err = run(capsys, "fleet", str(file), "--emit", form)

        assert (status, out) == (2, "")
        assert "engine: vllm" in err


def test_options_of_no_plan() -> None:
    """What is wrong on any hardware is wrong usage, which names the model, and no model that runs nowhere."""
    (model,) = SMALL["models"]
    for key, value in {"prompt": "9k", "weights": "q9", "dtype": "fp3", "engine_options": {"nonsense": 1}}.items():
        with pytest.raises(UsageError, match=r"Qwen/Qwen3-8B: .*(9,216|q9|fp3|nonsense)"):
            hwcalc.fleet({**SMALL, "models": [{**model, key: value}]})


def test_all_faults_are_said(capsys: Capture, tmp_path: Path) -> None:
    """A file with three of them has three places on the terminal."""
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "schema_version: 1\nmodels: [{model: m, users: 0}]\nnodes: [{gpu: l4, count: -1}]\nrolling: 3\n", encoding="utf-8"
    )
    status, _, err = run(capsys, "fleet", str(file))

    assert status == 2
    assert [line.split(": ")[1].rpartition("fleet.yaml:")[2] for line in err.splitlines() if line.startswith("kvplan")] == [
        "2:28",
        "3:26",
        "4:10",
    ]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("fleet",), 2, "kvplan fleet --example"),
        (("fleet", "nowhere.yaml"), 3, "there is no file nowhere.yaml"),
        (("fleet", "docs/fleet.yaml", "--growth", "0"), 2, "growth is '0'"),
        (("fleet", "docs/fleet.yaml", "--survive", "x"), 2, "survive"),
        (("fleet", "docs/fleet.yaml", "--plot", "fleet.gif"), 2, ".png"),
        (("fleet", "docs/fleet.yaml", "--emit", "vagrant"), 2, "kubernetes, helm, command"),
        (("fleet", "docs/fleet.yaml", "--emit", "compose", "--format", "csv"), 2, "--emit prints text"),
        # What a plan takes as an option stands in the file.
        (("fleet", "docs/fleet.yaml", "--own", "8xh100"), 2, "kvplan MODEL --gpu 8xh100 --own 8xh100 --kwh 0.15"),
        (("fleet", "docs/fleet.yaml", "--gpu", "8xh100"), 2, "nodes: [{gpu: 8xh100, count: 2}"),
        (("fleet", "docs/fleet.yaml", "--concurrency", "8"), 2, "under defaults: users: N"),
        (("fleet", "docs/fleet.yaml", "--ttft", "2s"), 2, "under defaults: ttft: T"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], status: int, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given, what is allowed, what to type."""
    monkeypatch.chdir(ROOT)
    ended, out, err = run(capsys, *words)

    assert (ended, out) == (status, "")
    assert said in err


def test_a_terminal_of_80_columns_breaks_no_cell() -> None:
    """The titles, what is used of a node and each layout stand in one line, as in a table that has all the room it wants."""
    fleet = hwcalc.fleet(FILE)
    narrow, wide = (fleet_text(fleet, View(width=width, quiet=True)) for width in (80, PIPED_WIDTH))

    def table(text: str) -> list[list[str]]:
        lines = [line for line in text.split("\n\n")[2].splitlines() if line.strip()]
        return [re.split(" {2,}", line.strip()) for line in lines]

    assert max(map(len, narrow.splitlines())) <= 80
    assert any("dp 4, ep 4" in row for row in table(wide))
    assert table(narrow) == table(wide)

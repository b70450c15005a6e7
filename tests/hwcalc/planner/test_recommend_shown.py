"""What a recommendation shows: no more than can be joined, rows as wide as the terminal, its order, names of instances and Macs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hwcalc import plan, recommend
from tests.hwcalc.command import Capture, run


def test_machines_that_are_not_joined_are_not_offered_in_greater_number(capsys: Capture) -> None:
    """More GPUs are offered where some could have more, and of no Mac there is more than one."""
    macs = run(capsys, "recommend", "Qwen/Qwen3-32B", "--vendor", "apple", "--offline")[1]
    none = run(capsys, "recommend", "Qwen/Qwen3-235B-A22B", "--vendor", "apple", "--offline")[1]
    cards = run(capsys, "recommend", "Qwen/Qwen3-32B", "--gpu", "l4,gtx-1070", "--max-gpus", "4", "--offline")[1]

    assert "do not hold it.\n" in macs
    assert "--max-gpus" not in macs + none
    assert "candidates.\n" in none
    assert "with up to 4 GPUs; more: --max-gpus 8." in cards


# The names of instances alone are as wide as 60 columns.
@pytest.mark.parametrize(
    ("words", "columns"),
    [*(((), columns) for columns in (60, 80, 100)), *((("--instances", "all"), columns) for columns in (80, 100))],
)
def test_no_row_is_wider_than_the_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    """The least important columns are left out; no row is split over two lines."""
    monkeypatch.setenv("COLUMNS", str(columns))
    asked = ("recommend", "deepseek-ai/DeepSeek-V3", "--engine", "vllm", "--seq", "32k", "--limit", "6", "--offline")
    out = run(capsys, *asked, *words)[1]
    tables = [block.splitlines() for block in out.split("\n\n") if re.match("accelerator  |instance  ", block)]
    (titles,) = {tuple(re.split("  +", table[0].strip())) for table in tables}

    assert max(map(len, out.splitlines())) <= columns
    assert sum(len(table) - 1 for table in tables) == 6
    assert {"GPUs", "needs", "of", "at once"} <= set(titles)
    # What a column says is told where it is there; where it is not, that it is not.
    flat = " ".join(out.split())
    assert ("tok/s: tokens per second of all" in flat) == ("tok/s" in titles)
    assert bool(re.search(r"Left out at this width: [^.]*tok/s\. All: --format csv\.", flat)) == ("tok/s" not in titles)


def test_the_order_and_the_columns_are_said(capsys: Capture) -> None:
    """What sorts the rows is in no column; a column that is not there is not explained."""
    words = ("recommend", "deepseek-ai/DeepSeek-V3", "--seq", "32k", "--engine", "vllm", "--limit", "3", "--offline")
    table = run(capsys, *words)[1].replace("\n  ", " ")
    clouds = run(capsys, *words, "--instances", "all", "--sort", "speed")[1].replace("\n  ", " ")

    least = run(capsys, *words, "--sort", "memory")[1].replace("\n  ", " ")

    assert "in each group the newest first" in table
    assert "least memory of all GPUs together first." in least
    assert "most tokens per second first." in clouds
    assert "longest" in table
    assert "longest" not in clouds
    assert "replicas" not in table + clouds


def test_instances_by_their_names(capsys: Capture) -> None:
    """A family of a cloud, as its pages name it; what is neither a cloud nor an instance is an error."""
    words = ("recommend", "Qwen/Qwen3-8B", "--seq", "8k", "--engine", "vllm", "--all", "--limit", "0", "--offline", "--json")
    found = json.loads(run(capsys, *words, "--instances", "p5")[1])["offers"]
    status, said, _ = run(capsys, *words, "--instances", "nowhere")

    assert found
    assert {offer["instance"].partition(".")[0] for offer in found} == {"aws/p5"}
    assert status == 2
    assert "no known cloud, nor the beginning of an instance's name" in json.loads(said)["error"]["message"]


def test_a_mac_has_one_name() -> None:
    """With its size in the name or without."""
    found = recommend("meta-llama/Llama-3.1-8B", gpu="m4-max,apple-m4-max-40c-128gb", seq="4k").offers

    assert [offer.gpu for offer in found] == ["apple-m4-max-40c-128gb"]


def test_several_smaller_servers_are_spoken_of_where_they_could_share_the_users(capsys: Capture) -> None:
    """Offers are one server each: for many users on several GPUs the way to smaller ones is told, and its command works."""
    words = ("recommend", "meta-llama/Llama-3.3-70B-Instruct", "--engine", "vllm", "--seq", "16k", "--gpu", "b200", "--offline")
    many, one = (" ".join(run(capsys, *words, "--users", users)[1].split()) for users in ("200", "1"))

    assert "Several smaller ones may cost less: kvplan fleet finds them." in many
    assert "kvplan fleet --example > fleet.yaml" in many
    assert "kvplan fleet" not in one
    status, example, _ = run(capsys, "fleet", "--example")
    assert status == 0
    assert "\nmodels:" in example


LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("gpu", "asked"),
    [
        ("h100-sxm5-80gb", {"seq": 8192, "batch": 150, "ttft": "1s", "min_rate": 40}),
        ("l40s", {"seq": 8192, "batch": 100, "ttft": "1s", "min_rate": 40}),
        ("mi300x", {"seq": 16_384, "batch": 200, "ttft": "2s", "itl": "50ms"}),
        ("a100-sxm4-80gb", {"seq": 4096, "batch": 60, "itl": "25ms"}),
    ],
)
def test_an_offer_within_limits_of_time_has_the_layout_that_serves_most(gpu: str, asked: dict[str, Any]) -> None:
    """Also the nearest where none serves them all: no other layout of its GPUs that surely fits serves more, each planned by itself.

    A plan of as many GPUs without parallel sizes has the same layout.
    """
    found = recommend(LLAMA, engine="vllm", gpu=(gpu,), **asked)
    (offer,) = [one for one in (*found.offers, found.nearest) if one is not None][:1]
    assert offer.users is not None
    planned = [
        plan(LLAMA, engine="vllm", gpu=gpu, tp=tp, dp=offer.gpus // tp, **asked) for tp in (1, 2, 4, 8) if offer.gpus % tp == 0
    ]
    within = [
        one.within.users for one in planned if one.within is not None and one.fit is not None and one.fit.verdict.text == "fits"
    ]

    assert offer.users == max(users or 0 for users in within)
    alone = plan(LLAMA, engine="vllm", gpu=gpu, gpus=offer.gpus, **asked).request
    assert (alone.tp, alone.pp, alone.dp, alone.ep) == (offer.tp, offer.pp, offer.dp, offer.ep)


def test_where_requests_arrive_the_layout_is_that_of_the_most_in_a_second() -> None:
    """Another layout serves more users at once; a rate between what the two take is held by that of the most requests alone."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": "16k", "ttft": "2s"}
    layouts: list[dict[str, Any]] = [{"tp": 8}, {"tp": 4, "dp": 2}, {"tp": 2, "dp": 4}]
    within = [plan("Qwen/Qwen3-32B", gpu="h100", rate=1, **asked, **sizes).within for sizes in layouts]
    rates = [one.arrivals.most_rate or 0 for one in within if one is not None and one.arrivals is not None]
    users = [one.users or 0 for one in within if one is not None]
    most = rates.index(max(rates))
    assert most != users.index(max(users))

    rate = sum(sorted(rates)[-2:]) / 2
    (offer,) = recommend("Qwen/Qwen3-32B", gpu=("h100",), rate=rate, **asked).offers
    alone = plan("Qwen/Qwen3-32B", gpu="h100", gpus=8, rate=rate, **asked)
    assert (offer.tp, offer.dp) == (alone.request.tp, alone.request.dp) == (layouts[most]["tp"], layouts[most].get("dp", 1))
    assert alone.within is not None
    assert alone.within.holds


@pytest.mark.parametrize(("users", "enough"), [("100", True), ("10000", False)])
def test_more_gpus_that_nothing_holds_within_limits_of_time_are_enough_when_typed(
    users: str, enough: bool, capsys: Capture
) -> None:
    """The number that the line names holds them; where the most do not, none is named."""
    words = (
        "recommend",
        LLAMA,
        "--engine",
        "vllm",
        "--gpu",
        "l40s",
        "--seq",
        "8k",
        "--users",
        users,
        "--ttft",
        "1s",
        "--offline",
    )
    out = run(capsys, *words, "--min-rate", "40")[1]
    more = re.search(r"None within the limits of time: .*; more: --max-gpus (\d+)\.", out)

    assert ("None within the limits of time: " in out) is enough
    assert ("Nothing holds it: " in out) is not enough
    assert (more is not None) is enough
    if more is not None:
        status, offered, _ = run(capsys, *words, "--min-rate", "40", "--max-gpus", more[1])
        assert status == 0
        assert "Nearest:" not in offered

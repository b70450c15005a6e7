"""The offers of ``kvplan recommend``: their order, what stands for several, and which machines are joined."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hwcalc import recommend
from hwcalc.planner.recommend_result import Offer, Recommendation
from tests.hwcalc.command import Capture, run
from tests.hwcalc.planner.test_recommend import LLAMA_70B, everything, offers


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("memory", lambda offer: offer.total_bytes),
        ("gpus", lambda offer: (offer.gpus, offer.total_bytes)),
        (
            "speed",
            lambda offer: (
                offer.decode_tokens_per_s is None,
                -(offer.decode_tokens_per_s or offer.decode_tokens_per_s_bound or 0),
            ),
        ),
        ("headroom", lambda offer: -offer.headroom_bytes / offer.usable_bytes),
    ],
)
def test_orders(sort: str, key: Callable[[Offer], Any]) -> None:
    """What is sure comes first in every order; a limit takes the first of the whole list."""
    whole = recommend(LLAMA_70B, seq="8k", limit=0, offline=True, sort=sort)
    few = recommend(LLAMA_70B, seq="8k", limit=5, offline=True, sort=sort)

    assert whole.sort == sort
    assert sorted(whole.offers, key=lambda offer: (not offer.verdict.certain, key(offer))) == list(whole.offers)
    assert {offer.gpu for offer in whole.offers} == {offer.gpu for offer in everything()}
    assert list(few.offers) == list(whole.offers[:5])


def test_only_machines_that_can_be_linked_are_joined() -> None:
    """A laptop or a Mac is taken alone, also if it is named; two DGX Spark are one node."""
    every = offers(LLAMA_70B, seq="1k", max_gpus=64)
    machines = {offer.gpu: offer.gpus for offer in every if offer.category in ("laptop", "unified")}

    assert {gpu for gpu, gpus in machines.items() if gpus > 1} <= {"dgx-spark-gb10"}
    assert not offers(LLAMA_70B, seq="1k", gpu="m4-max-48")
    (spark,) = offers(LLAMA_70B, seq="8k", batch=4, gpu="dgx-spark", engine="vllm")
    assert (spark.gpus, spark.tp, spark.verdict) == (2, 2, "fits")
    assert not offers("deepseek-ai/DeepSeek-V3", seq="1k", gpu="dgx-spark", max_gpus=64)


def test_instances_with_the_same_accelerator_are_one_row(capsys: Capture) -> None:
    """The smallest, which names the others; --all lists each."""
    wanted: dict[str, Any] = {"seq": "8k", "engine": "vllm", "instances": "aws", "gpu": "l4"}
    one, *shares = offers("Qwen/Qwen3-4B", **wanted)
    every = [offer for offer in offers("Qwen/Qwen3-4B", every=True, **wanted) if offer.gpu == "l4"]

    assert one.instance == "aws/g6.xlarge"
    assert {share.gpu for share in shares} == {"l4-1-of-2"}
    assert [one.instance, *one.also] == [offer.instance for offer in every]
    assert [offer.gpus for offer in every] == sorted(offer.gpus for offer in every)
    assert one.also[:2] == ("aws/g6.2xlarge", "aws/g6.4xlarge")
    words = ("recommend", "Qwen/Qwen3-4B", "--seq", "8k", "--engine", "vllm", "--instances", "aws", "--gpu", "l4")
    assert f"g6.xlarge and {len(one.also)} more" in run(capsys, *words)[1]
    assert " more" not in run(capsys, *words, "--all", "-q")[1]
    assert json.loads(run(capsys, *words, "--json")[1])["offers"][0]["also"] == list(one.also)


def test_what_people_can_get_comes_first() -> None:
    """Rented, then sold, then the rest; of each the newest, unless it is no accelerator of its own, idle, or one of many cards."""
    found = recommend(LLAMA_70B, seq="16k", batch=20, engine="vllm", offline=True, limit=0).offers
    groups = [one.availability.value for one in found if one.verdict.certain]
    hopper = [one.gpu for one in found if one.gpu in ("h200-sxm-141gb", "h100-sxm5-80gb", "a100-sxm4-80gb")]

    assert groups == sorted(groups, key=["rent", "buy", "rare"].index)
    assert set(groups) == {"rent", "buy", "rare"}
    assert hopper == ["h200-sxm-141gb", "h100-sxm5-80gb", "a100-sxm4-80gb"]
    assert {one.availability.value for one in found if one.gpu in ("h20-96gb", "gh200-96gb", "rtx-4090-d")} == {"rare"}


def test_a_short_list_has_what_is_rented_and_what_is_sold() -> None:
    """They take turns until the limit; each group is the beginning of its own."""
    every = recommend(LLAMA_70B, seq="16k", batch=20, engine="vllm", offline=True, limit=0).offers
    few = recommend(LLAMA_70B, seq="16k", batch=20, engine="vllm", offline=True, limit=6).offers

    for way in ("rent", "buy"):
        of_few, of_every = ([one.gpu for one in offers if one.availability.value == way] for offers in (few, every))
        assert len(of_few) == 3
        assert of_few == of_every[:3]


def test_more_than_is_needed_comes_later() -> None:
    """A GPU of which less than a quarter is used stands behind one that is used, though it is newer; of those, the smallest is first."""
    found = recommend("Qwen/Qwen3-4B", seq="8k", engine="vllm", offline=True, gpu="b300,h200,h100,l4").offers
    used = {one.gpu: one.needed_bytes / one.usable_bytes for one in found}

    assert [one.gpu for one in found] == ["l4", "h100-sxm5-80gb", "h200-sxm-141gb", "b300-270gb"]
    assert [share < 0.25 for share in used.values()] == [False, True, True, True]


def test_offers_over_several_nodes_say_so(capsys: Capture) -> None:
    """Eight L40S are a server, and two of them are too few: 16 x 40.96 GiB are 655, and the weights alone 656. Three are joined by a network.

    An instance is one node whatever it has.
    """
    words = ("recommend", "deepseek-ai/DeepSeek-V3", "--engine", "vllm", "--seq", "8k", "--offline")
    out = run(capsys, *words, "--gpu", "l40s", "--max-gpus", "32")[1]
    (offer,) = recommend(
        "deepseek-ai/DeepSeek-V3", engine="vllm", seq="8k", offline=True, gpu="l40s", max_gpus=32, strict=True
    ).offers
    rented = recommend("deepseek-ai/DeepSeek-V3", engine="vllm", seq="8k", offline=True, instances="aws").offers

    assert (offer.gpus, offer.nodes) == (24, 3)
    assert "24 in 3 nodes" in out
    assert "no speed and no cost of tokens counts the network between them" in out.replace("\n  ", " ")
    assert {one.nodes for one in rented} == {1}
    assert {one.availability.value for one in rented} == {"rent"}


def test_the_cache_is_that_of_each_accelerator(capsys: Capture) -> None:
    """mistral.rs has no bf16 on Turing and Volta: there the cache is fp16."""
    words = ("recommend", "Qwen/Qwen3-4B", "--engine", "mistral-rs", "--seq", "8k", "--gpu", "v100,a100", "--offline")
    document = json.loads(run(capsys, *words, "--json")[1])
    out = run(capsys, *words)[1]

    assert document["kv_dtype"] is None
    assert {one["gpu"].partition("-")[0]: one["kv_dtype"] for one in document["offers"]} == {"v100": "fp16", "a100": "bf16"}
    assert "cache by the accelerator" in out
    assert document["offers"][0]["kv_dtype"] in out


def test_several_nodes_are_tried_where_they_matter() -> None:
    """For the least money, and where one node is not enough; not for an engine that joins none, nor where times must be kept."""

    def found(**asked: Any) -> Recommendation:
        return recommend("meta-llama/Llama-3.3-70B-Instruct", **{"engine": "vllm", "seq": "16k", "batch": 200, **asked})

    cheapest, node, large = (found(sort="cost", **most) for most in ({}, {"max_gpus": 8}, {"max_gpus": 32}))
    prices = [each.offers[0].cost.usd_per_hour for each in (cheapest, node, large) if each.offers[0].cost is not None]
    timed = found(sort="cost", ttft="10s", itl="200ms")
    beyond = recommend("deepseek-ai/DeepSeek-V3", engine="vllm", seq="64k", batch=400)

    assert prices[0] == prices[2] < prices[1]
    assert cheapest.offers[0].nodes == -(-cheapest.offers[0].gpus // 8) > 1
    assert node.max_gpus == timed.max_gpus == found(engine="tgi", sort="cost").max_gpus == found().max_gpus == 8
    assert all(offer.gpus > 8 and offer.nodes > 1 for offer in beyond.offers)

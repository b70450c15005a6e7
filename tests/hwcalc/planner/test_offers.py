"""The offers of ``kvplan recommend``: their order, what stands for several, and which machines are joined."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hwcalc import recommend
from hwcalc.planner.recommend import Offer
from tests.hwcalc.command import Capture, run
from tests.hwcalc.planner.test_recommend import LLAMA_70B, everything, offers


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("memory", lambda offer: offer.total_bytes),
        ("gpus", lambda offer: (offer.gpus, offer.total_bytes)),
        ("speed", lambda offer: -(offer.decode_tokens_per_s_bound or 0)),
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

"""Policies on a paged cache with real tensors: free blocks, copies and contents, against published and golden figures."""

from __future__ import annotations

import json
import random
import re
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from msgspec.structs import replace

from hwcalc.planner.policy import policy_blocks
from hwcalc.policies.base import FILL, REPACK
from hwcalc.probe import policy_cut, policy_paged
from hwcalc.probe.devices import Device, metering, open_device
from hwcalc.probe.policy_cut import places_of
from hwcalc.probe.policy_paged import Layer, Paging, free_blocks
from tests.hwcalc.probe.test_policy_run import figure, ran
from tests.paths import ROOT

CPU = open_device("cpu")
ROWS: Final[list[dict[str, Any]]] = json.loads((ROOT / "tests/golden/eviction.json").read_text(encoding="utf-8"))["rows"]
COMPACTED = [row for row in ROWS if "total_tokens" in row]
SCATTERED = [row for row in ROWS if "survivors" in row]
ONE_LAYER = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "float16",
}


def paged(heads: int, block: int, tokens: int) -> Paging:
    """A layer whose prompt is in its blocks."""
    paging = Paging(CPU, Layer(heads=heads, width=8), block, tokens, seed=1)
    paging.write(0, tokens)
    return paging


@pytest.mark.parametrize(("how", "copies"), [(REPACK, 18), (FILL, 3)])
def test_the_published_toy(how: str, copies: int) -> None:
    """Six blocks of four without 2, 9, 13 and 21: one block comes back, with 18 copies in order or 3 into holes."""
    paging = paged(1, 4, 24)
    cut = paging.cut(torch.tensor([[place for place in range(24) if place not in {2, 9, 13, 21}]]), how)

    assert (cut.copies, cut.freed) == ((copies,), 1)
    assert paging.in_place()


@pytest.mark.parametrize("row", COMPACTED, ids=lambda row: row["name"])
@pytest.mark.parametrize(("how", "name"), [(REPACK, "order_preserving"), (FILL, "hole_filling")])
def test_golden_compactions(row: dict[str, Any], how: str, name: str) -> None:
    """As many survivors move, and as many blocks go, as in TriAttention's own code."""
    keep = row["keep"] or list(range(*map(int, re.findall(r"[0-9]+", row["keep_rule"]))))
    paging = paged(2, row["block_size"], row["total_tokens"])
    cut = paging.cut(torch.tensor([keep]).expand(2, -1), how)

    assert cut.copies == (row["expect"][name]["survivor_moves"],) * 2
    assert cut.freed == row["expect"][name]["removed_blocks"]
    assert len(paging.table) == row["expect"][name]["kept_blocks"]
    assert paging.in_place()


@pytest.mark.parametrize("row", SCATTERED, ids=lambda row: row["name"])
def test_golden_free_blocks(row: dict[str, Any]) -> None:
    """The mean of 40 draws is near the mean of the golden simulation."""
    choosers = [(row["survivors"], row["heads_choosing_alone"])]
    counts = [free_blocks(CPU, row["tokens"], row["block_size"], choosers, growing=False, seed=seed) for seed in range(40)]

    assert sum(counts) / 40 == pytest.approx(row["expect"]["simulated_mean"], rel=0.05, abs=0.7)


def test_free_blocks_by_sets() -> None:
    """The same survivors counted without tensors."""
    for seed in range(30):
        rng = random.Random(seed)  # noqa: S311 - no secret
        tokens, block, heads = rng.randrange(1, 300), rng.choice([1, 4, 16]), rng.randrange(1, 4)
        stay = rng.randrange(1, tokens + 1)
        found = free_blocks(CPU, tokens, block, [(stay, heads)], growing=False, seed=seed)
        places = places_of(torch, heads, tokens, stay, seed * policy_cut.PRIME + 1)
        needed = {place // block for head in places.tolist() for place in head}

        assert found == -(-tokens // block) - len(needed)


def test_cuts_again_and_again() -> None:
    """Blocks that were given back are taken again, and what is in them is found at the end."""
    for how in (REPACK, FILL):
        paging = Paging(CPU, Layer(heads=3, width=4), 4, 60, seed=7)
        paging.write(0, 50)
        for number in range(20):
            paging.cut(places_of(torch, 3, paging.length, 30, number), how)
            for step in range(20):
                paging.write(50 + 20 * number + step, 1)
        assert paging.in_place()
        assert len(paging.table) == 13
        assert paging.most == 13


def test_a_lost_survivor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that goes astray: the counts are right and the content is not."""
    real = policy_paged._moves

    def astray(*args: Any) -> Any:
        source, target = real(*args)
        return source, target.flip(0)

    monkeypatch.setattr(policy_paged, "_moves", astray)
    run = ran(ONE_LAYER, seq=2_000, policy="knorm:compression_ratio=0.5", engine="vllm")

    assert all(one.agrees for one in run.figures)
    assert run.in_place is False
    assert not run.agrees


def test_one_shared_choice_of_two_heads() -> None:
    """16,000 tokens, 1,600 kept (1,599 with the rounding of kvpress), two heads: 34 of 1,000 blocks, and 900 behind a compaction."""
    run = ran(ONE_LAYER, seq=16_000, policy="knorm:compression_ratio=0.9", engine="vllm")

    assert run.agrees
    assert figure(run, "free without compaction").measured == pytest.approx(34, abs=3)
    assert figure(run, "free after compaction").measured == 900


@pytest.mark.parametrize("compaction", [REPACK, FILL])
def test_the_cadence_of_triattention(compaction: str) -> None:
    """It grows to 2,176 tokens in 136 blocks, goes back to 2,048 in 128, and grows again."""
    run = ran(ONE_LAYER, seq=3_000, prompt=100, policy="triattention", engine="vllm", compaction=compaction)

    assert run.agrees
    assert run.steps == 2_900
    assert figure(run, "free after compaction").measured == 8
    assert figure(run, "blocks at the most").measured == 136


def test_windows_of_the_rule() -> None:
    """Sinks and a window lie in whole blocks but for their ends: free without a compaction, and exact."""
    run = ran(ONE_LAYER, seq=300, prompt=200, policy="streamingllm:compression_ratio=0.5", engine="vllm")

    assert run.agrees
    assert figure(run, "free without compaction").measured == 5
    assert figure(run, "copies of a repack").measured == 96


@pytest.mark.parametrize("name", ["held", "free_compacted", "most", "steady", "repack_copies", "fill_copies", "free"])
def test_a_wrong_plan_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each number of the plan, made wrong by more than a random choice may be off."""

    def wrong(*given: Any) -> Any:
        blocks = policy_blocks(*given)
        assert blocks is not None
        by = 40 if name in {"repack_copies", "fill_copies", "free"} else 1
        return replace(blocks, **{name: getattr(blocks, name) + by})

    monkeypatch.setattr("hwcalc.planner.policy.policy_blocks", wrong)
    run = ran(ONE_LAYER, seq=2_001, prompt=2_000, policy="knorm:compression_ratio=0.5", engine="vllm")

    assert not run.agrees
    assert len([one for one in run.figures if not one.agrees]) == 1


class CountedCuda(Device):
    """A CUDA device whose tensors are on the CPU, and whose counters are those of the other meter."""

    kind = "cuda"

    def __init__(self, counted: Any) -> None:
        statistics = SimpleNamespace(
            synchronize=lambda _: None,
            memory_stats=lambda _: {
                "requested_bytes.all.current": 1_000 + counted.now,
                "requested_bytes.all.peak": 1_000 + counted.peak,
            },
            reset_peak_memory_stats=lambda _: counted.restart(),
        )
        super().__init__(SimpleNamespace(cuda=statistics), "cpu")


def test_the_counters_of_cuda() -> None:
    """What is aside does not count, before and behind a restart."""
    with metering(CPU) as counted, metering(CountedCuda(counted)) as meter:
        first = torch.empty(700, dtype=torch.uint8)
        with meter.aside():
            aside = torch.empty(5_000, dtype=torch.uint8)
            del aside
        assert (meter.now, meter.peak) == (700, 700)
        second = torch.empty(100, dtype=torch.uint8)
        del first
        assert (meter.now, meter.peak) == (100, 800)
        meter.restart()
        assert meter.peak == 100
    assert second.numel() == 100

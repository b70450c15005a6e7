"""LMDeploy's log beside the plan: blocks by the memory that the log itself says was free."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.reconcile import reconcile
from hwcalc.reconcile.dialects import find_dialect
from hwcalc.reconcile.facts import Row
from hwcalc.reconcile.result import Reconciliation
from tests.hwcalc.reconcile.logs import LOGS

LLAMA: Final = "meta-llama/Llama-3.1-8B"


def log(name: str) -> str:
    """A file of the corpus."""
    return (LOGS / "lmdeploy" / name).read_text(encoding="utf-8")


def rows(result: Reconciliation) -> dict[str, Row]:
    """The rows by name."""
    return {row.name: row for row in result.rows}


def test_pytorch_blocks_are_exact() -> None:
    """60 GiB free, 10,240 x 128,256 x 2 bytes for a forward pass, 0.8 of the rest: 5,893 blocks, and 2,505 MiB."""
    result = reconcile(LLAMA, log("pytorch-llama-3-8b-h100.log"))
    assert result.dialect == "lmdeploy"
    found = rows(result)
    assert {name: row.within for name, row in found.items()} == {"forward pass": True, "blocks": True}
    assert (found["blocks"].predicted, found["blocks"].reported) == (5893, 5893)
    assert found["forward pass"].predicted == 2_626_682_880
    assert "no-gpu" in {note.code for note in result.notes}


def test_a_block_more_is_a_difference() -> None:
    """The rounding of the log leaves a block open, but not ten."""
    wrong = log("pytorch-llama-3-8b-h100.log").replace("num_gpu_blocks=5893", "num_gpu_blocks=5903")
    assert not rows(reconcile(LLAMA, wrong))["blocks"].within


def test_what_is_free_is_an_estimate() -> None:
    """With the GPU's name, the free memory is compared with what the weights leave of it."""
    result = reconcile(LLAMA, log("pytorch-llama-3-8b-h100.log"), gpu="h100-sxm5-80gb")
    assert rows(result)["free"].definition == "estimate"


def test_turbomind() -> None:
    """Bytes of a block, and tokens of all blocks."""
    found = rows(reconcile(LLAMA, log("turbomind-llama-3-8b.log")))
    assert {name: row.within for name, row in found.items()} == {"block": True, "tokens": True}
    assert found["tokens"].predicted == 6144 * 64


def test_turbomind_with_states() -> None:
    """Qwen3.5-35B: 1,024 slots of 33,423,360 bytes; 0.8 of 70 GiB less those, in blocks of 1,310,720."""
    found = rows(reconcile("Qwen/Qwen3.5-35B-A3B", log("turbomind-qwen3.5-35b.log"), gpu="h200-sxm-141gb", tolerance="20%"))
    assert all(found[name].within for name in ("block", "states", "blocks"))
    assert found["states"].predicted == 1024 * 33_423_360
    assert found["blocks"].predicted == (int(70 * 2**30 * 0.8) - 1024 * 33_423_360) // 1_310_720 == 19_763


def test_the_budget_of_later_releases() -> None:
    """0.8 of 60 GiB are 48 GiB."""
    found = rows(reconcile(LLAMA, log("turbomind-object-cache.log")))
    assert found["cache"].within
    assert found["cache"].predicted == 48 * 2**30


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("minimal free gpu memory: 61440 mb", "free_bytes", 61_440 * 2**20),
        ("estimated max runtime memory: 2505 mb", "runtime_bytes", 2505 * 2**20),
        ("CacheConfig(max_batches=128, quant_policy=<QuantPolicy.INT8: 8>, num_gpu_blocks=7)", "quant_policy", "8"),
        ("CacheConfig(max_batches=128, cache_max_entry_count=0.5)", "cache_max_entry_count", "0.5"),
        ("[SeqMgr] linear-state combined total: 32640.00 MB", "state_bytes", 32_640 * 2**20),
        ("[TM][INFO] max_block_count = 6144", "num_gpu_blocks", 6144),
    ],
)
def test_lines(line: str, name: str, value: float | str) -> None:
    """What each line states."""
    parser = find_dialect("lmdeploy")()
    parser.feed(1, line)
    fact = parser.facts.last(name)
    assert fact is not None
    assert fact.value == value

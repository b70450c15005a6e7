"""The engine with a pool that the README shows: it plans, compares, sweeps, explains, gets advice and is drawn, all by one count of blocks."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc.engines
from hwcalc.engines import ENGINES
from hwcalc.engines.pooled import BlockPool
from tests.hwcalc.command import QWEN, Capture, run
from tests.paths import ROOT

NAME: Final = "a_paged_engine"
# 36 layers x 8 heads x (128 + 128) x 2 bytes x 16 tokens
BLOCK: Final = 36 * 8 * 256 * 2 * 16
PLAN: Final = (QWEN, "--engine", "paged", "--seq", "1000", "--users", "4", "--kv-memory", str(300 * BLOCK))
"""A sequence of 1,000 tokens takes 63 blocks of 16, and 300 blocks hold four of them."""


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    text = (ROOT / "hwcalc" / "engines" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"(?ms)^ +```python\n(.*?)^ +```", text)
    path = tmp_path / f"{NAME}.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ENGINES, "paged", (NAME, "Paged"))
    yield
    hwcalc.engines._load.cache_clear()
    sys.modules.pop(NAME, None)


def answer(capsys: Capture, *words: str) -> Any:
    """The document of a command that gives an answer."""
    status, out, err = run(capsys, *words, "--json")
    assert status in (0, 1), err
    return json.loads(out)


def answers(capsys: Capture) -> dict[str, Any]:
    """How many sequences fit, as each command says it."""
    planned = answer(capsys, *PLAN)
    points = answer(capsys, "sweep", *PLAN[:3], "--seq", "1000", "--users", "1,2,3,4,5", *PLAN[-2:])["points"]
    steps = {step["name"]: step["expected"] for step in planned["pool"]["steps"]}
    return {
        "plan": planned["fit"]["max_batch"],
        "longest": planned["fit"]["max_seq"],
        "compare": answer(capsys, "compare", *PLAN)["variants"][0]["max_batch"],
        "sweep": sum(point["fits"] == "fits" for point in points),
        "pool": planned["pool"]["max_requests"],
        "explain": steps["max_requests"],
    }


def test_every_command_counts_alike(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 blocks, 63 each: 4 sequences; 75 blocks each are 1,200 tokens. With twice as many blocks each, all answers move."""
    assert answers(capsys) == {"plan": 4, "longest": 75 * 16, "compare": 4, "sweep": 4, "pool": 4, "explain": 4}

    demand = BlockPool.demand
    monkeypatch.setattr(BlockPool, "demand", lambda self, tokens, sequences: 2 * demand(self, tokens, sequences))
    assert answers(capsys) == {"plan": 2, "longest": 37 * 16, "compare": 2, "sweep": 2, "pool": 2, "explain": 2}


def test_every_command_asks_one_pool(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the blocks usable, all answers move."""
    free = BlockPool.free
    monkeypatch.setattr(BlockPool, "free", lambda self, budget_bytes, steps=None: free(self, budget_bytes, steps) // 2)
    assert answers(capsys) == {"plan": 2, "longest": 37 * 16, "compare": 2, "sweep": 2, "pool": 2, "explain": 2}


def test_advice(capsys: Capture) -> None:
    """What does not fit is told what would."""
    found = answer(capsys, QWEN, "--engine", "paged", "--seq", "32k", "--users", "8", "--gpu", "l4")["fit"]
    assert found["verdict"] == "no"
    assert found["suggestions"]


@pytest.mark.parametrize(
    "words",
    [
        ("explain", *PLAN),
        ("recommend", QWEN, "--engine", "paged", "--seq", "4096"),
        ("fit", "--engine", "paged", "--gpu", "rtx-4090", "--seq", "4096", QWEN, "Qwen/Qwen3-4B"),
        ("strategies", QWEN, "--engine", "paged", "--seq", "4096"),
        ("plot", QWEN, "--engine", "paged", "--seq", "4096", "--gpu", "l40s"),
        (*PLAN[:3], *PLAN[5:], "--lengths", "100,1000"),
        (*PLAN, "--samples", "2", "--prompt", "500"),
        (*PLAN[:5], "--gpu", "l40s", "--tp", "2", "--pp", "2", "--verbose"),
    ],
    ids=" ".join,
)
def test_a_command(words: tuple[str, ...], capsys: Capture) -> None:
    """It answers."""
    status, out, err = run(capsys, *words)
    assert status in (0, 1), err
    assert out
    assert "Traceback" not in out + err

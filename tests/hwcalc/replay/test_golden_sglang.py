"""Every scenario that SGLang 0.5.23's own scheduler ran (``tests/golden/sglang_scheduler.json``) is replayed to the step."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.replay.result import Simulation
from hwcalc.replay.sglang.scheduler import SglangScheduler
from tests.hwcalc.replay.rows import SGLANG_ROWS, digest, replayed_by_sglang


def _scheduler(simulation: Simulation) -> SglangScheduler:
    scheduler = simulation.scheduler
    assert isinstance(scheduler, SglangScheduler)
    return scheduler


def _is_same(row: dict[str, Any], key: str, rows: list[list[Any]]) -> bool:
    """Whether rows are those of the file, which has long ones as a hash."""
    return bool(row[key] == rows if key in row else row[f"{key}_sha256"] == digest(rows))


@pytest.mark.parametrize("name", SGLANG_ROWS)
def test_steps(name: str) -> None:
    """Each step has the same kind, requests and tokens, and so has the tree."""
    row, simulation = SGLANG_ROWS[name], replayed_by_sglang(name)
    assert row["totals"] == {key: simulation.totals[key] for key in row["totals"]}
    assert row["steps_sha256"] == digest(simulation.steps)


@pytest.mark.parametrize("name", SGLANG_ROWS)
def test_requests(name: str) -> None:
    """Each request is scheduled, answered and finished in the same iterations, with the same hits, retractions, outputs and reason."""
    row, simulation = SGLANG_ROWS[name], replayed_by_sglang(name)
    assert _is_same(row, "per_request", [list(request) for request in simulation.requests])


@pytest.mark.parametrize("name", SGLANG_ROWS)
def test_ratio(name: str) -> None:
    """The share of the tokens to come that is reserved is the same after each step, and so are retractions."""
    row, simulation = SGLANG_ROWS[name], replayed_by_sglang(name)
    log = [[turn, retracted, aborted, round(ratio, 12)] for turn, retracted, aborted, ratio in simulation.retraction_log]
    assert _is_same(row, "retraction_log", log[:200])
    ratios = _scheduler(simulation).ratios
    assert row["ratios_sha256"] == digest((step[0], f"{ratio:.9f}") for step, ratio in zip(simulation.steps, ratios, strict=True))

"""Every scenario that vLLM 0.33's own scheduler ran (``tests/golden/vllm_scheduler.json``) is replayed to the step."""

from __future__ import annotations

import pytest

from hwcalc.replay.vllm.scheduler import VllmScheduler
from tests.hwcalc.replay.rows import ROWS, digest, replayed


@pytest.mark.parametrize("name", ROWS)
def test_steps(name: str) -> None:
    """Each step has the same tokens, requests and blocks."""
    row, simulation = ROWS[name], replayed(name)
    if "steps" in row:
        assert row["steps"] == [list(step) for step in simulation.steps]
    assert row["steps_sha256"] == digest(simulation.steps)


@pytest.mark.parametrize("name", ROWS)
def test_requests(name: str) -> None:
    """Each request is scheduled, answered and finished in the same iterations; so it is with preemptions."""
    row, simulation = ROWS[name], replayed(name)
    assert row["per_request"] == [list(request) for request in simulation.requests]
    assert row["preemption_log"] == [list(entry) for entry in simulation.preemptions[: len(row["preemption_log"])]]


@pytest.mark.parametrize("name", ROWS)
def test_totals(name: str) -> None:
    """Peaks, sums and hits are the same, and nothing stays held."""
    row, simulation = ROWS[name], replayed(name)
    assert row["totals"] == {key: simulation.totals[key] for key in row["totals"]}


def test_groups() -> None:
    """The replay runs on the groups of the plan, with the checks at admission that vLLM makes."""
    for name, row in ROWS.items():
        scheduler = replayed(name).scheduler
        assert isinstance(scheduler, VllmScheduler)
        groups = scheduler.cache.groups
        assert [(size, cap) for _, _, size, cap in row["groups"]] == [(group.size, group.cap) for group in groups]

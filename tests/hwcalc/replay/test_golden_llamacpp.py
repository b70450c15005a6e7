"""Every scenario that a real llama-server ran (``tests/golden/llamacpp_slots.json``) is replayed to the step."""

from __future__ import annotations

import pytest

from tests.hwcalc.replay.rows import LLAMACPP_ROWS, digest, replayed_by_llamacpp


@pytest.mark.parametrize("name", LLAMACPP_ROWS)
def test_requests(name: str) -> None:
    """Each request gets its slot, its first token and its last in the same iterations, and finds as much in the slot."""
    row, simulation = LLAMACPP_ROWS[name], replayed_by_llamacpp(name)
    assert [list(request[:4]) for request in simulation.requests] == row["per_request"]


@pytest.mark.parametrize("name", LLAMACPP_ROWS)
def test_steps(name: str) -> None:
    """Each batch has the same tokens of as many requests, and as many prompts are saved and loaded again, and slots emptied for others."""
    row, simulation = LLAMACPP_ROWS[name], replayed_by_llamacpp(name)
    assert digest(step[:3] for step in simulation.steps) == row["steps_sha256"]
    assert row["totals"] == {key: simulation.totals[key] for key in row["totals"]}

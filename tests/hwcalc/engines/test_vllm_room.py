"""What of vLLM's requests fits, from the family's room and from a pool of its own."""

from __future__ import annotations

import pytest

from hwcalc import load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.planner import solve
from hwcalc.planner.context import open_request

_MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-12b-it")


def _opened(name: str, gpu: str) -> Occupancy:
    return open_request(load_model(name), engine="vllm", gpu=gpu, seq=4096, batch=1)


@pytest.mark.parametrize("gpu", ["h100", "rtx-4090", "l4"])
@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("end", ["low", "expected", "high"])
def test_what_the_weights_alone_refuse_the_budget_refuses_too(name: str, gpu: str, end: str) -> None:
    """At each number of sequences the answer is that of the engine's pool, far beyond the limit and on both sides of it."""
    opened = _opened(name, gpu)
    room = opened.room()
    assert room is not None
    assert room.most_bytes is not None
    size = solve.budget_bytes(opened, end)
    assert size is not None
    assert size <= room.most_bytes[end]
    limit = room.most(4096, end, 1024)
    for batch in {1, max(1, limit - 1), max(1, limit), limit + 1, 2 * limit + 1, 1024}:
        changed = opened.sized(batch=batch)
        assert room.holds(4096, batch, end) == (size >= 0 and changed.holds(size))


def test_a_change_that_lacks_far_too_much_needs_no_budget() -> None:
    """The weights alone say so: the activations and graphs of the change are never worked out."""
    opened = _opened("meta-llama/Llama-3.1-70B", "l4")
    room = opened.room()
    assert room is not None
    assert not room.holds(4096, 1, "high")
    assert not any(key[0] == "budget" for key in opened.family if isinstance(key, tuple))

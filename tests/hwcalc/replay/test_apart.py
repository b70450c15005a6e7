"""Prompts and tokens on servers of their own: steps of a second, and a cache that moves for as long as its blocks take over a link."""

from __future__ import annotations

from typing import Any

import pytest

import hwcalc
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.replay.result import Simulation
from tests.hwcalc.replay.test_traffic import CONFIG, replayed

BLOCK_BYTES = 2 * 2 * 8 * 64 * 2 * 16
"""Keys and values of 2 layers with 8 heads of 64 numbers of 2 bytes, for 16 tokens."""
MOVES = BLOCK_BYTES / 12.5e9
"""Seconds of a block over 100 Gbit/s."""


def apart(requests: Any, **options: Any) -> Simulation:
    """The requests on a server for prompts and one for tokens."""
    return replayed(requests, step_time=1.0, link="100gbe", prefill_servers=1, decode_servers=1, **options)


def times(simulation: Simulation) -> list[tuple[Any, Any]]:
    """The first and the last token of each request."""
    return [(record["ttft"], record["e2e"]) for record in simulation.records()]


def test_a_request_goes_from_one_to_the_other() -> None:
    """The prompt takes a second and 7 blocks move; its last token is computed again, which gives the first of three tokens."""
    simulation = apart([(0, 100, 3)])
    prefill = simulation.prefill
    assert prefill is not None

    assert times(simulation) == [(pytest.approx(2 + 7 * MOVES), pytest.approx(4 + 7 * MOVES))]
    assert times(prefill) == [(1, 1)]
    assert [row[1] for row in prefill.steps] == [100]
    assert [row[1] for row in simulation.steps] == [1, 1, 1]
    assert simulation.traffic.to_dict()["prefill"]["totals"]["scheduled_tokens"] == 100


def test_blocks_are_kept_until_the_cache_has_moved() -> None:
    """Of 10 blocks on either side a request has 7 (100 tokens), so that each side serves one at a time.

    The second prompt is computed when the first has moved, at 1 + m, and has room for tokens when the first request has ended, at 4 + m.
    Then it moves, and only then its blocks are free for the third, which has room when the second has ended, at 7 + 2 m.
    """
    simulation = apart([(0, 100, 3)] * 3, blocks=10)
    m = 7 * MOVES

    assert [first for first, _ in times(simulation)] == [pytest.approx(each) for each in (2 + m, 5 + 2 * m, 8 + 3 * m)]
    assert simulation.prefill is not None
    assert [record["first_scheduled"] for record in simulation.records()] == [row[1] for row in simulation.prefill.requests]
    assert times(simulation.prefill)[1:] == [(pytest.approx(2 + m), pytest.approx(2 + m)), (pytest.approx(5 + 2 * m),) * 2]
    for side in (simulation, simulation.prefill):
        assert side.totals["used_blocks_after"] == 0
        assert side.totals["peak_used_blocks"] == 7


def test_a_prompt_that_never_fits() -> None:
    """A prompt of 100 tokens takes 7 blocks: where there are 5, nobody is ever answered, and that is said."""
    simulation = apart([(0, 100, 3)], blocks=5)

    assert [note.code for note in simulation.traffic.warnings] == ["stalled"]


def test_a_cache_moves_while_others_decode() -> None:
    """Of four prompts at once two servers compute each two, in a second each.

    The first two come at 1, move at once, and have their first token at 2 + m. The others come at 2, while that step runs. They move while
    the next step runs, and have their first token from the step after it.
    """
    options = {"max_num_batched_tokens": 100, "max_num_seqs": 16}
    simulation = replayed(
        [(0, 100, 3)] * 4, step_time=1.0, link="100gbe", prefill_servers=2, decode_servers=1, engine_options=options
    )
    assert simulation.prefill is not None

    m = 7 * MOVES
    assert list(simulation.prefill.log.servers) == [0, 1, 0, 1]
    assert [first for first, _ in times(simulation)] == [pytest.approx(each) for each in (2 + m, 2 + m, 4 + m, 4 + m)]


def test_what_is_cached_does_not_move() -> None:
    """The second request has 96 tokens in common, 6 blocks, which both sides still have: 4 tokens are computed, and a block moves."""
    simulation = apart([(0, 100, 1, "a", 96), (9, 100, 1, "a", 96)])

    assert [first for first, _ in times(simulation)] == [pytest.approx(2 + 7 * MOVES), pytest.approx(2 + MOVES)]
    assert simulation.prefill is not None
    assert simulation.prefill.totals["scheduled_tokens"] == 104


def test_each_request_ends_once() -> None:
    """On small pools and in conversations requests finish, are given up, or are refused, and no block is left over on either side."""
    words = "prompt=p50=200,p95=900 output=p50=30,p95=200 turns=min=1,max=3 think=2 cancel=20% arrival=poisson=9 requests=80"
    simulation = hwcalc.simulate(
        CONFIG, words, blocks=90, seq=1024, step_time=0.05, link="100gbe", prefill_servers=2, decode_servers=2, concurrency=20
    )
    log, prefill = simulation.log, simulation.prefill
    assert prefill is not None

    done = [number for number, turn in enumerate(log.finishes) if turn is not None]
    # The turn after one that was not finished is never sent.
    assert sorted([*done, *log.cancelled, *log.refused]) == [number for number, tokens in enumerate(log.prompts) if tokens]
    assert log.cancelled
    assert simulation.totals["preemptions"] > 0
    assert [side.totals["used_blocks_after"] for side in (simulation, prefill)] == [0, 0]


def test_what_is_refused() -> None:
    """Steps without a time, replicas beside, a link that nobody knows, and engines whose rules are not known."""
    servers: dict[str, Any] = {"prefill_servers": 1, "decode_servers": 1}
    with pytest.raises(UsageError, match="need steps that take time"):
        replayed([(0, 100, 3)], **servers)
    with pytest.raises(UsageError, match="no --replicas"):
        replayed([(0, 100, 3)], step_time=1, replicas=2, **servers)
    with pytest.raises(UsageError, match="the link between these GPUs is not known"):
        replayed([(0, 100, 3)], step_time=1, **servers)
    with pytest.raises(UnsupportedError, match="no rules of this scheduler"):
        hwcalc.simulate(CONFIG, "prompt=9 output=9", engine="sglang", tokens=900, step_time=1, link="100gbe", **servers)
    windows = {**CONFIG, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64}
    with pytest.raises(UnsupportedError, match="no rule for windows"):
        hwcalc.simulate(windows, "prompt=9 output=9", blocks=90, step_time=1, link="100gbe", **servers)

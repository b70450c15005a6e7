"""Conversations, users who give up, samples, several servers, and the clock."""

from __future__ import annotations

from typing import Any

import pytest

import hwcalc
from hwcalc.replay.content import Contents, chain_of
from hwcalc.replay.core import StepLoad
from hwcalc.replay.result import Simulation
from hwcalc.replay.traffic import Spread
from hwcalc.workload.request import Request, Segment, Workload

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
}


def replayed(requests: Any, blocks: int = 400, **options: Any) -> Simulation:
    """The requests on a small model."""
    engine_options = {"async_scheduling": "false", **options.pop("engine_options", {})}
    return hwcalc.simulate(CONFIG, requests, blocks=blocks, engine_options=engine_options, **options)


def test_a_turn_waits_for_the_one_before_and_finds_it() -> None:
    """The second turn is sent 5 steps after the first has ended, and finds the 7 whole blocks of prompt and output that were computed."""
    first = Request(number=0, prompt_tokens=100, output_tokens=20, prefix=(Segment("p", 100),), output_id="o")
    second = Request(
        number=1, prompt_tokens=150, output_tokens=4, prefix=(Segment("p", 100), Segment("o", 20)), after=0, wait_s=5
    )
    simulation = replayed([first, second])

    # Tokens are computed in steps 0 to 19; the next step is 20, and the second turn comes 5 later.
    assert simulation.requests == [(0, 0, 19, 0, 0), (25, 25, 28, 7 * 16, 0)]


def test_a_turn_has_the_answer_before_it_as_long_as_it_came() -> None:
    """Of an answer of 200 tokens to a prompt of 1,000 the length of 1,024 lets 24 come: the next turn, with 10 words more, has 1,034 tokens.

    The one after it has the same answer, and that of a turn which was refused and had none: 1,000 + 24 + 10 + 20 more.
    """
    said, first = Segment("said", 1000), Segment("first", 200)
    more, second = Segment("more", 10), Segment("second", 50)
    requests = [
        Request(number=0, prompt_tokens=1000, output_tokens=200, prefix=(said,), output_id="first"),
        Request(number=1, prompt_tokens=1210, output_tokens=50, prefix=(said, first, more), output_id="second", after=0),
        Request(number=2, arrival_s=60, prompt_tokens=1280, output_tokens=5, prefix=(said, first, more, second)),
    ]
    simulation = replayed(requests, seq=1024)

    assert [record["prompt_tokens"] for record in simulation.records()] == [1000, 1034, 1054]
    assert simulation.log.refused == [1, 2]


def test_a_user_gives_up() -> None:
    """Of 1,000 tokens only those of the first eight steps, of an eighth of a second each, are generated; the blocks come back, and the turn after it is never sent."""
    first = Request(number=0, prompt_tokens=100, output_tokens=1000, cancel_after_s=1.0)
    second = Request(number=1, prompt_tokens=100, output_tokens=5, after=0)
    simulation = replayed(Workload.of([first, second]), step_time=0.125)

    assert simulation.totals["cancelled"] == 1
    assert simulation.totals["scheduled_tokens"] == 100 + 7
    assert simulation.totals["used_blocks_after"] == 0
    assert [row[2] for row in simulation.requests] == [None]
    assert [record["output_tokens"] for record in simulation.records()] == [8]


@pytest.mark.parametrize(
    ("engine", "options", "most"),
    [
        ("vllm", {}, 1024),
        ("vllm", {"speculative": "ngram:3"}, 1024),
        ("llamacpp", {}, 1024),
        # SGLang keeps two tokens of the length free: max_req_len is one less, and max_new_tokens one less than what that leaves.
        ("sglang", {"context_length": 1024}, 1022),
    ],
)
def test_an_answer_that_the_allowed_length_cuts(engine: str, options: dict[str, Any], most: int) -> None:
    """Of 200 tokens those are counted that came, in times, rates and limits, and it is said how many answers are cut.

    Of two prompts of 1,000 tokens, computed in one step of 10 ms, each has 24 tokens (22 with SGLang) in as many steps where nothing is
    drafted: 2 x 24 tokens in 240 ms are 200 a second, and 10 ms each are more than 5 ms.
    """
    pool: dict[str, Any] = {} if engine == "llamacpp" else {"blocks" if engine == "vllm" else "tokens": 5000}
    words = "prompt=1000 output=200 requests=2"
    simulation = hwcalc.simulate(
        CONFIG, words, engine=engine, engine_options=options, seq=1024, step_time=0.01, itl=0.005, **pool
    )
    traffic = simulation.traffic

    assert [record["output_tokens"] for record in simulation.records()] == [most - 1000] * 2
    assert [note.message for note in traffic.notes if note.code == "cut"] == [
        f"The allowed length cut 2 answers short: a request has at most {most:,} tokens, its answer included."
    ]
    if "speculative" in options:
        return
    assert traffic.throughput is not None
    assert traffic.throughput.output_tokens_per_s == pytest.approx(200)
    assert traffic.tpot is not None
    assert [traffic.tpot.mean, traffic.tpot.max] == pytest.approx([0.01, 0.01])
    assert traffic.goodput is not None
    assert traffic.goodput.requests == 0


def test_who_is_turned_away_is_not_within_limits() -> None:
    """Of three requests that SGLang gets at once the second waits; the third finds the queue full and gets nothing, which is no quick answer."""
    options = {"max_running_requests": 1, "max_queued_requests": 2}
    simulation = hwcalc.simulate(
        CONFIG, "prompt=100 output=5 requests=3", engine="sglang", tokens=5000, engine_options=options, step_time=0.01, e2e=10
    )
    traffic = simulation.traffic

    assert [record["output_tokens"] for record in simulation.records()] == [5, 5, 0]
    assert traffic.goodput is not None
    assert traffic.goodput.requests == 2


def test_samples_share_their_prompt() -> None:
    """Four outputs of a prompt of 70 tokens: the first computes it, the others its last 6 tokens."""
    simulation = replayed([Request(number=0, prompt_tokens=70, output_tokens=2, samples=4)])

    assert simulation.steps[0][1] == 70 + 3 * 6
    assert [row[3] for row in simulation.requests] == [0, 64, 64, 64]


def test_the_next_request_is_sent_when_one_is_answered() -> None:
    """Two users in turn, one with short answers: a step computes a prompt and each further token, and the next request is sent at once."""
    rows = [(0, 16, 10), (0, 16, 4), (0, 16, 3), (0, 16, 5), (30, 16, 2)]
    simulation = replayed(rows, concurrency=2)

    # Answers end after steps 9 and 3; the third is sent before step 4 and ends after 6, the fourth goes on from 7 to 11, and the last waits for 30.
    assert list(simulation.log.arrivals) == [0, 0, 4, 7, 30]
    assert [row[2] for row in simulation.requests] == [9, 3, 6, 11, 31]
    assert simulation.totals["peak_running"] == 2
    assert list(replayed(rows, concurrency=1).log.arrivals) == [0, 10, 14, 17, 30]


def test_who_gives_up_leaves_room_for_the_next() -> None:
    """Of one at a time the first gives up after two and a half steps of a second, and the next is sent then."""
    requests = [
        Request(number=0, prompt_tokens=16, output_tokens=100, cancel_after_s=2.5),
        Request(number=1, prompt_tokens=16, output_tokens=1),
    ]
    simulation = replayed(hwcalc.workload(requests, concurrency=1), step_time=1.0)

    assert simulation.totals["cancelled"] == 1
    assert list(simulation.log.arrivals) == [0, 2.5]


def test_a_workload_is_cut_by_keywords() -> None:
    """The keywords of a trace are those of hwcalc.workload, and requests by their name are a workload."""
    assert len(hwcalc.simulate(CONFIG, "prompt=50 output=3 requests=9", requests=4, blocks=64).requests) == 4
    assert (
        hwcalc.simulate(CONFIG, requests=[(0, 50, 3)], blocks=64).requests
        == hwcalc.simulate(CONFIG, [(0, 50, 3)], blocks=64).requests
    )
    assert repr(hwcalc.workload("prompt=50 output=3 requests=9")) == "<Workload: 'prompt=50 output=3 requests=9', 9 requests>"


def test_servers_share_requests() -> None:
    """Ten requests at once on two servers take half as long as on one that has one place."""
    requests = [(0, 50, 10)] * 10
    alone, two = (replayed(requests, engine_options={"max_num_seqs": 1}, replicas=count) for count in (1, 2))

    assert alone.totals["iterations"] == 100
    assert max(row[2] or 0 for row in two.requests) == 49
    assert sorted(two.log.servers) == [0] * 5 + [1] * 5
    assert two.columns[0] == "replica"


def test_a_prompt_is_sent_where_its_prefix_is() -> None:
    """Two groups in turn, one after another: by prefix each finds its own, and in turns none does."""
    requests = [(100 * number, 320, 2, "ab"[number // 2 % 2], 304) for number in range(8)]
    by_prefix = replayed(requests, replicas=2, route="prefix", blocks=25)
    in_turns = replayed(requests, replicas=2, route="round-robin", blocks=25)

    assert by_prefix.totals["prefix_cache"]["hits"] == 6 * 304
    assert in_turns.totals["prefix_cache"]["hits"] < 6 * 304


def test_dp_is_replicas() -> None:
    """Each rank has a scheduler and a pool of its own."""
    simulation = replayed([(0, 50, 10)] * 4, dp=2)

    assert len(simulation.servers) == 2
    assert sorted(simulation.log.servers) == [0, 0, 1, 1]


def test_an_expected_step_takes_longer_with_more_to_do() -> None:
    """Times between the kept contexts lie between theirs; a prompt takes longer than a token."""
    from hwcalc.planner.step_time import step_times
    from hwcalc.replay.durations import Modelled
    from hwcalc.replay.simulate import deploy

    times = step_times(deploy("Qwen/Qwen3-8B", engine="vllm", blocks=None, gpu="h100").occupancy)
    assert times is not None
    seconds = Modelled(times)
    decoding = [seconds(StepLoad(decode_requests=32, decode_tokens=32 * tokens)) for tokens in (999, 5_000, 20_000)]
    exact = [float(times.step(decoding=32, context=tokens + 1).expected) for tokens in (999, 5_000, 20_000)]
    prompt = seconds(StepLoad(prefill_tokens=2000, prefill_pairs=2000 * 1000, prefill_ends=1))

    assert decoding == pytest.approx(exact, rel=0.01)
    assert prompt == pytest.approx(float(times.step(prompt_tokens=2000).expected), rel=0.05)


@pytest.mark.parametrize("options", [{}, {"step_time": 0.5}, {"step_time": 0.5, "replicas": 2}])
def test_a_time_line_keeps_the_sums(options: dict[str, Any]) -> None:
    """What is held on average over the whole time is the sum of what each step holds; a step takes 1, or half a second."""
    simulation = replayed([(0, 100, 20), (2, 60, 30), (200, 90, 10)], **options)
    line, totals = simulation.timeline, simulation.totals
    length, step = line.times[-1] - line.times[-2], options.get("step_time", 1.0)
    blocks = 400 * options.get("replicas", 1)

    assert sum(line.use) * length * blocks == pytest.approx(step * totals["sum_used_blocks"])
    assert max(line.use_max) == pytest.approx(totals["peak_used_blocks"] / 400)
    assert sum(line.waiting) == 0


def test_quantiles_count_by_weight() -> None:
    """The median of 1, 2 and 9 that count 1, 1 and 3 times is 9, and their mean 6."""
    from numpy import array

    spread = Spread.of(array([9.0, 1.0, 2.0]), array([3, 1, 1]))

    assert spread is not None
    assert (spread.mean, spread.p50, spread.p90, spread.max) == (6.0, 9.0, 9.0, 9.0)


def test_chains_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chains that no block and no request has, nothing is kept, and their names come back as new ones."""
    monkeypatch.setattr("hwcalc.replay.content._FORGETS_FROM", 4)
    contents = Contents()
    held = contents.of(Request(number=0, prompt_tokens=32, output_tokens=1, prefix=(Segment("a", 16), Segment("b", 16))))
    old = contents.of(Request(number=1, prompt_tokens=16, output_tokens=1, prefix=(Segment("c", 16),)))
    contents._forgets_at = 3
    contents.forget(lambda: map(chain_of, held.names(16, 1, 2)))
    again, other = (
        contents.of(Request(number=2, prompt_tokens=32, output_tokens=1, prefix=prefix))
        for prefix in ((Segment("a", 16), Segment("b", 16)), (Segment("c", 16),))
    )

    assert again.names(16, 0, 2) == held.names(16, 0, 2)
    assert other.names(16, 0, 1) != old.names(16, 0, 1)


def test_the_wait_of_a_preempted_request_is_between_two_of_its_tokens() -> None:
    """Two prompts of 150 tokens take 10 blocks each, all 20; each of 160 tokens (10 outputs stored) needs an 11th.

    So request 1 is preempted when it has 11 tokens, at 110 ms. Request 0 has its 30 at 300 ms, and request 1 its 12th at 310 ms: 200 ms
    later. The other 57 of the 2 x 29 gaps are steps of 10 ms: 57 x 10 + 200 = 770 ms.
    """
    simulation = replayed("prompt=150 output=30 requests=2", blocks=20, seq=320, step_time="10ms")

    itl = simulation.traffic.itl
    assert simulation.preemptions == [(11, 1, 160)]
    assert itl is not None
    assert (itl.p50, itl.p99, itl.max) == pytest.approx((0.010, 0.200, 0.200))
    assert itl.mean == pytest.approx(0.770 / 58)


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        ("vllm", {"blocks": 60, "engine_options": {"async_scheduling": "true"}}),
        # Where running requests decode along with prompts, none waits for another's.
        (
            "sglang",
            {
                "tokens": 1500,
                "engine_options": {
                    "disable_overlap_schedule": "true",
                    "enable_mixed_chunk": "true",
                    "schedule_conservativeness": "0.1",
                },
            },
        ),
    ],
)
def test_all_gaps_together_are_the_time_from_first_to_last_tokens(engine: str, pool: dict[str, Any]) -> None:
    """A request with n tokens has n - 1 gaps, which last from its first token to its last, however often it is preempted."""
    workload = "prompt=150 output=190 requests=20 arrival=rate=20"
    simulation = hwcalc.simulate(CONFIG, workload, engine=engine, seq=4096, step_time="10ms", **pool)

    rows, itl = simulation.records(), simulation.traffic.itl
    assert simulation.totals["preemptions"] > 0
    assert itl is not None
    assert itl.mean * 20 * 189 == pytest.approx(sum(row["e2e"] - row["ttft"] for row in rows))

"""Requests, workloads and rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import UsageError
from hwcalc.workload.opening import workload, workload_of_rows
from hwcalc.workload.request import Request, Segment, Workload

SEGMENTS = st.lists(st.builds(Segment, st.sampled_from("abc"), st.integers(1, 40)), max_size=4).map(tuple)


def _request(number: int, prefix: tuple[Segment, ...], own: int) -> Request:
    return Request(number=number, prompt_tokens=sum(one.tokens for one in prefix) + own, output_tokens=5, prefix=prefix)


def test_a_workload_gives_the_same_requests_each_time() -> None:
    """Iterating again begins again."""
    workload = workload_of_rows([(0, 5, 1), (1, 7, 2)])

    assert list(workload) == list(workload)
    assert workload.count == 2


def test_first_takes_no_more_than_there_are() -> None:
    """The first five of two requests are two."""
    workload = Workload.of([_request(0, (), 5), _request(1, (), 6)])

    assert workload.first(5).count == 2
    assert [one.prompt_tokens for one in workload.first(1)] == [5]


def test_rows_are_sorted_by_arrival() -> None:
    """Rows that arrive together keep their order, and numbers follow the arrival."""
    requests = list(workload_of_rows([(2, 5, 1), (0, 6, 1), (2, 7, 1)]))

    assert [(one.number, one.prompt_tokens) for one in requests] == [(0, 6), (1, 5), (2, 7)]


def test_a_row_of_a_later_turn_begins_with_prompt_and_output_of_the_earlier() -> None:
    """Row 1 takes the 30 tokens of row 0's prompt and 4 of its 10 tokens of output."""
    first, second = workload_of_rows([(0, 30, 10), (1, 50, 1, "r0", 34)])

    assert second.prefix == (Segment(("prompt", 0), 30), Segment(first.output_id, 4))
    assert first.shared_tokens(second) == 30


@pytest.mark.parametrize(
    "row",
    [(0, 5), (0, 0, 1), (-1, 5, 1), (0, 5, 1.5), (0, 5, 1, "a", 6), (0, 5, 1, ["a"], 1), (0, 5, 1, "r0", 1), "abc", (0, True, 1)],
)
def test_a_row_that_is_none_is_refused_by_number(row: object) -> None:
    """The error says which row, and what a row is."""
    with pytest.raises(UsageError, match="row 0"):
        workload_of_rows([row])  # type: ignore[list-item]


@given(SEGMENTS, SEGMENTS, st.integers(1, 40), st.integers(1, 40))
def test_requests_share_the_tokens_that_are_the_same(
    first: tuple[Segment, ...], second: tuple[Segment, ...], own: int, other: int
) -> None:
    """Written out token by token: each is a place in a segment, or one of the request's own."""
    requests = [_request(0, first, own), _request(1, second, other)]
    tokens = [
        [(one.id, place) for one in request.prefix for place in range(one.tokens)] + [(request.number, "own")] * own
        for request, own in zip(requests, (own, other), strict=True)
    ]
    equal = next((n for n, (one, two) in enumerate(zip(*tokens, strict=False)) if one != two), min(map(len, tokens)))

    assert requests[0].shared_tokens(requests[1]) == requests[1].shared_tokens(requests[0]) == equal


def test_outputs_are_named_for_the_next_turn() -> None:
    """The next turn begins with prompt and output of the first, whose segment has the id of its output."""
    first, second = workload_of_rows([(0, 12, 8), (1, 30, 1, "r0", 20)])

    assert second.prefix == (*first.prefix, Segment(first.output_id, 8))
    assert first.prefix_tokens == first.prompt_tokens


def test_words_without_an_arrival_say_that_all_come_at_once() -> None:
    """Who names an arrival, or how many are with the server, knows."""
    (note,) = workload("prompt=2k output=300").notes

    assert note == "All requests come at once. Four a second on average: arrival=poisson=4"
    for more in ("arrival=once", "arrival=poisson=4", "concurrency=8", "requests=1"):
        assert not workload(f"prompt=2k output=300 {more}").notes
    assert not workload(workload("prompt=2k output=300"), arrival="rate=2").notes

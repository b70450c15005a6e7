"""The caches of vLLM by their sort, and what layouts of one model have in common."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hwcalc import load_model
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.engines.vllm.layout import Sorted
from hwcalc.planner.context import open_request

SORTS = st.lists(st.integers(0, 3), max_size=40)
"""The sorts of caches, in no order."""


def of_drawn(drawn: list[int]) -> Sorted:
    """The caches with their sorts in order of first appearance."""
    numbers = {sort: number for number, sort in enumerate(dict.fromkeys(drawn))}
    return Sorted.of([numbers[sort] for sort in drawn], len(numbers))


@given(SORTS)
def test_every_cache_is_a_member_of_its_sort(drawn: list[int]) -> None:
    """The members of all sorts are all caches, in their order."""
    caches = of_drawn(drawn)

    assert [[drawn[member] for member in own] for own in caches.members] == [
        [sort] * drawn.count(sort) for sort in dict.fromkeys(drawn)
    ]
    assert sorted(member for own in caches.members for member in own) == list(range(len(drawn)))
    assert all(list(own) == sorted(own) for own in caches.members)


@given(SORTS, st.integers(0, 3))
def test_more_caches_have_sorts_of_their_own(drawn: list[int], count: int) -> None:
    """Draft layers stand behind the others, and none is like another."""
    caches = of_drawn(drawn).with_more(count)

    assert caches == of_drawn([*drawn, *range(10, 10 + count)])


@given(SORTS, st.integers(1, 3))
def test_a_part_is_sorted_as_if_it_were_alone(drawn: list[int], every: int) -> None:
    """The caches of a pipeline stage have the sorts that they would have without the others."""
    caches, members = of_drawn(drawn), range(0, len(drawn), every)
    sorts, part = caches.part(members)

    assert part == of_drawn([drawn[member] for member in members])
    assert [sorts[sort] for sort in part.sorts] == [caches.sorts[member] for member in members]


def test_layouts_of_a_model_share_their_caches() -> None:
    """What advice tries changes formats, ranks and stages; where the caches lie in the model is worked out once."""
    model = load_model("google/gemma-3-12b-it", offline=True)

    def opened(**more: Any) -> VllmOccupancy:
        occupancy = open_request(model, engine="vllm", seq=4096, **more)
        assert isinstance(occupancy, VllmOccupancy)
        return occupancy

    one, others = opened().layout, [opened(**more).layout for more in ({"tp": 2}, {"pp": 2}, {"dtype": "fp8"})]
    for other in others:
        assert all(first is second for first, second in zip(one.caches, other.caches, strict=True))
    # 48 layers on two stages.
    assert others[1].stages == (0,) * 24 + (1,) * 24

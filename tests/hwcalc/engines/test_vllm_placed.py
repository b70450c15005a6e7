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


@given(SORTS)
def test_every_cache_is_a_member_of_its_sort(drawn: list[int]) -> None:
    """The members of all sorts are all caches, in their order."""
    numbers = {sort: number for number, sort in enumerate(dict.fromkeys(drawn))}
    caches = Sorted.of([numbers[sort] for sort in drawn], len(numbers))

    assert [[drawn[member] for member in own] for own in caches.members] == [
        [sort] * drawn.count(sort) for sort in dict.fromkeys(drawn)
    ]
    assert sorted(member for own in caches.members for member in own) == list(range(len(drawn)))
    assert all(list(own) == sorted(own) for own in caches.members)


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

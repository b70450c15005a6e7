"""Arithmetic on whole numbers and on arrays of them gives the same, place by place."""

from __future__ import annotations

from functools import partial
from operator import ge
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas.arithmetic import Table, either, every, last_good, nearest, picked, some

NUMBERS = st.lists(st.integers(-1000, 1000), min_size=1, max_size=20)


@given(numbers=NUMBERS, bound=st.integers(0, 300))
def test_the_last_good_number_is_found_for_each_place(numbers: list[int], bound: int) -> None:
    """Whether one limit is asked for or an array of them; of a bound below them all it is the bound."""
    limits = np.array(numbers)
    alone = [last_good(bound, partial(ge, limit)) for limit in numbers]

    assert alone == [max(0, min(bound, limit)) for limit in numbers]
    found: Any = last_good(bound, lambda number: number <= limits)
    assert np.broadcast_to(found, limits.shape).tolist() == alone
    assert last_good(limits.clip(min=0), lambda number: number <= 7).tolist() == [min(7, max(0, limit)) for limit in numbers]


@given(numbers=NUMBERS)
def test_an_array_of_places_has_the_numbers_of_each(numbers: list[int]) -> None:
    """In any shape."""
    table, places = Table(numbers), np.arange(len(numbers))[:, None]

    assert table.at(places).tolist() == [[table.at(place)] for place in range(len(numbers))] == [[one] for one in numbers]


@pytest.mark.parametrize(("number", "rounded"), [(0.5, 0), (1.5, 2), (2.5, 2), (2.4999, 2), (2.5001, 3)])
def test_halves_are_rounded_to_even(number: float, rounded: int) -> None:
    """As Python rounds."""
    assert nearest(number) == nearest(np.array([number]))[0] == rounded


def test_a_choice_is_made_place_by_place() -> None:
    """Of whole numbers, and of any others with infinity among them."""
    where, yes, no = np.array([True, False]), True, False

    assert (either(yes, 3, 4), either(no, 3, 4), either(where, 3, 4).tolist()) == (3, 4, [3, 4])
    assert (picked(yes, 0.1, 0.2), picked(where, 0.1, float("inf")).tolist()) == (0.1, [0.1, float("inf")])
    assert [every(where), some(where), every(yes), some(no)] == [False, True, True, False]

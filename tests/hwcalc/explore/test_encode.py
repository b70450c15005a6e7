"""Grids and pools: what is equal is written once, and everything is read back."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import UnsupportedError
from hwcalc.explore.runs import LARGEST, Pools, grid_of
from tests.hwcalc.explore.evaluate import grid_at


@st.composite
def _tables(draw: st.DrawFn) -> tuple[dict[tuple[int, ...], int | None], tuple[int, ...], frozenset[tuple[int, ...]]]:
    """Cells of which some depend on some of the axes only, and places of which nothing is said."""
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    axes = draw(st.sets(st.integers(0, len(sizes) - 1)))
    values: dict[tuple[int, ...], int | None] = {}
    cells = {}
    for place in product(*map(range, sizes)):
        key = tuple(place[axis] for axis in sorted(axes))
        if key not in values:
            values[key] = draw(st.none() | st.integers(0, 2))
        cells[place] = values[key]
    return cells, sizes, frozenset(draw(st.sets(st.sampled_from(sorted(cells)), max_size=len(cells) - 1)))


@given(_tables())
def test_a_grid_gives_back_every_cell(
    table: tuple[dict[tuple[int, ...], int | None], tuple[int, ...], frozenset[tuple[int, ...]]],
) -> None:
    """However much of it was written once, and whatever is not asked for."""
    cells, sizes, ignored = table
    grid = grid_of(cells, sizes, ignored)

    assert {place: grid_at(grid, place) for place in cells if place not in ignored} == {
        place: cell for place, cell in cells.items() if place not in ignored
    }


def test_equal_pieces_have_one_place() -> None:
    """A text twice is a text once."""
    pools = Pools()

    assert [pools.text("a"), pools.text("b"), pools.text("a")] == [0, 1, 0]
    assert pools.pieces["texts"] == ["a", "b"]


def test_a_number_that_a_browser_would_round_is_refused() -> None:
    """Wherever it stands."""
    pools = Pools()
    pools.put("parts", {"expected": [LARGEST]})
    with pytest.raises(UnsupportedError, match="9,007,199,254,740,991"):
        pools.put("parts", {"expected": [{"gpus": [LARGEST + 1]}]})

"""Tables of pieces from few forms are those that all forms give."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.explore.tables import ABSENT, OF_GPU, OPEN, REFUSED, Cell, Making, Place, tables_of

SIZES = (3, 4, 6, 5)
ALONE = (0, 0, 2, 3, 3, 5)
"""The second layout is the first with a replica, and the fifth the fourth."""
CAPABILITIES = (0, 0, 1, 1, 2)
MAKERS = ("nvidia", "nvidia", "nvidia", "nvidia", "amd")
MEMORIES = (24, 22, 80, 80, 192)
SHARES = (1, 1, 2, 4, 4, 8)


def form(place: Place, *, format_needs: int = 0, refused_layout: int | None = None) -> Cell:
    """A form as engines give them: each piece follows from some of the choices."""
    dtype, weights, layout, gpu = place
    if weights == 3 and CAPABILITIES[gpu] < format_needs:
        return {REFUSED: 100 + gpu}
    if layout == refused_layout:
        return {REFUSED: 50}
    left = MEMORIES[gpu] - 16 // (weights + 1) // SHARES[layout]
    pieces: dict[Hashable, int] = {
        "gpu": MEMORIES[gpu],
        "curve": 10 * dtype + SHARES[layout],
        "limits": (1 + CAPABILITIES[gpu]) * (2 if layout in (1, 4) else 1),
        ("weights", 0): 1000 * weights + SHARES[layout],
        ("activations", 0): 7 * CAPABILITIES[gpu] + (weights > 0),
        ("graphs", 0): max(20, left),
        OPEN: int(weights == 2 and gpu == 4),
    }
    if layout > 1:
        pieces["communication", 0] = 3 * SHARES[layout] if CAPABILITIES[gpu] else 2
    return pieces


def places() -> Iterator[Place]:
    """Every place."""
    return product(*map(range, SIZES))


@settings(max_examples=15)
@given(st.integers(0, 2), st.none() | st.integers(1, 5), st.integers(0, 4), st.sets(st.integers(0, 4), max_size=2))
def test_tables_of_a_few_forms_are_those_of_all(needs: int, refused_layout: int | None, usual: int, nowhere: set[int]) -> None:
    """Formats that some GPUs refuse, a layout that all refuse, a piece of what others leave, GPUs on which nothing runs."""
    nowhere = nowhere - {usual}
    made: set[Place] = set()

    def make(place: Place) -> Cell:
        made.add(place)
        return form(place, format_needs=needs, refused_layout=refused_layout)

    def remark(place: Place) -> Cell:
        cell = form(place, format_needs=needs, refused_layout=refused_layout)
        return cell if REFUSED in cell else {OPEN: cell[OPEN]}

    tables = tables_of(
        Making(
            sizes=SIZES,
            usual=usual,
            alone=ALONE,
            nowhere=dict.fromkeys(nowhere, 7),
            makers=MAKERS,
            of_rest=frozenset({("graphs", 0)}),
            of_gpu=OF_GPU | {("communication", 0)},
            make=make,
            remark=remark,
        )
    )
    for place in places():
        cell = {REFUSED: 7} if place[3] in nowhere else form(place, format_needs=needs, refused_layout=refused_layout)
        assert tables.refused[place] == cell.get(REFUSED, ABSENT), place
        if REFUSED not in cell:
            assert {name: int(table[place]) for name, table in tables.pieces.items() if table[place] != ABSENT} == cell, place
    assert len(made) < len(list(places()))


def test_a_piece_that_follows_from_what_no_two_choices_show_is_seen() -> None:
    """The last form of each pair of formats is made: where it is not the table's, all forms of the pair are."""

    def odd(place: Place) -> Cell:
        return {**form(place), "curve": 5 + all(place)}

    table = tables_of(_making(odd)).pieces["curve"]
    assert all(table[place] == 5 + all(place) for place in places())


def test_kernels_of_another_maker_show_in_one_format_only() -> None:
    """As compute buffers of llama.cpp do, which an Apple GPU has less of with a quantized cache: in usual formats nobody sees it."""

    def buffers(place: Place) -> Cell:
        dtype, _, layout, gpu = place
        return {"curve": 10 * dtype, ("buffers", 0): SHARES[layout] + (dtype > 0 and MAKERS[gpu] == "amd")}

    table = tables_of(_making(buffers)).pieces["buffers", 0]
    assert all(table[place] == buffers(place)["buffers", 0] for place in places())


def _making(make: Callable[[Place], Cell]) -> Making:
    return Making(
        sizes=SIZES,
        usual=0,
        alone=ALONE,
        nowhere={},
        makers=MAKERS,
        make=make,
        remark=lambda place: {OPEN: make(place).get(OPEN, 0)},
    )

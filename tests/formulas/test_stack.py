"""The stack counts equal layers once and multiplies; nothing is lost or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas import FullAttention, Layer, LayerKind, LightningAttention, NoCache, Stack
from hwcalc.formulas.hybrid import ranges
from tests.formulas.strategies import kinds


@pytest.mark.parametrize(
    ("indices", "text"),
    [([], ""), ([0], "0"), ([0, 1, 2, 5], "0-2,5"), ([5, 2, 1, 0], "0-2,5"), ([0, 2, 4], "0,2,4"), ([7, 8], "7-8")],
)
def test_ranges(indices: list[int], text: str) -> None:
    """Layer numbers the short way, in order."""
    assert ranges(indices) == text


@given(st.sets(st.integers(0, 200)))
def test_ranges_name_every_layer_once(indices: set[int]) -> None:
    """Read back, the text gives the same layers."""
    parts = [part.split("-") for part in ranges(indices).split(",") if part]

    assert [index for part in parts for index in range(int(part[0]), int(part[-1]) + 1)] == sorted(indices)


@given(st.lists(st.lists(kinds(), max_size=3).map(tuple), max_size=12))
def test_groups_hold_every_kind_of_every_layer(layers: list[tuple[LayerKind, ...]]) -> None:
    """The counts add up to the kinds of all layers, and no kind stands in two groups."""
    stack = Stack(tuple(layers))

    assert sum(group.count for group in stack.groups) == sum(len(layer) for layer in layers)
    assert len({group.kind for group in stack.groups}) == len(stack.groups)
    assert all(group.kind in layers[index] for group in stack.groups for index in group.layers)


def test_a_layer_may_hold_a_kind_twice() -> None:
    """Two equal attentions in one layer count twice but are one layer."""
    attention = FullAttention(num_attention_heads=4, num_key_value_heads=4, head_dim=64, v_head_dim=64)
    layers: tuple[Layer, ...] = ((attention, attention), (LightningAttention(num_heads=4, head_dim=64),), (NoCache(),))

    first, *rest = Stack(layers).groups

    assert (first.count, first.layers) == (2, (0,))
    assert [group.kind.name for group in rest] == ["lightning_attention", "no_cache"]

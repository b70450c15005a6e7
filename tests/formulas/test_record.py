"""Records: what they refuse, what they give, and what of them is kept."""

from __future__ import annotations

import copy
import pickle
from functools import cached_property

import pytest
from msgspec.structs import replace

from hwcalc.formulas.record import Record, repr_without


class Point(Record):
    """A point in the plane."""

    x: int
    y: int = 0

    @cached_property
    def norm(self) -> int:
        """The distance from the origin along the axes."""
        return abs(self.x) + abs(self.y)


class Marked(Point):
    """A point with a mark."""

    mark: str


def test_fields_are_given_by_keyword_and_never_set() -> None:
    """A subclass may add a field without a default. No field is missing, unknown or given by position."""
    assert Marked(x=1, mark="a") == Marked(mark="a", y=0, x=1)
    assert repr(Marked(x=1, mark="a")) == "Marked(x=1, y=0, mark='a')"
    for wrong in ({"x": 1}, {"x": 1, "mark": "a", "z": 2}):
        with pytest.raises(TypeError):
            Marked(**wrong)
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Point(x=1).x = 2  # type: ignore[misc]


def test_what_was_worked_out_stays_behind() -> None:
    """A cached property is no part of the value: not of its hash, and not of a copy with another value or in another process."""
    point = Point(x=3, y=-4)
    assert point.norm == 7
    assert point == Point(x=3, y=-4)
    assert hash(point) == hash(Point(x=3, y=-4))
    assert replace(point, x=0).norm == 4
    assert vars(pickle.loads(pickle.dumps(point))) == {}  # noqa: S301
    assert copy.deepcopy(point) == point


def test_a_secret_is_not_shown() -> None:
    """Tokens stay out of logs."""
    assert repr_without(Marked(x=1, mark="secret"), "mark") == "Marked(x=1, y=0)"

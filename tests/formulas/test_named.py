"""Named tuples that are defined fast, beside those of ``typing``."""

from __future__ import annotations

import pickle
import typing

import pytest

from hwcalc.formulas.named import NamedTuple
from hwcalc.formulas.stairs import Stair


class Point(NamedTuple):
    """A place."""

    x: int
    y: int = 0
    """Up."""

    @property
    def norm(self) -> int:
        """The distance by streets."""
        return abs(self.x) + abs(self.y)

    def moved(self, x: int) -> Point:
        """The place beside it."""
        return self._replace(x=self.x + x)


class Twin(typing.NamedTuple):
    """A place."""

    x: int
    y: int = 0


def test_they_are_what_typing_makes() -> None:
    """Fields, defaults, values, comparison and text."""
    assert (Point._fields, Point._field_defaults) == (Twin._fields, Twin._field_defaults)
    assert Point.__bases__ == Twin.__bases__ == (tuple,)
    assert (Point.__module__, Point.__qualname__, Point.__doc__) == (Twin.__module__, "Point", Twin.__doc__)
    assert tuple(Point(3)) == tuple(Twin(3)) == Point(3, y=0) == (3, 0)
    assert repr(Point(3, y=4)) == repr(Twin(3, y=4)).replace("Twin", "Point")
    assert Point(1)._asdict() == Twin(1)._asdict()


def test_the_first_value_is_made_as_all_others() -> None:
    """By position and by name, and with each default, whichever way the first one comes."""

    class Fresh(NamedTuple):
        x: int
        y: int = 0

    class Other(NamedTuple):
        x: int
        y: int = 0

    assert (Fresh(x=3), Fresh(3, 4), Fresh(y=4, x=3)) == ((3, 0), (3, 4), (3, 4))
    assert (Other._make([3, 4]), Other(3)) == ((3, 4), (3, 0))
    with pytest.raises(TypeError, match="Expected 2 arguments, got 1"):
        Other._make([3])
    with pytest.raises(ValueError, match="unexpected field names"):
        Other(3)._replace(z=1)  # type: ignore[call-arg]


def test_methods_and_properties_are_those_of_the_class() -> None:
    """Also those that make another value."""
    assert Point(-3, 4).norm == 7
    assert Point(1, 2).moved(2) == (3, 2)
    assert type(Point(1).moved(1)) is Point


@pytest.mark.parametrize("values", [(), (1, 2, 3)])
def test_a_wrong_number_of_values_is_an_error(values: tuple[int, ...]) -> None:
    """As for every named tuple."""
    with pytest.raises(TypeError):
        Point(*values)


def test_they_travel_between_processes() -> None:
    """By the name of their module."""
    assert pickle.loads(pickle.dumps(Stair(per=2, most=3))) == Stair(per=2, most=3)  # noqa: S301 - made here

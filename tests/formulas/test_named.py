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


@pytest.mark.parametrize("before", [0, 1000], ids=["the first", "one of many"])
def test_every_value_is_made_the_same_way(before: int) -> None:
    """By position and by name, and with each default, however many there are already."""

    class Fresh(NamedTuple):
        x: int
        y: int = 0

    class Named(Fresh):
        """One that has a name of its own."""

    for count in range(before):
        assert Fresh(x=count) == (count, 0)

    assert (Fresh(x=3), Fresh(3), Fresh(3, 4), Fresh(3, y=4), Fresh(y=4, x=3)) == ((3, 0), (3, 0), (3, 4), (3, 4), (3, 4))
    assert (Named(3), type(Named(3))) == ((3, 0), Named)
    assert Fresh._make([3, 4]) == (3, 4)
    with pytest.raises(TypeError, match="Expected 2 arguments, got 1"):
        Fresh._make([3])
    with pytest.raises(ValueError, match="unexpected field names"):
        Fresh(3)._replace(z=1)  # type: ignore[call-arg]


def test_methods_and_properties_are_those_of_the_class() -> None:
    """Also those that make another value."""
    assert Point(-3, 4).norm == 7
    assert Point(1, 2).moved(2) == (3, 2)
    assert type(Point(1).moved(1)) is Point


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'x'"),
        ((1, 2, 3), {}, "takes from 2 to 3 positional arguments but 4 were given"),
        ((), {"x": 1, "z": 2}, "unexpected keyword argument 'z'"),
        ((), {"y": 1, "z": 2}, "unexpected keyword argument 'z'"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
        ((1, 2), {"y": 1}, "multiple values for argument 'y'"),
    ],
)
def test_wrong_arguments_are_an_error(values: tuple[int, ...], named: dict[str, int], message: str) -> None:
    """The same as of every named tuple."""
    for kind in (Point, Twin):
        with pytest.raises(TypeError, match=message):
            kind(*values, **named)


def test_they_travel_between_processes() -> None:
    """By the name of their module."""
    assert pickle.loads(pickle.dumps(Stair(per=2, most=3))) == Stair(per=2, most=3)  # noqa: S301 - made here

"""Frozen classes: what they refuse, what they give, and that other tools take them for dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

from hwcalc.formulas.frozen import field, fields, frozen, is_frozen, record, replace


@frozen
class Point:
    """A place."""

    unit: ClassVar[str] = "m"
    x: int
    y: int = 0
    names: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def total(self) -> int:
        """Both numbers."""
        return self.x + self.y


@frozen
class Marked(Point):
    """A place with a mark that must not be negative."""

    mark: int
    secret: str = field(default="none", repr=False, compare=False)
    seen: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mark < 0:
            raise ValueError("a mark is not negative")


def test_defaults() -> None:
    """What is not given is the default; a factory makes a new value each time; what is made by no argument is made as well."""
    first, second = Marked(x=1, mark=2), Marked(x=1, mark=2)

    assert vars(first) == {"x": 1, "y": 0, "names": {}, "mark": 2, "secret": "none", "seen": []}
    assert first.names is not second.names
    assert Point.y == 0
    assert not hasattr(Point, "names")


@pytest.mark.parametrize(
    "values, message",
    [
        ({}, "missing required keyword arguments: 'x', 'mark'"),
        ({"x": 1}, "missing required keyword arguments: 'mark'"),
        ({"x": 1, "mark": 1, "z": 1}, "unexpected keyword argument 'z'"),
        ({"x": 1, "mark": 1, "unit": "km"}, "unexpected keyword argument 'unit'"),
        ({"x": 1, "mark": 1, "seen": []}, "unexpected keyword argument 'seen'"),
    ],
)
def test_wrong_arguments(values: dict[str, Any], message: str) -> None:
    """The message names the class and the argument."""
    with pytest.raises(TypeError, match=message) as caught:
        Marked(**values)
    assert str(caught.value).startswith("Marked.__init__() ")


def test_checks() -> None:
    """A class checks its values itself, and a copy with other values is checked too."""
    with pytest.raises(ValueError, match="not negative"):
        Marked(x=1, mark=-1)
    with pytest.raises(ValueError, match="not negative"):
        replace(Marked(x=1, mark=1), mark=-1)


def test_frozen() -> None:
    """Nothing can be set or deleted, whether it is a field or not; a cached property can be read."""
    point: Any = Point(x=1)

    assert point.total == 1
    for name in ("x", "total", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x


def test_equal() -> None:
    """Values of one class are equal by the fields that count."""
    assert Marked(x=1, mark=1, secret="a") == Marked(x=1, mark=1, secret="b")
    assert Marked(x=1, mark=1) != Marked(x=1, mark=2)
    assert Point(x=1) != Marked(x=1, mark=0)
    assert hash(Plain(value=1)) == hash(Plain(value=1))
    assert repr(Marked(x=1, mark=1, secret="a")) == "Marked(x=1, y=0, names={}, mark=1)"


@frozen
class Plain:
    """Something that can be hashed."""

    value: int


def test_replace() -> None:
    """A copy with other values leaves out what was worked out, and what no argument sets; :func:`dataclasses.replace` agrees."""
    point = Marked(x=1, mark=1)
    point.seen.append("here")

    assert point.total == 1
    for change in (replace, dataclasses.replace):
        changed = change(point, x=2)
        assert (changed.x, changed.mark, changed.total, changed.seen) == (2, 1, 2, [])
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        replace(point, z=1)


@frozen
class Sum:
    """A sum, which is worked out of what a record keeps beside its fields."""

    name: str
    total: int = field(late=lambda made: sum(vars(made)["_parts"]))


def late_sum(name: str = "sum") -> Sum:
    """A sum that nobody has read yet."""
    return record(Sum, {"name": name, "_parts": (4, 5)})


def test_late() -> None:
    """A field that is worked out late is one like any other, and only a record may leave it out."""
    early, read = Sum(name="sum", total=9), late_sum()

    assert (read.total, "total" in vars(late_sum())) == (9, False)
    assert [late_sum(), read] == [early, early]
    assert (hash(late_sum()), repr(late_sum())) == (hash(early), "Sum(name='sum', total=9)")
    assert replace(late_sum(), name="other") == replace(read, name="other") == Sum(name="other", total=9)
    assert replace(late_sum(), total=1) == Sum(name="sum", total=1)
    assert dataclasses.asdict(late_sum()) == {"name": "sum", "total": 9}
    assert dataclasses.replace(late_sum(), name="other") == Sum(name="other", total=9)
    assert copy.deepcopy(late_sum()) == early
    assert pickle.loads(pickle.dumps(late_sum())) == early  # noqa: S301 - its own
    with pytest.raises(TypeError, match="missing required keyword arguments: 'total'"):
        Sum(name="sum")  # type: ignore[call-arg]


def test_other_tools_see_a_dataclass() -> None:
    """As :func:`dataclasses.dataclass` would have made it."""

    @dataclasses.dataclass(kw_only=True)
    class Twin:
        unit: ClassVar[str] = "m"
        x: int
        y: int = 0
        names: Mapping[str, int] = dataclasses.field(default_factory=dict)

    described: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(Point)
    assert [str(each) for each in described] == [str(each) for each in dataclasses.fields(Twin)]
    assert [each.name for each in dataclasses.fields(Marked)] == [each.name for each in fields(Marked)]
    assert dataclasses.is_dataclass(Marked(x=1, mark=1))
    assert is_frozen(Marked(x=1, mark=1))
    assert not is_frozen(Twin(x=1))
    assert dataclasses.asdict(Point(x=1)) == {"x": 1, "y": 0, "names": {}}
    assert (Point.y, Point(x=1).names) == (0, {})

    schema, twin = TypeAdapter(Point).json_schema(), TypeAdapter(Twin).json_schema()
    assert (schema["properties"], schema["required"]) == (twin["properties"], twin["required"])
    assert TypeAdapter(Point).validate_python({"x": "3"}) == Point(x=3)

    shown = inspect.signature(Marked).parameters.values()
    assert [each.name for each in shown] == ["x", "y", "names", "mark", "secret"]
    assert {each.kind for each in shown} == {inspect.Parameter.KEYWORD_ONLY}
    assert [each.name for each in shown if each.default is inspect.Parameter.empty] == ["x", "mark"]


def test_copies() -> None:
    """Pickles and deep copies are equal to what they were made of."""
    point = Marked(x=1, mark=1, names={"a": 1})

    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == copy.copy(point) == point  # noqa: S301 - its own

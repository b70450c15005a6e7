"""Named tuples that cost little to define.

``typing.NamedTuple`` compiles the annotation of every field, which nobody reads, and a ``__new__`` for each class. Here all
classes share their methods, and the library makes ``__new__`` for the first value: most commands make values of few of the classes that
they import.
"""

from __future__ import annotations

from collections import _tuplegetter, namedtuple  # type: ignore[attr-defined]
from functools import cache
from types import FunctionType

from hwcalc.formulas.hints import TYPE_CHECKING, Any, Final

__all__ = ["NamedTuple"]


def _first(cls: Any, /, *values: Any, **named: Any) -> Any:
    """Make the first value of a class, with the ``__new__`` that makes all others."""
    owner = next(each for each in cls.__mro__ if "_fields" in each.__dict__)
    new = _new_of(len(owner._fields))
    code = new.__code__.replace(co_varnames=("_cls", *owner._fields))
    made = FunctionType(code, new.__globals__, "__new__", tuple(owner._field_defaults.values()))
    made.__qualname__ = f"{owner.__name__}.__new__"
    owner.__new__ = staticmethod(made)
    return made(cls, *values, **named)


@cache
def _new_of(count: int) -> Any:
    """The library's ``__new__`` of so many fields. Classes of as many differ in the names alone, and to compile it takes longest."""
    return namedtuple("_Fields", [f"field_{place}" for place in range(count)]).__new__  # noqa: PYI024 - of a number known when it runs


@classmethod  # type: ignore[misc]
def _make(cls: Any, values: Any) -> Any:
    made = tuple.__new__(cls, values)
    if len(made) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
    return made


def _replace(self: Any, /, **change: Any) -> Any:
    made = self._make(map(change.pop, self._fields, self))
    if change:
        raise ValueError(f"Got unexpected field names: {list(change)!r}")
    return made


def _as_dict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


def _arguments(self: Any) -> tuple[Any, ...]:
    return tuple(self)


def _text(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=True))})"


_SHARED: Final[dict[str, Any]] = {
    "__slots__": (),
    "__new__": _first,
    "__repr__": _text,
    "__getnewargs__": _arguments,
    "__replace__": _replace,
    "_make": _make,
    "_replace": _replace,
    "_asdict": _as_dict,
}


@cache
def _getter(index: int) -> Any:
    """As the library's own getters, which are written in C: all classes share them."""
    return _tuplegetter(index, f"Alias for field number {index}")


class _Meta(type):
    """Makes a named tuple of a class body: its annotations are the fields, in their order."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = tuple(body["__annotations__"])
        made = _SHARED | body
        made["_fields"] = made["__match_args__"] = fields
        made["_field_defaults"] = {field: body[field] for field in fields if field in body}
        for index, field in enumerate(fields):
            made[field] = _getter(index)
        made.setdefault("__doc__", f"{name}({', '.join(fields)})")
        return type(name, (tuple,), made)


if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class NamedTuple(metaclass=_Meta):
        """As :class:`typing.NamedTuple`. Its module must import ``annotations`` from ``__future__``.

        >>> class Point(NamedTuple):
        ...     x: int
        ...     y: int = 0
        >>> Point(3), Point(3)._replace(y=1)
        (Point(x=3, y=0), Point(x=3, y=1))
        """

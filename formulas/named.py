"""Named tuples that cost little to define.

``typing.NamedTuple`` compiles the annotation of every field, which nobody reads, and a ``__new__`` for each class, which takes as long as
a hundred values. Here all classes share their methods: most commands make few values of most of the classes that they import.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable

from hwcalc.formulas.hints import TYPE_CHECKING, Any, Final

__all__ = ["NamedTuple"]

_FEW: Final = 100
_made: Final[dict[type, int]] = {}
"""How many values a class has, as long as they are few."""
_tuple_of: Final = tuple.__new__


def _new(cls: Any, /, *values: Any, **named: Any) -> Any:
    """A value of any of the classes. Of one that has many, the library makes what makes all others."""
    made = _made[cls] = _made.get(cls, 0) + 1
    if made > _FEW:
        owner = next(each for each in cls.__mro__ if "_fields" in each.__dict__)
        owner.__new__ = staticmethod(_compiled(owner))
        _made.pop(cls, None)
        return owner.__new__(cls, *values, **named)
    if named or len(values) != len(cls._fields):
        values = _all_values(cls, values, named)
    return _tuple_of(cls, values)


def _compiled(cls: Any) -> Callable[..., Any]:
    made: Any = namedtuple(cls.__name__, cls._fields, defaults=tuple(cls._field_defaults.values()))  # type: ignore[misc] # noqa: PYI024 - of fields known when it runs
    new: Callable[..., Any] = made.__new__
    return new


def _all_values(cls: Any, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The values of all fields, of those in their order, those by name, and the defaults."""
    fields = cls._fields
    given = cls._field_defaults | named
    twice = False
    if values:
        by_place = dict(zip(fields, values, strict=False))
        twice = len(values) > len(fields) or not by_place.keys().isdisjoint(named)
        given |= by_place
    # As many as there are fields, and one for each: then none has another name.
    if not twice and len(given) == len(fields):
        try:
            return tuple(map(given.__getitem__, fields))
        except KeyError:
            pass
    # Python knows best what is wrong with arguments.
    _compiled(cls)(cls, *values, **named)
    raise TypeError(f"{cls.__name__} cannot be made of {len(values)} values and {sorted(named)}")


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
    "__new__": _new,
    "__repr__": _text,
    "__getnewargs__": _arguments,
    "__replace__": _replace,
    "_make": _make,
    "_replace": _replace,
    "_asdict": _as_dict,
}


class _Meta(type):
    """Makes a named tuple of a class body: its annotations are the fields, in their order."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        # As the library's own getters, which are written in C.
        from collections import _tuplegetter  # type: ignore[attr-defined]

        fields = tuple(body["__annotations__"])
        made = _SHARED | body
        made["_fields"] = made["__match_args__"] = fields
        made["_field_defaults"] = {field: body[field] for field in fields if field in body}
        for index, field in enumerate(fields):
            made[field] = _tuplegetter(index, f"Alias for field number {index}")
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

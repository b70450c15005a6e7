"""Named tuples that cost little to define: ``typing.NamedTuple`` compiles the annotation of every field, which nobody reads."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, Final

__all__ = ["NamedTuple"]

_OWN: Final = frozenset({"__annotations__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"})

# What the typed ones are made with. The type checker reads its arguments as text.
_make: Final[Any] = namedtuple  # noqa: PYI024


class _Meta(type):
    """Makes a named tuple of a class body: its annotations are the fields, in their order."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = body["__annotations__"]
        defaults = [body[field] for field in fields if field in body]
        made = _make(name, fields, defaults=defaults, module=body["__module__"])
        made.__annotations__ = fields
        for key, value in body.items():
            if key not in _OWN and key not in fields:
                setattr(made, key, value)
        return made


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

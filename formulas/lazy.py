"""Attributes that are worked out when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable

from hwcalc.formulas.hints import Any, Generic, Self, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """As :func:`functools.cached_property`, which takes a lock at every first call in Python 3.11: a plan has hundreds of them.

    >>> class Square:
    ...     side = 3
    ...     @lazy
    ...     def area(self) -> int:
    ...         return self.side**2
    >>> one = Square()
    >>> one.area, vars(one)
    (9, {'area': 9})
    """

    def __init__(self, make: Callable[[Any], T], name: str | None = None) -> None:
        self.make = make
        self.name = name or make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: object, owner: type) -> T: ...
    def __get__(self, record: object | None, owner: type) -> Self | T:
        if record is None:
            return self
        found = record.__dict__[self.name] = self.make(record)
        return found
